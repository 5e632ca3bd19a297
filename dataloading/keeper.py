"""Threads that start and end shared resources, so that Ctrl-C cannot interrupt either step.

Python runs signal handlers in its main thread only, between any two instructions. So steps that must not be interrupted
(starting threads, taking locks, stopping and waiting) run on a thread of ours, one per `Kept` value. The caller only
sends a request and waits, both in C code. An exception may end that wait at any time; the thread still completes its
work.
"""

from __future__ import annotations

import _thread
import atexit
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from dataloading._native import Gate, close_gates, this_thread_is_own

__all__ = ["Kept", "on_own_thread", "wait_for_threads"]

T = TypeVar("T")

# A dropped value's threads end in milliseconds, unless they run the user's code.
_DROPPED_SECONDS = 2.0
_EXIT_SECONDS = 5.0


class Kept(Generic[T]):
    """A value that a thread of ours creates, and ends when `end` is called or this object is garbage-collected.

    Parameters
    ----------
    begin : callable
        Creates the value; its exceptions are raised again here.
    end : callable
        ``end(value)`` is called once, even if the caller stopped waiting for `begin`. Neither may refer to this object.

    Notes
    -----
    The thread that drops this object waits up to two seconds for `end`, in C code: it holds no lock, a signal ends the
    wait, and threads of ours do not wait at all.

    Examples
    --------
    >>> kept = Kept(lambda: "value", lambda value: print("the end of the", value))
    >>> kept.value
    'value'
    >>> kept.end()
    the end of the value
    """

    def __init__(self, begin: Callable[[], T], end: Callable[[T], object]) -> None:
        self._shared = shared = _Shared(begin, end)
        _end_at_exit()
        try:
            # Not a threading.Thread, whose start Ctrl-C can interrupt.
            _thread.start_new_thread(_keep, (shared, weakref.ref(self)))
            shared.begun.wait()
        except BaseException:
            # The traceback may keep this object alive for long.
            shared.requests.put(None)
            raise
        error, shared.error = shared.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame

    @property
    def value(self) -> T:
        """The value that `begin` created."""
        return cast(T, self._shared.value)

    def end(self) -> None:
        """End the value and wait for that. Not for forked children."""
        self._shared.requests.put(None)
        self._shared.ended.wait()


class _Shared:
    """State shared by a kept value's owner and its thread."""

    def __init__(self, begin: Callable[[], Any], end: Callable[[Any], object]) -> None:
        self.begin: Callable[[], Any] | None = begin
        self.end: Callable[[Any], object] | None = end
        self.requests: SimpleQueue[object] = SimpleQueue()  # any item requests the end
        self.begun, self.ended = Gate(), Gate()
        self.value: Any = None
        self.error: BaseException | None = None
        self.watch: tuple[weakref.ref[Any], ...] = ()

    def follow(self, reference: weakref.ref[Any]) -> None:
        """Request the end when the owner is garbage-collected; the thread that drops it waits."""
        owner = reference()
        if owner is None:
            self.requests.put(None)
            return
        waits = weakref.ref(owner, self.ended.as_callback(_DROPPED_SECONDS))
        self.watch = waits, weakref.ref(owner, self.requests.put)  # callbacks run newest first


def _keep(shared: _Shared, owner: weakref.ref[Any]) -> None:
    this_thread_is_own()
    _all_shared.add(shared)
    try:
        shared.follow(owner)
        _begin_and_end(shared)
    finally:
        # Before the waiting thread continues, so that it drops the last references.
        shared.begin = shared.end = shared.value = None
        _all_shared.discard(shared)
        shared.ended.open()


def _begin_and_end(shared: _Shared) -> None:
    assert shared.begin is not None
    assert shared.end is not None
    try:
        shared.value = shared.begin()
    except BaseException as error:  # it is raised again in the caller's thread
        shared.error = error
        return
    finally:
        shared.begun.open()
    shared.requests.get()
    shared.end(shared.value)


_all_shared: set[_Shared] = set()


@functools.cache
def _end_at_exit() -> None:
    """End all values before the interpreter is finalised; forked children have none."""
    atexit.register(_end_all)
    os.register_at_fork(after_in_child=_all_shared.clear)


def _end_all() -> None:
    left = list(_all_shared)
    for shared in left:
        shared.requests.put(None)
    deadline = time.monotonic() + _EXIT_SECONDS
    for shared in left:
        shared.ended.wait_at_most(deadline - time.monotonic())
    close_gates()


def on_own_thread(work: Callable[[], T], name: str) -> T:
    """Run `work` on a new thread and wait for it. Only our own threads may call this.

    The `threading` module does not know a keeper's thread; work that starts further threads needs one that it knows.
    """
    results: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        this_thread_is_own()
        try:
            results.put((work(), None))
        except BaseException as error:  # it is raised again by whoever waits
            results.put((None, error))

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    result, error = results.get()
    wait_for_threads([thread])
    if error is not None:
        raise error
    return cast(T, result)


def wait_for_threads(threads: list[threading.Thread]) -> None:
    """Wait for threads that are about to end. `Thread.join` would register the calling thread with `threading`."""
    for thread in threads:
        while thread.is_alive():
            time.sleep(0.0001)
