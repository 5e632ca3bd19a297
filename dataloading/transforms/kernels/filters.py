"""Kernels that mix each pixel with its neighbours: blur and sharpness. uint8."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import kernel

__all__ = ["adjust_sharpness", "blurred_row", "gaussian_blur", "gaussian_weights"]

# Numba computes in 64 bits unless each intermediate result is cut back to 32: then LLVM vectorises twice as wide.
_F, _I, _S = np.float32, np.int32, np.int16
_ZERO, _TOP = _F(0), _F(255)
_ROUND = _F(1.5 * 2**23)  # adding and subtracting it rounds a float32 below 2**22 to an integer, halves to even


@kernel
def gaussian_weights(sigma: Any, reach: Any, memory: Any) -> Any:
    """Return the weights of the pixels 0, 1, ... steps away; behind the first an even number of them.

    ``memory``: float32, at least two more than ``reach``. Weights beyond four sigma are left out: they are less than
    1/15000 together, a sixtieth of a level.
    """
    reach = min(reach, math.ceil(4.0 * sigma))
    total = -1.0
    for j in range(reach + 1):
        total += 2.0 * math.exp(-0.5 * (j / sigma) ** 2)
    weights = memory[: 1 + ((reach + 1) & -2)]
    weights[weights.size - 1] = 0
    for j in range(reach + 1):
        weights[j] = math.exp(-0.5 * (j / sigma) ** 2) / total
    return weights


@kernel
def _mirrored(i: Any, n: Any) -> Any:
    """Return the row that stands for row ``i``: reflected at the first and the last one, which occur once.

    One step further than that can reach, where ``gaussian_weights`` has a 0 to make the number even, any row will do.
    """
    i = -i if i < 0 else i
    i = 2 * (n - 1) - i if i >= n else i
    return min(max(i, 0), n - 1)


@kernel
def blurred_row(plane: Any, y: Any, across: Any, down: Any, rows: Any, out: Any) -> None:
    """Write row ``y`` of the blurred plane, float32: first down, then across, two steps at a time.

    ``across``, ``down``: from ``gaussian_weights``; their reach must be less than the plane's sides. ``rows``:
    float32, the plane's width and twice the weights across.
    """
    height, width = plane.shape
    margin = across.size - 1
    middle = rows[margin : margin + width]
    weight = down[0]
    pixels = plane[y]
    for x in range(width):
        middle[x] = weight * _F(pixels[x])
    for j in range(1, down.size, 2):
        weight = down[j]
        above = plane[_mirrored(y - j, height)]
        below = plane[_mirrored(y + j, height)]
        further = down[j + 1]
        far_above = plane[_mirrored(y - j - 1, height)]
        far_below = plane[_mirrored(y + j + 1, height)]
        for x in range(width):
            near = weight * (_F(above[x]) + _F(below[x]))
            middle[x] += near + further * (_F(far_above[x]) + _F(far_below[x]))
    for j in range(1, margin + 1):
        rows[margin - j] = middle[min(j, width - 1)]
        rows[margin + width - 1 + j] = middle[max(width - 1 - j, 0)]
    weight = across[0]
    for x in range(width):
        out[x] = weight * middle[x]
    for j in range(1, margin, 2):
        weight = across[j]
        left = rows[margin - j : margin - j + width]
        right = rows[margin + j : margin + j + width]
        further = across[j + 1]
        far_left = rows[margin - j - 1 : margin - j - 1 + width]
        far_right = rows[margin + j + 1 : margin + j + 1 + width]
        for x in range(width):
            out[x] += weight * (left[x] + right[x]) + further * (far_left[x] + far_right[x])


@kernel
def gaussian_blur(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Blur by a Gaussian with reflected edges; results are rounded.

    ``params``: sigma across and down. ``constants``: the kernel's width and height. Scratch: 8 bytes a column, 6 for
    each of the kernel's width and 2 of its height, and 32.
    """
    height = source.shape[1]
    width = source.shape[2]
    reach_x = int(constants[0]) // 2
    reach_y = int(constants[1]) // 2
    numbers = work[: work.size & -8].view(np.float32)
    across = gaussian_weights(params[0], reach_x, numbers)
    down = gaussian_weights(params[1], reach_y, numbers[reach_x + 2 :])
    rest = numbers[reach_x + reach_y + 4 :]
    result = rest[:width]
    rows = rest[width : 2 * width + 2 * across.size]
    for c in range(source.shape[0]):
        for y in range(height):
            blurred_row(source[c], y, across, down, rows, result)
            out = target[c, y]
            for x in range(width):
                out[x] = np.uint8(_I((result[x] + _ROUND) - _ROUND))


@kernel
def adjust_sharpness(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Move each pixel away from the rounded mean of its neighbourhood by the factor ``params[0]``; 0 is that mean.

    The mean takes the pixel itself five times. Pixels at the edge stay as they are.
    """
    channels, height, width = source.shape
    rest = _F(1.0 - params[0])
    sums = work[: 2 * width].view(np.int16)
    for c in range(channels):
        for y in range(height):
            out = target[c, y]
            pixels = source[c, y]
            for x in range(width):
                out[x] = pixels[x]
            if y == 0 or y == height - 1:
                continue
            above = source[c, y - 1]
            below = source[c, y + 1]
            for x in range(width):
                sums[x] = _S(_S(above[x]) + _S(_S(below[x]) + _S(pixels[x])))
            before = sums[: width - 2]
            middle = sums[1 : width - 1]
            behind = sums[2:]
            inner = pixels[1 : width - 1]
            result = out[1 : width - 1]
            for x in range(width - 2):
                pixel = _I(inner[x])
                total = _I(_S(_S(before[x] + middle[x]) + behind[x]))
                # round(total / 13), exact for all totals up to 13 * 255.
                mean = _I(_I(_I(_I(total + _I(pixel << _I(2))) + _I(6)) * _I(20165)) >> _I(18))
                value = _F(pixel) + rest * _F(_I(mean - pixel))
                value = value if value > _ZERO else _ZERO
                value = value if value < _TOP else _TOP
                result[x] = np.uint8(_I(value))
