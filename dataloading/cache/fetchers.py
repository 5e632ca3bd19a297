"""Threads that bring units: those that somebody waits for first, then those that will be needed, in their order.

A thread starts when there is something to bring and ends when there is nothing: an idle cache has none. Knows neither
how a unit is brought nor whether there is room.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from dataloading._native import this_thread_is_own

__all__ = ["Fetchers", "nothing"]

_CLOSE_SECONDS = 1.0


def nothing() -> None:
    """Do nothing: what brings a unit that need not be brought."""


class Fetchers:
    """A queue with a fast lane, and threads to serve it.

    Parameters
    ----------
    begin : callable
        ``begin(unit, ahead)`` finds room for a unit and returns what brings it, or None if there is no room for a unit
        that is only needed later (`ahead`): then no other is tried until `wake` is called. Neither raises.
    num_threads : int
        At most.
    """

    def __init__(self, begin: Callable[[int, bool], Callable[[], object] | None], num_threads: int) -> None:
        self._begin = begin
        self._num_threads = num_threads
        self._lock = threading.Lock()
        # Held while a unit is taken and its room is found: otherwise the last room might go to a unit behind the next.
        self._turn = threading.Lock()
        self._urgent: deque[int] = deque()
        self._queued: set[int] = set()  # urgent ones, waiting or being brought
        self._ahead: deque[tuple[object, int]] = deque()
        self._threads: set[threading.Thread] = set()
        self._no_room = False
        self._num_wakes = 0
        self._closed = False

    def want(self, units: Iterable[int]) -> None:
        """Bring units before all that is only needed later."""
        with self._lock:
            new = [unit for unit in units if unit not in self._queued]
            self._queued.update(new)
            self._urgent.extend(new)
        self._start()

    def plan(self, owner: object, units: Iterable[int]) -> None:
        """Bring units when there is time, in this order; `owner` may `forget` them."""
        with self._lock:
            self._ahead.extend((owner, unit) for unit in units)
        self._start()

    def forget(self, owner: object) -> None:
        """Leave out what one owner has planned and nobody has begun to bring."""
        with self._lock:
            self._ahead = deque(each for each in self._ahead if each[0] is not owner)

    def wake(self) -> None:
        """Go on with what is planned: there may be room now."""
        with self._lock:
            self._no_room = False
            self._num_wakes += 1
        self._start()

    def close(self) -> None:
        """Forget everything, and wait a moment for the units that are being brought.

        A store that does not answer is not waited for: what it sends in the end goes where it belongs, unseen.
        """
        with self._lock:
            self._closed = True
            self._urgent.clear()
            self._ahead.clear()
            threads = [thread for thread in self._threads if thread.is_alive()]  # others will find nothing to do
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
        for thread in new:  # without the lock: a finaliser may need it in the new thread before that has begun
            thread.start()

    def _run(self) -> None:
        this_thread_is_own()
        while (bring := self._next()) is not None:
            bring()

    def _next(self) -> Callable[[], None] | None:
        """Take the next unit and find its room; None, and this thread is counted out, if there is nothing to bring."""
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
                        # Unless room was made since it was looked for: whoever did that will not say so again.
                        self._no_room = num_wakes == self._num_wakes

    def _finish(self, unit: int, ahead: bool, begun: Callable[[], object]) -> None:
        begun()
        if not ahead:
            with self._lock:
                self._queued.discard(unit)
