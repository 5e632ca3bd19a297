"""Numba, as operations of the user's own ask for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Compiler"]


class Compiler:
    """Compiles the functions of operations. Unlike FFCV's it leaves the thread counts of torch and Numba alone."""

    is_enabled = True
    num_threads = 1

    @classmethod
    def set_enabled(cls, b: bool) -> None:
        """Choose whether functions are compiled: not, to step through them with a debugger."""
        cls.is_enabled = b

    @classmethod
    def set_num_threads(cls, n: int) -> None:
        """Note a number of threads; custom operations run on one thread each, whatever it is."""
        cls.num_threads = n

    @classmethod
    def compile(cls, code: Callable[..., Any], signature: Any = None) -> Callable[..., Any]:
        """Compile a function with Numba; it runs without the GIL."""
        if not cls.is_enabled or hasattr(code, "py_func"):
            return code
        import numba

        compiled: Callable[..., Any] = numba.njit(signature, fastmath=True, nogil=True, error_model="numpy")(code)
        return compiled

    @classmethod
    def get_iterator(cls) -> Any:
        """Return what to loop over samples with, inside of functions that are compiled."""
        import numba

        return numba.prange if cls.is_enabled else range
