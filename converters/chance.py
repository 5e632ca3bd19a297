"""Random numbers that are a function of (seed, sample) alone: equal in any worker, any order, any library version."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["chance", "chances"]

_GOLDEN = 0x9E3779B97F4A7C15


def chances(seed: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) for each sample.

    SplitMix64 (Steele, Lea and Flood 2014) started from the mixed seed and jumped to the sample; top 53 bits.

    Parameters
    ----------
    seed : int
        Seed of the conversion, 0 <= seed < 2**63.
    indices : int64[n]
        Indices of samples in their source, 0 or more.

    Returns
    -------
    float64[n]

    Examples
    --------
    >>> float(chances(0, np.array([3]))[0]) == chance(0, 3)
    True
    """
    # Array operations on uint64 wrap silently, which is what SplitMix64 wants; scalars would warn.
    start = _mix(np.array([seed & (1 << 64) - 1], np.uint64) + np.uint64(_GOLDEN))
    state = start + (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    numbers: npt.NDArray[np.float64] = (_mix(state) >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return numbers


def chance(seed: int, index: int) -> float:
    """Return the number of one sample, see `chances`."""
    return float(chances(seed, np.array([index]))[0])


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return mixed
