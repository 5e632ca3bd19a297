"""Threads that bring units: those that somebody waits for first, then those that will be needed, in their order.

A thread starts when there is something to bring and ends when there is nothing, so that an idle cache has none. Knows
neither how a unit is brought nor whether there is room: that is told.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

__all__ = ["Fetchers"]

_CLOSE_SECONDS = 1.0


class Fetchers:
    """A queue with a fast lane, and threads to serve it.

    Parameters
    ----------
    bring : callable
        ``bring(unit, ahead)`` makes a unit be there; False says that there is no room for one that is only needed
        later (`ahead`), and that to go on is no use until `wake` is called. It raises nothing.
    num_threads : int
        At most.
    """

    def __init__(self, bring: Callable[[int, bool], bool], num_threads: int) -> None:
        self._bring = bring
        self._num_threads = num_threads
        self._lock = threading.Lock()
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
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_CLOSE_SECONDS)

    def _start(self) -> None:
        with self._lock:
            num_waiting = len(self._urgent) + (0 if self._no_room else len(self._ahead))
            num_new = min(num_waiting, self._num_threads - len(self._threads))
            if self._closed:
                return
            for _ in range(num_new):
                thread = threading.Thread(target=self._run, name="beton-fetch", daemon=True)
                self._threads.add(thread)
                thread.start()

    def _run(self) -> None:
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
                    return
            done = self._bring(unit, ahead)
            with self._lock:
                if not ahead:
                    self._queued.discard(unit)
                elif not done and not self._closed:
                    self._ahead.appendleft((owner, unit))
                    # Unless room was made since it was looked for: whoever did that will not say so again.
                    self._no_room = num_wakes == self._num_wakes
