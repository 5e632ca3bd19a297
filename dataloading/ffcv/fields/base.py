"""What a field of a dataset is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from dataloading.ffcv.pipeline.operation import BatchContext, EngineOperation
from dataloading.ffcv.pipeline.state import State
from dataloading.format import Field as StoredField

__all__ = ["ARG_TYPE", "Decoder", "Field"]

ARG_TYPE = np.dtype([("", "<u1", 1024)])


class Field(ABC):
    """A kind of values, and how our writer stores them."""

    @abstractmethod
    def stored(self) -> StoredField:
        """Return the field of ours that it is in the file."""

    def prepared(self, value: Any, place: int) -> Any:
        """Return a value as that field takes it; `place` is the sample's number in the file."""
        return value


class Decoder(EngineOperation):
    """The first of a pipeline: what is read of the file, and as what it arrives."""

    stored: tuple[type[StoredField], ...] = ()
    """The fields of ours that it decodes."""

    def transforms(self) -> list[Any]:
        """Return our transforms that are part of decoding."""
        return []

    def first(self, field: StoredField) -> State:
        """Return what comes out."""
        raise NotImplementedError

    def delivered(self, values: Any, widest: int) -> Any:
        """Turn what our Loader delivers into an array or a tensor; `widest` is the longest value in the file."""
        return values

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``; decoders never stand there."""
        raise AssertionError("a decoder behind others")
