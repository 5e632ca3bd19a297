"""Kernels that overwrite a rectangle: random erasing and cutout, for uint8 images and for floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.rng import child, randint, uniform

__all__ = ["bits_bfloat16", "bits_float16", "bits_float32", "cutout", "erase", "erasing_box", "make_erase_normal"]

_NOISE = 64  # the number whose child stream holds the noise; the box draws numbers 0 to 40


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
def bits_float32(value: Any) -> Any:
    """Leave a float32 as it is."""
    return value


@kernel
def bits_bfloat16(value: Any) -> Any:
    """Return the bits of a finite float32 rounded to bfloat16, to nearest even."""
    bits = np.float32(value).view(np.uint32)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@kernel
def bits_float16(value: Any) -> Any:
    """Return the bits of a float32 of magnitude below 65504 rounded to float16, to nearest even."""
    bits = np.float32(value).view(np.uint32)
    sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    if magnitude < np.uint32(113 << 23):
        # Below 2**-14: adding 0.5 makes the hardware round at the place of float16's last subnormal bit.
        shifted = np.float32(np.uint32(magnitude).view(np.float32) + np.float32(0.5))
        half = np.float32(shifted).view(np.uint32) - np.uint32(126 << 23)
    else:
        odd = (magnitude >> np.uint32(13)) & np.uint32(1)
        half = (magnitude - np.uint32(112 << 23) + np.uint32(0xFFF) + odd) >> np.uint32(13)
    return np.uint16(sign | half)


def _erase_normal(dtype: str, convert: Any) -> Any:
    def erase_normal(image: Any, key: Any, row: Any) -> None:
        """Fill a random rectangle with standard normal numbers, two from each 64 random bits."""
        top, left, h, w = erasing_box(image.shape[1], image.shape[2], key, row)
        noise = child(key, _NOISE)
        counter = 0
        for c in range(image.shape[0]):
            for y in range(top, top + h):
                for x in range(left, left + w, 2):
                    bits = child(noise, counter)
                    counter += 1
                    first = (np.float64(bits >> np.uint64(32)) + 0.5) * 2.0**-32
                    second = np.float64(bits & np.uint64(0xFFFFFFFF)) * 2.0**-32
                    radius = math.sqrt(-2.0 * math.log(first))
                    image[c, y, x] = convert(np.float32(radius * math.cos(2.0 * math.pi * second)))
                    if x + 1 < left + w:
                        image[c, y, x + 1] = convert(np.float32(radius * math.sin(2.0 * math.pi * second)))

    # Programs on disk are told apart by the names of their kernels.
    erase_normal.__name__ = erase_normal.__qualname__ = f"erase_normal_{dtype}"
    return kernel(erase_normal)


_made: dict[str, Any] = {}


def make_erase_normal(dtype: str) -> Any:
    """Return the kernel that fills a rectangle with normal numbers in ``dtype``; the same one every time."""
    if dtype not in _made:
        convert = {"float32": bits_float32, "float16": bits_float16, "bfloat16": bits_bfloat16}[dtype]
        _made.setdefault(dtype, _erase_normal(dtype, convert))
    return _made[dtype]
