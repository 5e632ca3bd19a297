"""Reading a ``.beton`` file through one read-only memory map.

Opens and checks a file, and finds a sample's stored bytes. Returns bytes and records, never pixels. Opening maps the
file and reads its first kilobytes; per-sample data is read on demand. All threads and processes of a machine share the
map through the page cache; it survives a fork, and a reader is pickled as its path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.errors import FormatError, UsageError
from dataloading.messages import counted

from .base import Field
from .extension import Locator
from .fields import BytesField
from .file_info import FileInfo
from .images import MODE_RAW, ImageField
from .layout import ALLOCATION
from .mapping import map_file

__all__ = ["Reader"]

Integers = npt.NDArray[np.uint64]


class Reader(FileInfo):
    """A ``.beton`` file, ours or FFCV's, open for reading.

    Parameters
    ----------
    path : str or path-like
        The file.
    custom_records : mapping, optional
        Record dtype of each custom field (type 255) by name; such files cannot be read without it.
    stored : uint8 array, optional
        The file's bytes, if they are not to be mapped from `path`, which is then only a name for messages.

    Attributes
    ----------
    path : str
    num_samples, page_size, num_bytes : int
    fields : mapping of str to Field
        In the file's order.
    extension : Extension or None
        The metadata that our writer recorded; None for a file that FFCV wrote.
    data : uint8 array, shape (num_bytes,)
        The whole file, read-only.
    base_address : int
        Memory address of the file's first byte; add a pointer of :meth:`locate` to it.

    Raises
    ------
    FormatError
        If the file is not a complete ``.beton`` file; ChecksumError if its head has changed.
    OSError
        If it cannot be opened.

    Examples
    --------
    >>> with Reader("train.beton") as reader:           # doctest: +SKIP
    ...     reader.value("label", 0)
    3
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        custom_records: Mapping[str, npt.DTypeLike] | None = None,
        *,
        stored: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        name, self._custom_records = os.fspath(path), dict(custom_records or {})
        self.data: npt.NDArray[np.uint8]
        self._inode: tuple[int, int] | None = None
        if stored is not None:
            super().__init__(lambda start, end: stored[start:end].tobytes(), len(stored), name, self._custom_records)
            self.data = stored
        else:
            with open(name, "rb") as file:
                descriptor = file.fileno()
                status = os.fstat(descriptor)
                self._inode = status.st_dev, status.st_ino
                # Not through the map: the system would read ahead megabytes for a few kilobytes.
                super().__init__(
                    lambda start, end: os.pread(descriptor, end - start, start),
                    status.st_size, name, self._custom_records,
                )  # fmt: skip
                self.data = map_file(descriptor, self.num_bytes)
        self.base_address: int = self.data.ctypes.data
        self.table: npt.NDArray[np.void] = self.data[self.header.table_start : self.table_end].view(self.record)
        self.allocations: npt.NDArray[np.void] = self.data[self.header.alloc_table_ptr :].view(ALLOCATION)
        self._columns = {name: f"f{position}" for position, name in enumerate(self.fields)}
        self._ordinals = {
            name: ordinal for ordinal, name in enumerate(name for name, field in self.fields.items() if field.has_data)
        }
        self._sorted: tuple[Integers, Integers] | None = None

    def column(self, field: str) -> npt.NDArray[np.generic]:
        """Return the field's part of every record of the sample table, straight from the map.

        Parameters
        ----------
        field : str
            Name of a field.

        Returns
        -------
        array, shape (num_samples,)
            int64 or float64 values; for an image a structure ``mode, width, height, data_ptr``; for bytes and JSON
            ``ptr, size``; for arrays pointers. Strided and read-only.

        Raises
        ------
        UsageError
            If there is no such field.
        """
        self._field(field)
        return self.table[self._columns[field]]

    def locate(self, field: str, indices: npt.ArrayLike) -> tuple[Integers, Integers]:
        """Return where the stored bytes of some samples are.

        Parameters
        ----------
        field : str
            Name of a field that has stored bytes, so not an int or float field.
        indices : array-like of int, shape (n,)
            Samples, in any order.

        Returns
        -------
        pointers, sizes : uint64 arrays, shape (n,)
            Position in the file and number of bytes. They lie inside the file's pages.

        Raises
        ------
        FormatError
            If a pointer leads outside the pages, or nothing was allocated there; names the sample.
        UsageError
            If the field has no stored bytes or an index is out of range.
        """
        kind = self._field(field)
        if not kind.has_data:
            raise UsageError(f"field '{field}' has no stored bytes; read reader.column('{field}')")
        chosen = self._check_indices(indices)
        pointers, sizes, problems = self.examine(field, chosen)
        if problems:
            position, reason = min(problems)
            raise FormatError(
                f"{self.path}: sample {int(chosen[position])}, field '{field}': {reason}; the file is damaged, restore "
                "it or convert the data again"
            )
        return pointers, sizes

    def examine(self, field: str, samples: npt.NDArray[np.int64]) -> tuple[Integers, Integers, list[tuple[int, str]]]:
        """Like :meth:`locate`, but return problems instead of raising.

        Parameters
        ----------
        field : str
            Name of a field that has stored bytes.
        samples : int64 array, shape (n,)
            Samples of this file.

        Returns
        -------
        pointers, sizes : uint64 arrays, shape (n,)
            As :meth:`locate`; undefined for samples with a problem.
        problems : list of (position in ``samples``, reason)
            At most one for each sample.
        """
        kind = self.fields[field]
        records = self.table[self._columns[field]][samples]
        problems: dict[int, str] = {}

        def note(bad: npt.NDArray[np.bool_], reason: str, shown: npt.NDArray[Any]) -> None:
            if bad.any():
                for position in np.flatnonzero(bad).tolist():
                    problems.setdefault(position, reason.format(shown[position]))

        if isinstance(kind, BytesField):
            pointers, sizes = records["ptr"].astype(np.uint64), records["size"].astype(np.uint64)
        elif isinstance(kind, ImageField):
            pointers = records["data_ptr"].astype(np.uint64)
            mode = records["mode"]
            sizes = records["width"].astype(np.uint64) * records["height"] * np.uint64(kind.pixel_bytes)
            wrong = (mode < kind.modes.start) | (mode >= kind.modes.stop) | (sizes == 0)
            note(wrong, "its record (mode, width, height, pointer) is {}", records)
            is_file = mode != MODE_RAW
            if is_file.any():
                allocated, found = self.allocated(field, samples, pointers)
                note(is_file & ~found, "no allocation starts at its pointer {:,}", pointers)
                note(is_file & found & (allocated == 0), "its image file at {:,} has no bytes", pointers)
                np.copyto(sizes, allocated, where=is_file)
        else:
            pointers = records.astype(np.uint64)
            sizes = np.full(len(samples), kind.fixed_bytes, dtype=np.uint64)
        # FFCV gives empty values an arbitrary pointer.
        pointers[sizes == 0] = self.table_end
        end = np.uint64(self.data_end)
        outside = (pointers < np.uint64(self.table_end)) | (pointers > end)
        outside |= sizes > end - np.minimum(pointers, end)
        note(
            outside,
            f"its {{:,}} stored bytes lie outside the pages (bytes {self.table_end:,} to {self.data_end - 1:,})",
            sizes,
        )
        return pointers, sizes, list(problems.items())

    def image_layout(self, field: str) -> tuple[int, ...]:
        """Return where an image field's numbers lie in the tables.

        Returns
        -------
        tuple of int
            Bytes of a sample's record, the first of the field's; the field's number among those with stored bytes,
            and how many such there are; the first mode, the one after the last; bytes of a raw pixel, its channels.
        """
        kind = self.fields[field]
        assert isinstance(kind, ImageField)
        assert self.record.fields is not None
        at = self.record.fields[self._columns[field]][1]
        modes = kind.modes
        return (self.record.itemsize, at, self._ordinals[field], len(self._ordinals), modes.start, modes.stop,
                kind.pixel_bytes, kind.channels)  # fmt: skip

    def view(self, field: str, index: int) -> npt.NDArray[np.uint8]:
        """Return a sample's stored bytes as a read-only view of the map; copies nothing.

        Parameters
        ----------
        field : str
            Name of a field that has stored bytes.
        index : int
            The sample.

        Raises
        ------
        FormatError, UsageError
            As :meth:`locate`.
        """
        pointers, sizes = self.locate(field, [index])
        start = int(pointers[0])
        return self.data[start : start + int(sizes[0])]

    def value(self, field: str, index: int) -> object:
        """Return a sample's value: int, float, bytes, JSON value, array or :class:`EncodedImage`.

        Arrays and an image's data are read-only views of the map.

        Raises
        ------
        FormatError, UsageError
            As :meth:`locate`; also if stored JSON text is damaged.
        """
        kind = self._field(field)
        payload = self.view(field, index) if kind.has_data else None
        record = self.table[self._columns[field]][self._check_indices([index])[0]]
        try:
            return kind.decode(record, payload)
        except FormatError as error:
            raise FormatError(f"{self.path}: sample {index}, field '{field}': {error}") from error

    def check_size(self) -> None:
        """Check that the file was not overwritten in place, which makes the map unsafe to read.

        A file that was removed, or replaced by renaming, can still be read.

        Raises
        ------
        FormatError
            If the mapped file's size has changed since it was opened.
        """
        try:
            status = os.stat(self.path)
        except OSError:
            return
        if self._inode == (status.st_dev, status.st_ino) and status.st_size != self.num_bytes:
            raise FormatError(
                f"{self.path} was overwritten while in use: it had {self.num_bytes:,} bytes and has "
                f"{status.st_size:,}; write new data to another name, and rename it when it is complete"
            )

    def close(self) -> None:
        """Release the map; existing views keep it alive."""
        self.data = np.empty(0, dtype=np.uint8)
        self.table = self.table[:0].copy()
        self.allocations = self.allocations[:0].copy()
        self._sorted = None
        self.base_address = 0
        self.num_samples = 0

    def __len__(self) -> int:
        return self.num_samples

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (type(self), self.path, self._custom_records, self.num_bytes, self.locator)

    def __repr__(self) -> str:
        return f"Reader({self.path!r}, num_samples={self.num_samples}, fields={list(self.fields)})"

    def _field(self, name: str) -> Field:
        try:
            return self.fields[name]
        except KeyError:
            raise UsageError(f"{self.path} has no field {name!r}; it has {list(self.fields)}") from None

    def _check_indices(self, indices: npt.ArrayLike) -> npt.NDArray[np.int64]:
        chosen = np.atleast_1d(np.asarray(indices))
        if chosen.size == 0:
            return np.empty(0, dtype=np.int64)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise UsageError(f"indices must be a list of whole numbers, got {chosen.dtype} of shape {chosen.shape}")
        low, high = int(chosen.min()), int(chosen.max())
        if low < 0 or high >= self.num_samples:
            raise UsageError(
                f"sample index {low if low < 0 else high} is out of range: {self.path} has "
                f"{counted(self.num_samples, 'sample')}"
            )
        return chosen.astype(np.int64, copy=False)

    def allocated(
        self, field: str, samples: npt.NDArray[np.int64], pointers: Integers
    ) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Return the size in the allocation table for each pointer, and whether the table has the pointer.

        Our writer, and FFCV's with one worker, list each sample's values in order: then the entry's position is
        computed and only checked. Otherwise it is found by binary search, after sorting the table once.
        """
        table = self.allocations
        if len(table) == 0:
            return np.zeros(len(samples), dtype=np.uint64), np.zeros(len(samples), dtype=bool)
        guess = np.minimum(samples * len(self._ordinals) + self._ordinals[field], len(table) - 1)
        entries = table[guess]
        sizes = entries["size"].astype(np.uint64)
        found = (entries["ptr"] == pointers) & (entries["sample_id"] == samples.astype(np.uint64)) & (sizes > 0)
        if not found.all():
            if self._sorted is None:
                self._sorted = self._sort_allocations()
            sorted_pointers, sorted_sizes = self._sorted
            rest = np.flatnonzero(~found)
            # Of entries with the same pointer, all but the last are FFCV's empty values: take the last.
            position = np.maximum(np.searchsorted(sorted_pointers, pointers[rest], side="right") - 1, 0)
            found[rest] = sorted_pointers[position] == pointers[rest]
            sizes[rest] = sorted_sizes[position]
        return sizes, found

    def _sort_allocations(self) -> tuple[Integers, Integers]:
        pointers, sizes = self.allocations["ptr"], self.allocations["size"]
        order = np.lexsort((sizes, pointers))
        return pointers[order], sizes[order]


def _reopen(
    kind: type[Reader],
    path: str,
    custom_records: Mapping[str, npt.DTypeLike],
    num_bytes: int,
    locator: Locator | None,
) -> Reader:
    reader = kind(path, custom_records)
    if (reader.num_bytes, reader.locator) != (num_bytes, locator):
        raise FormatError(f"{path}: the file has been replaced since this reader was pickled; open it again")
    return reader
