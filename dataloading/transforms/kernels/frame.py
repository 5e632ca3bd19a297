"""Kernels that place channels and edges: padding and permuted channels. Any dtype."""

from __future__ import annotations

from typing import Any

from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.rng import randint

__all__ = ["channel_order", "pad", "permute_channels"]

_CONSTANT, _EDGE, _REFLECT, _SYMMETRIC = range(4)


@kernel
def _inside(i: Any, n: Any, mode: Any) -> Any:
    """Return the pixel of a line of ``n`` that stands for pixel ``i`` outside of it."""
    if mode == _EDGE:
        return min(max(i, 0), n - 1)
    period = 2 * n - 2 if mode == _REFLECT else 2 * n
    if period == 0:
        return 0
    i %= period
    return i if i < n else (period - i if mode == _REFLECT else period - 1 - i)


@kernel
def pad(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Put the image at column ``constants[0]`` and row ``constants[1]`` of the target; the rest by ``constants[2]``.

    0: the fill, ``constants[3 + c]``; 1: the pixel at the edge; 2: mirrored without, 3: with the pixel at the edge.
    """
    left = int(constants[0])
    top = int(constants[1])
    mode = int(constants[2])
    height = source.shape[1]
    width = source.shape[2]
    for c in range(source.shape[0]):
        fill = source.dtype.type(constants[3 + c] if mode == _CONSTANT else 0.0)
        for y in range(target.shape[1]):
            out = target[c, y]
            row = y - top
            if mode == _CONSTANT:
                for x in range(out.size):
                    out[x] = fill
                if row < 0 or row >= height:
                    continue
            pixels = source[c, row if 0 <= row < height else _inside(row, height, mode)]
            middle = out[left : left + width]
            for x in range(width):
                middle[x] = pixels[x]
            if mode != _CONSTANT:
                for x in range(left):
                    out[x] = pixels[_inside(x - left, width, mode)]
                for x in range(left + width, out.size):
                    out[x] = pixels[_inside(x - left, width, mode)]


@kernel
def permute_channels(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Take channel ``params[c]`` of the source for channel ``c``."""
    for c in range(source.shape[0]):
        plane = source[int(params[c])]
        for y in range(source.shape[1]):
            out = target[c, y]
            pixels = plane[y]
            for x in range(source.shape[2]):
                out[x] = pixels[x]


@kernel
def channel_order(key: Any, height: Any, width: Any, constants: Any, params: Any) -> None:
    """Draw a permutation, each equally likely (Fisher and Yates). Number drawn for channel c: 1 + c."""
    for c in range(params.size):
        params[c] = c
    for c in range(params.size - 1, 0, -1):
        other = randint(key, 1 + c, c + 1)
        params[c], params[other] = params[other], params[c]
