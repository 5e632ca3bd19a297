"""JSON values."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from dataloading import format as kinds
from dataloading.ffcv.fields.base import Field
from dataloading.ffcv.fields.bytes import BytesField

__all__ = ["JSONField"]


class JSONField(BytesField):
    """Any JSON value, stored as text."""

    def stored(self) -> kinds.Field:
        """See ``Field``."""
        return kinds.JSONField()

    @staticmethod
    def from_binary(binary: Any) -> Field:
        """See ``Field``."""
        return JSONField()

    def prepared(self, value: Any, place: int) -> Any:
        """See ``Field``."""
        return value

    @staticmethod
    def unpack(batch: Any) -> Any:
        """Turn what a Loader delivers back into values: a list of them, or the value of a single row."""
        rows = np.asarray(batch.cpu() if hasattr(batch, "cpu") else batch)
        if rows.ndim == 1:
            return json.loads(rows.tobytes().partition(b"\0")[0])
        return [json.loads(row.tobytes().partition(b"\0")[0]) for row in rows]
