"""Wait for what is about to happen, with a limit that a loaded machine does not reach; threads that are left over."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

__all__ = ["Threads", "wait_for"]


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


class Threads:
    """The threads of this process now. Those of earlier tests may end at any time, so only new ones count."""

    def __init__(self) -> None:
        gc.collect()  # an earlier test's failure that pytest has kept may be all that holds its loader
        self._before = set(threading.enumerate())

    def new(self) -> set[threading.Thread]:
        """List the threads that have started since and are still there."""
        return set(threading.enumerate()) - self._before

    def wait_for_new(self, num: int) -> None:
        """Wait until so many new threads are there; with 0 until all have ended."""
        wait_for(lambda: len(self.new()) == num)
