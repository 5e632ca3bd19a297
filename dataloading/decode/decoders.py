"""Stored bytes to values in memory of the caller: one decoder per kind of field.

Images take hop 2 (`ImageDecoder.requests`: where the stored bytes of a batch lie, without copying) and hop 3
(`ImageDecoder.decode`: crop, region decode and resize of a group in one native call that releases the GIL). In between
the pipeline writes into the requests which region is wanted. Bad data raises nothing: a sample that fails is reported
by its row, and the others are decoded.

Knows no batches, threads or devices. Safe to call from many threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import numpy.typing as npt

from dataloading import _native
from dataloading.arrays import Indices
from dataloading.dataset.files import FileSet
from dataloading.format import ImageField, Reader

__all__ = ["ArrayDecoder", "ColumnDecoder", "Decoder", "Failure", "ImageDecoder", "ObjectDecoder"]

Failure = tuple[int, str]
"""Row that failed, and why."""


class Decoder(Protocol):
    """Decodes one field of any samples."""

    name: str

    def allocate(self, rows: int) -> Any:
        """Make memory for `rows` values: an array, or a list if values have no common shape."""
        ...

    def decode(self, indices: Indices, out: Any, first_row: int) -> list[Failure]:
        """Write the values of `indices` to `out` from `first_row` on; rows in failures count from 0."""
        ...


class ColumnDecoder:
    """Integers and floats, which are in the sample table itself."""

    def __init__(self, files: FileSet, name: str, dtype: type) -> None:
        self.name = name
        self._files = files
        self._dtype = dtype

    def allocate(self, rows: int) -> npt.NDArray[Any]:
        """Make an int64 or float64 array of shape (rows,)."""
        return np.empty(rows, self._dtype)

    def decode(self, indices: Indices, out: npt.NDArray[Any], first_row: int) -> list[Failure]:
        """Gather the column."""
        out[first_row : first_row + len(indices)] = self._files.records(self.name, indices)
        return []


class ArrayDecoder:
    """Arrays of one declared shape and dtype."""

    def __init__(self, files: FileSet, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.name = name
        self._files = files
        self._shape = shape
        self._dtype = dtype

    def allocate(self, rows: int) -> npt.NDArray[Any]:
        """Make an array of shape (rows, *shape), in the machine's byte order."""
        return np.empty((rows, *self._shape), self._dtype.newbyteorder("="))

    def decode(self, indices: Indices, out: npt.NDArray[Any], first_row: int) -> list[Failure]:
        """Copy the elements."""
        failures = []
        for row, index in enumerate(indices.tolist()):
            try:
                stored = self._files.view(self.name, index)
                out[first_row + row] = stored.view(self._dtype).reshape(self._shape)
            except ValueError as error:  # FormatError included: a pointer outside the file
                failures.append((row, str(error)))
        return failures


class ObjectDecoder:
    """Bytes, text and JSON: a list with one Python value a sample."""

    def __init__(self, files: FileSet, name: str) -> None:
        self.name = name
        self._files = files

    def allocate(self, rows: int) -> list[Any]:
        """Make a list of `rows` times None."""
        return [None] * rows

    def decode(self, indices: Indices, out: list[Any], first_row: int) -> list[Failure]:
        """Read each value."""
        failures = []
        for row, index in enumerate(indices.tolist()):
            try:
                out[first_row + row] = self._files.value(self.name, index)
            except ValueError as error:  # FormatError, JSONDecodeError, UnicodeDecodeError
                failures.append((row, str(error)))
        return failures


class ImageDecoder:
    """JPEG and raw images: regions of them, resized, as uint8 planes.

    Parameters
    ----------
    files : FileSet
    name : str
        An image field.
    """

    _shares_decodes: ClassVar[bool] = True

    def __init__(self, files: FileSet, name: str) -> None:
        field = cast(ImageField, files.fields[name])
        self.name = name
        self._files = files
        self._channels = field.channels
        self._dtype = field.dtype
        self._tables: _native.ImageTables | None = None

    def requests(self, indices: Indices) -> tuple[npt.NDArray[np.void], int]:
        """Find where the stored bytes of `indices` lie (hop 2); geometry and destination stay zero.

        Returns
        -------
        ndarray of `_native.REQUEST`, shape (len(indices),), and the size of all stored bytes

        Raises
        ------
        FormatError
            A sample's data lies outside the file.
        """
        if self._tables is None:
            self._tables = self._files.image_tables(self.name)
        found = self._tables.find(indices)
        return self._searched(indices) if found is None else found

    def _searched(self, indices: Indices) -> tuple[npt.NDArray[np.void], int]:
        """Do the same where samples are not where they are expected, or damaged."""
        files, pointers, sizes = self._files.locate(self.name, indices)
        stored = self._files.records(self.name, indices)
        requests = np.zeros(len(indices), _native.REQUEST)
        requests["src"] = self._files.addresses(files, pointers)
        requests["src_bytes"] = sizes
        requests["mode"] = stored["mode"]
        requests["src_width"] = stored["width"]
        requests["src_height"] = stored["height"]
        requests["channels"] = self._channels
        return requests, int(sizes.sum())

    def decode(self, requests: npt.NDArray[np.void], out_NCHW: npt.NDArray[np.uint8]) -> list[Failure]:
        """Decode a group of requests into `out_NCHW` (hop 3), uint8 of shape (n, channels, height, width)."""
        return _failures(requests["status"]) if _native.decode_regions(requests, out_NCHW) else []

    def decode_views(self, views: Sequence[tuple[npt.NDArray[np.void], npt.NDArray[np.uint8]]]) -> list[list[Failure]]:
        """Decode several views of a group, each as `decode` does it: pairs of requests and output, of equal lengths.

        What they need of a JPEG is decoded once, if that is less work; no pixel depends on it.
        """
        if len(views) == 1 or not self._shares_decodes:
            return [self.decode(requests, out_NCHW) for requests, out_NCHW in views]
        for requests, out_NCHW in views:
            _native.aim(requests, out_NCHW)
        by_sample = np.stack([requests for requests, _ in views], axis=1).reshape(-1)
        failed = _native.decode_regions(by_sample)
        return [_failures(by_sample["status"][k :: len(views)]) if failed else [] for k in range(len(views))]

    def common_size(self) -> tuple[int, int] | None:
        """Return the (height, width) that all images share, or None."""
        common: tuple[int, int] | None = None
        for reader in self._files.readers:
            if reader.num_samples == 0:
                continue
            size = _common_size(reader, self.name)
            if size is None or (common is not None and size != common):
                return None
            common = size
        return common


def _failures(status: npt.NDArray[np.int32]) -> list[Failure]:
    return [(row, _native.status_text(int(status[row]))) for row in np.flatnonzero(status).tolist()]


def _common_size(reader: Reader, name: str) -> tuple[int, int] | None:
    if reader.extension is not None:
        size = reader.extension.uniform_size(name)
        return None if size is None else (size[1], size[0])
    column: npt.NDArray[np.void] = reader.column(name)  # type: ignore[assignment]  # an image's record
    first = int(column["height"][0]), int(column["width"][0])
    step = 1 << 16
    for start in range(0, len(column), step):
        part = column[start : start + step]
        if (part["height"] != first[0]).any() or (part["width"] != first[1]).any():
            return None
    return first
