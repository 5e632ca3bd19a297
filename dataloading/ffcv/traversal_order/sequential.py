"""The order of `indices`."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import DistributedSampler

from dataloading.ffcv.traversal_order.base import TraversalOrder

__all__ = ["Sequential"]


class Sequential(TraversalOrder):
    """Samples as they are listed; of several ranks, each one's share."""

    def sample_order(self, epoch: int) -> Any:
        """See ``TraversalOrder``."""
        if not self.distributed:
            return self.indices
        sampler: Any = DistributedSampler(range(len(self.indices)), shuffle=False)  # type: ignore[arg-type]
        return self.indices[np.array(list(sampler), np.int64)]
