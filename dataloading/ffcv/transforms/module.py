"""Torch modules in a pipeline."""

from __future__ import annotations

from typing import Any

import torch

from dataloading.ffcv.pipeline.operation import BatchContext, EngineOperation

__all__ = ["ModuleWrapper"]


class ModuleWrapper(EngineOperation):
    """Apply a torch module, or another callable, to the batch, on the device where it is."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        with torch.no_grad():
            return self.module(values)
