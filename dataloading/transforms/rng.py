"""Random numbers as a function: who asks decides what comes, not when or on which thread.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014). Its n-th output for a seed is a closed formula, so it can be used as a function of two numbers::

    child(key, n) = mix(key + (n + 1) * 0x9E3779B97F4A7C15)            the n-th output of SplitMix64(key)

and keys nest: every level of the tree below is one more ``child``::

    ROOT -> seed -> epoch -> sample index -> view -> transform's position -> counter of the number drawn
            `---------- sample key ----------------'  `---- stream ----'     `--- 64 random bits ---'

This module is the NumPy side (keys of whole batches, and the reference the compiled side is tested against);
``kernels/rng.py`` is the compiled side. It knows nothing of transforms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["batch_key", "child", "randint", "sample_keys", "uniform"]

UInt64s = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
# Any constant would do; this one spells what it is for.
_ROOT = int.from_bytes(b"beton/v1", "big")
_BATCH_ROOT = int.from_bytes(b"beton/b1", "big")


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
    z = (key + (number + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def _children(keys: UInt64s | int, numbers: npt.NDArray[Any] | int) -> UInt64s:
    """``child`` on whole arrays; integer arrays wrap round silently, which is the arithmetic wanted here."""
    keys_n = np.atleast_1d(np.asarray(keys, dtype=np.uint64))
    numbers_n = np.atleast_1d(np.asarray(numbers)).astype(np.uint64)
    z = keys_n + (numbers_n + np.uint64(1)) * np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)


def sample_keys(
    seed: int, epoch: int, indices: npt.NDArray[np.int64], view: int | npt.NDArray[np.int64] = 0
) -> UInt64s:
    """Return the random key of each sample: the only thing its augmentation depends on.

    Parameters
    ----------
    seed, epoch : int
        Of the loader; any integers (taken modulo 2**64).
    indices : ndarray of int64, shape (n,)
        Sample indices in the file.
    view : int or ndarray of int64, shape (n,)
        0, or the number of the view where one sample is augmented several times.

    Returns
    -------
    ndarray of uint64, shape (n,)
        Equal indices get equal keys, whatever stands beside them.

    Examples
    --------
    >>> import numpy as np
    >>> one = sample_keys(seed=0, epoch=3, indices=np.array([7]))
    >>> many = sample_keys(seed=0, epoch=3, indices=np.array([2, 7]))
    >>> bool(one[0] == many[1])
    True
    """
    epoch_key = child(child(_ROOT, seed), epoch)
    return _children(_children(epoch_key, indices), view & _MASK if isinstance(view, int) else view)


def batch_key(seed: int, epoch: int, step: int) -> int:
    """Return the key of a whole batch, for transforms such as MixUp that draw once per batch.

    ``step`` is the global step within the epoch. Batch keys never meet sample keys: their tree has its own root.

    Examples
    --------
    >>> batch_key(0, 1, 2) == batch_key(0, 1, 2) != batch_key(0, 1, 3)
    True
    """
    return child(child(child(_BATCH_ROOT, seed), epoch), step)


def uniform(key: int, counter: int) -> float:
    """Return number ``counter`` of stream ``key``, uniform in [0, 1) with 53 random bits."""
    return (child(key, counter) >> 11) * 2.0**-53


def randint(key: int, counter: int, bound: int) -> int:
    """Return number ``counter`` of stream ``key`` as an integer in [0, bound), ``1 <= bound < 2**31``.

    ``floor(bits * bound / 2**32)`` from the upper 32 bits: no value is likelier than another by more than
    bound / 2**32.
    """
    return ((child(key, counter) >> 32) * bound) >> 32
