"""Orders of samples of the user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["EngineOrder", "Listed", "TraversalOrder"]


class TraversalOrder(ABC):
    """An order of samples for each epoch; ``Loader(order=)`` takes the class, or an instance."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.indices = loader.indices
        self.seed = loader.seed
        self.distributed = loader.distributed
        self.sampler = None

    @abstractmethod
    def sample_order(self, epoch: int) -> Sequence[int]:
        """Return this rank's samples of an epoch, in order."""


class EngineOrder(TraversalOrder):
    """An order of our engine's."""

    def __init__(self, loader: Any, sampler: Any) -> None:
        super().__init__(loader)
        self._sampler = sampler

    def sample_order(self, epoch: int) -> Sequence[int]:
        """See ``TraversalOrder``."""
        order = self._sampler.order(epoch)
        listed = [order.step(step).indices for step in range(len(order))]
        return np.concatenate(listed) if listed else np.empty(0, np.int64)  # type: ignore[return-value]


class Listed:
    """A `TraversalOrder` as a sampler of our Loader."""

    def __init__(self, order: Any) -> None:
        self.order = order
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([int(index) for index in self.order.sample_order(self.epoch)])

    def __len__(self) -> int:
        return len(self.order.sample_order(self.epoch))
