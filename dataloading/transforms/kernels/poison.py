"""The kernel that blends a fixed image into others. uint8."""

from __future__ import annotations

from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import kernel

__all__ = ["blend"]


@kernel
def blend(image: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Set each value to ``clamp(value * kept + added)``, in place, rounded to float32 at each step.

    ``constants``: ``kept`` of every value, ``added`` of every value, and the least and greatest result.
    """
    low, high = constants[-2], constants[-1]
    plane = image.shape[1] * image.shape[2]
    count = image.shape[0] * plane
    for c in range(image.shape[0]):
        for y in range(image.shape[1]):
            first = c * plane + y * image.shape[2]
            for x in range(image.shape[2]):
                value = np.float32(np.float64(image[c, y, x]) * constants[first + x])
                value = np.float32(np.float64(value) + constants[count + first + x])
                image[c, y, x] = np.uint8(np.int32(min(max(np.float64(value), low), high)))
