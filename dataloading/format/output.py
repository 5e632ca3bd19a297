"""Files and folders that get their names only when they are complete.

Unfinished output is called ``.NAME.part-XXXXXXXX`` beside its destination ``NAME``. Its writer holds a lock on it,
renames it atomically and durably when it is complete, and removes it otherwise. If a writer dies, a later one finds the
lock free and removes the file.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from dataloading.locks import try_lock

__all__ = ["PartFile", "PartFolder", "remove_orphans", "sync_folder", "whole_file"]

_SYNCED_BYTES = 16 << 20
"""So many bytes are written before another thread flushes them to the disk."""
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
        Path of the temporary file, on the destination's file system. Only `publish` and `discard` remove such a file;
        after an error or the end of the process it stays, so that writing can resume.
    keep_part : bool
        Whether to resume the existing file ``part``.
    ending : str
        Suffix of the temporary name, for programs that choose a file's format by its suffix.

    Raises
    ------
    FileExistsError
        If the destination exists and ``overwrite`` is false.
    FileNotFoundError
        If ``part`` is to be resumed and does not exist.
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
        self._num_unsynced = 0
        self._syncing: threading.Thread | None = None
        self._sync_failure: OSError | None = None
        self._sync_lock = threading.Lock()
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
        # The caller who names the file makes sure that it has one writer; the lock only shows that the writer is alive.
        try_lock(self._fd)

    @property
    def is_open(self) -> bool:
        """Whether the file is neither published nor discarded."""
        return self._fd is not None

    def scratch(self, buffer_bytes: int) -> IO[bytes]:
        """Return an unnamed file on the same disk; it is deleted when this file is published or discarded."""
        try:
            self._scratch = tempfile.TemporaryFile(dir=self._folder, buffering=buffer_bytes)  # noqa: SIM115
        except BaseException:
            self.give_up()
            raise
        return self._scratch

    def write_at(self, position: int, view: memoryview) -> None:
        """Write all of ``view`` at ``position``."""
        assert self._fd is not None
        self._num_unsynced += len(view)
        while len(view):
            written = os.pwrite(self._fd, view, position)
            view = view[written:]
            position += written
        # The disk works meanwhile, so that little is left for `publish` to wait for.
        if self._num_unsynced >= _SYNCED_BYTES and (self._syncing is None or not self._syncing.is_alive()):
            self._num_unsynced = 0
            self._syncing = _started(self._sync_behind, daemon=False)

    def _sync_behind(self) -> None:
        with contextlib.suppress(OSError):  # `publish` raises it
            self.sync()

    def read_at(self, position: int, size: int) -> bytes:
        """Return ``size`` bytes at ``position``; bytes after the file's end count as zeros."""
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
        """Flush written data to the disk; may run in another thread than the writes.

        Raises
        ------
        OSError
            If the disk refuses, or has refused before: the system reports lost data only once.
        """
        assert self._fd is not None
        with self._sync_lock:
            if self._sync_failure is None:
                try:
                    os.fdatasync(self._fd)
                except OSError as error:
                    self._sync_failure = error
            if self._sync_failure is not None:
                raise self._sync_failure

    def publish(self) -> None:
        """Flush everything to the disk, then rename the file atomically to its destination."""
        assert self._fd is not None
        self.sync()
        _rename(self.part, self._path, overwrite=self._overwrite)
        self.discard()
        sync_folder(self._folder)

    def discard(self) -> None:
        """Remove the file unless it was published; may be called twice."""
        if self._close():
            with contextlib.suppress(FileNotFoundError):
                Path(self.part).unlink()

    def give_up(self) -> None:
        """Stop writing: remove the file, or keep it if its name was given. May be called twice."""
        if self._is_kept:
            self._close()
        else:
            self.discard()

    def _close(self) -> bool:
        if self._fd is None:
            return False
        # The thread itself comes here if it held the last reference to this object.
        if self._syncing is not None and self._syncing is not threading.current_thread():
            self._syncing.join()
        os.close(self._fd)
        self._fd = None
        if self._scratch is not None:
            # Buffered data may not fit the disk, and is not needed.
            with contextlib.suppress(OSError):
                self._scratch.close()
        return True

    def __del__(self) -> None:
        # A forked child has a copy of this object, but does not own the file.
        if self._fd is not None and self._owner == os.getpid():
            self.give_up()


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, overwrite: bool = True) -> Iterator[str]:
    """Yield a temporary name to write to; the file is renamed to ``path`` if the block succeeds, else removed.

    The temporary name has the suffix of ``path``, since image writers choose the format by it. A path that is not a
    regular file, such as ``/dev/stdout``, is written to directly.

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
        If the file exists and ``overwrite`` is false.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        yield os.fspath(path)
        return
    file = PartFile(str(target.resolve()), overwrite=overwrite, ending=target.suffix)  # a symbolic link stays one
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
        The destination, or a file whose parts are collected in the folder.

    Attributes
    ----------
    part : str
        The folder's temporary path.

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
        """Take over the unfinished folders that dead writers left for a destination, and hold their locks.

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
            If the destination exists.
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
            If the destination exists and ``overwrite`` is false.
        """
        _rename(str(Path(self.part) / name), path, overwrite=overwrite)

    def discard(self) -> None:
        """Remove the folder unless it was published; may be called twice."""
        if self._fd is not None:
            shutil.rmtree(self.part, ignore_errors=True)
            self.close()

    def close(self) -> None:
        """Release the lock and keep the folder, as if its writer had died."""
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
    """Remove the unfinished files and folders that dead writers left for some destinations; return their paths.

    A live writer holds a lock; on a file system without locks, nothing is found.

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
    """Yield the paths that dead writers left, each with a descriptor that holds its lock until the next one."""
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
    # NFS locks need a file that is open for writing; folders cannot be locked there.
    how = os.O_RDONLY | os.O_DIRECTORY if stat.S_ISDIR(mode) else os.O_RDWR
    descriptor = os.open(part, how | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _begin(folder: str, name: str, create: Callable[[str], int | None], ending: str = "") -> tuple[str, int]:
    """Create a hidden temporary file or folder for ``name``; return its path and a locked descriptor."""
    while True:
        part = str(Path(folder) / f".{name}.part-{secrets.token_hex(4)}{ending}")
        descriptor = create(part)
        if descriptor is None:
            continue
        # Between creating and locking, another process may have taken it for an orphan and removed it.
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


def _started(work: Callable[..., object], *arguments: object, daemon: bool) -> threading.Thread | None:
    """Run ``work`` in a thread, which Python's exit does not wait for if ``daemon``; None if no thread can start."""
    thread = threading.Thread(target=work, args=arguments, name="beton-output", daemon=daemon)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _rename(part: str, path: str, *, overwrite: bool) -> None:
    if overwrite:
        replaced = None
        with contextlib.suppress(OSError):
            replaced = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        Path(part).replace(path)
        # The system frees the old file's blocks when it is closed, which takes 0.1 s for 150 MB.
        if replaced is not None and _started(os.close, replaced, daemon=True) is None:
            os.close(replaced)
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
    """Flush a folder to the disk, so that a file just renamed in it survives a power failure.

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
