"""Arrays and tensors of one shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dataloading import format as kinds
from dataloading.ffcv.fields.base import Decoder, EngineField, Field
from dataloading.ffcv.libffcv import memcpy
from dataloading.ffcv.pipeline.allocation_query import AllocationQuery
from dataloading.ffcv.pipeline.compiler import Compiler
from dataloading.ffcv.pipeline.state import State

__all__ = ["NDArrayDecoder", "NDArrayField", "TorchTensorField"]


class NDArrayDecoder(Decoder):
    """Arrays as they are stored."""

    stored = (kinds.NDArrayField,)

    def first(self, field: kinds.Field) -> State:
        """See ``Decoder``."""
        assert isinstance(field, kinds.NDArrayField)
        return State(jit_mode=True, device=torch.device("cpu"), shape=field.shape, dtype=field.dtype)

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        """See ``Operation``."""
        shape, dtype = self.field.shape, self.field.dtype
        return replace(previous_state, jit_mode=True, shape=shape, dtype=dtype), AllocationQuery(shape, dtype)

    def generate_code(self) -> Callable[..., Any]:
        """See ``Decoder``."""
        read, over, copy = self.memory_read, Compiler.get_iterator(), Compiler.compile(memcpy)

        def decode(indices: Any, out: Any, metadata: Any, storage_state: Any) -> Any:
            for row in over(len(indices)):
                copy(read(metadata[indices[row]], storage_state), out[row])
            return out

        decode.is_parallel = True  # type: ignore[attr-defined]
        return decode


class NDArrayField(EngineField):
    """Arrays of one dtype and shape."""

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self.element_size = self.dtype.itemsize * int(np.prod(shape))

    @staticmethod
    def from_binary(binary: Any) -> Field:
        """See ``Field``."""
        field = kinds.NDArrayField.from_arguments(np.asarray(binary).tobytes())
        return NDArrayField(field.dtype, field.shape)

    def stored(self) -> kinds.Field:
        """See ``Field``."""
        return kinds.NDArrayField(self.dtype, tuple(self.shape))

    def prepared(self, value: Any, place: int) -> Any:
        """See ``Field``: FFCV takes any shape of as many elements, such as () for (1,)."""
        same = isinstance(value, np.ndarray) and value.size == int(np.prod(self.shape))
        return value.reshape(self.shape) if same else value

    def get_decoder_class(self) -> type[Decoder]:
        """Return the decoder of a pipeline that names none."""
        return NDArrayDecoder


class TorchTensorField(NDArrayField):
    """Tensors of one dtype and shape."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        super().__init__(torch.empty(0, dtype=dtype).numpy().dtype, shape)

    @staticmethod
    def from_binary(binary: Any) -> Field:
        """See ``Field``: an `NDArrayField`, as the file does not say that values were tensors."""
        return NDArrayField.from_binary(binary)

    def prepared(self, value: Any, place: int) -> Any:
        """See ``Field``."""
        return super().prepared(value.numpy() if isinstance(value, torch.Tensor) else value, place)
