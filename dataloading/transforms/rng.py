"""Random numbers as a function: who asks decides what comes, not when or on which thread.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014). Its n-th output for a seed is a closed formula, so it can be used as a function of two numbers::

    child(key, n) = mix(key + (n + 1) * 0x9E3779B97F4A7C15)            the n-th output of SplitMix64(key)

and keys nest: every level of the tree below is one more ``child``::

    ROOT -> seed -> epoch -> sample index -> view -> transform's position -> counter of the number drawn
            `---------- sample key ----------------'  `---- stream ----'     `--- 64 random bits ---'

This module has the keys of whole batches, which the native core computes, and the reference in Python against which
compiled code is tested; ``kernels/rng.py`` is the side of kernels. It knows nothing of transforms.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from dataloading._native import sample_keys as keys_of_samples
from dataloading.sampling.random import child

__all__ = ["batch_key", "child", "randint", "sample_keys", "uniform"]

UInt64s = npt.NDArray[np.uint64]

# Any constant would do; this one spells what it is for.
_ROOT = int.from_bytes(b"beton/v1", "big")
_BATCH_ROOT = int.from_bytes(b"beton/b1", "big")


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
    views = None if isinstance(view, int) else view
    return keys_of_samples(_epoch_key(seed, epoch), indices, views, view if isinstance(view, int) else 0)


@functools.lru_cache(maxsize=16)
def _epoch_key(seed: int, epoch: int) -> int:
    return child(child(_ROOT, seed), epoch)


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
