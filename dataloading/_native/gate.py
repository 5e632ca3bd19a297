"""Waiting for another thread in C, where Python's signal handlers cannot run: Ctrl-C is raised after it, never inside.

A handler that raises in Python code which the garbage collector or a reference count runs is printed and lost.
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
    """Closed until somebody opens it, then open for ever."""

    def __init__(self) -> None:
        self._memory = (ctypes.c_int64 * (_NUM_BYTES // 8))()
        LIBRARY.beton_gate_init(self._memory)

    def open(self) -> None:
        """Let everyone pass."""
        LIBRARY.beton_gate_open(self._memory)

    def wait(self) -> None:
        """Wait until it is open; not where nobody will open it: in a process forked later, or as Python ends."""
        while not LIBRARY.beton_gate_wait(self._memory, _SLICE_MILLISECONDS):
            pass

    def wait_at_most(self, seconds: float) -> None:
        """Wait until it is open, a signal arrives, or so long."""
        LIBRARY.beton_gate_wait(self._memory, max(int(seconds * 1000), 0))

    def as_callback(self, seconds: float) -> Callable[[Any], object]:
        """Make the callback of a weak reference that waits at most so long, and never in a thread of our own.

        It is C code from end to end. A signal ends the wait.
        """
        return functools.partial(LIBRARY.beton_gate_wait_for_dropped, self._memory, int(seconds * 1000))


def close_gates() -> None:
    """Have nobody wait any more: Python is ending, and those who open gates with it."""
    LIBRARY.beton_gates_close()


def this_thread_is_own() -> None:
    """Say that the calling thread is one of ours, which others of ours may be waiting for."""
    LIBRARY.beton_thread_is_own()
