"""What kernels for several dtypes need to know of values: integers are cut off, floats are not.

Loops over uint8 vectorise best where clamping comes after the cut to an integer (``held``): packing integers into bytes
clamps them by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from dataloading.transforms.kernels.jit import WITHOUT_WRAPPERS, helper

__all__ = ["ROUND", "added", "cut", "held", "nothing", "rounded", "white_of", "within"]

_ZERO, _ONE, _WHITE_F, _WHITE_16 = np.float32(0), np.float32(1), np.float32(255), np.float32(65535)
ROUND = np.float32(1.5 * 2**23)  # adding and subtracting it rounds a float32 below 2**22 to an integer
_BLACK_8, _WHITE_8 = np.int32(0), np.int32(255)


def cut(value: Any, image: Any) -> Any:
    """Return a float32 as an image of this dtype holds it: cut off to an integer, or as it is."""
    return np.int32(value) if image.dtype.kind in "iu" else value


@overload(cut, jit_options=WITHOUT_WRAPPERS, strict=False)  # type: ignore[arg-type]
def _cut(value: Any, image: Any) -> Any:
    if isinstance(image.dtype, types.Integer):
        return lambda value, image: np.int32(value)
    return lambda value, image: value


def held(value: Any, image: Any) -> Any:
    """Return a float32 clamped to black and white of this dtype, as ``cut`` does; of uint8 it must be below 2**31."""
    return cut(within(value, white_of(image)), image)


@overload(held, jit_options=WITHOUT_WRAPPERS, strict=False)  # type: ignore[arg-type]
def _held(value: Any, image: Any) -> Any:
    if image.dtype == types.uint8:
        return lambda value, image: min(max(np.int32(value), _BLACK_8), _WHITE_8)
    if image.dtype == types.uint16:
        return lambda value, image: np.int32(within(value, _WHITE_16))
    return lambda value, image: within(value, _ONE)


def rounded(value: Any, image: Any) -> Any:
    """Return a float32 below 2**22 as an image of this dtype holds it: of integers rounded, halves to even."""
    return cut((value + ROUND) - ROUND, image)


@overload(rounded, jit_options=WITHOUT_WRAPPERS, strict=False)  # type: ignore[arg-type]
def _rounded(value: Any, image: Any) -> Any:
    if image.dtype == types.uint8:
        return lambda value, image: held((value + ROUND) - ROUND, image)
    if isinstance(image.dtype, types.Integer):
        return lambda value, image: np.int32((value + ROUND) - ROUND)
    return lambda value, image: value


def white_of(image: Any) -> Any:
    """Return the value of white of this dtype, float32."""
    return {"uint8": _WHITE_F, "uint16": _WHITE_16}.get(image.dtype.name, _ONE)


@overload(white_of, jit_options=WITHOUT_WRAPPERS, strict=False)  # type: ignore[arg-type]
def _white_of(image: Any) -> Any:
    if image.dtype == types.uint8:
        return lambda image: _WHITE_F
    if image.dtype == types.uint16:
        return lambda image: _WHITE_16
    return lambda image: _ONE


def nothing(image: Any) -> Any:
    """Return the zero that a row of values of this dtype is added to."""
    return np.uint32(0) if image.dtype.kind in "iu" else 0.0


@overload(nothing, jit_options=WITHOUT_WRAPPERS, strict=False)  # type: ignore[arg-type]
def _nothing(image: Any) -> Any:
    if isinstance(image.dtype, types.Integer):
        return lambda image: np.uint32(0)
    return lambda image: 0.0


def added(row: Any, value: Any, image: Any) -> Any:
    """Return the sum of ``nothing`` and values: in 32 bits where they are integers, which vectorises twice as wide."""
    return np.uint32(row + value) if image.dtype.kind in "iu" else row + value


@overload(added, jit_options=WITHOUT_WRAPPERS, strict=False)  # type: ignore[arg-type]
def _added(row: Any, value: Any, image: Any) -> Any:
    if isinstance(image.dtype, types.Integer):
        return lambda row, value, image: np.uint32(row + value)
    return lambda row, value, image: row + value


@helper
def within(value: Any, top: Any) -> Any:
    """Clamp to [0, top]."""
    value = _ZERO if value < _ZERO else value
    return top if value > top else value
