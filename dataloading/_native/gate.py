"""Waiting for another thread in C, where Python's signal handlers cannot run: Ctrl-C is raised after it, never inside.

An exception that a handler raises inside a finaliser written in Python would be printed and lost.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from .library import LIBRARY

__all__ = ["Gate", "close_gates", "this_thread_is_own"]

_NUM_BYTES = 64  # BETON_GATE_BYTES
_SLICE_MILLISECONDS = 500


class Gate:
    """A one-time event that threads wait for in C."""

    def __init__(self) -> None:
        self._memory = (ctypes.c_int64 * (_NUM_BYTES // 8))()
        LIBRARY.beton_gate_init(self._memory)

    def open(self) -> None:
        """Open the gate for all waiting threads, permanently."""
        LIBRARY.beton_gate_open(self._memory)

    def wait(self) -> None:
        """Wait until it is open; returns at once in a forked child and at interpreter exit."""
        while not LIBRARY.beton_gate_wait(self._memory, _SLICE_MILLISECONDS):
            pass

    def wait_at_most(self, seconds: float) -> None:
        """Wait until it is open, a signal arrives, or the time is over."""
        LIBRARY.beton_gate_wait(self._memory, max(int(seconds * 1000), 0))

    def as_callback(self, seconds: float) -> Callable[[Any], object]:
        """Return a callback for a weak reference that waits at most this long, and never in a thread of our own.

        It is C code from end to end. A signal ends the wait.
        """
        return functools.partial(LIBRARY.beton_gate_wait_for_dropped, self._memory, int(seconds * 1000))


def close_gates() -> None:
    """Release all waiting threads: Python is ending."""
    LIBRARY.beton_gates_close()


def this_thread_is_own() -> None:
    """Mark the calling thread as one of ours."""
    LIBRARY.beton_thread_is_own()
