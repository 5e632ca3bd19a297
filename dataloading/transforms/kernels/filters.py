"""Kernels that mix each pixel with its neighbours: blur and sharpness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import helper, kernel
from dataloading.transforms.kernels.memory import numbers_at
from dataloading.transforms.kernels.values import held, rounded

__all__ = [
    "STRIP",
    "adjust_sharpness",
    "adjust_sharpness_deep",
    "blurred_rows",
    "gaussian_blur",
    "gaussian_weights",
    "prepare_blur",
]

# Numba computes in 64 bits unless each intermediate result is cut back to 32: then LLVM vectorises twice as wide.
_F, _I, _S = np.float32, np.int32, np.int16
STRIP = 8  # rows that are blurred at a time


@helper
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


@helper
def _mirrored(i: Any, n: Any) -> Any:
    """Return the pixel that stands for pixel ``i`` of ``n``: reflected at the first and the last one, which occur once.

    One step further than that can reach, where ``gaussian_weights`` has a 0 to make the number even, any pixel will do.
    """
    i = -i if i < 0 else i
    i = 2 * (n - 1) - i if i >= n else i
    return min(max(i, 0), n - 1)


@helper
def _weigh(source: Any, first: Any, step: Any, weights: Any, out: Any) -> None:
    """Write ``out[i]``: the sum of ``weights[j] * (source[first + i - j * step] + source[first + i + j * step])``.

    j counts two at a time, so that numbers on their way to memory and back are fewer.
    """
    n = out.size
    weight = weights[0]
    middle = source[first : first + n]
    for i in range(n):
        out[i] = weight * middle[i]
    for j in range(1, weights.size, 2):
        near, far = j * step, (j + 1) * step
        left = source[first - near : first - near + n]
        right = source[first + near : first + near + n]
        far_left = source[first - far : first - far + n]
        far_right = source[first + far : first + far + n]
        weight = weights[j]
        further = weights[j + 1]
        for i in range(n):
            out[i] += weight * (left[i] + right[i]) + further * (far_left[i] + far_right[i])


@helper
def prepare_blur(plane: Any, down: Any, memory: Any) -> Any:
    """Copy a plane as float32, its rows mirrored above and below; return the memory behind it and ``STRIP`` rows.

    ``down``: from ``gaussian_weights``; the reach must be less than the height. ``memory``: float32; a row is as many
    numbers as the width, rounded up to a multiple of 8.
    """
    height, width = plane.shape
    above = down.size - 1
    pitch = (width + 7) & -8
    for k in range(height + 2 * above):
        pixels = plane[_mirrored(k - above, height)]
        row = memory[k * pitch : k * pitch + width]
        for x in range(width):
            row[x] = np.float32(pixels[x])
    return memory[(height + 2 * above + STRIP) * pitch :]


@helper
def blurred_rows(rows: Any, top: Any, width: Any, across: Any, down: Any, memory: Any) -> Any:
    """Return rows of a blurred plane, ``STRIP`` of them from row ``top`` on, as one line, and how far they are apart.

    ``rows``: what ``prepare_blur`` made. ``memory``: float32, ``STRIP`` times three widths and four times the weights
    across. Rows and margins are multiples of 8 numbers, so that vectors are read, and above all written, where lines
    of the cache begin; both directions are sums over all numbers of the rows at once.
    """
    pitch = (width + 7) & -8
    sums = memory[: STRIP * pitch]
    _weigh(rows, (top + down.size - 1) * pitch, pitch, down, sums)
    reach = across.size - 1
    margin = (reach + 7) & -8
    wide = pitch + 2 * margin
    padded = memory[STRIP * pitch : STRIP * (pitch + wide)]
    for k in range(STRIP):
        values = sums[k * pitch : k * pitch + width]
        first = k * wide + margin
        row = padded[first : first + width]
        for x in range(width):
            row[x] = values[x]
        for j in range(1, reach + 1):
            padded[first - j] = values[_mirrored(-j, width)]
            padded[first + width - 1 + j] = values[_mirrored(width - 1 + j, width)]
    result = memory[STRIP * (pitch + wide) : STRIP * (pitch + 2 * wide) - 2 * margin]
    _weigh(padded, margin, 1, across, result)
    return result, wide


@kernel
def gaussian_blur(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Blur by a Gaussian with reflected edges; of integers results are rounded.

    ``params``: sigma across and down. ``constants``: the kernel's width and height. Scratch: those two and 20 numbers
    of 4 bytes, and what ``prepare_blur`` and ``blurred_rows`` need.
    """
    height, width = source.shape[1:]
    reach_x = int(constants[0]) // 2
    reach_y = int(constants[1]) // 2
    numbers = numbers_at(work, work.size // 4, np.float32)
    across = gaussian_weights(params[0], reach_x, numbers)
    down = gaussian_weights(params[1], reach_y, numbers[reach_x + 2 :])
    copied = numbers[(reach_x + reach_y + 4 + 15) & -16 :]
    for c in range(source.shape[0]):
        memory = prepare_blur(source[c], down, copied)
        for top in range(0, height, STRIP):
            rows, pitch = blurred_rows(copied, top, width, across, down, memory)
            for y in range(top, min(top + STRIP, height)):
                row = rows[(y - top) * pitch : (y - top) * pitch + width]
                out = target[c, y]
                for x in range(width):
                    out[x] = rounded(row[x], target)


@kernel
def adjust_sharpness_deep(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Do as ``adjust_sharpness`` with images of uint16 or float32; of floats the mean is not rounded."""
    channels, height, width = source.shape
    rest = _F(1.0 - params[0])
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                target[c, y, x] = source[c, y, x]
        for y in range(1, height - 1):
            for x in range(1, width - 1):
                total = 4.0 * source[c, y, x]
                for row in range(y - 1, y + 2):
                    total += float(source[c, row, x - 1]) + source[c, row, x] + source[c, row, x + 1]
                pixel = _F(source[c, y, x])
                mean = rounded(_F(total / 13.0), source)
                target[c, y, x] = held(pixel + rest * (_F(mean) - pixel), target)


@kernel
def adjust_sharpness(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Move each pixel away from the rounded mean of its neighbourhood by the factor ``params[0]``; 0 is that mean.

    The mean takes the pixel itself five times. Pixels at the edge stay as they are.
    """
    channels, height, width = source.shape
    rest = _F(1.0 - min(params[0], 1e6))  # more makes everything black or white, too
    sums = numbers_at(work, width, np.int16)
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
                result[x] = held(value, target)
