"""Single numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dataloading import format as kinds
from dataloading.ffcv.fields.base import Decoder, Field
from dataloading.ffcv.pipeline.state import State

__all__ = ["FloatDecoder", "FloatField", "IntDecoder", "IntField"]


class BasicDecoder(Decoder):
    """Numbers, as arrays of shape (N, 1)."""

    dtype: np.dtype[Any]

    def first(self, field: kinds.Field) -> State:
        """See ``Decoder``."""
        return State(jit_mode=True, device=torch.device("cpu"), shape=(1,), dtype=self.dtype)


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


class IntField(Field):
    """An integer, int64."""

    def stored(self) -> kinds.Field:
        """See ``Field``."""
        return kinds.IntField()

    def prepared(self, value: Any, place: int) -> Any:
        """See ``Field``."""
        return _number(value)

    def get_decoder_class(self) -> type[Decoder]:
        """Return the decoder of a pipeline that names none."""
        return IntDecoder


class FloatField(Field):
    """A float64."""

    def stored(self) -> kinds.Field:
        """See ``Field``."""
        return kinds.FloatField()

    def prepared(self, value: Any, place: int) -> Any:
        """See ``Field``."""
        return _number(value)

    def get_decoder_class(self) -> type[Decoder]:
        """Return the decoder of a pipeline that names none."""
        return FloatDecoder
