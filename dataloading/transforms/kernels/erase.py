"""Kernels that overwrite a rectangle: random erasing and cutout. Any dtype."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.memory import numbers_at
from dataloading.transforms.kernels.rng import child, randint, uniform

__all__ = ["draw_erasing", "draw_erasing_noise", "erase", "erase_noise"]

_NOISE = 64  # the number whose child stream holds the noise; the box draws numbers 0 to 40
_LOW, _SIXTEEN = np.uint64(0xFFFF), np.uint64(16)


@kernel
def draw_erasing(key: Any, height: Any, width: Any, constants: Any, params: Any) -> None:
    """Draw top, left, height and width of torchvision's ``RandomErasing``; height 0: nothing to erase.

    ``constants``: scale_low, scale_high, log_ratio_low, log_ratio_high. Attempt ``a`` of up to 10 draws
    ``1 + 4 a ..``: area, log aspect ratio, top, left.
    """
    params[:4] = 0.0
    for attempt in range(10):
        counter = 1 + 4 * attempt
        area = height * width * (constants[0] + uniform(key, counter) * (constants[1] - constants[0]))
        ratio = math.exp(constants[2] + uniform(key, counter + 1) * (constants[3] - constants[2]))
        h = int(np.rint(math.sqrt(area * ratio)))
        w = int(np.rint(math.sqrt(area / ratio)))
        if h < height and w < width:
            params[0] = randint(key, counter + 2, height - h + 1)
            params[1] = randint(key, counter + 3, width - w + 1)
            params[2] = h
            params[3] = w
            return


@kernel
def draw_erasing_noise(key: Any, height: Any, width: Any, constants: Any, params: Any) -> None:
    """Draw the rectangle, and the stream of the noise in it."""
    draw_erasing(key, height, width, constants, params)
    numbers_at(params, 5, np.uint64)[4] = child(key, _NOISE)


@kernel
def erase(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Set a rectangle (top, left, height, width) to the last ``constants``, one a channel, in place."""
    top, left, h, w = int(params[0]), int(params[1]), int(params[2]), int(params[3])
    first = constants.size - image.shape[0]
    for c in range(image.shape[0]):
        value = image.dtype.type(constants[first + c])
        for y in range(top, top + h):
            for x in range(left, left + w):
                image[c, y, x] = value


@kernel
def erase_noise(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Fill a rectangle with noise: ``table[u]`` with u uniform in 0 .. 65535, four from each 64 random bits.

    ``table``, the ``constants`` from the fifth on: 65536 values in the image's own dtype, the quantiles of the noise.
    Looking them up is ten times as fast as Box and Muller's formula, and needs no conversion to half precision here.
    """
    top, left, h, w = int(params[0]), int(params[1]), int(params[2]), int(params[3])
    noise = numbers_at(params, 5, np.uint64)[4]
    table = numbers_at(constants[4:], 65536, image.dtype)
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
