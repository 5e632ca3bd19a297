"""Kernels that change colours of uint8 images, plane by plane, each with torchvision's rounding.

Every stage reads and writes uint8 like torchvision's functions on uint8 tensors do: computed in float32, clamped
to [0, 255], cut off (not rounded) to an integer. Formulas: ``torchvision/transforms/v2/functional/_color.py``.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.rng import randint, uniform

__all__ = [
    "ORDERS",
    "autocontrast",
    "jitter",
    "jitter_with_hue",
    "point_table",
    "to_gray",
    "to_gray_one_channel",
]

# The orders that the four adjustments of ColorJitter can have; one number picks one.
ORDERS = np.array(list(itertools.permutations(range(4))), dtype=np.int64)

_R, _G, _B = np.float32(0.2989), np.float32(0.587), np.float32(0.114)
_ZERO, _ONE, _TOP = np.float32(0), np.float32(1), np.float32(255)
_SIXTH, _SIX = np.float32(1.0 / 6.0), np.float32(6)
_UNIT = np.float32(1.0 / 255.0)
_LEVELS = np.float32(255.999)  # 255 + 1 - 1e-3: to_dtype_image's way back from floats to uint8


@kernel
def _level(value: Any) -> Any:
    """Clamp to [0, 255] and cut off the fraction."""
    value = _ZERO if value < _ZERO else value
    value = _TOP if value > _TOP else value
    return np.uint8(np.int32(value))


@kernel
def scale_and_shift(image: Any, factor: Any, offset: Any) -> None:
    """``x * factor + offset``: brightness, and contrast once the mean is known."""
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                image[c, y, x] = _level(np.float32(image[c, y, x]) * factor + offset)


@kernel
def gray_mean(image: Any) -> Any:
    """Return the mean of the grey image, each pixel cut off to an integer first."""
    total = 0
    for y in range(image.shape[1]):
        row = np.int32(0)  # a row of 65535 pixels fits in; 32-bit sums vectorise twice as wide
        if image.shape[0] == 3:
            for x in range(image.shape[2]):
                row += np.int32(
                    np.float32(image[0, y, x]) * _R + np.float32(image[1, y, x]) * _G + np.float32(image[2, y, x]) * _B
                )
        else:
            for x in range(image.shape[2]):
                row += np.int32(image[0, y, x])
        total += row
    return np.float32(total / (image.shape[1] * image.shape[2]))


@kernel
def adjust_saturation(image: Any, factor: Any) -> None:
    """``x * factor + grey * (1 - factor)``; an image of one channel stays as it is."""
    if image.shape[0] != 3:
        return
    f = np.float32(factor)
    rest = np.float32(1.0 - factor)
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            r = np.float32(image[0, y, x])
            g = np.float32(image[1, y, x])
            b = np.float32(image[2, y, x])
            gray = np.float32(np.int32(r * _R + g * _G + b * _B)) * rest
            image[0, y, x] = _level(r * f + gray)
            image[1, y, x] = _level(g * f + gray)
            image[2, y, x] = _level(b * f + gray)


@kernel
def adjust_hue(image: Any, factor: Any) -> None:
    """Turn the hue by ``factor`` of a full circle, through HSV in float32; one channel stays as it is.

    Written with selections instead of branches, so that the loop vectorises.
    """
    if image.shape[0] != 3:
        return
    turn = np.float32(factor)
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            r = np.float32(image[0, y, x]) * _UNIT
            g = np.float32(image[1, y, x]) * _UNIT
            b = np.float32(image[2, y, x]) * _UNIT
            top = r if r > g else g
            top = b if b > top else top
            low = r if r < g else g
            low = b if b < low else low
            span = top - low
            gray = top == low
            s = span / (_ONE if gray else top)
            span = _ONE if gray else span
            rc = (top - r) / span
            gc = (top - g) / span
            bc = (top - b) / span
            h_red = bc - gc
            h_green = rc + np.float32(2) - bc
            h_blue = gc + np.float32(4) - rc
            h = h_red if top == r else (h_green if top == g else h_blue)
            h = h * _SIXTH + _ONE
            h = h - _ONE if h >= _ONE else h
            h = h + turn
            h = h - np.floor(h)
            h = h * _SIX
            sector = np.floor(h)
            f = h - sector
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
            image[0, y, x] = np.uint8(np.int32(red * _LEVELS))
            image[1, y, x] = np.uint8(np.int32(green * _LEVELS))
            image[2, y, x] = np.uint8(np.int32(blue * _LEVELS))


@kernel
def _adjust(image: Any, op: Any, factor: Any) -> None:
    """Brightness, contrast or saturation, by its row."""
    if op < 2:
        # x * factor, or x * factor + mean * (1 - factor)
        offset = gray_mean(image) * np.float32(1.0 - factor) if op == 1 else _ZERO
        scale_and_shift(image, np.float32(factor), offset)
    elif op == 2:
        adjust_saturation(image, factor)


@kernel
def jitter(image: Any, key: Any, ranges: Any, orders: Any) -> None:
    """Brightness, contrast and saturation in random order, each by a random factor.

    ``ranges``: float64, shape (4, 3): low, high, and whether to do it at all; rows in torchvision's order
    brightness, contrast, saturation, hue. ``orders``: int64, shape (24, 4), ``ORDERS``. Numbers drawn: 0 the order,
    1 + row the factors.
    """
    order = orders[randint(key, 0, 24)]
    for place in range(4):
        op = order[place]
        if ranges[op, 2] == 0:
            continue
        factor = ranges[op, 0] + uniform(key, 1 + op) * (ranges[op, 1] - ranges[op, 0])
        _adjust(image, op, factor)


@kernel
def jitter_with_hue(image: Any, key: Any, ranges: Any, orders: Any) -> None:
    """Do the same with hue; apart from ``jitter``, because the hue's loop takes most of the time to compile."""
    order = orders[randint(key, 0, 24)]
    for place in range(4):
        op = order[place]
        if ranges[op, 2] == 0:
            continue
        factor = ranges[op, 0] + uniform(key, 1 + op) * (ranges[op, 1] - ranges[op, 0])
        if op < 3:
            _adjust(image, op, factor)
        else:
            adjust_hue(image, factor)


@kernel
def to_gray(image: Any, key: Any, p: Any) -> None:
    """Make all three planes the grey image with probability ``p[0]``."""
    if uniform(key, 0) >= p[0]:
        return
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            gray = np.uint8(
                np.int32(
                    np.float32(image[0, y, x]) * _R + np.float32(image[1, y, x]) * _G + np.float32(image[2, y, x]) * _B
                )
            )
            image[0, y, x] = gray
            image[1, y, x] = gray
            image[2, y, x] = gray


@kernel
def to_gray_one_channel(image: Any, key: Any) -> Any:
    """Make the first plane the grey image, and return it alone."""
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            image[0, y, x] = np.uint8(
                np.int32(
                    np.float32(image[0, y, x]) * _R + np.float32(image[1, y, x]) * _G + np.float32(image[2, y, x]) * _B
                )
            )
    return image[:1]


@kernel
def point_table(image: Any, key: Any, p: Any, table: Any) -> None:
    """Replace each value x by ``table[x]`` with probability ``p[0]``."""
    if uniform(key, 0) >= p[0]:
        return
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                image[c, y, x] = table[image[c, y, x]]


@kernel
def autocontrast(image: Any, key: Any, p: Any) -> None:
    """Stretch each channel to the full range with probability ``p[0]``; a channel of one value stays."""
    if uniform(key, 0) >= p[0]:
        return
    for c in range(image.shape[0]):
        low = np.uint8(255)
        high = np.uint8(0)
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                v = image[c, y, x]
                low = v if v < low else low
                high = v if v > high else high
        if low == high:
            continue
        least = np.float32(low)
        scale = (np.float32(high) - least) * np.float32(1.0 / 255.0)
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                image[c, y, x] = _level((np.float32(image[c, y, x]) - least) / scale)
