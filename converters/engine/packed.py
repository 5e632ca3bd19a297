"""Packs many converted samples into few arrays, which are sent and written together.

For samples of any size, such as JPEGs: one block of bytes and arrays of records instead of several Python objects per
sample, since the parent is one process for all workers. The file gets the same bytes. (``alike.py`` goes further where
all samples have one shape.)
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.engine.converted import MOST_BYTES, MOST_SAMPLES, MOST_SECONDS, ConvertedSample
from dataloading import Field, Writer

__all__ = ["PackedSamples", "SamplePacker", "can_be_packed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedSamples:
    """Samples without faults and remarks.

    Parameters
    ----------
    records, sizes, data
        The arguments of `Writer.append_packed`.
    kinds : Counter
        Number of images by how they were stored.
    source_bytes : int
        Bytes of image files read.
    stamps : sequence of str
        Of each sample, see `ConvertedSample`.
    """

    records: Sequence[npt.NDArray[Any]]
    sizes: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]
    kinds: Counter[str]
    source_bytes: int
    stamps: Sequence[str]

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.stamps)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all values in the file's pages."""
        return int(self.sizes.sum())

    def append_to(self, writer: Writer) -> None:
        """Write the samples."""
        writer.append_packed(self.records, self.sizes, self.data)


class SamplePacker:
    """Collects samples.

    Parameters
    ----------
    fields : mapping of str to Field
        See `can_be_packed`.
    most_seconds : float
        Longest time that a sample waits for others, if that is less than usual.
    """

    def __init__(self, fields: Mapping[str, Field], most_seconds: float) -> None:
        self._arguments = fields, most_seconds
        self._fields = list(fields.values())
        self._most_seconds = min(MOST_SECONDS, most_seconds)
        self._data = np.empty(MOST_BYTES, np.uint8)
        self._view = self._data.data
        self._start()

    def _start(self) -> None:
        self._entries: list[list[object]] = [[] for _ in self._fields]
        self._sizes: list[int] = []
        self._stamps: list[str] = []
        self._kinds: Counter[str] = Counter()
        self._source_bytes = self._used = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return SamplePacker, self._arguments

    def takes(self, sample: ConvertedSample) -> bool:
        """Add a sample, copying its bytes; return False if it has a fault or remark, or there is no room for it."""
        if sample.encoded is None or sample.fault or sample.notes or sample.stamp is None:
            return False
        # An empty value takes a byte of the file.
        room = MOST_BYTES - self._used - len(self._fields)
        if sample.stored_bytes > room or len(self._stamps) >= MOST_SAMPLES:
            return False
        if not self._stamps:
            self._due = time.monotonic() + self._most_seconds
        for field, entries, (head, payload) in zip(self._fields, self._entries, sample.encoded, strict=True):
            size = 0
            if payload is not None:
                raw = payload.raw()
                size = raw.nbytes
                self._view[self._used : self._used + size] = raw
                if not size:
                    self._view[self._used] = 0
                self._used += max(1, size)
                self._sizes.append(size)
            entries.append(field.entry(head, 0, size))
        for became in sample.images:
            self._kinds[became] += 1
        self._source_bytes += sample.source_bytes
        self._stamps.append(sample.stamp)
        return True

    @property
    def is_due(self) -> bool:
        """Whether the first sample has waited long enough."""
        return time.monotonic() >= self._due

    def taken(self) -> PackedSamples | None:
        """Return the samples, and start again; the next ones overwrite their bytes."""
        count = len(self._stamps)
        if not count:
            return None
        samples = PackedSamples(
            records=[
                np.array(entries, field.record) for field, entries in zip(self._fields, self._entries, strict=True)
            ],
            sizes=np.array(self._sizes, np.int64).reshape(count, -1),
            data=self._data[: self._used],
            kinds=self._kinds,
            source_bytes=self._source_bytes,
            stamps=self._stamps,
        )
        self._start()
        return samples


def can_be_packed(fields: Mapping[str, Field]) -> bool:
    """Return whether values of these fields follow one another in the file without gaps, whatever their sizes."""
    return any(field.has_data for field in fields.values()) and all(
        field.alignment == 1 for field in fields.values() if field.has_data
    )
