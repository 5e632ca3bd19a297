"""Arrays to tensors, devices, layouts and dtypes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.ffcv.pipeline.operation import BatchContext, EngineOperation
from dataloading.ffcv.pipeline.state import State

__all__ = ["Convert", "ToDevice", "ToTensor", "ToTorchImage", "View", "torch_dtype"]


def torch_dtype(dtype: Any) -> torch.dtype:
    """Return the dtype of torch's that has this name."""
    if isinstance(dtype, torch.dtype):
        return dtype
    found: torch.dtype = torch.from_numpy(np.empty(0, dtype)).dtype
    return found


class ToTensor(EngineOperation):
    """Make a tensor of an array."""

    def lowered(self, state: State) -> list[Any] | None:
        """See ``EngineOperation``."""
        return []

    def after(self, state: State) -> State:
        """See ``EngineOperation``."""
        return replace(state, jit_mode=False, dtype=torch_dtype(state.dtype))

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        return torch.from_numpy(values) if isinstance(values, np.ndarray) else values


class ToDevice(EngineOperation):
    """Move tensors to a device.

    Parameters
    ----------
    device : torch.device, str or int
    non_blocking : bool
        Taken because FFCV's has it: copies are asynchronous where that is safe.
    """

    def __init__(self, device: Any, non_blocking: bool = True) -> None:
        super().__init__()
        self.device = device
        self.non_blocking = non_blocking

    def lowered(self, state: State) -> list[Any] | None:
        """See ``EngineOperation``."""
        return None if state.jit_mode else []

    def after(self, state: State) -> State:
        """See ``EngineOperation``."""
        return replace(state, jit_mode=False, device=torch.device(self.device))

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        if not isinstance(values, torch.Tensor):
            raise UsageError("ToDevice takes tensors: put it behind ToTensor")
        return values.to(self.device)


class ToTorchImage(EngineOperation):
    """Turn images (N, H, W, C) into (N, C, H, W).

    Parameters
    ----------
    channels_last : bool
        Keep them in memory as they are, in torch's channels_last format.
    convert_back_int16 : bool
        Take int16 for the bits of float16.
    """

    def __init__(self, channels_last: bool = True, convert_back_int16: bool = True) -> None:
        super().__init__()
        self.channels_last = channels_last
        self.convert_int16 = convert_back_int16

    def lowered(self, state: State) -> list[Any] | None:
        """See ``EngineOperation``."""
        return None if state.jit_mode or len(state.shape or ()) != 3 else []

    def after(self, state: State) -> State:
        """See ``EngineOperation``."""
        assert state.shape is not None
        height, width, channels = state.shape
        as_half = state.dtype is torch.int16 and self.convert_int16
        return replace(
            state, jit_mode=False, shape=(channels, height, width), dtype=torch.float16 if as_half else state.dtype
        )

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        if not isinstance(values, torch.Tensor) or values.ndim != 4:
            raise UsageError("ToTorchImage takes tensors of images (N, H, W, C): put it behind ToTensor, once")
        values = values.view(torch.float16) if values.dtype is torch.int16 and self.convert_int16 else values
        images = values.permute(0, 3, 1, 2)
        form = torch.channels_last if self.channels_last else torch.contiguous_format
        return images.contiguous(memory_format=form)


class Convert(EngineOperation):
    """Convert to another dtype."""

    def __init__(self, target_dtype: Any) -> None:
        super().__init__()
        self.target_dtype = target_dtype

    def lowered(self, state: State) -> list[Any] | None:
        """See ``EngineOperation``."""
        name = str(torch_dtype(self.target_dtype)).removeprefix("torch.")
        is_pixels = str(state.dtype).removeprefix("torch.") == "uint8"
        return [T.ToDtype(name)] if is_pixels and name in ("float32", "float16") else None

    def after(self, state: State) -> State:
        """See ``EngineOperation``."""
        wanted = self.target_dtype
        return replace(state, dtype=np.dtype(wanted) if state.jit_mode else torch_dtype(wanted))

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        return (
            values.astype(self.target_dtype)
            if isinstance(values, np.ndarray)
            else values.to(torch_dtype(self.target_dtype))
        )


class View(Convert):
    """Take the bytes for another dtype."""

    def lowered(self, state: State) -> list[Any] | None:
        """See ``EngineOperation``."""
        return None

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        if isinstance(values, np.ndarray):
            return values.view(self.target_dtype)
        return values.view(torch_dtype(self.target_dtype))
