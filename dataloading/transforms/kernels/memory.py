"""Scratch arrays for kernels, which must not allocate: code that does cannot be stored (``store.py``).

For the same reason kernels must not ``reshape`` nor call what is not in the C library: Numba has helpers for those.
``numbers_at`` does what the method ``view`` of arrays does, which takes a fifth of a second to compile.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

from dataloading.transforms.kernels.jit import WITHOUT_WRAPPERS, helper, kernel

__all__ = ["counters", "numbers_at", "plane_of", "row_of"]


@intrinsic
def _memory_at(typing_context: Any, address: Any) -> Any:
    """Take a number for an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.uintp), generate


@intrinsic
def _memory_on_the_stack(typing_context: Any) -> Any:
    """Return the address of 10 KiB that belong to the running kernel."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memory = cgutils.alloca_once(builder, cgutils.intp_t, size=5 * 256)  # type: ignore[no-untyped-call]
        return builder.bitcast(memory, cgutils.voidptr_t)

    return types.voidptr(), generate


@helper
def numbers_at(array: Any, size: Any, number: Any) -> Any:
    """Return the memory that a contiguous array begins with as ``size`` numbers of a type."""
    return carray(_memory_at(array.ctypes.data), (size,), number)  # type: ignore[call-arg]


@helper
def row_of(work: Any, size: Any, number: Any) -> Any:
    """Return the front of the scratch memory as ``size`` numbers of a type, and the memory behind it."""
    row = numbers_at(work, size, number)
    return row, work[(size * row.itemsize + 7) & -8 :]


@kernel
def plane_of(work: Any, height: Any, width: Any, like: Any) -> Any:
    """Return the front of the scratch memory as a plane of the dtype of ``like``, and the memory behind it."""
    size = height * width * like.itemsize
    plane = carray(_memory_at(work.ctypes.data), (height, width), like.dtype)  # type: ignore[call-arg]
    return plane, work[(size + 7) & -8 :]


@numba.njit(inline="always", **WITHOUT_WRAPPERS)  # type: ignore[untyped-decorator]  # its memory must be that of the caller
def counters() -> Any:
    """Return int64 zeros of shape (5, 256), for as long as the calling kernel runs."""
    counts = carray(_memory_on_the_stack(), (5, 256), np.int64)  # type: ignore[call-arg]
    for i in range(5):
        for v in range(256):
            counts[i, v] = 0
    return counts
