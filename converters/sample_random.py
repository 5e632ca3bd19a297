"""Random numbers that depend only on (seed, sample), not on worker, order or library versions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dataloading.tools import random

__all__ = ["sample_uniform", "sample_uniforms"]


def sample_uniforms(seed: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) per sample: the top 53 bits of SplitMix64 for (seed, index in the source).

    Examples
    --------
    >>> float(sample_uniforms(0, np.array([3]))[0]) == sample_uniform(0, 3)
    True
    """
    bits = random.children(random.child(seed, 0), indices)
    numbers: npt.NDArray[np.float64] = (bits >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return numbers


def sample_uniform(seed: int, index: int) -> float:
    """Return the number of one sample, see `sample_uniforms`."""
    return float(sample_uniforms(seed, np.array([index]))[0])
