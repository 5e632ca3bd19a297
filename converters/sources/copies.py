"""Objects of stores copied to this machine, for what must be read in many places: arrays, Arrow and ``.beton`` files.

Each is fetched once, into a nameless temporary file (``spool.py``) that is gone with the process, however that ends.
The room is looked at before the first one comes, and taken before its bytes do.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

from dataloading import ConvertError
from dataloading.cli import note

from ..report import human_bytes
from .opening import identity, is_url, open_stream, version
from .spool import Spool

__all__ = ["fetched"]

_COPY_BYTES = 4 << 20


def fetched(paths: Sequence[str]) -> tuple[list[str], list[Spool]]:
    """Copy those of some files that are URLs.

    Parameters
    ----------
    paths : sequence of str
        Paths and URLs.

    Returns
    -------
    paths : list of str
        Where each can be read on this machine.
    spools : list of Spool
        What keeps the copies; to travel wherever the paths do.

    Raises
    ------
    ConvertError
        If one cannot be read, changes meanwhile, or there is no room for all of them.
    """
    urls = [path for path in paths if is_url(path)]
    if not urls:
        return list(paths), []
    sizes = {url: identity(url).size for url in urls}
    folder = tempfile.gettempdir()
    status = os.statvfs(folder)
    free, needed = status.f_bavail * status.f_frsize, sum(sizes.values())
    if needed > free:
        raise ConvertError(
            f"{urls[0]}{f' and {len(urls) - 1} more files' if len(urls) > 1 else ''}: reading in many places needs a "
            f"copy of {human_bytes(needed)} in {folder}, which has {human_bytes(free)} free; set TMPDIR to a folder "
            "with more room, or download the files"
        )
    note(f"copying {human_bytes(needed)} from {urls[0].partition('://')[0]}:// to a temporary file in {folder}")
    spools = {url: _copied(url, sizes[url]) for url in urls}
    return [spools[path].path if path in spools else path for path in paths], list(spools.values())


def _copied(url: str, size: int) -> Spool:
    spool = Spool(url, "download it to a folder that all machines see")
    before = version(url)
    try:
        if size:
            os.posix_fallocate(spool.file.fileno(), 0, size)
        with open_stream(url) as file:
            while block := file.read(_COPY_BYTES):
                spool.file.write(block)
        spool.file.flush()
    except OSError as error:
        raise ConvertError(f"{url} cannot be copied to {tempfile.gettempdir()}: {error.strerror or error}") from error
    if version(url) != before or spool.file.tell() != size:
        raise ConvertError(f"{url} has been changed while it was copied; start again")
    return spool
