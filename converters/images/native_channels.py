"""Images as they occur in the wild -> arrays of the form asked for: as they are, gray, or labels.

Knows Pillow's modes and nothing of .beton files. The counterpart of ``pixels.py`` for images that are not to become
RGB. What ``natural`` keeps of each kind:

====================  ==================================================================================
gray, bilevel         1 channel of 8 bits (bilevel: 0 and 255)
16-bit gray           1 channel of 16 bits
gray with alpha       2 channels of 8 bits
RGB, RGBA             3 and 4 channels of 8 bits
palette               its colours, 3 channels, or 4 where an entry is transparent
one transparent       an alpha channel more
colour or level
CMYK, YCbCr, LAB      converted to RGB: their numbers mean nothing without the model
16-bit colour         refused: Pillow would keep the high bytes only
32-bit gray, float    refused: their range is unknown
====================  ==================================================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from converters.images.pillow_files import MAX_PIXELS, open_pillow
from converters.images.pillow_fixes import SCALED_FROM
from converters.images.rgb import as_rgb
from converters.source import SampleFault

__all__ = ["form_of", "gray", "labels", "natural", "open_whole", "resized", "resized_labels"]

Array = npt.NDArray[Any]
_MODE_OF_CHANNELS = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_BOTH_WAYS = {"La": "LA", "RGBa": "RGBA", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB", "HSV": "RGB",
              "RGBX": "RGB"}  # fmt: skip


def form_of(pixels: Array) -> str:
    """Return channels and depth of pixels in words.

    Examples
    --------
    >>> form_of(np.zeros((2, 3, 4), np.uint8))
    '4 channels of uint8'
    """
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    return f"{channels} channel{'' if channels == 1 else 's'} of {pixels.dtype}"


def open_whole(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open an image file as `open_pillow` does, but refuse 16-bit colour, of which Pillow would keep half.

    Raises
    ------
    SampleFault
        If no image comes out, or not all of it.
    """
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

    Parameters
    ----------
    image : PIL.Image.Image
        Any mode.

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
        levels = _deep(image)
        level = image.info.get("transparency")
        if not isinstance(level, int):
            return levels
        return np.dstack([levels, np.where(levels == level, 0, 0xFFFF).astype(np.uint16)])
    if image.mode == "P":
        image = image.convert("RGBA" if transparent else "RGB")
    elif image.mode in {"1", "L"}:
        # By way of RGBA, for Pillow finds a transparent level of bilevel images there alone.
        image = image.convert("RGBA").convert("LA") if transparent else image.convert("L")
    elif transparent and image.mode == "RGB":
        image = image.convert("RGBA")
    elif image.mode in _BOTH_WAYS:
        image = image.convert(_BOTH_WAYS[image.mode])
    if image.mode not in _MODE_OF_CHANNELS.values():
        raise SampleFault(f"pixels of mode {image.mode} have no agreed form; convert the file first")
    return np.asarray(image)


def _deep(image: Image.Image) -> npt.NDArray[np.uint16]:
    values = np.asarray(image)
    if image.mode == "I" and image.format not in {"PNG", "PPM"}:
        raise SampleFault("32-bit gray pixels have no agreed range; convert the file to 8 or 16 bits first")
    if values.min(initial=0) < 0 or values.max(initial=0) > 0xFFFF:
        raise SampleFault(f"gray levels from {values.min()} to {values.max()} do not fit 16 bits")
    return values.astype(np.uint16)


def gray(image: Image.Image, *, background: tuple[int, int, int], to_srgb: bool) -> npt.NDArray[np.uint8]:
    """Return 8-bit luma (ITU-R 601-2, Pillow's ``convert("L")``) of an image of any mode.

    Parameters
    ----------
    image : PIL.Image.Image
        Any mode; what is not RGB goes by way of `as_rgb`.
    background : tuple of int
        RGB, 0..255, what shows through transparent pixels.
    to_srgb : bool
        Convert an embedded colour profile to sRGB first.

    Examples
    --------
    >>> gray(Image.new("RGB", (1, 1), (255, 0, 0)), background=(0, 0, 0), to_srgb=False).tolist()
    [[76]]
    """
    return np.asarray(as_rgb(image, background=background, to_srgb=to_srgb).convert("L"))


def labels(image: Image.Image, dtype: np.dtype[Any]) -> Array:
    """Return a label map's numbers: palette indices, gray levels of 8 or 16 bits, or 0 and 1.

    Parameters
    ----------
    image : PIL.Image.Image
        Mode P, L, 1 or 16-bit gray.
    dtype : numpy dtype
        uint8 or uint16, what they must fit.

    Raises
    ------
    SampleFault
        If the image holds no labels, or a number does not fit.

    Examples
    --------
    >>> labels(Image.new("P", (2, 1), 7), np.dtype("uint8")).tolist()
    [[7, 7]]
    """
    if SCALED_FROM in image.info:
        raise SampleFault(
            f"its levels go up to {image.info[SCALED_FROM]:,} and are read as parts of 255 or 65,535, so the labels' "
            "numbers are lost; write it with a highest level of 255 or 65535, or as PNG"
        )
    if image.mode in {"P", "L", "1"}:
        numbers: Array = np.asarray(image).astype(np.uint8)
    elif image.mode.startswith("I"):
        numbers = _deep(image)
    else:
        raise SampleFault(
            f"a label map has one number a pixel, got mode {image.mode}; turn colours into indices (a palette) first"
        )
    highest = int(numbers.max(initial=0))
    if highest > np.iinfo(dtype).max:
        raise SampleFault(f"label {highest} does not fit {dtype}; declare the field as a mask of uint16")
    return numbers.astype(dtype)


def resized(pixels: Array, size: tuple[int, int], resample: Image.Resampling) -> Array:
    """Return pixels in another size, with Pillow's antialiased filter.

    Parameters
    ----------
    pixels : uint8 or uint16 array, shape (height, width) or (height, width, channels)
        Other forms than 8 bits of 1 to 4 channels are filtered channel by channel in floats and rounded.
    size : (int, int)
        Width and height.
    resample : PIL.Image.Resampling
        The filter.
    """
    if pixels.ndim == 2:
        return resized(pixels[:, :, None], size, resample)[:, :, 0]
    channels = pixels.shape[2]
    if pixels.dtype == np.uint8 and channels in _MODE_OF_CHANNELS:
        plain = pixels[:, :, 0] if channels == 1 else pixels
        image = Image.fromarray(np.ascontiguousarray(plain)).resize(size, resample)
        return np.asarray(image).reshape(size[1], size[0], channels)
    planes = [
        np.asarray(Image.fromarray(pixels[:, :, c].astype(np.float32)).resize(size, resample)) for c in range(channels)
    ]
    limit = np.iinfo(pixels.dtype).max
    result: Array = np.clip(np.rint(np.dstack(planes)), 0, limit).astype(pixels.dtype)
    return result


def resized_labels(numbers: Array, size: tuple[int, int]) -> Array:
    """Return a label map in another size: each pixel takes the number at its centre (Pillow's ``NEAREST``).

    Parameters
    ----------
    numbers : uint8 or uint16 array, shape (height, width)
    size : (int, int)
        Width and height.
    """
    image = Image.fromarray(numbers.astype(np.int32)).resize(size, Image.Resampling.NEAREST)
    return np.asarray(image).astype(numbers.dtype)
