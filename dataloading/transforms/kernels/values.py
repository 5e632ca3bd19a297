"""What kernels for several dtypes need to know of values: integers are cut off, floats are not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from dataloading.transforms.kernels.jit import WITHOUT_WRAPPERS, helper

__all__ = ["cut", "nothing", "within"]

_ZERO = np.float32(0)


def cut(value: Any, image: Any) -> Any:
    """Return a float32 as an image of this dtype holds it: cut off to an integer, or as it is."""
    return np.int32(value) if image.dtype.kind in "iu" else value


@overload(cut, jit_options=WITHOUT_WRAPPERS, strict=False)  # type: ignore[arg-type]
def _cut(value: Any, image: Any) -> Any:
    if isinstance(image.dtype, types.Integer):
        return lambda value, image: np.int32(value)
    return lambda value, image: value


def nothing(image: Any) -> Any:
    """Return the zero that a row of values of this dtype is added to."""
    return np.int32(0) if image.dtype.kind in "iu" else 0.0


@overload(nothing, jit_options=WITHOUT_WRAPPERS, strict=False)  # type: ignore[arg-type]
def _nothing(image: Any) -> Any:
    if isinstance(image.dtype, types.Integer):
        return lambda image: np.int32(0)
    return lambda image: 0.0


@helper
def within(value: Any, top: Any) -> Any:
    """Clamp to [0, top]."""
    value = _ZERO if value < _ZERO else value
    return top if value > top else value
