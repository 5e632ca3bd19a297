"""Kernels that change colours, each with torchvision's rounding.

On images of integers every operation reads and writes integers like torchvision's functions do: computed in float32,
clamped to [0, white], cut off (not rounded). On floats nothing is cut off. Formulas:
``torchvision/transforms/v2/functional/_color.py``.

Functions of single values come twice: as a table of uint8 values (``invert``), and as a loop over the pixels of other
dtypes, in place (``invert_values``). The first constant is the value of white. Of uint8, brightness, contrast,
saturation, hue, gray and solarize are part of the native core (``_native/src/color.h``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import helper, kernel
from dataloading.transforms.kernels.values import added, cut, held, nothing, within

__all__ = [
    "autocontrast",
    "autocontrast_values",
    "brightness_values",
    "contrast_values",
    "gray",
    "gray_mean",
    "hue",
    "invert",
    "invert_values",
    "one_gray",
    "posterize",
    "posterize_values",
    "saturation",
    "scale",
    "solarize_values",
]

_R, _G, _B = np.float32(0.2989), np.float32(0.587), np.float32(0.114)
_ZERO, _ONE, _TOP = np.float32(0), np.float32(1), np.float32(255)
_SIXTH, _SIX = np.float32(1.0 / 6.0), np.float32(6)
_TWO, _FOUR, _TINY = np.float32(2), np.float32(4), np.float32(2.0**-126)


# -- brightness and contrast ------------------------------------------------------------------------------------------


@helper
def _factors(params: Any) -> Any:
    """Return the factor and what it leaves to the other image: up to a million, which takes all to black or white."""
    factor = min(params[0], 1e6)
    return np.float32(factor), np.float32(1.0 - factor)


@helper
def _blend(image: Any, factor: Any, offset: Any) -> None:
    """``x * factor + offset``, in place."""
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                image[c, y, x] = held(np.float32(image[c, y, x]) * factor + offset, image)


@kernel
def brightness_values(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """``x * factor``, in place."""
    _blend(image, _factors(params)[0], _ZERO)


@helper
def _gray(image: Any, y: Any, x: Any) -> Any:
    """Return the grey of a pixel as an image of this dtype holds it."""
    return cut(
        np.float32(image[0, y, x]) * _R + np.float32(image[1, y, x]) * _G + np.float32(image[2, y, x]) * _B, image
    )


@helper
def gray_mean(image: Any) -> Any:
    """Return the mean of the grey image; of integers, each pixel cut off to an integer first."""
    total = 0.0
    for y in range(image.shape[1]):
        row = nothing(image)
        if image.shape[0] == 3:
            for x in range(image.shape[2]):
                row = added(row, _gray(image, y, x), image)
        else:
            for x in range(image.shape[2]):
                row = added(row, cut(np.float32(image[0, y, x]), image), image)
        total += row
    return np.float32(total / (image.shape[1] * image.shape[2]))


@kernel
def contrast_values(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """``x * factor + mean * (1 - factor)``, in place."""
    factor, rest = _factors(params)
    _blend(image, factor, gray_mean(image) * rest)


# -- saturation, hue, grey: of three channels --------------------------------------------------------------------------


@kernel
def saturation(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """``x * factor + grey * (1 - factor)``, in place."""
    factor, rest = _factors(params)
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            grey = np.float32(_gray(image, y, x)) * rest
            image[0, y, x] = held(np.float32(image[0, y, x]) * factor + grey, image)
            image[1, y, x] = held(np.float32(image[1, y, x]) * factor + grey, image)
            image[2, y, x] = held(np.float32(image[2, y, x]) * factor + grey, image)


@helper
def _turned(top: Any, middle: Any, low: Any, base: Any, ahead: Any, turn: Any) -> Any:
    """Return saturation, sector and place in it (0 to 1) of a colour whose hue was turned, as torchvision's by HSV.

    ``top``, ``middle``, ``low``: the values of the three channels. ``base``: 0, 2 or 4, where red, green or blue is the
    top one. ``ahead``: of the two others, in the order red, green, blue, red, ..., the second is the lowest. The sector
    of grey does not matter. Written with selections instead of branches, so that loops vectorise.
    """
    span = top - low
    s = span / (top if top > _TINY else _TINY)
    m = (top - middle) / (span if span > _TINY else _TINY)
    h = ((_ONE if ahead else m) + base) - (m if ahead else _ONE)
    h = h * _SIXTH + _ONE
    h = h - _ONE if h >= _ONE else h
    h = h + turn
    h = h - np.floor(h)
    h = h * _SIX
    sector = np.floor(h)
    return s, sector, h - sector


@kernel
def hue(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Turn the hue by ``params[0]`` of a full circle, through HSV in float32, in place.

    Constants: the value of white, and what 1.0 is multiplied with on the way back, 255.999 for uint8.
    """
    unit = np.float32(1.0 / constants[0])
    levels = np.float32(constants[1])
    turn = np.float32(params[0])
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            r = np.float32(image[0, y, x]) * unit
            g = np.float32(image[1, y, x]) * unit
            b = np.float32(image[2, y, x]) * unit
            more = r if r > g else g
            less = g if r > g else r
            top = b if b > more else more
            low = b if b < less else less
            middle = more if more < b else b
            middle = less if less > middle else middle
            red_first, green_first = top == r, top == g
            base = _ZERO if red_first else (_TWO if green_first else _FOUR)
            ahead = b <= g if red_first else (r <= b if green_first else g <= r)
            s, sector, f = _turned(top, middle, low, base, ahead, turn)
            i = np.int32(sector)
            sf = s * f
            q = (_ONE - sf) * top
            t = (sf + (_ONE - s)) * top
            p = (_ONE - s) * top
            q = _ZERO if q < _ZERO else (_ONE if q > _ONE else q)
            t = _ZERO if t < _ZERO else (_ONE if t > _ONE else t)
            p = _ZERO if p < _ZERO else (_ONE if p > _ONE else p)
            # Sector 6 is sector 0: a hue just below zero rounds up to a full circle.
            red = q if i == 1 else (p if i == 2 or i == 3 else (t if i == 4 else top))
            green = top if i == 1 or i == 2 else (q if i == 3 else (p if i == 4 or i == 5 else t))
            blue = t if i == 2 else (top if i == 3 or i == 4 else (q if i == 5 else p))
            image[0, y, x] = cut(red * levels, image)
            image[1, y, x] = cut(green * levels, image)
            image[2, y, x] = cut(blue * levels, image)


@kernel
def gray(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Make all three planes the grey image, in place."""
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            grey = _gray(image, y, x)
            image[0, y, x] = grey
            image[1, y, x] = grey
            image[2, y, x] = grey


@kernel
def one_gray(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Make one plane of three: the grey image."""
    for y in range(source.shape[1]):
        for x in range(source.shape[2]):
            target[0, y, x] = _gray(source, y, x)


# -- functions of single values ----------------------------------------------------------------------------------------


@kernel
def invert(source: Any, tables: Any, params: Any, constants: Any) -> None:
    """``white - x``."""
    for c in range(tables.shape[0]):
        for v in range(256):
            tables[c, v] = 255 - tables[c, v]


@kernel
def invert_values(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Do the same in place."""
    top = image.dtype.type(constants[0])
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                image[c, y, x] = top - image[c, y, x]


@kernel
def solarize_values(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Invert what is at least ``params[0]``, in place."""
    top = image.dtype.type(constants[0])
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                value = image[c, y, x]
                image[c, y, x] = top - value if value >= params[0] else value


@kernel
def scale(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """``x * a + b`` in float64, in place; ``constants``: a and b of each channel."""
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                image[c, y, x] = image[c, y, x] * constants[2 * c] + constants[2 * c + 1]


@kernel
def posterize(source: Any, tables: Any, params: Any, constants: Any) -> None:
    """Keep the upper ``params[0]`` bits."""
    bits = int(params[0])
    mask = np.uint8(((1 << bits) - 1) << (8 - bits))
    for c in range(tables.shape[0]):
        for v in range(256):
            tables[c, v] &= mask


@kernel
def posterize_values(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Do the same in place: of floats, round down to a multiple of ``2 ** -bits``; of uint16 keep the upper bits."""
    levels = np.float32(1 << int(params[0]))
    step = np.float32((constants[0] + constants[1]) / levels)
    most = levels - _ONE
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                image[c, y, x] = cut(within(np.floor(np.float32(image[c, y, x]) / step), most) * step, image)


@helper
def _extremes(plane: Any) -> Any:
    """Return the lowest and the highest value of a channel."""
    low = plane[0, 0]
    high = low
    for y in range(plane.shape[0]):
        for x in range(plane.shape[1]):
            v = plane[y, x]
            low = v if v < low else low
            high = v if v > high else high
    return low, high


@kernel
def autocontrast(source: Any, tables: Any, params: Any, constants: Any) -> None:
    """Stretch each channel to the full range; a channel of one value stays."""
    for c in range(source.shape[0]):
        low, high = _extremes(source[c])
        if low == high:
            continue
        least = np.float32(low)
        scale = (np.float32(high) - least) * np.float32(1.0 / 255.0)
        for v in range(256):
            tables[c, v] = np.uint8(np.int32(within((np.float32(tables[c, v]) - least) / scale, _TOP)))


@kernel
def autocontrast_values(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Do the same in place."""
    top = np.float32(constants[0])
    for c in range(image.shape[0]):
        low, high = _extremes(image[c])
        if low == high:
            continue
        least = np.float32(low)
        scale = (np.float32(high) - least) * np.float32(1.0 / constants[0])
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                image[c, y, x] = cut(within((np.float32(image[c, y, x]) - least) / scale, top), image)
