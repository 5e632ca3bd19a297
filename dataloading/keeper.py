"""Threads that begin and end what others use, so that neither can be cut short by Ctrl-C.

Python runs signal handlers in its main thread only, between any two instructions. Whatever must be done as a whole
(starting threads, taking locks, stopping and waiting) therefore runs on a thread of ours, one for each `Kept` value.
The caller only leaves a note and waits, both in C code; an exception may leave that wait at any time, and the thread
does its work all the same.
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

# A dropped value's threads end in milliseconds, unless code of the user's holds them up.
_DROPPED_SECONDS = 2.0
_EXIT_SECONDS = 5.0


class Kept(Generic[T]):
    """A value that a thread of ours makes, and ends when nobody refers to this object any more, or on `end`.

    Parameters
    ----------
    begin : callable
        Makes the value; what it raises is raised again here.
    end : callable
        ``end(value)`` is called once, also where the caller left before `begin` was done. Neither may refer to this
        object.

    Notes
    -----
    Whoever drops this object waits a moment for `end`. The wait is C code: it holds no lock, a signal ends it, and
    threads of ours do not wait at all.

    Examples
    --------
    >>> kept = Kept(lambda: "value", lambda value: print("the end of the", value))
    >>> kept.value
    'value'
    >>> kept.end()
    the end of the value
    """

    def __init__(self, begin: Callable[[], T], end: Callable[[T], object]) -> None:
        self._bond = bond = _Bond(begin, end)
        _end_at_exit()
        try:
            # Not a threading.Thread, whose start can be cut short like anything else.
            _thread.start_new_thread(_keep, (bond, weakref.ref(self)))
            bond.begun.wait()
        except BaseException:
            # The traceback may keep this object alive for long.
            bond.requests.put(None)
            raise
        error, bond.error = bond.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame

    @property
    def value(self) -> T:
        """What `begin` made."""
        return cast(T, self._bond.value)

    def end(self) -> None:
        """End the value and wait for that; not in a process that was forked from the value's."""
        self._bond.requests.put(None)
        self._bond.ended.wait()


class _Bond:
    """What a kept value's owner and its thread share."""

    def __init__(self, begin: Callable[[], Any], end: Callable[[Any], object]) -> None:
        self.begin: Callable[[], Any] | None = begin
        self.end: Callable[[Any], object] | None = end
        self.requests: SimpleQueue[object] = SimpleQueue()  # anything in it asks for the end
        self.begun, self.ended = Gate(), Gate()
        self.value: Any = None
        self.error: BaseException | None = None
        self.watch: tuple[weakref.ref[Any], ...] = ()

    def follow(self, reference: weakref.ref[Any]) -> None:
        """Ask for the end when the owner is gone; whoever drops it waits."""
        owner = reference()
        if owner is None:
            self.requests.put(None)
            return
        waits = weakref.ref(owner, self.ended.as_callback(_DROPPED_SECONDS))
        self.watch = waits, weakref.ref(owner, self.requests.put)  # the youngest is called first


def _keep(bond: _Bond, owner: weakref.ref[Any]) -> None:
    this_thread_is_own()
    _bonds.add(bond)
    try:
        bond.follow(owner)
        _begin_and_end(bond)
    finally:
        # Before anybody goes on who waits: what the value used is then the waiting thread's to drop.
        bond.begin = bond.end = bond.value = None
        _bonds.discard(bond)
        bond.ended.open()


def _begin_and_end(bond: _Bond) -> None:
    assert bond.begin is not None
    assert bond.end is not None
    try:
        bond.value = bond.begin()
    except BaseException as error:  # it is raised again in the caller's thread
        bond.error = error
        return
    finally:
        bond.begun.open()
    bond.requests.get()
    bond.end(bond.value)


_bonds: set[_Bond] = set()


@functools.cache
def _end_at_exit() -> None:
    """Have all ended before the interpreter is torn down under their threads; forked children have none of them."""
    atexit.register(_end_all)
    os.register_at_fork(after_in_child=_bonds.clear)


def _end_all() -> None:
    left = list(_bonds)
    for bond in left:
        bond.requests.put(None)
    deadline = time.monotonic() + _EXIT_SECONDS
    for bond in left:
        bond.ended.wait_at_most(deadline - time.monotonic())
    close_gates()


def on_own_thread(work: Callable[[], T], name: str) -> T:
    """Do work on a thread of its own and wait for it. To be called by threads of ours.

    A keeper's own thread is not known to the `threading` module; work that starts further threads needs one that is.
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
    """Wait for threads that are about to end. `Thread.join` would enter the calling thread in `threading`'s books."""
    for thread in threads:
        while thread.is_alive():
            time.sleep(0.0001)
