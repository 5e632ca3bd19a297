"""Any number of bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dataloading import format as kinds
from dataloading.ffcv.fields.base import Decoder, EngineField, Field
from dataloading.ffcv.pipeline.allocation_query import AllocationQuery
from dataloading.ffcv.pipeline.state import State

__all__ = ["BytesDecoder", "BytesField"]


class BytesDecoder(Decoder):
    """Bytes and JSON text, as uint8 arrays of the longest value's length; zeros behind shorter ones."""

    stored = (kinds.BytesField, kinds.JSONField)

    def first(self, field: kinds.Field) -> State:
        """See ``Decoder``."""
        return State(jit_mode=True, device=torch.device("cpu"), shape=None, dtype=np.dtype(np.uint8))

    def delivered(self, values: Any, widest: int) -> Any:
        """See ``Decoder``."""
        rows = [_bytes_of(each) for each in values]
        out = np.zeros((len(rows), max([widest, *map(len, rows)])), np.uint8)
        for place, row in zip(out, rows, strict=True):
            place[: len(row)] = row
        return out

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        """See ``Operation``."""
        shape, dtype = (int(self.metadata["size"].max()),), np.dtype(np.uint8)
        return replace(previous_state, jit_mode=True, shape=shape, dtype=dtype), AllocationQuery(shape, dtype)

    def generate_code(self) -> Callable[..., Any]:
        """See ``Decoder``."""
        read = self.memory_read

        def decode(indices: Any, out: Any, metadata: Any, storage_state: Any) -> Any:
            for row in range(len(indices)):
                record = metadata[indices[row]]
                value = read(record["ptr"], storage_state)
                out[row, : len(value)] = value
            return out

        return decode


def _bytes_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, np.ndarray):
        return value
    return np.frombuffer(json.dumps(value).encode() + b"\0", np.uint8)


class BytesField(EngineField):
    """Bytes; values are one-dimensional uint8 arrays."""

    def stored(self) -> kinds.Field:
        """See ``Field``."""
        return kinds.BytesField()

    @staticmethod
    def from_binary(binary: Any) -> Field:
        """See ``Field``."""
        return BytesField()

    def prepared(self, value: Any, place: int) -> Any:
        """See ``Field``: FFCV also takes arrays of other numbers; here they must be whole numbers from 0 to 255."""
        if isinstance(value, np.ndarray) and value.dtype != np.uint8 and value.dtype.kind in "biuf":
            with np.errstate(invalid="ignore"):
                same = value.astype(np.uint8)
            return same if np.array_equal(same, value) else value
        return value

    def get_decoder_class(self) -> type[Decoder]:
        """Return the decoder of a pipeline that names none."""
        return BytesDecoder
