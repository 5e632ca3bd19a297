"""Kernels that overwrite a rectangle: random erasing and cutout, for uint8 images and for floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.rng import child, randint, uniform

__all__ = ["cutout", "erase", "erase_noise", "erasing_box"]

_NOISE = 64  # the number whose child stream holds the noise; the box draws numbers 0 to 40
_LOW, _SIXTEEN = np.uint64(0xFFFF), np.uint64(16)


@kernel
def erasing_box(height: Any, width: Any, key: Any, row: Any) -> Any:
    """Return (y, x, h, w) of torchvision's ``RandomErasing``; h = 0: nothing to erase.

    ``row``: p, scale_low, scale_high, log_ratio_low, log_ratio_high. Numbers drawn: 0 whether at all; attempt
    ``a`` of up to 10 draws ``1 + 4 a ..``: area, log aspect ratio, y, x.
    """
    if uniform(key, 0) >= row[0]:
        return 0, 0, 0, 0
    for attempt in range(10):
        counter = 1 + 4 * attempt
        area = height * width * (row[1] + uniform(key, counter) * (row[2] - row[1]))
        ratio = math.exp(row[3] + uniform(key, counter + 1) * (row[4] - row[3]))
        h = int(np.rint(math.sqrt(area * ratio)))
        w = int(np.rint(math.sqrt(area / ratio)))
        if h < height and w < width:
            return randint(key, counter + 2, height - h + 1), randint(key, counter + 3, width - w + 1), h, w
    return 0, 0, 0, 0


@kernel
def erase(image: Any, key: Any, row: Any, values: Any) -> None:
    """Set a random rectangle to ``values``, one a channel, in the image's own dtype."""
    top, left, h, w = erasing_box(image.shape[1], image.shape[2], key, row)
    for c in range(image.shape[0]):
        for y in range(top, top + h):
            for x in range(left, left + w):
                image[c, y, x] = values[c]


@kernel
def cutout(image: Any, key: Any, row: Any, values: Any) -> None:
    """Set a square of ``row[1]`` pixels, all inside the image, to ``values`` with probability ``row[0]``."""
    if uniform(key, 0) >= row[0]:
        return
    side = int(row[1])
    top = randint(key, 1, image.shape[1] - side + 1)
    left = randint(key, 2, image.shape[2] - side + 1)
    for c in range(image.shape[0]):
        for y in range(top, top + side):
            for x in range(left, left + side):
                image[c, y, x] = values[c]


@kernel
def erase_noise(image: Any, key: Any, row: Any, table: Any) -> None:
    """Fill a random rectangle with noise: ``table[u]`` with u uniform in 0 .. 65535, four from each 64 random bits.

    ``table``: shape (65536,), the quantiles of the noise in the image's own dtype. Looking them up is ten times
    as fast as Box and Muller's formula, and needs no conversion to half precision here.
    """
    top, left, h, w = erasing_box(image.shape[1], image.shape[2], key, row)
    noise = child(key, _NOISE)
    bits = noise
    n = 0
    for c in range(image.shape[0]):
        for y in range(top, top + h):
            for x in range(left, left + w):
                if n & 3 == 0:
                    bits = child(noise, n >> 2)
                image[c, y, x] = table[bits & _LOW]
                bits >>= _SIXTEEN
                n += 1
