"""Vectorised look-up in the tables of many files.

Finds the records and stored bytes of samples in hundreds of files without a Python loop over the files, which in a
shuffled batch would handle one sample per file. Tables are arrays over the files' maps, so records are found by memory
address. Handles the common case only; `Reader.locate` searches the rest and raises errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.arrays import Indices

from .base import Field
from .mapping import Memory
from .reader import Reader

__all__ = ["TableSet", "pointers_of"]

Integers = npt.NDArray[np.uint64]


class TableSet:
    """Sample and allocation tables of files with equal fields.

    Parameters
    ----------
    readers : sequence of Reader
        Files with the same fields in the same order; must stay open while this object is used.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        first = readers[0]
        self._tables = [reader.table for reader in readers]  # keeps the tables alive
        self._allocations = [reader.allocations for reader in readers]
        self._record = first.table.dtype
        self._columns = {name: f"f{position}" for position, name in enumerate(first.fields)}
        stored = [name for name, field in first.fields.items() if field.has_data]
        self._ordinals = {name: ordinal for ordinal, name in enumerate(stored)}
        self._fields = first.fields
        self._num_entries = np.array([len(each) for each in self._allocations])
        self._table_ends = np.array([reader.table_end for reader in readers], np.uint64)
        self._data_ends = np.array([reader.data_end for reader in readers], np.uint64)
        self._records = _Scattered(self._tables)
        self._entries = _Scattered(self._allocations)

    def records(self, field: str, files: Indices, samples: Indices) -> npt.NDArray[Any]:
        """Copy a field's part of the sample tables: of sample ``samples[i]`` of file ``files[i]``."""
        return self._records.gather(files, samples)[self._columns[field]]

    def locate(self, field: str, files: Indices, samples: Indices) -> tuple[Integers, Integers, npt.NDArray[np.bool_]]:
        """Find stored bytes.

        Returns
        -------
        pointers, sizes : uint64 arrays, shape (len(files),)
            Position in the file and number of bytes, valid where `found`.
        found : bool array, shape (len(files),)
            Whether the look-up succeeded. Use `Reader.locate` for the others.
        """
        kind = self._fields[field]
        records = self.records(field, files, samples)
        pointers = pointers_of(records).astype(np.uint64)
        sizes = self._sizes(field, kind, records, pointers, files, samples)
        start, end = self._table_ends[files], self._data_ends[files]
        found = (sizes > 0) & (pointers >= start) & (pointers <= end) & (sizes <= end - np.minimum(pointers, end))
        return pointers, sizes, found

    def _sizes(
        self, field: str, kind: Field, records: npt.NDArray[Any], pointers: Integers, files: Indices, samples: Indices
    ) -> Integers:
        """Find the numbers of bytes; 0 if not found."""
        if kind.fixed_bytes is not None:
            return np.full(len(files), kind.fixed_bytes, np.uint64)
        if "size" in (records.dtype.names or ()):
            return np.asarray(records["size"].astype(np.uint64))
        # Values are allocated sample by sample, field by field, if one worker wrote them.
        guess = samples * len(self._ordinals) + self._ordinals[field]
        inside = guess < self._num_entries[files]
        sizes = np.zeros(len(files), np.uint64)
        entries = self._entries.gather(files[inside], guess[inside])
        fits = (entries["ptr"] == pointers[inside]) & (entries["sample_id"] == samples[inside].astype(np.uint64))
        sizes[inside] = np.where(fits, entries["size"], 0)
        return sizes


def pointers_of(records: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return the file positions in a field's records, as a view."""
    name = next((name for name in ("data_ptr", "ptr") if name in (records.dtype.names or ())), None)
    return records if name is None else records[name]


class _Scattered:
    """Several arrays of one dtype, indexed together by memory address.

    Parameters
    ----------
    arrays : sequence of arrays, shape (num,)
        Contiguous; must outlive this object.
    """

    def __init__(self, arrays: Sequence[npt.NDArray[np.void]]) -> None:
        self._dtype = arrays[0].dtype
        starts = np.array([each.ctypes.data for each in arrays], np.int64)
        lowest = int(starts.min())
        reach = max(int(start) + each.nbytes for start, each in zip(starts, arrays, strict=True)) - lowest
        # Elements may start at any byte, so the stride is one byte. Only elements of `arrays` are ever accessed, not
        # the memory between them.
        itemsize = self._dtype.itemsize
        self._bytes = np.asarray(Memory(lowest, max(reach - itemsize + 1, 0), typestr=f"|V{itemsize}", stride=1))
        self._starts = starts - lowest

    def gather(self, files: Indices, elements: Indices) -> npt.NDArray[np.void]:
        """Copy element ``elements[i]`` of array ``files[i]`` for each i."""
        chosen = self._bytes[self._starts[files] + elements * self._dtype.itemsize]
        return np.asarray(chosen.view(self._dtype))
