"""The order of `indices`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from dataloading.ffcv.traversal_order.base import TraversalOrder

__all__ = ["Sequential", "SequentialContiguous"]


class Sequential(TraversalOrder):
    """Samples as they are listed; of several ranks, each one's share."""

    def sample_order(self, epoch: int) -> Any:
        """See ``TraversalOrder``."""
        if not self.distributed:
            return self.indices
        sampler: Any = DistributedSampler(range(len(self.indices)), shuffle=False)  # type: ignore[arg-type]
        return self.indices[np.array(list(sampler), np.int64)]


class SequentialContiguous(TraversalOrder):
    """FFCV-SSL's: of several ranks, each has one run of the samples; they are as long, with the first ones repeated."""

    def sample_order(self, epoch: int) -> Any:
        """See ``TraversalOrder``."""
        if not self.distributed:
            return self.indices
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        each = -(-len(self.indices) // world_size)
        return np.resize(self.indices, each * world_size)[rank * each :][:each]
