"""Point operations that no other family has: tables of 256 values a channel, composed before one pass over the pixels.

``tables[c, v]`` is the present value of the stored value ``v``; a kernel puts its own function on top.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import helper, kernel
from dataloading.transforms.kernels.memory import counters
from dataloading.transforms.kernels.values import cut, white_of

__all__ = ["equalize", "equalize_values", "histogram", "solarize_add"]

_F = np.float32
_ONE = _F(1)


@kernel
def histogram(plane: Any, counts: Any) -> None:
    """Add up how often each value occurs in a channel. ``counts``: zeros, int64; row 0 is the result.

    Four neighbours count into four rows, as equal ones in one row would wait for each other.
    """
    height, width = plane.shape
    for y in range(height):
        row = plane[y]
        whole = width & -4
        for x in range(0, whole, 4):
            counts[0, row[x]] += 1
            counts[1, row[x + 1]] += 1
            counts[2, row[x + 2]] += 1
            counts[3, row[x + 3]] += 1
        for x in range(whole, width):
            counts[0, row[x]] += 1
    for v in range(256):
        counts[0, v] += counts[1, v] + counts[2, v] + counts[3, v]


@helper
def _levels(counts: Any, pixels: Any, levels: Any) -> Any:
    """Write the level that each of 256 values becomes; return whether values are spread at all."""
    last = 255
    while last > 0 and counts[last] == 0:
        last -= 1
    step = (pixels - counts[last]) // 255
    if step == 0:
        return False
    below = step // 2
    for v in range(256):
        levels[v] = min(below // step, 255)
        below += counts[v]
    return True


@kernel
def equalize(source: Any, tables: Any, params: Any, constants: Any) -> None:
    """Spread the values of each channel so that all are about equally frequent, as ``ImageOps.equalize`` of Pillow."""
    for c in range(source.shape[0]):
        stored = counters()
        histogram(source[c], stored)
        counts = stored[4]
        for v in range(256):
            counts[tables[c, v]] += stored[0, v]
        levels = stored[0]
        if _levels(counts, source.shape[1] * source.shape[2], levels):
            for v in range(256):
                tables[c, v] = levels[tables[c, v]]


@kernel
def equalize_values(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Do the same with images of uint16 or float32, in place: as torchvision, in 256 levels, and back."""
    white = white_of(image)
    to_bytes, back = (_F(1.0 / 256.0), _F(256.0)) if white > _ONE else (_F(255.999), _F(1.0 / 255.0))
    for c in range(image.shape[0]):
        stored = counters()
        counts = stored[0]
        plane = image[c]
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                counts[np.uint8(_F(plane[y, x]) * to_bytes)] += 1
        levels = stored[1]
        if not _levels(counts, image.shape[1] * image.shape[2], levels):
            for v in range(256):
                levels[v] = v
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                plane[y, x] = cut(_F(levels[np.uint8(_F(plane[y, x]) * to_bytes)]) * back, image)


@kernel
def solarize_add(source: Any, tables: Any, params: Any, constants: Any) -> None:
    """Add ``params[0]`` to values below ``constants[0]``, up to 255."""
    for c in range(tables.shape[0]):
        for v in range(256):
            value = np.int64(tables[c, v])
            if value < constants[0]:
                tables[c, v] = min(max(value + np.int64(params[0]), 0), 255)
