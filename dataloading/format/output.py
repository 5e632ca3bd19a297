"""Files and folders that exist under their names only when they are complete.

Owns the temporary names, ``.NAME.part-XXXXXXXX`` beside the destination ``NAME``, the lock that tells whether a writer
is alive, the durable, atomic change to the real name, and the removal of what was not finished, by its own writer or,
where that is gone, by a later one. It knows nothing of what is written.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from dataloading.locks import try_lock

__all__ = ["PartFile", "PartFolder", "remove_orphans", "sync_folder", "whole_file"]

_PART = re.compile(r"\.(.+)\.part-[0-9a-f]{8}(\.[^.]*)?", re.DOTALL)


class PartFile:
    """An unfinished file, hidden beside its destination as ``.NAME.part-XXXXXXXX``.

    Parameters
    ----------
    path : str
        The destination.
    overwrite : bool
        Whether an existing destination may be replaced.
    part : str, optional
        The temporary file's own name, on the destination's disk. Only `publish` and `discard` remove such a file; an
        error or the end of the process leaves it, so that it can be continued.
    keep_part : bool
        Whether ``part`` exists and is to be continued.
    ending : str
        Ends the temporary name, for programs that choose a file's format by its ending.

    Raises
    ------
    FileExistsError
        If the destination exists and ``overwrite`` is false.
    FileNotFoundError
        If ``part`` is to be continued and does not exist.
    """

    def __init__(
        self, path: str, *, overwrite: bool, part: str | None = None, keep_part: bool = False, ending: str = ""
    ) -> None:
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
        # Not tempfile: the finished file should have the permissions that any new file gets.
        flags = os.O_RDWR | os.O_CLOEXEC
        if part is None:
            self.part, self._fd = _begin(self._folder, name, lambda new: _create(new, flags), ending)
            return
        self.part = part
        self._fd = os.open(part, flags | (0 if keep_part else os.O_CREAT | os.O_TRUNC), 0o666)
        # Whoever names the file sees to it that nobody else writes it; the lock only says that a writer lives.
        try_lock(self._fd)

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
        _rename(self.part, self._path, overwrite=self._overwrite)
        self.discard()
        sync_folder(self._folder)

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


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, overwrite: bool = True) -> Iterator[str]:
    """Give a name beside ``path`` to write to; ``path`` gets the file when the block ends, and nothing on an error.

    The name has the ending of ``path``, from which writers of pictures take the format. What is no regular file, such
    as ``/dev/stdout``, is written to directly.

    Parameters
    ----------
    path : str or path-like
        The file to make or replace.
    overwrite : bool
        Whether an existing file may be replaced.

    Yields
    ------
    str
        Where to write.

    Raises
    ------
    FileExistsError
        If the file exists and must be kept.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        yield os.fspath(path)
        return
    file = PartFile(str(target.resolve()), overwrite=overwrite, ending=target.suffix)  # a link stays one
    try:
        yield file.part
        file.publish()
    finally:
        file.discard()


class PartFolder:
    """An unfinished folder, hidden beside its destination as ``.NAME.part-XXXXXXXX``.

    Parameters
    ----------
    path : str
        The destination, or a file for which something is gathered in the folder.

    Attributes
    ----------
    part : str
        Where the folder is now.

    Examples
    --------
    >>> with PartFolder("out") as folder:
    ...     _ = Path(folder.part, "a.txt").write_text("done")
    ...     folder.publish()
    >>> Path("out/a.txt").read_text()
    'done'
    """

    def __init__(self, path: str) -> None:
        folder, name = os.path.split(path)
        self._path = path
        self._owner = os.getpid()
        self._fd: int | None = None
        self.part, self._fd = _begin(folder or os.curdir, name, _create_folder)

    @classmethod
    def abandoned(cls, path: str) -> list[PartFolder]:
        """Take over the unfinished folders of dead writers to a destination; whoever does holds their locks.

        Parameters
        ----------
        path : str
            The destination.
        """
        result = []
        for part, descriptor in _orphans((path,)):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                taken = cls.__new__(cls)
                taken._path, taken._owner, taken.part, taken._fd = path, os.getpid(), part, os.dup(descriptor)
                result.append(taken)
        return result

    def publish(self) -> None:
        """Give the folder its name.

        Raises
        ------
        FileExistsError
            If something of that name is there.
        """
        if os.path.lexists(self._path):
            raise FileExistsError(f"{self._path} has appeared meanwhile; choose another folder")
        Path(self.part).rename(self._path)
        self.close()
        sync_folder(os.path.dirname(self._path))

    def publish_file(self, name: str, path: str, *, overwrite: bool) -> None:
        """Move a file out of the folder to its destination on the same disk.

        Parameters
        ----------
        name : str
            The file's name in the folder.
        path : str
            Its destination.
        overwrite : bool
            Whether an existing file may be replaced.

        Raises
        ------
        FileExistsError
            If there is one and it must stay.
        """
        _rename(str(Path(self.part) / name), path, overwrite=overwrite)

    def discard(self) -> None:
        """Remove the folder, unless it was published. Does nothing the second time."""
        if self._fd is not None:
            shutil.rmtree(self.part, ignore_errors=True)
            self.close()

    def close(self) -> None:
        """Give up the lock, leaving the folder to whoever looks for those of dead writers."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> PartFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None and self._owner == os.getpid():
            self.discard()


def remove_orphans(*paths: str, remove: bool = True) -> list[str]:
    """Return the unfinished files and folders of dead writers to some destinations, and remove them.

    A writer that lives holds a lock; where the file system has no locks, nothing is found.

    Parameters
    ----------
    *paths : str
        The destinations.
    remove : bool
        Whether to remove what is found.

    Returns
    -------
    list of str
        Sorted within each folder.

    Examples
    --------
    >>> _ = Path(".x.beton.part-0123abcd").write_bytes(b"half")
    >>> writer = PartFile("x.beton", overwrite=False)
    >>> remove_orphans("x.beton"), os.path.exists(writer.part)
    (['.x.beton.part-0123abcd'], True)
    >>> writer.discard()
    """
    found = []
    for part, descriptor in _orphans(paths):
        if not remove:
            found.append(part)
            continue
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            shutil.rmtree(part, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(part)
        if not os.path.lexists(part):
            found.append(part)
    return found


def _orphans(paths: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield what dead writers have left, each with a descriptor that holds its lock until the next one."""
    names: dict[str, set[str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        names.setdefault(folder, set()).add(name)
    for folder, wanted in names.items():
        try:
            entries = sorted(os.listdir(folder or os.curdir))
        except OSError:
            continue
        for entry in entries:
            match = _PART.fullmatch(entry)
            if match is None or match[1] not in wanted:
                continue
            part = os.path.join(folder, entry)
            with contextlib.suppress(OSError), _opened(part) as descriptor:
                if try_lock(descriptor, without_locks=False) and _is_same(descriptor, part):
                    yield part, descriptor


@contextlib.contextmanager
def _opened(part: str) -> Iterator[int]:
    mode = os.lstat(part).st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise FileNotFoundError(f"{part} is neither a file nor a folder")
    # A lock over NFS needs a file that is open for writing; folders have none there.
    how = os.O_RDONLY | os.O_DIRECTORY if stat.S_ISDIR(mode) else os.O_RDWR
    descriptor = os.open(part, how | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _begin(folder: str, name: str, create: Callable[[str], int | None], ending: str = "") -> tuple[str, int]:
    """Make something hidden in a folder for a destination called ``name``; return its path and a locked descriptor."""
    while True:
        part = str(Path(folder) / f".{name}.part-{secrets.token_hex(4)}{ending}")
        descriptor = create(part)
        if descriptor is None:
            continue
        # Between making and locking, somebody who looks for orphans may have taken it for one.
        if try_lock(descriptor) and _is_same(descriptor, part):
            return part, descriptor
        with contextlib.suppress(OSError):
            (os.rmdir if os.path.isdir(part) else os.unlink)(part)
        os.close(descriptor)


def _create(part: str, flags: int) -> int:
    return os.open(part, flags | os.O_CREAT | os.O_EXCL, 0o666)


def _create_folder(part: str) -> int | None:
    os.mkdir(part)
    with contextlib.suppress(FileNotFoundError):
        return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return None


def _is_same(descriptor: int, part: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(part))
    except FileNotFoundError:
        return False


def _rename(part: str, path: str, *, overwrite: bool) -> None:
    if overwrite:
        Path(part).replace(path)
        return
    try:
        # Unlike a rename, a link never replaces a file that has appeared in the meantime.
        os.link(part, path)
    except FileExistsError:
        raise FileExistsError(f"{path} has appeared meanwhile; pass overwrite=True to replace it") from None
    except OSError:
        # A file system without hard links.
        if os.path.lexists(path):
            raise FileExistsError(f"{path} has appeared meanwhile") from None
        Path(part).replace(path)


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
