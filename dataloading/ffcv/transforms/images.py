"""What the transforms of images have in common: they are those of `dataloading.transforms`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from dataloading.errors import UsageError
from dataloading.ffcv.pipeline.operation import BatchContext, EngineOperation
from dataloading.ffcv.pipeline.state import State
from dataloading.transforms.alone import apply_to_batch
from dataloading.transforms.rng import sample_keys

__all__ = ["ImageOperation"]


class ImageOperation(EngineOperation):
    """Does what transforms of ours do. Random numbers depend on seed, epoch and sample.

    Parameters
    ----------
    seed : int, optional
        FFCV-SSL's: of the random numbers, instead of the loader's.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.seed = seed

    @abstractmethod
    def ours(self) -> list[Any]:
        """Return them."""

    def lowered(self, state: State) -> list[Any] | None:
        """See ``EngineOperation``."""
        return self.ours() if str(state.dtype).removeprefix("torch.") == "uint8" else None

    def after(self, state: State) -> State:
        """See ``EngineOperation``."""
        return replace(state)

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        name = type(self).__name__
        if not isinstance(values, np.ndarray) or values.ndim != 4 or values.dtype != np.uint8:
            raise UsageError(
                f"{name} behind an operation of your own takes arrays of uint8 (N, H, W, C), got {_shown(values)}: "
                f"put it before ToTensor, NormalizeImage and Convert"
            )
        planes = np.ascontiguousarray(values.transpose(0, 3, 1, 2))
        # Places at which the engine runs are views of their own, from 0 on: these must not meet them.
        seed = context.seed if self.seed is None else self.seed
        keys = sample_keys(seed, context.epoch, context.indices, -1 - context.place)
        result, _ = apply_to_batch(self.ours(), planes, keys, name, context.indices)
        return np.ascontiguousarray(result.transpose(0, 2, 3, 1))


def _shown(values: Any) -> str:
    shape = getattr(values, "shape", None)
    return type(values).__name__ if shape is None else f"{type(values).__name__} {tuple(shape)} of {values.dtype}"
