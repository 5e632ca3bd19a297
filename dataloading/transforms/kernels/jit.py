"""How every kernel is compiled: one decorator, so that no kernel differs from another by accident.

``nogil``: the Loader's threads run kernels side by side. ``error_model="numpy"``: a division by zero gives
inf as in NumPy instead of a test in the inner loop. No ``fastmath`` (it would let results differ between
machines), no ``parallel`` (the threads are ours), no ``cache``: whole programs are stored, see ``store.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["JIT_OPTIONS", "kernel"]

Function = TypeVar("Function", bound=Callable[..., Any])

JIT_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def kernel(function: Function) -> Function:
    """Compile ``function`` lazily with the options that all kernels share."""
    return cast(Function, numba.njit(**JIT_OPTIONS)(function))
