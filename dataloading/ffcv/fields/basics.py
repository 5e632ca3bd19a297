"""Single numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dataloading import format as kinds
from dataloading.ffcv.fields.base import Decoder, EngineField, Field
from dataloading.ffcv.pipeline.allocation_query import AllocationQuery
from dataloading.ffcv.pipeline.state import State

__all__ = ["FloatDecoder", "FloatField", "IntDecoder", "IntField"]


class BasicDecoder(Decoder):
    """Numbers, as arrays of shape (N, 1)."""

    dtype: np.dtype[Any]

    def first(self, field: kinds.Field) -> State:
        """See ``Decoder``."""
        return State(jit_mode=True, device=torch.device("cpu"), shape=(1,), dtype=self.dtype)

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        """See ``Operation``."""
        return replace(previous_state, jit_mode=True, shape=(1,), dtype=self.dtype), AllocationQuery((1,), self.dtype)

    def generate_code(self) -> Callable[..., Any]:
        """See ``Decoder``."""

        def decode(indices: Any, out: Any, metadata: Any, _: Any) -> Any:
            for row in range(len(indices)):
                out[row, 0] = metadata[indices[row]]
            return out

        return decode


class IntDecoder(BasicDecoder):
    """int64."""

    dtype = np.dtype("<i8")
    stored = (kinds.IntField,)


class FloatDecoder(BasicDecoder):
    """float64."""

    dtype = np.dtype("<f8")
    stored = (kinds.FloatField,)


def _number(value: Any) -> Any:
    """Take the number out of an array or a tensor of one."""
    return value.item() if getattr(value, "shape", None) in ((), (1,)) else value


class IntField(EngineField):
    """An integer, int64."""

    def stored(self) -> kinds.Field:
        """See ``Field``."""
        return kinds.IntField()

    @staticmethod
    def from_binary(binary: Any) -> Field:
        """See ``Field``."""
        return IntField()

    def prepared(self, value: Any, place: int) -> Any:
        """See ``Field``."""
        return _number(value)

    def get_decoder_class(self) -> type[Decoder]:
        """Return the decoder of a pipeline that names none."""
        return IntDecoder


class FloatField(EngineField):
    """A float64."""

    def stored(self) -> kinds.Field:
        """See ``Field``."""
        return kinds.FloatField()

    @staticmethod
    def from_binary(binary: Any) -> Field:
        """See ``Field``."""
        return FloatField()

    def prepared(self, value: Any, place: int) -> Any:
        """See ``Field``."""
        return _number(value)

    def get_decoder_class(self) -> type[Decoder]:
        """Return the decoder of a pipeline that names none."""
        return FloatDecoder
