"""Which sample is stored where: a function of the number of samples, the seed and the limit alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from converters.options import Options
from converters.sample_random import chances

__all__ = ["sample_order"]


def sample_order(num_samples: int, options: Options) -> npt.NDArray[np.int64]:
    """Return the source indices of the samples in the order they are stored.

    The random order sorts one random number a sample, so it depends on the seed alone and not on a library's version.

    Parameters
    ----------
    num_samples : int
        Length of the source.
    options : Options
        ``shuffle``, ``seed`` and ``limit``.
    """
    if not options.shuffle:
        stop = num_samples if options.limit is None else min(num_samples, options.limit)
        return np.arange(stop, dtype=np.int64)
    keys = chances(options.seed, np.arange(num_samples))
    return np.argsort(keys, kind="stable")[: options.limit].astype(np.int64)
