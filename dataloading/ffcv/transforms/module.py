"""Torch modules in a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dataloading import transforms as T
from dataloading.ffcv.pipeline.operation import BatchContext, EngineOperation

__all__ = ["ModuleWrapper"]


class ModuleWrapper(EngineOperation):
    """Apply a torch module, or another callable, to the batch, on the device where it is."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def merged(self, before: Sequence[Any]) -> list[Any] | None:
        """Return the transforms of ours that do what those before and the module do, where the engine can.

        torchvision's ``Normalize`` behind `Convert`, as FFCV's script for CIFAR has it.
        """
        kind = type(self.module)
        is_normalize = kind.__name__ == "Normalize" and kind.__module__.startswith("torchvision.transforms.")
        if not (is_normalize and before and isinstance(before[-1], T.ToDtype) and not before[-1].scale):
            return None
        mean, std = (tuple(float(each) for each in values) for values in (self.module.mean, self.module.std))
        return [*before[:-1], T.Normalize(mean, std, dtype=before[-1].dtype, max_value=1.0)]

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        with torch.no_grad():
            return self.module(values)
