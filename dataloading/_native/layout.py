"""Pixels that are moved and never mixed: label maps and deep images into planes, planes into interleaved pixels.

Gathered pixels equal those of torchvision's ``InterpolationMode.NEAREST``: for label maps, where the mean of two labels
would be a third one, and for 16-bit images.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .library import LIBRARY

__all__ = ["gather", "interleave"]


def gather(source_HWC: npt.NDArray[Any], request: np.void, out_CHW: npt.NDArray[Any]) -> None:
    """Write the pixels that a request describes, with nearest interpolation; releases the GIL.

    Parameters
    ----------
    source_HWC : ndarray of uint8 or uint16
        The whole stored image.
    request : record of `REQUEST`
        Its box lies inside the image; ``fill[0]`` is the value of constant padding.
    out_CHW : ndarray of any integer dtype, shape (channels, out_h, out_w)
        Written.
    """
    source = np.ascontiguousarray(source_HWC)
    record = np.array(request)
    record["src_width"], record["channels"] = source.shape[1], source.shape[2]
    assert source.dtype.itemsize <= 2 and out_CHW.flags.c_contiguous
    assert out_CHW.shape == (source.shape[2], int(record["out_h"]), int(record["out_w"]))
    status = LIBRARY.beton_gather(
        record.ctypes.data, source.ctypes.data, source.dtype.itemsize, out_CHW.dtype.itemsize, out_CHW.ctypes.data
    )
    if status:
        raise MemoryError


def interleave(images_NCHW: npt.NDArray[Any], out_NHWC: npt.NDArray[Any]) -> None:
    """Copy planes to interleaved pixels, of any dtype; releases the GIL."""
    n, channels, height, width = images_NCHW.shape
    assert images_NCHW.flags.c_contiguous and out_NHWC.flags.c_contiguous
    assert out_NHWC.shape == (n, height, width, channels) and out_NHWC.dtype == images_NCHW.dtype
    LIBRARY.beton_interleave(
        images_NCHW.ctypes.data, n, channels, height * width, out_NHWC.dtype.itemsize, out_NHWC.ctypes.data
    )
