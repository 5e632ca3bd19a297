"""Converts many small samples of one shape at once: arrays and numbers, which are stored unchanged.

Python code per sample dominates the cost of such samples, so they are batched into arrays of many rows, which are sent
and written together. The file gets the same bytes.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.engine.converted import MOST_BYTES, MOST_SAMPLES, MOST_SECONDS
from converters.images.encoding import RAW
from converters.images.policy import ImagePolicy
from converters.images.rgb import target_size
from dataloading import Field, FloatField, ImageField, IntField, MaskField, NDArrayField, RasterField, Writer
from dataloading.tools import MODE_RAW

__all__ = ["AlikeSamples", "SampleCollector", "make_collector"]

Array = npt.NDArray[Any]
Column = tuple[tuple[int, ...], Array] | tuple[Array, None]
"""A field's argument for `Writer.append_alike`."""

_INTEGERS = (int, np.int64, np.int32, np.uint8, np.int16, np.uint16, np.uint32, np.int8)
_FLOATS = (float, np.float64, np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlikeSamples:
    """Samples that a worker converted together.

    Parameters
    ----------
    num_samples : int
    columns : sequence
        Per field the argument of `Writer.append_alike`.
    images : tuple of str
        How the images of each sample were stored.
    stored_bytes : int
        Bytes of all values in the file's pages.
    stamps : sequence of str
        Of each sample, see `ConvertedSample`.
    """

    num_samples: int
    columns: Sequence[Column]
    images: tuple[str, ...]
    stored_bytes: int
    stamps: Sequence[str]
    source_bytes = 0

    @property
    def kinds(self) -> Counter[str]:
        """Number of images by how they were stored."""
        return Counter(dict.fromkeys(self.images, self.num_samples))

    def append_to(self, writer: Writer) -> None:
        """Write the samples; a `UsageError` means that none was written."""
        writer.append_alike(self.columns)

    def encoded(self, place: int) -> list[tuple[tuple[int | float, ...], Any]]:
        """Return one sample in the form of `Writer.append_encoded`."""
        values: list[tuple[tuple[int | float, ...], Any]] = []
        for head, payload in self.columns:
            if isinstance(head, np.ndarray):
                values.append(((head[place].item(),), None))
            else:
                assert payload is not None
                values.append((head, payload[place]))
        return values


class SampleCollector:
    """Collects samples; the first one determines the shapes of arrays.

    Parameters
    ----------
    fields : mapping of str to Field
    policy : ImagePolicy
    """

    def __init__(self, fields: Mapping[str, Field], policy: ImagePolicy) -> None:
        self._fields = fields
        self._policy = policy
        self._num_images = sum(isinstance(field, ImageField) for field in fields.values())
        self._start()

    def _start(self) -> None:
        self._stamps: list[str] = []
        self._arrays: list[tuple[str, Array, np.dtype[Any], tuple[int, ...]]] = []
        self._numbers: list[tuple[str, list[Any], tuple[type, ...]]] = [
            (name, [], _FLOATS if isinstance(field, FloatField) else _INTEGERS)
            for name, field in self._fields.items()
            if not field.has_data
        ]
        self._capacity = MOST_SAMPLES
        self._due = 0.0

    def takes(self, values: Mapping[str, Any], stamp: str) -> bool:
        """Add a sample, copying its arrays; return False if its shapes differ or it is too large."""
        if values.keys() != self._fields.keys():
            return False
        place = len(self._stamps)
        if place == 0 and not self._begin(values):
            return False
        for name, array, dtype, shape in self._arrays:
            value = values[name]
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                return False
            array[place] = value
        for name, numbers, kinds in self._numbers:
            value = values[name]
            if type(value) not in kinds or (type(value) is int and not -(1 << 63) <= value < 1 << 63):
                self._cut(place)
                return False
            numbers.append(value)
        self._stamps.append(stamp)
        return True

    def _cut(self, count: int) -> None:
        for _, numbers, _ in self._numbers:
            del numbers[count:]

    def _begin(self, values: Mapping[str, Any]) -> bool:
        shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        for name, field in self._fields.items():
            if not field.has_data:
                continue
            value = values[name]
            if type(value) is not np.ndarray or not _is_stored_as_it_is(value.dtype, value.shape, field, self._policy):
                return False
            shapes[name] = value.dtype, value.shape
        num_bytes = sum(values[name].nbytes for name in shapes)
        self._capacity = min(MOST_SAMPLES, MOST_BYTES // max(1, num_bytes))
        if self._capacity < 2:
            return False
        self._arrays = [
            (name, np.empty((self._capacity, *shape), dtype), dtype, shape) for name, (dtype, shape) in shapes.items()
        ]
        self._due = time.monotonic() + MOST_SECONDS
        return True

    @property
    def is_due(self) -> bool:
        """Whether to flush: there is no room for more samples, or the first has waited long enough."""
        return len(self._stamps) >= self._capacity or time.monotonic() >= self._due

    def taken(self) -> AlikeSamples | None:
        """Return the collected samples, and start again."""
        count = len(self._stamps)
        if not count:
            return None
        columns: dict[str, Array] = {name: array[:count] for name, array, _, _ in self._arrays}
        for name, numbers, _ in self._numbers:
            columns[name] = np.array(numbers, dtype=self._fields[name].record)
        samples = _samples(self._fields, columns, self._stamps, self._num_images)
        self._start()
        return samples

    def of_columns(self, columns: Mapping[str, Array], stamps: Sequence[str]) -> AlikeSamples | None:
        """Convert samples given as arrays of values, with samples along the first axis; None if they do not fit.

        Integers and floats must have the dtype of their field's record.
        """
        if columns.keys() != self._fields.keys():
            return None
        for name, field in self._fields.items():
            array = columns[name]
            if not field.has_data:
                if array.dtype != field.record or array.ndim != 1:
                    return None
            elif not _is_stored_as_it_is(array.dtype, array.shape[1:], field, self._policy):
                return None
        return _samples(self._fields, columns, stamps, self._num_images)


def _samples(
    fields: Mapping[str, Field], columns: Mapping[str, Array], stamps: Sequence[str], num_images: int
) -> AlikeSamples:
    count = len(stamps)
    result: list[Column] = []
    stored_bytes = 0
    for name, field in fields.items():
        array = columns[name]
        if not field.has_data:
            result.append((array, None))
            continue
        head = (MODE_RAW, array.shape[2], array.shape[1]) if isinstance(field, ImageField) else ()
        payload = np.ascontiguousarray(array).reshape(count, -1).view(np.uint8)
        stored_bytes += payload.nbytes
        result.append((head, payload))
    return AlikeSamples(
        num_samples=count, columns=result, images=(RAW,) * num_images, stored_bytes=stored_bytes, stamps=stamps
    )


def make_collector(fields: Mapping[str, Field], policy: ImagePolicy) -> SampleCollector | None:
    """Return a collector for samples of these fields, or None if they must be converted one by one."""
    kinds = (IntField, FloatField, NDArrayField)
    if all(type(field) in kinds or (type(field) in (ImageField, RasterField) and policy.mode == "raw")
           for field in fields.values()):  # fmt: skip
        return SampleCollector(fields, policy)
    return None


def _is_stored_as_it_is(dtype: np.dtype[Any], shape: tuple[int, ...], field: Field, policy: ImagePolicy) -> bool:
    """Return whether a field stores just the elements of an array."""
    if isinstance(field, NDArrayField):
        return dtype == field.dtype and shape == field.shape
    if not isinstance(field, ImageField) or isinstance(field, MaskField):
        return False
    if dtype != field.dtype.newbyteorder("<") or 0 in shape or max(shape, default=0) > 65_535:
        return False
    has_channels = len(shape) == 3 and shape[2] == field.channels
    if not has_channels and not (len(shape) == 2 and field.channels == 1):
        return False
    if type(field) is RasterField and policy.channels == "rgb":
        return False
    if policy.channels == "gray" and field.channels != 1:
        return False
    size = (shape[1], shape[0])
    return target_size(size, policy.max_resolution) == size
