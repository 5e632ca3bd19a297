"""Where finalisers may wait.

The garbage collector runs finalisers in whatever thread happens to allocate: one that holds a lock of ours, one of our
own, or one that has not even begun. A finaliser of ours that stops threads waits for them, and they may wait for that
very thread. So `run_outside` gives what waits to a thread of its own, unless the calling thread is a caller's and no
code of ours is under way in it.

Counting the locks a thread holds would say the same, but not in one step with taking them: Ctrl-C would come between.
Knows nothing of what is stopped.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["from_caller", "run_outside"]

_PACKAGE = os.path.join(os.path.dirname(__file__), "")  # compared with frames' names as they are


class _Thread(threading.local):
    is_callers = False


_this_thread = _Thread()


def from_caller() -> None:
    """Note that the calling thread is not one of ours."""
    _this_thread.is_callers = True


def run_outside(work: Callable[[], object]) -> None:
    """Do what waits for threads of ours: now, or on a thread of its own if they may be waiting for the calling one.

    To be called by the finaliser itself (``__del__``, or as the callback of `weakref.finalize`).

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
    if _this_thread.is_callers and not _is_inside(sys._getframe(1).f_back):
        work()
        return
    # Starting a thread waits for it, and finalisers may run in it before it begins: so the waiting is not done here.
    with contextlib.suppress(RuntimeError):  # the interpreter is ending, and all threads with it
        _thread.start_new_thread(_start, (work,))


def _is_inside(frame: FrameType | None) -> bool:
    """Whether code of this package is under way in a frame or in one of those that wait for it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            return True
        frame = frame.f_back
    return False


def _start(work: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=work, name="beton-finaliser", daemon=True).start()
