"""Point operations that no other family has: tables of 256 values a channel, composed before one pass over the pixels.

``tables[c, v]`` is the present value of the stored value ``v``; a kernel puts its own function on top.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.memory import counters

__all__ = ["equalize", "histogram", "solarize_add"]


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


@kernel
def equalize(source: Any, tables: Any, params: Any, constants: Any) -> None:
    """Spread the values of each channel so that all are about equally frequent, as ``ImageOps.equalize`` of Pillow."""
    for c in range(source.shape[0]):
        stored = counters()
        histogram(source[c], stored)
        counts = stored[4]
        for v in range(256):
            counts[tables[c, v]] += stored[0, v]
        last = 255
        while last > 0 and counts[last] == 0:
            last -= 1
        step = (source.shape[1] * source.shape[2] - counts[last]) // 255
        if step == 0:
            continue
        levels = stored[0]
        below = step // 2
        for v in range(256):
            levels[v] = min(below // step, 255)
            below += counts[v]
        for v in range(256):
            tables[c, v] = levels[tables[c, v]]


@kernel
def solarize_add(source: Any, tables: Any, params: Any, constants: Any) -> None:
    """Add ``params[0]`` to values below ``constants[0]``, up to 255."""
    for c in range(tables.shape[0]):
        for v in range(256):
            value = np.int64(tables[c, v])
            if value < constants[0]:
                tables[c, v] = min(max(value + np.int64(params[0]), 0), 255)
