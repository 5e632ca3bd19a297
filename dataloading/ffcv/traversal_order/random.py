"""FFCV's own random order: ``Loader(order=Random)`` gives its samples for a seed, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import DistributedSampler

from dataloading.ffcv.traversal_order.base import TraversalOrder

__all__ = ["Random"]


class Random(TraversalOrder):
    """The permutation that NumPy's generator gives for seed + epoch; of ranks, that of torch's sampler."""

    def sample_order(self, epoch: int) -> Any:
        """See ``TraversalOrder``."""
        if not self.distributed:
            return np.random.default_rng(self.seed + epoch).permutation(self.indices)
        sampler: Any = DistributedSampler(range(len(self.indices)), shuffle=True, seed=self.seed)  # type: ignore[arg-type]
        sampler.set_epoch(epoch)
        return self.indices[np.array(list(sampler), np.int64)]
