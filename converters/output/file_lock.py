"""A file that one process at a time holds. Knows nothing of what is in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

__all__ = ["open_locked"]

_PAUSE_SECONDS = 0.1


def open_locked(path: str, *, wait_seconds: float, mode: int = 0o666) -> int:
    """Open a file for reading and writing, made if it is not there, and hold its lock until the descriptor is closed.

    The system drops the lock with the process, so who holds it is alive. Where a file system has no locks, everybody
    gets the file.

    Parameters
    ----------
    path : str
        The file.
    wait_seconds : float
        How long to wait for a process that holds the lock.
    mode : int
        Permissions of a new file, before the umask.

    Raises
    ------
    BlockingIOError
        If another process holds it after so long.
    OSError
        If it cannot be opened.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
            continue
        except OSError:
            return descriptor  # a network file system without locks
        # The one that held it may have finished and removed it in between.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)
