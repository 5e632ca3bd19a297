"""Threads that load units: first those that a caller waits for, then those needed later, in order.

A thread starts when there is work and ends when there is none, so an idle cache has no threads. Does not know how a
unit is loaded or whether there is space.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from dataloading._native import this_thread_is_own

__all__ = ["Fetchers", "nothing"]

_CLOSE_SECONDS = 1.0


def nothing() -> None:
    """Do nothing: for a unit that need not be loaded."""


class Fetchers:
    """A queue with two priorities, and its threads.

    Parameters
    ----------
    begin : callable
        ``begin(unit, ahead)`` reserves space for a unit and returns a callable that loads it, or None if there is no
        space for a unit that is only needed later (`ahead`): then read-ahead pauses until `wake` is called. Neither
        callable may raise.
    num_threads : int
        At most.
    """

    def __init__(self, begin: Callable[[int, bool], Callable[[], object] | None], num_threads: int) -> None:
        self._begin = begin
        self._num_threads = num_threads
        self._lock = threading.Lock()
        # Held while a unit is taken and space reserved, so that a later unit cannot take the last space.
        self._turn = threading.Lock()
        self._urgent: deque[int] = deque()
        self._queued: set[int] = set()  # urgent units, queued or loading
        self._ahead: deque[tuple[object, int]] = deque()
        self._threads: set[threading.Thread] = set()
        self._no_room = False
        self._num_wakes = 0
        self._closed = False

    def want(self, units: Iterable[int]) -> None:
        """Load units with priority."""
        with self._lock:
            new = [unit for unit in units if unit not in self._queued]
            self._queued.update(new)
            self._urgent.extend(new)
        self._start()

    def plan(self, owner: object, units: Iterable[int]) -> None:
        """Load units when no urgent ones are queued, in this order; `owner` may `forget` them."""
        with self._lock:
            self._ahead.extend((owner, unit) for unit in units)
        self._start()

    def forget(self, owner: object) -> None:
        """Remove the planned units of an owner that are not loading yet."""
        with self._lock:
            self._ahead = deque(each for each in self._ahead if each[0] is not owner)

    def wake(self) -> None:
        """Resume read-ahead: there may be space now."""
        with self._lock:
            self._no_room = False
            self._num_wakes += 1
        self._start()

    def close(self) -> None:
        """Clear the queue, and wait briefly for the units that are loading.

        Does not wait for a store that does not answer: its late data is written to its place, unused.
        """
        with self._lock:
            self._closed = True
            self._urgent.clear()
            self._ahead.clear()
            threads = [thread for thread in self._threads if thread.is_alive()]  # others will find no work
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_CLOSE_SECONDS)

    def _start(self) -> None:
        with self._lock:
            num_waiting = len(self._urgent) + (0 if self._no_room else len(self._ahead))
            num_new = min(num_waiting, self._num_threads - len(self._threads))
            if self._closed:
                return
            new = [threading.Thread(target=self._run, name="beton-fetch", daemon=True) for _ in range(num_new)]
            self._threads.update(new)
        for thread in new:  # without the lock: a finaliser may need it in the new thread before the thread has started
            thread.start()

    def _run(self) -> None:
        this_thread_is_own()
        while (bring := self._next()) is not None:
            bring()

    def _next(self) -> Callable[[], None] | None:
        """Take the next unit and reserve space for it; None if there is no work, and this thread no longer counts."""
        with self._turn:
            while True:
                with self._lock:
                    owner: object = None
                    num_wakes = self._num_wakes
                    ahead = not self._urgent
                    if self._urgent:
                        unit = self._urgent.popleft()
                    elif self._ahead and not self._no_room:
                        owner, unit = self._ahead.popleft()
                    else:
                        self._threads.discard(threading.current_thread())
                        return None
                begun = self._begin(unit, ahead)
                if begun is not None:
                    return lambda: self._finish(unit, ahead, begun)
                with self._lock:
                    if not self._closed:
                        self._ahead.appendleft((owner, unit))
                        # Unless `wake` was called meanwhile: it will not be called again for that space.
                        self._no_room = num_wakes == self._num_wakes

    def _finish(self, unit: int, ahead: bool, begun: Callable[[], object]) -> None:
        begun()
        if not ahead:
            with self._lock:
                self._queued.discard(unit)
