"""The compiled side of ``transforms/rng.py``: the same functions, to be called inside kernels.

These are also what users call in their own kernels, as ``T.uniform(key, counter)``, ``T.randint`` and
``T.normal``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import kernel

__all__ = ["child", "normal", "randint", "uniform"]

# Typed constants: mixing an unsigned with a signed 64-bit integer would make Numba compute in float64.
_ONE = np.uint64(1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S11, _S27, _S30, _S31, _S32 = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@kernel
def child(key: Any, number: Any) -> Any:
    """Return output ``number`` of the SplitMix64 generator seeded with ``key``, uint64."""
    z = key + (np.uint64(number) + _ONE) * _GOLDEN
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@kernel
def uniform(key: Any, counter: Any) -> Any:
    """Return number ``counter`` of stream ``key``: float64, uniform in [0, 1) with 53 random bits."""
    return np.float64(child(key, counter) >> _S11) * 2.0**-53


@kernel
def randint(key: Any, counter: Any, bound: Any) -> Any:
    """Return number ``counter`` of stream ``key``: int64, uniform in [0, bound), for bounds below 2**31."""
    return np.int64(((child(key, counter) >> _S32) * np.uint64(bound)) >> _S32)


@kernel
def normal(key: Any, counter: Any) -> Any:
    """Return number ``counter`` of stream ``key``: float64, standard normal (Box and Muller, 1958).

    It is made of the uniform numbers ``2 * counter`` and ``2 * counter + 1`` of the stream.
    """
    pair = np.int64(2) * np.int64(counter)
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(key, pair)))
    return radius * math.cos(2.0 * math.pi * uniform(key, pair + np.int64(1)))
