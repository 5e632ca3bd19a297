"""The kernel that draws the weights of a mix of images."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.rng import child, normal, uniform

__all__ = ["mixing_weights"]


@kernel
def _gamma(key: Any, shape: Any) -> Any:
    """Draw from the gamma distribution of this shape (Marsaglia and Tsang, 2000); ``key`` is a stream of its own."""
    # Of shapes below 1: a draw of shape + 1, scaled down by a power of a uniform number.
    d = (shape if shape >= 1 else shape + 1.0) - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    value = d
    for attempt in range(64):
        z = normal(child(key, 1), attempt)
        v = (1.0 + c * z) ** 3
        if v > 0 and math.log(1.0 - uniform(child(key, 2), attempt)) < 0.5 * z * z + d * (1.0 - v + math.log(v)):
            value = d * v
            break
    if shape < 1:
        value *= (1.0 - uniform(key, 0)) ** (1.0 / shape)
    return max(value, 1e-300)


@kernel
def mixing_weights(key: Any, height: Any, width: Any, constants: Any, params: Any) -> None:
    """Draw the weights of AugMix: of the image itself, then of its versions; together they are 1.

    ``constants[0]`` is alpha. The share of the image is a beta number, and the versions share the rest by a Dirichlet
    distribution. Streams drawn from: 0 and 1 for the share of the image, 2 + k for version k.
    """
    alpha = constants[0]
    own = _gamma(child(key, np.uint64(0)), alpha)
    rest = _gamma(child(key, np.uint64(1)), alpha)
    params[0] = own / (own + rest)
    total = 0.0
    for k in range(1, params.size):
        params[k] = _gamma(child(key, np.uint64(1 + k)), alpha)
        total += params[k]
    for k in range(1, params.size):
        params[k] *= (1.0 - params[0]) / total
