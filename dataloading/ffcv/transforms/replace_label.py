"""Other labels for some samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataloading.ffcv.pipeline.operation import BatchContext, EngineOperation

__all__ = ["ReplaceLabel"]


class ReplaceLabel(EngineOperation):
    """Give the samples `indices` the label `new_label`."""

    def __init__(self, indices: Sequence[int], new_label: int) -> None:
        super().__init__()
        self.indices = np.sort(indices)
        self.new_label = new_label

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        replaced = values.copy() if isinstance(values, np.ndarray) else values.clone()
        replaced[np.isin(context.indices, self.indices)] = self.new_label
        return replaced
