"""Temporary local copies of data that is read at random: objects of stores, uncompressed archives.

A copy is an unlinked file in the system's temporary folder (``TMPDIR``), so it disappears when its process ends, even
by a crash. Other processes of the machine read it through ``/proc`` while that process lives. On another machine the
path is missing or leads to another file, so a copy checks its path when it is unpickled.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

from dataloading import ConvertError, UsageError
from dataloading.cli import note
from dataloading.messages import human_bytes
from dataloading.tools import is_url

from .reading import identity, open_stream, version

__all__ = ["LocalCopy", "copied", "local_paths"]

_BLOCK_BYTES = 4 << 20


class LocalCopy:
    """An unlinked temporary file, which disappears when this object is dropped.

    Parameters
    ----------
    what : str
        Its content; follows "the copy of" in messages.
    instead : str
        Advice for a machine that cannot see it, an imperative.

    Raises
    ------
    UsageError
        If it is unpickled on a machine that cannot see it.

    Examples
    --------
    >>> copy = LocalCopy("some bytes", "keep them in a file")
    >>> copy.file.write(b"abc"); copy.file.flush()
    3
    >>> open(copy.path, "rb").read()
    b'abc'
    """

    def __init__(self, what: str, instead: str) -> None:
        self.file: BinaryIO = cast(BinaryIO, tempfile.TemporaryFile(prefix="beton-"))  # noqa: SIM115 - lives as long
        self.path = f"/proc/{os.getpid()}/fd/{self.file.fileno()}"
        self._what = what
        self._instead = instead
        weakref.finalize(self, self.file.close)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None, "_stamp": _stamp(self.path)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not state["_stamp"] or _stamp(self.path) != state["_stamp"]:
            raise UsageError(
                f"the copy of {self._what} is a temporary file of the machine that started the conversion, which this "
                f"one cannot see: {self._instead}"
            )


def _stamp(path: str) -> tuple[int, ...]:
    """Return a file's identity; "" if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def local_paths(paths: Sequence[str]) -> tuple[list[str], list[LocalCopy]]:
    """Copy the URLs among ``paths``, after checking the space for all of them.

    Returns
    -------
    paths : list of str
        The local path of each file.
    copies : list of LocalCopy
        The copies, which must be kept and pickled with the paths.

    Raises
    ------
    ConvertError
        If one cannot be read, changes during the copy, or there is no space.
    """
    urls = [path for path in paths if is_url(path)]
    if not urls:
        return list(paths), []
    needed = sum(identity(url).size for url in urls)
    folder = tempfile.gettempdir()
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise ConvertError(
            f"{urls[0]}{f' and {len(urls) - 1} more files' if len(urls) > 1 else ''}: reading in many places needs a "
            f"copy of {human_bytes(needed)} in {folder}, which has {human_bytes(free)} free; set TMPDIR to a folder "
            "with more room, or download the files"
        )
    note(f"copying {human_bytes(needed)} from {urls[0].partition('://')[0]}:// to a temporary file in {folder}")
    copies = {url: copied(url, url, "download it to a folder that all machines see") for url in urls}
    return [copies[path].path if path in copies else path for path in paths], list(copies.values())


def copied(url: str, what: str, instead: str) -> LocalCopy:
    """Copy one object; its space is reserved first. See `LocalCopy` and `local_paths`."""
    copy = LocalCopy(what, instead)
    size, before = identity(url).size, version(url)
    try:
        if size:
            os.posix_fallocate(copy.file.fileno(), 0, size)
        with open_stream(url) as file:
            while block := file.read(_BLOCK_BYTES):
                copy.file.write(block)
        copy.file.flush()
    except OSError as error:
        raise ConvertError(f"{url} cannot be copied to {tempfile.gettempdir()}: {error.strerror or error}") from error
    if version(url) != before or copy.file.tell() != size:
        raise ConvertError(f"{url} has been changed while it was copied; start again")
    return copy
