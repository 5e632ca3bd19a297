"""Resizes whole RGB images exactly as Pillow does, but many times faster. For conversion."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dataloading.errors import UsageError

from .library import LIBRARY
from .regions import status_text

__all__ = ["resize_rgb"]

Resample: TypeAlias = Literal["box", "bilinear", "bicubic", "lanczos"]

_FILTERS = {"box": 0, "bilinear": 1, "bicubic": 2, "lanczos": 3}
_MAX_SIDE = 1 << 24


def resize_rgb(
    pixels_HWC: npt.NDArray[np.uint8], size: tuple[int, int], *, resample: Resample = "lanczos"
) -> npt.NDArray[np.uint8]:
    """Resize RGB pixels with an antialiased filter.

    Parameters
    ----------
    pixels_HWC : ndarray of uint8, shape (height, width, 3)
        RGB, at most 2**24 pixels per side; rows may be strided.
    size : tuple of int
        New width and height, 1 to 2**24.
    resample : {"box", "bilinear", "bicubic", "lanczos"}
        The filter.

    Returns
    -------
    ndarray of uint8, shape (size[1], size[0], 3)
        Exactly the pixels of Pillow 13's ``Image.resize(size, resample)``, whichever version is installed.

    Raises
    ------
    UsageError
        If an argument is out of range or the array is not an RGB image.
    MemoryError
        If there is not enough memory.

    Examples
    --------
    >>> resize_rgb(np.full((6, 8, 3), 200, np.uint8), (4, 3)).shape
    (3, 4, 3)
    """
    if pixels_HWC.dtype != np.uint8 or pixels_HWC.ndim != 3 or pixels_HWC.shape[2] != 3 or pixels_HWC.size == 0:
        raise UsageError(
            f"resize_rgb needs uint8 pixels of shape (height, width, 3), got {pixels_HWC.dtype} of shape "
            f"{pixels_HWC.shape}"
        )
    if resample not in _FILTERS:
        raise UsageError(f"resample must be one of {', '.join(_FILTERS)}, got {resample!r}")
    height, width = pixels_HWC.shape[:2]
    for name, side in (("width", width), ("height", height), ("new width", size[0]), ("new height", size[1])):
        if not 1 <= side <= _MAX_SIDE:
            raise UsageError(f"the {name} must be 1 to {_MAX_SIDE:,} pixels, got {side}")
    if pixels_HWC.strides[2] != 1 or pixels_HWC.strides[1] != 3 or pixels_HWC.strides[0] < 3 * width:
        pixels_HWC = np.ascontiguousarray(pixels_HWC)
    resized = np.empty((size[1], size[0], 3), np.uint8)
    status: int = LIBRARY.beton_resize_rgb(
        pixels_HWC.ctypes.data, width, height, pixels_HWC.strides[0], _FILTERS[resample], *size, resized.ctypes.data
    )
    if status != 0:
        raise MemoryError(f"cannot resize {width}x{height} pixels to {size[0]}x{size[1]}: {status_text(status)}")
    return resized
