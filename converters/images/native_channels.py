"""Images that keep the channels and the bit depth of their file.

====================  ==================================================================================
gray, bilevel         1 channel of 8 bits (bilevel: 0 and 255)
16-bit gray           1 channel of 16 bits
gray with alpha       2 channels of 8 bits
RGB, RGBA             3 and 4 channels of 8 bits
palette               its colours, 3 channels, or 4 where an entry is transparent
a transparent colour  one more channel, alpha
CMYK, YCbCr, LAB      converted to RGB: their numbers mean nothing without the model
16-bit colour         refused: Pillow would keep the high bytes only
32-bit gray, float    refused: their range is unknown
====================  ==================================================================================
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from converters.images.pillow_files import MAX_PIXELS, open_pillow
from converters.source import SampleFault
from dataloading.tools import resize_rgb

__all__ = ["Array", "deep_gray", "describe_pixels", "natural", "open_unconverted", "resized"]

Array = npt.NDArray[Any]
Resample = Literal["box", "bilinear", "bicubic", "lanczos"]
_MODE_OF_CHANNELS = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_BOTH_WAYS = {"La": "LA", "RGBa": "RGBA", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB", "HSV": "RGB",
              "RGBX": "RGB"}  # fmt: skip


def describe_pixels(channels: int, dtype: np.dtype[Any]) -> str:
    """Describe channels and depth.

    Examples
    --------
    >>> describe_pixels(4, np.dtype("uint8"))
    '4 channels of uint8'
    """
    return f"{channels} channel{'' if channels == 1 else 's'} of {dtype}"


def open_unconverted(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open an image file as `open_pillow` does, but refuse 16-bit colour, of which Pillow would keep half."""
    return open_pillow(data, max_pixels=max_pixels, examine=_refuse_deep_colour)


def _refuse_deep_colour(image: Image.Image) -> None:
    if image.mode not in {"RGB", "RGBA", "LA", "RGBX", "CMYK"}:
        return
    described = repr([tile[3] for tile in getattr(image, "tile", [])])
    maxval = [item for tile in getattr(image, "tile", []) for item in _flat(tile[3]) if isinstance(item, int)]
    if ";16" in described or (image.format == "PPM" and any(item > 255 for item in maxval)):
        raise SampleFault(
            "it has colours of 16 bits, of which only the high bytes can be read; --channels rgb takes those, and "
            "converters.write stores uint16 arrays whole"
        )


def _flat(args: object) -> list[object]:
    return list(args) if isinstance(args, tuple) else [args]


def natural(image: Image.Image) -> Array:
    """Return a loaded Pillow image's pixels with the channels and depth it has.

    Returns
    -------
    uint8 or uint16 array, shape (height, width) or (height, width, channels)

    Raises
    ------
    SampleFault
        If the mode has no agreed range.

    Examples
    --------
    >>> natural(Image.new("LA", (5, 2))).shape
    (2, 5, 2)
    """
    if image.mode == "F":
        raise SampleFault("floating-point pixels have no agreed range; convert the file to 8 or 16 bits first")
    transparent = "transparency" in image.info
    if image.mode.startswith("I"):
        levels = deep_gray(image)
        level = image.info.get("transparency")
        if not isinstance(level, int):
            return levels
        return np.dstack([levels, np.where(levels == level, 0, 0xFFFF).astype(np.uint16)])
    if image.mode == "P":
        image = image.convert("RGBA" if transparent else "RGB")
    elif image.mode in {"1", "L"}:
        # Through RGBA, since only there Pillow applies the transparent level of a bilevel image.
        image = image.convert("RGBA").convert("LA") if transparent else image.convert("L")
    elif transparent and image.mode == "RGB":
        image = image.convert("RGBA")
    elif image.mode in _BOTH_WAYS:
        image = image.convert(_BOTH_WAYS[image.mode])
    if image.mode not in _MODE_OF_CHANNELS.values():
        raise SampleFault(f"pixels of mode {image.mode} have no agreed form; convert the file first")
    return np.asarray(image)


def deep_gray(image: Image.Image) -> npt.NDArray[np.uint16]:
    """Return the levels of a gray image of more than 8 bits; a `SampleFault` if their range is not 16 bits."""
    values = np.asarray(image)
    if image.mode == "I" and image.format not in {"PNG", "PPM"}:
        raise SampleFault("32-bit gray pixels have no agreed range; convert the file to 8 or 16 bits first")
    if values.min(initial=0) < 0 or values.max(initial=0) > 0xFFFF:
        raise SampleFault(f"gray levels from {values.min()} to {values.max()} do not fit 16 bits")
    return values.astype(np.uint16)


def resized(pixels: Array, size: tuple[int, int], resample: Resample) -> Array:
    """Return pixels in another size, with Pillow's antialiased filter.

    Parameters
    ----------
    pixels : uint8 or uint16 array, shape (height, width) or (height, width, channels)
        Other pixels than 8 bits of 1 to 4 channels are filtered channel by channel in floats and rounded.
    size : (int, int)
        Width and height.
    resample : {"box", "bilinear", "bicubic", "lanczos"}
        The filter.
    """
    if pixels.dtype == np.uint8 and pixels.shape[2:] == (3,):  # the same pixels as Pillow's, many times as fast
        return resize_rgb(pixels, size, resample=resample)
    filter_ = Image.Resampling[resample.upper()]
    if pixels.dtype == np.uint8 and pixels.shape[2:] in {(), (2,), (4,)}:
        return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize(size, filter_))
    planes = [
        np.asarray(Image.fromarray(plane.astype(np.float32)).resize(size, filter_))
        for plane in np.moveaxis(np.atleast_3d(pixels), 2, 0)
    ]
    result: Array = np.clip(np.rint(np.dstack(planes)), 0, np.iinfo(pixels.dtype).max).astype(pixels.dtype)
    return result.reshape(*result.shape[:2], *pixels.shape[2:])
