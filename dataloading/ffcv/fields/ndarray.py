"""Arrays and tensors of one shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dataloading import format as kinds
from dataloading.ffcv.fields.base import Decoder, Field
from dataloading.ffcv.pipeline.state import State

__all__ = ["NDArrayDecoder", "NDArrayField", "TorchTensorField"]


class NDArrayDecoder(Decoder):
    """Arrays as they are stored."""

    stored = (kinds.NDArrayField,)

    def first(self, field: kinds.Field) -> State:
        """See ``Decoder``."""
        assert isinstance(field, kinds.NDArrayField)
        return State(jit_mode=True, device=torch.device("cpu"), shape=field.shape, dtype=field.dtype)


class NDArrayField(Field):
    """Arrays of one dtype and shape."""

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = shape

    def stored(self) -> kinds.Field:
        """See ``Field``."""
        return kinds.NDArrayField(self.dtype, tuple(self.shape))

    def get_decoder_class(self) -> type[Decoder]:
        """Return the decoder of a pipeline that names none."""
        return NDArrayDecoder


class TorchTensorField(NDArrayField):
    """Tensors of one dtype and shape."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        super().__init__(torch.empty(0, dtype=dtype).numpy().dtype, shape)

    def prepared(self, value: Any, place: int) -> Any:
        """See ``Field``."""
        return value.numpy() if isinstance(value, torch.Tensor) else value
