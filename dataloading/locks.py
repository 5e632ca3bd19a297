"""Locks on files, which the system releases when the process that holds them ends, however it ends.

The `filelock` library would empty the file it locks; ours hold what their owner has done so far.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

__all__ = ["open_locked", "try_lock"]

_PAUSE_SECONDS = 0.1


def try_lock(descriptor: int, *, without_locks: bool = True) -> bool:
    """Lock an open file or folder until its descriptor is closed; False if another process holds the lock.

    Some network file systems have no locks: there the answer is `without_locks`.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return without_locks
    return True


def open_locked(
    path: str | os.PathLike[str],
    *,
    wait_seconds: float,
    flags: int = os.O_RDWR | os.O_CREAT,
    mode: int = 0o666,
) -> int:
    """Open a file or folder and hold its lock until the descriptor is closed.

    Parameters
    ----------
    path : str or path-like
    wait_seconds : float
        How long to wait for a process that holds the lock.
    flags : int
        For `os.open`; by default for reading and writing, and the file is made if it does not exist.
    mode : int
        Permissions of a new file, before the umask.

    Raises
    ------
    BlockingIOError
        Another process still holds it.
    OSError
        It cannot be opened.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
        if try_lock(descriptor):
            # The process that held it may have removed it in between.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
            os.close(descriptor)
            continue
        os.close(descriptor)
        if time.monotonic() >= deadline:
            raise BlockingIOError(f"another process holds {path}")
        time.sleep(_PAUSE_SECONDS)
