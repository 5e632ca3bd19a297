"""Normalization."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.ffcv.pipeline.operation import BatchContext, EngineOperation
from dataloading.ffcv.pipeline.state import State

__all__ = ["NormalizeImage"]


class NormalizeImage(EngineOperation):
    """Turn uint8 pixels into ``(pixel - mean) / std``.

    Parameters
    ----------
    mean, std : ndarray of 3 numbers, in units of 0 to 255
    type : numpy.dtype
        Of the result. float16 is float16 from here on, not int16 as in FFCV.
    """

    def __init__(self, mean: npt.ArrayLike, std: npt.ArrayLike, type: Any) -> None:
        super().__init__()
        self.mean = np.asarray(mean, np.float64)
        self.std = np.asarray(std, np.float64)
        self.dtype = np.dtype(type)

    def lowered(self, state: State) -> list[Any] | None:
        """See ``EngineOperation``."""
        if self.dtype.name not in ("float32", "float16") or str(state.dtype).removeprefix("torch.") != "uint8":
            return None
        return [T.Normalize(tuple(self.mean.tolist()), tuple(self.std.tolist()), dtype=self.dtype.name, max_value=1.0)]

    def after(self, state: State) -> State:
        """See ``EngineOperation``."""
        dtype: Any = self.dtype
        return replace(state, dtype=getattr(torch, dtype.name) if isinstance(state.dtype, torch.dtype) else dtype)

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        if str(values.dtype).removeprefix("torch.") != "uint8":
            raise UsageError(f"NormalizeImage takes images of uint8, got {values.dtype}: put it before Convert")
        table = ((np.arange(256.0)[:, None] - self.mean) / self.std).astype(self.dtype)
        if isinstance(values, np.ndarray):
            return np.stack([table[values[..., c], c] for c in range(3)], axis=-1)
        planes = torch.from_numpy(table).to(values.device)
        axis = 1 if values.shape[1] == 3 else values.ndim - 1
        parts = [planes[:, c][each.long()] for c, each in enumerate(values.unbind(axis))]
        return torch.stack(parts, axis)
