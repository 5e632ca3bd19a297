"""A file that exists under its name only when it is complete.

Owns the temporary name, the lock that tells whether its writer is alive, the durable, atomic change to the real name,
and the removal of what was not finished. It knows nothing of what is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import tempfile
from pathlib import Path
from typing import IO

__all__ = ["PartFile", "sync_folder"]


class PartFile:
    """An unfinished file, hidden beside its destination as ``.name.beton.part-XXXXXXXX``.

    Parameters
    ----------
    path : str
        The destination.
    overwrite : bool
        Whether an existing destination may be replaced.
    part : str, optional
        The temporary file's own name, on the destination's disk. Whoever names it owns it: only `publish` and
        `discard` take it away, an error or the end of the process leave it, to be gone on with.
    go_on : bool
        Whether ``part`` exists and is to be continued.

    Raises
    ------
    FileExistsError
        If the destination exists and ``overwrite`` is false.
    FileNotFoundError
        If ``part`` is to be continued and does not exist.
    """

    def __init__(self, path: str, *, overwrite: bool, part: str | None = None, go_on: bool = False) -> None:
        self._fd: int | None = None
        self._path = path
        self._overwrite = overwrite
        self._owner = os.getpid()
        self._scratch: IO[bytes] | None = None
        self._is_kept = part is not None
        if Path(path).is_dir():
            raise IsADirectoryError(f"{path} is a folder; name the file to write in it")
        if not overwrite and os.path.lexists(path):
            raise FileExistsError(f"{path} exists; pass overwrite=True to replace it")
        folder, name = os.path.split(path)
        self._folder = folder or os.curdir
        hidden = f".{name.removesuffix('.beton')}.beton.part-{secrets.token_hex(4)}"
        self.part = str(Path(self._folder) / hidden) if part is None else part
        flags = os.O_RDWR | os.O_CLOEXEC
        if not go_on:
            flags |= os.O_CREAT | (os.O_EXCL if part is None else os.O_TRUNC)
        # Not tempfile: the finished file should have the permissions that any new file gets.
        self._fd = os.open(self.part, flags, 0o666)
        # The system drops the lock with the process, so a file without one has lost its writer.
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def is_open(self) -> bool:
        """Whether the file is neither published nor discarded."""
        return self._fd is not None

    def scratch(self, buffer_bytes: int) -> IO[bytes]:
        """Return a file without a name on the same disk, gone when this one is published or discarded."""
        try:
            self._scratch = tempfile.TemporaryFile(dir=self._folder, buffering=buffer_bytes)  # noqa: SIM115
        except BaseException:
            self.give_up()
            raise
        return self._scratch

    def write_at(self, position: int, view: memoryview) -> None:
        """Write all of ``view`` at ``position``."""
        assert self._fd is not None
        while len(view):
            written = os.pwrite(self._fd, view, position)
            view = view[written:]
            position += written

    def read_at(self, position: int, size: int) -> bytes:
        """Return ``size`` bytes at ``position``; what lies behind the file's end counts as zeros."""
        assert self._fd is not None
        parts = []
        while size and (data := os.pread(self._fd, size, position)):
            parts.append(data)
            position += len(data)
            size -= len(data)
        return b"".join(parts) + bytes(size)

    def truncate(self, size: int) -> None:
        """Set the file's length in bytes; new bytes are zero."""
        assert self._fd is not None
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Put what was written on the disk; may run in another thread than the writes."""
        assert self._fd is not None
        os.fdatasync(self._fd)

    def publish(self) -> None:
        """Put everything on the disk, then give the file its name, in one step that cannot be seen half done."""
        assert self._fd is not None
        os.fsync(self._fd)
        if self._overwrite:
            Path(self.part).replace(self._path)
        else:
            self._publish_new()
        self.discard()
        sync_folder(self._folder)

    def _publish_new(self) -> None:
        try:
            # Unlike a rename, a link never replaces a file that has appeared in the meantime.
            os.link(self.part, self._path)
        except FileExistsError:
            raise FileExistsError(f"{self._path} has appeared meanwhile; pass overwrite=True to replace it") from None
        except OSError:
            # A file system without hard links.
            if os.path.lexists(self._path):
                raise FileExistsError(f"{self._path} has appeared meanwhile") from None
            Path(self.part).replace(self._path)

    def discard(self) -> None:
        """Remove what has not been published; does nothing the second time."""
        if self._close():
            with contextlib.suppress(FileNotFoundError):
                Path(self.part).unlink()

    def give_up(self) -> None:
        """Stop writing: remove the file, or leave it where its name was given. Does nothing the second time."""
        if self._is_kept:
            self._close()
        else:
            self.discard()

    def _close(self) -> bool:
        if self._fd is None:
            return False
        os.close(self._fd)
        self._fd = None
        if self._scratch is not None:
            # What it still buffers may not fit the disk; nobody needs it.
            with contextlib.suppress(OSError):
                self._scratch.close()
        return True

    def __del__(self) -> None:
        # A forked child has a copy of this object, but does not own the file.
        if self._fd is not None and self._owner == os.getpid():
            self.give_up()


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Put a folder's list of names on the disk, so that a file just renamed there survives a power cut.

    Parameters
    ----------
    path : str or path-like
        The folder; an empty string is the current one.
    """
    folder = os.open(path or os.curdir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
