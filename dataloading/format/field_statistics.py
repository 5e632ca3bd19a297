"""Statistics of a field's values, collected while they are written.

They are stored in the extension block, under `facts`. With them a loader can size its buffers without reading every
sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .base import Field
from .images import MODE_JPEG, MODE_PNG, ImageField
from .layout import align_up

__all__ = ["FieldStatistics"]


class FieldStatistics:
    """Totals and extremes of one field's values."""

    def __init__(self, field: Field) -> None:
        self._is_image = isinstance(field, ImageField)
        self._may_be_png = isinstance(field, ImageField) and MODE_PNG in field.modes
        self._has_data = field.has_data
        self._total_bytes = self._max_bytes = self._max_sample = 0
        self._num_jpeg = self._num_raw = self._num_png = 0
        self._min_size = [0, 0]
        self._max_size = [0, 0]
        self._longest_sides: Counter[int] = Counter()

    def add(self, sample: int, head: tuple[int | float, ...], size: int, count: int = 1) -> None:
        """Add ``count`` equal values: the record without the pointer, and the stored size in bytes."""
        self._total_bytes += size * count
        if size > self._max_bytes:
            self._max_bytes, self._max_sample = size, sample
        if not self._is_image:
            return
        mode, width, height = int(head[0]), int(head[1]), int(head[2])
        low, high = self._min_size, self._max_size
        if self._num_jpeg + self._num_raw + self._num_png == 0:
            low[:] = high[:] = [width, height]
        if width < low[0] or height < low[1]:
            low[:] = min(low[0], width), min(low[1], height)
        if width > high[0] or height > high[1]:
            high[:] = max(high[0], width), max(high[1], height)
        if mode == MODE_JPEG:
            self._num_jpeg += count
        elif mode == MODE_PNG:
            self._num_png += count
        else:
            self._num_raw += count
        self._longest_sides[align_up(max(width, height), 64)] += count

    def restore(self, summary: Mapping[str, Any]) -> None:
        """Continue from the `summary` of an earlier run."""
        if not summary:
            return
        self._total_bytes, self._max_bytes = int(summary["total_bytes"]), int(summary["max_bytes"])
        self._max_sample = int(summary["max_sample"])
        if self._is_image:
            self._num_jpeg, self._num_raw = int(summary["num_jpeg"]), int(summary["num_raw"])
            self._num_png = int(summary.get("num_png", 0))
            self._min_size, self._max_size = list(summary["min_size"]), list(summary["max_size"])
            self._longest_sides = Counter({int(side): int(n) for side, n in summary["longest_sides"].items()})

    def summary(self) -> dict[str, Any]:
        """Return the statistics as JSON values, see :class:`~dataloading.format.extension.Extension`."""
        if not self._has_data:
            return {}
        result: dict[str, Any] = {
            "total_bytes": self._total_bytes,
            "max_bytes": self._max_bytes,
            "max_sample": self._max_sample,
        }
        if self._is_image:
            result |= {
                "num_jpeg": self._num_jpeg,
                "num_raw": self._num_raw,
                **({"num_png": self._num_png} if self._may_be_png else {}),
                "min_size": list(self._min_size),
                "max_size": list(self._max_size),
                "uniform_size": list(self._min_size) if self._min_size == self._max_size else None,
                "longest_sides": {str(side): self._longest_sides[side] for side in sorted(self._longest_sides)},
            }
        return result
