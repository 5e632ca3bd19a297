"""Verifies that every byte of a ``.beton`` file is as it was written.

Runs the checks in order: checksums (:mod:`.check_bytes`), structure and contents (:mod:`.check_samples`), on a few
megabytes at a time. The caller passes a decoder for JPEGs.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dataloading.checks import at_least, true_or_false
from dataloading.errors import FormatError
from dataloading.limits import num_cores

from .check_bytes import Checksums, Progress
from .check_samples import Decode, check_contents, check_geometry, check_structure
from .findings import Findings, Problem, VerifyReport
from .reader import Reader

__all__ = ["Problem", "VerifyReport", "verify_file"]


def verify_file(
    path: str | os.PathLike[str],
    *,
    decode: Decode | None = None,
    decode_all: bool | None = None,
    num_workers: int | None = None,
    geometry: bool = False,
    max_problems: int = 1000,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check a file; damage is reported, never raised.

    A file that this library wrote is compared with its checksums, so any changed, missing or added bit is found. A file
    that FFCV wrote has none: its structure is checked, and its images are decoded if a decoder is given.

    Parameters
    ----------
    path : str or path-like
        The file.
    decode : callable, optional
        Takes a JPEG's bytes and raises if they do not decode; if it returns an array of shape (height, width, ...), its
        size must match the declared one. ``dataloading.decode_jpeg`` is one.
    decode_all : bool, optional
        Whether to decode every image, or only those with changed bytes. By default every image if the file has no
        checksums.
    num_workers : int, optional
        Threads; by default one per CPU that this process may use.
    geometry : bool
        Whether to report masks whose size differs from their image's, and boxes and points outside it.
    max_problems : int
        Stop after this many problems.
    progress : callable, optional
        Called with (bytes done, bytes in all) from the calling thread.

    Returns
    -------
    VerifyReport

    Raises
    ------
    OSError
        If the file cannot be opened at all.

    Examples
    --------
    >>> verify_file("train.beton").ok           # doctest: +SKIP
    True
    """
    name = os.fspath(path)
    workers = num_cores() if num_workers is None else at_least("num_workers", num_workers, 1)
    decode_all = None if decode_all is None else true_or_false("decode_all", decode_all)
    found = Findings(at_least("max_problems", max_problems, 1))
    num_bytes = Path(name).stat().st_size
    try:
        reader = Reader(name)
    except FormatError as error:
        found.add(Problem(region="header", message=str(error).removeprefix(f"{name}: ")))
        return found.report(name, num_samples=0, num_bytes=num_bytes, has_checksums=False, num_decoded=0)
    with reader, ThreadPoolExecutor(workers, thread_name_prefix="beton-verify") as pool:
        num_samples = reader.num_samples
        try:
            if reader.extension is not None:
                Checksums(reader, found, progress).run(pool, workers)
            damaged = found.samples()
            if not found.unreadable:
                check_structure(reader, found)
            if decode_all is None:
                decode_all = reader.extension is None
            wanted = ((0, num_samples),) if decode_all else damaged
            num_decoded = 0
            if not found.unreadable:
                num_decoded = check_contents(reader, found, wanted, decode, pool, workers)
            if geometry and not found.unreadable:
                check_geometry(reader, found)
        finally:
            pool.shutdown(cancel_futures=True)
    return found.report(
        name,
        num_samples=num_samples,
        num_bytes=num_bytes,
        has_checksums=reader.extension is not None,
        num_decoded=num_decoded,
    )
