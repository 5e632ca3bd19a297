"""SplitMix64 as a function: output n of the generator seeded with a key, for one number or for arrays.

Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. Its n-th output is a closed
formula, so keys nest and nothing needs to be remembered::

    child(key, n) = mix(key + (n + 1) * 0x9E3779B97F4A7C15)

Orders and augmentations draw from here; what a number is for, those who ask decide. The compiled
twins are ``transforms/kernels/rng.py`` (Numba) and ``_native/src/plan.cpp``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.arrays import UInt64s

__all__ = ["MASK", "child", "children", "mix"]

MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def child(key: int, number: int) -> int:
    """Return output ``number`` of the SplitMix64 generator seeded with ``key``, as a Python integer.

    Parameters
    ----------
    key : int
        Taken modulo 2**64.
    number : int
        Which output, counted from 0; taken modulo 2**64.

    Examples
    --------
    >>> hex(child(0, 0))  # the first published output of SplitMix64(0)
    '0xe220a8397b1dcdaf'
    """
    z = (key + (number + 1) * _GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & MASK
    return z ^ (z >> 31)


def mix(z: UInt64s) -> UInt64s:
    """Scramble 64-bit numbers one to one; array operations on uint64 wrap round silently, as is wanted here."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)


def children(keys: UInt64s | int, numbers: npt.NDArray[Any] | int) -> UInt64s:
    """``child`` on whole arrays.

    Parameters
    ----------
    keys : ndarray of uint64, shape (n,), or int
    numbers : ndarray of int, shape (n,), or int
        Either is broadcast to the other; integers must lie in 0 to 2**64 - 1.

    Returns
    -------
    ndarray of uint64, shape (n,)
    """
    keys_n = np.atleast_1d(np.asarray(keys, dtype=np.uint64))
    numbers_n = np.atleast_1d(np.asarray(numbers)).astype(np.uint64)
    return mix(keys_n + (numbers_n + np.uint64(1)) * np.uint64(_GOLDEN))
