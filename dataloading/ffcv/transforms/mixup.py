"""Mixup of images and labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dataloading.errors import UsageError
from dataloading.ffcv.pipeline.operation import BatchContext, EngineOperation
from dataloading.ffcv.pipeline.state import State
from dataloading.transforms.rng import batch_key

__all__ = ["ImageMixup", "LabelMixup", "MixupToOneHot"]


class _Mixup(EngineOperation):
    """Each row is mixed with the row before it; images and labels of a batch draw the same shares.

    Parameters
    ----------
    alpha : float
        Of the beta distribution that a row's own share is drawn from.
    same_lambda : bool
        One share for all rows of the batch.
    """

    def __init__(self, alpha: float, same_lambda: bool) -> None:
        super().__init__()
        self.alpha = alpha
        self.same_lambda = same_lambda

    def _shares(self, rows: int, context: BatchContext) -> npt.NDArray[np.float64]:
        random = np.random.default_rng(batch_key(context.seed, context.epoch, context.step))
        drawn = random.beta(self.alpha, self.alpha, 1 if self.same_lambda else rows)
        return np.broadcast_to(drawn, (rows,))


class ImageMixup(_Mixup):
    """Mix images. Integers are cut off, as in FFCV."""

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        if not isinstance(values, np.ndarray):
            raise UsageError("ImageMixup takes arrays: put it before ToTensor")
        mixed = np.empty_like(values)
        for row, share in enumerate(self._shares(len(values), context)):
            mixed[row] = share * values[row] + (1.0 - share) * values[row - 1]
        return mixed


class LabelMixup(_Mixup):
    """Turn labels into rows (own label, other label, share of the own one)."""

    def after(self, state: State) -> State:
        """See ``EngineOperation``."""
        return replace(state, shape=(3,), dtype=np.dtype(np.float32))

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        if not isinstance(values, np.ndarray):
            raise UsageError("LabelMixup takes arrays: put it before ToTensor")
        own = values.reshape(len(values))
        columns = [own, np.roll(own, 1), self._shares(len(own), context)]
        return np.stack(columns, axis=1).astype(np.float32)


class MixupToOneHot(EngineOperation):
    """Turn the rows of `LabelMixup` into one share for each class."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes

    def after(self, state: State) -> State:
        """See ``EngineOperation``."""
        return replace(state, shape=(self.num_classes,))

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        if not isinstance(values, torch.Tensor):
            raise UsageError("MixupToOneHot takes tensors: put it behind ToTensor")
        shares = torch.zeros(len(values), self.num_classes, dtype=values.dtype, device=values.device)
        # Added, not set: where both labels are equal their shares sum to 1.
        shares.scatter_add_(1, values[:, :1].long(), values[:, 2:])
        return shares.scatter_add_(1, values[:, 1:2].long(), 1 - values[:, 2:])
