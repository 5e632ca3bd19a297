"""Kernels that move pixels without changing them: flips, translation, crop. Any dtype."""

from __future__ import annotations

from typing import Any

from dataloading.transforms.kernels.jit import helper, kernel

__all__ = ["crop", "flip_horizontal", "flip_vertical", "shift", "translate"]


@kernel
def flip_horizontal(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Mirror left and right, in place."""
    width = image.shape[2]
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(width // 2):
                left = image[c, y, x]
                image[c, y, x] = image[c, y, width - 1 - x]
                image[c, y, width - 1 - x] = left


@kernel
def flip_vertical(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Mirror top and bottom, in place."""
    height = image.shape[1]
    for c in range(image.shape[0]):
        for y in range(height // 2):
            for x in range(image.shape[2]):
                upper = image[c, y, x]
                image[c, y, x] = image[c, height - 1 - y, x]
                image[c, height - 1 - y, x] = upper


@helper
def shift(plane: Any, out: Any, down: Any, right: Any, fill: Any) -> None:
    """Take pixel ``(y + down, x + right)`` of a channel, ``fill`` where that lies outside of it."""
    height, width = plane.shape
    first = min(max(-right, 0), out.shape[1])
    last = max(min(width - right, out.shape[1]), first)
    for y in range(out.shape[0]):
        row = out[y]
        if not 0 <= y + down < height:
            row[:] = fill
            continue
        row[:first] = fill
        pixels = plane[y + down, first + right : last + right]
        middle = row[first:last]
        for x in range(middle.size):
            middle[x] = pixels[x]
        row[last:] = fill


@kernel
def translate(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Take what lies at (``params[0]``, ``params[1]``) of the image with ``constants[0]`` pixels around it.

    ``constants[1 + c]`` is the colour of these pixels.
    """
    down = int(params[0]) - int(constants[0])
    right = int(params[1]) - int(constants[0])
    for c in range(source.shape[0]):
        shift(source[c], target[c], down, right, source.dtype.type(constants[1 + c]))


@kernel
def crop(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Take the part of the target's size whose first pixel is (``params[0]``, ``params[1]``)."""
    top = int(params[0])
    left = int(params[1])
    for c in range(target.shape[0]):
        for y in range(target.shape[1]):
            for x in range(target.shape[2]):
                target[c, y, x] = source[c, top + y, left + x]
