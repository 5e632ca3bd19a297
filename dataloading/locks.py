"""Locks that neither a finaliser nor a fork can turn into a hang.

The garbage collector runs finalisers in whatever thread happens to allocate: one that holds a lock, one of our own, or
one that has not even begun. A finaliser of ours that stops threads waits for them, and they may wait for that very
thread. So our locks count how many of them the thread holds, threads of callers are known, and `run_outside` gives
what waits to a thread of its own unless it is a caller's that holds no lock.

In a forked child all locks are open: whoever held them does not exist there. Knows nothing of what locks protect.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable

__all__ = ["Lock", "from_caller", "run_outside"]


class _Held(threading.local):
    count = 0
    is_callers = False


_held = _Held()
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """A `threading.Lock` that is counted by the thread that holds it, and open again in a forked child.

    Examples
    --------
    >>> lock = Lock()
    >>> with lock:
    ...     lock.acquire(blocking=False)
    False
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _open_in_children()
        _locks.add(self)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, as `threading.Lock.acquire` does."""
        _held.count += 1  # before it is taken: a finaliser may run as soon as it is
        taken = False
        try:
            taken = self._lock.acquire(blocking, timeout)
        finally:
            if not taken:
                _held.count -= 1
        return taken

    def release(self) -> None:
        """Let go of the lock."""
        self._lock.release()
        _held.count -= 1

    def locked(self) -> bool:
        """Return whether any thread holds it."""
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def from_caller() -> None:
    """Note that the calling thread is not one of ours: none of them waits for it unless it holds a lock."""
    _held.is_callers = True


def run_outside(work: Callable[[], object]) -> None:
    """Do what waits for threads of ours: now, or on a thread of its own if they may be waiting for the calling one.

    Parameters
    ----------
    work : callable
        Must not raise. Not done at all where it needs a thread and the interpreter is ending.

    Examples
    --------
    >>> from_caller()
    >>> run_outside(lambda: print("done"))
    done
    """
    if _held.is_callers and not _held.count:
        work()
        return
    # Starting a thread waits for it, and finalisers may run in it before it begins: so the waiting is not done here.
    with contextlib.suppress(RuntimeError):  # the interpreter is ending, and all threads with it
        _thread.start_new_thread(_start, (work,))


def _start(work: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=work, name="beton-finaliser", daemon=True).start()


@functools.cache
def _open_in_children() -> None:
    def open_all() -> None:
        _held.count = 0
        for lock in list(_locks):
            lock._lock = threading.Lock()

    os.register_at_fork(after_in_child=open_all)
