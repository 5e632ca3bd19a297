"""Kernels that move pixels without changing them: flips, translation, copy. Any dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.rng import randint, uniform

__all__ = ["copy", "crop", "flip_horizontal", "flip_vertical", "translate"]


@kernel
def copy(image: Any, key: Any, out: Any) -> None:
    """Write the image to the output slot."""
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                out[c, y, x] = image[c, y, x]


@kernel
def flip_horizontal(image: Any, key: Any, p: Any) -> None:
    """Mirror left and right with probability ``p[0]``."""
    if uniform(key, 0) >= p[0]:
        return
    width = image.shape[2]
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            for x in range(width // 2):
                left = image[c, y, x]
                image[c, y, x] = image[c, y, width - 1 - x]
                image[c, y, width - 1 - x] = left


@kernel
def flip_vertical(image: Any, key: Any, p: Any) -> None:
    """Mirror top and bottom with probability ``p[0]``."""
    if uniform(key, 0) >= p[0]:
        return
    height = image.shape[1]
    for c in range(image.shape[0]):
        for y in range(height // 2):
            for x in range(image.shape[2]):
                upper = image[c, y, x]
                image[c, y, x] = image[c, height - 1 - y, x]
                image[c, height - 1 - y, x] = upper


@kernel
def translate(image: Any, key: Any, reach: Any, fill: Any) -> None:
    """Shift the image by a random offset of up to ``reach[0]`` pixels; ``fill[c]`` comes in."""
    height = image.shape[1]
    width = image.shape[2]
    down = reach[0] - randint(key, 0, 2 * reach[0] + 1)
    right = reach[0] - randint(key, 1, 2 * reach[0] + 1)
    for c in range(image.shape[0]):
        for step in range(height):
            # In place: rows and columns are written in the order that reads each one before it is overwritten.
            y = height - 1 - step if down > 0 else step
            source = y - down
            inside = 0 <= source < height
            if right > 0:
                for x in range(width - 1, -1, -1):
                    image[c, y, x] = image[c, source, x - right] if inside and x >= right else fill[c]
            else:
                for x in range(width):
                    image[c, y, x] = image[c, source, x - right] if inside and x - right < width else fill[c]


@kernel
def crop(image: Any, key: Any, row: Any) -> Any:
    """Pack a part of ``row[0]`` x ``row[1]`` pixels to the front of the image's memory, and return it.

    ``row[2]``: 1 a random part, 0 the middle. Each pixel moves to a lower address or stays, and is read before its
    place is written, so one forward pass needs no second buffer.
    """
    height = row[0]
    width = row[1]
    if row[2] == 1:
        top = randint(key, 0, image.shape[1] - height + 1)
        left = randint(key, 1, image.shape[2] - width + 1)
    else:
        top = int(np.rint((image.shape[1] - height) / 2.0))
        left = int(np.rint((image.shape[2] - width) / 2.0))
    flat = image.reshape(image.size)
    place = 0
    for c in range(image.shape[0]):
        for y in range(top, top + height):
            for x in range(left, left + width):
                flat[place] = image[c, y, x]
                place += 1
    return flat[:place].reshape((image.shape[0], height, width))
