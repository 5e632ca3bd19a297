"""Several ``.beton`` files as one dataset; a single file is the simplest case.

Maps an index in the dataset to a sample of a file. `FileSet.locate` returns the file, position and size of stored
bytes; they are read from `FileSet.memory`, which need not be the file's own map. Knows no pixels, orders or batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading._native import FileTables, ImageLayout, ImageTables
from dataloading.arrays import Indices
from dataloading.dataset.agreement import check_fields, common_classes
from dataloading.errors import UsageError
from dataloading.format import Field, Reader, TableSet

__all__ = ["FileSet", "Integers"]

_UNION = "; `beton merge --classes union` makes one file of them and renumbers labels"

Integers = npt.NDArray[np.uint64]


class FileSet:
    """Open files whose samples follow one another: sample i of file k has the index ``starts[k] + i``.

    Parameters
    ----------
    readers : sequence of Reader
        At least one, with the same fields.
    check_classes : bool
        Whether labels must mean the same in all files.

    Attributes
    ----------
    readers : tuple of Reader
    paths : tuple of str
    starts : ndarray of int64, shape (num_files + 1,)
    num_samples : int
    fields : mapping of str to Field
        Of the first file, in its order.
    memory : list of uint8 arrays
        Memory from which stored bytes are read: byte p of file k is ``memory[k][p]``. The files' maps, unless replaced
        with `use_memory`.
    class_names : tuple of str or None

    Raises
    ------
    UsageError
        Fields or class names differ, or only some files have class names; the message names the first difference.
    """

    def __init__(self, readers: Sequence[Reader], *, check_classes: bool = True) -> None:
        assert readers
        self.readers = tuple(readers)
        self.paths = tuple(reader.path for reader in readers)
        self.starts: Indices = np.cumsum([0, *(reader.num_samples for reader in readers)])
        self.num_samples = int(self.starts[-1])
        self.fields: Mapping[str, Field] = readers[0].fields
        self.memory: list[npt.NDArray[np.uint8]] = []
        self._bases = np.empty(0, np.uint64)
        self.use_memory([reader.data for reader in readers])
        for reader in readers[1:]:
            check_fields(readers[0], reader, coordinates=False)
        self.class_names = common_classes(readers, hint=_UNION) if check_classes else readers[0].class_names
        self._tables = None if len(readers) == 1 else TableSet(readers)

    @property
    def path(self) -> str:
        """The file, or the first file and the number of others, for messages."""
        more = len(self.paths) - 1
        return f"{self.paths[0]} and {more} more file{'s' if more > 1 else ''}" if more else self.paths[0]

    def __len__(self) -> int:
        return len(self.readers)

    def __repr__(self) -> str:
        return f"FileSet({list(self.paths)}, num_samples={self.num_samples})"

    def use_memory(self, memory: Sequence[npt.NDArray[np.uint8]], owner: object = None) -> None:
        """Read stored bytes from other memory; sample tables still come from the files.

        Parameters
        ----------
        memory : sequence of uint8 arrays
            One array per file, as long as the file.
        owner : object, optional
            Kept alive by this object.
        """
        self.memory = list(memory)
        self._memory_owner = owner
        self._bases = np.array([each.ctypes.data for each in memory], np.uint64)

    # ---- samples

    def split_index(self, index: int) -> tuple[int, int]:
        """Return the number of the file that holds a sample, and the sample's index in it."""
        if len(self.readers) == 1:
            return 0, index
        file = int(np.searchsorted(self.starts, index, side="right")) - 1
        return file, index - int(self.starts[file])

    def split_indices(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the number of the file that holds each sample, and the samples' indices in it."""
        if len(self.readers) == 1:
            return np.zeros(len(indices), np.int64), indices
        if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= self.num_samples):
            raise UsageError(
                f"sample indices {int(indices.min())} to {int(indices.max())} are not all in range: {self.path} have "
                f"{self.num_samples} samples"
            )
        files = np.searchsorted(self.starts, indices, side="right") - 1
        return files, indices - self.starts[files]

    def records(self, field: str, indices: Indices) -> npt.NDArray[Any]:
        """Copy a field's records of some samples: numbers, or descriptions of stored bytes."""
        if self._tables is None:
            return self.readers[0].column(field)[indices]
        return self._tables.records(field, *self.split_indices(indices))

    def column(self, field: str) -> npt.NDArray[Any]:
        """Return a field's records of all samples: a view for one file, a copy for several."""
        columns = [reader.column(field) for reader in self.readers]
        return columns[0] if len(columns) == 1 else np.concatenate(columns)

    def locate(self, field: str, indices: Indices) -> tuple[Indices, Integers, Integers]:
        """Find the stored bytes of some samples.

        Returns
        -------
        files : ndarray of int64, shape (len(indices),)
            Number of the file.
        pointers, sizes : ndarray of uint64, shape (len(indices),)
            Position in the file, and number of bytes.

        Raises
        ------
        FormatError
            A sample's bytes lie outside its file; the message names both.
        """
        files, samples = self.split_indices(indices)
        if self._tables is None:
            return files, *self.readers[0].locate(field, samples)
        pointers, sizes, found = self._tables.locate(field, files, samples)
        missing = np.flatnonzero(~found)
        for file in np.unique(files[missing]).tolist():
            rows = missing[files[missing] == file]
            pointers[rows], sizes[rows] = self.readers[file].locate(field, samples[rows])
        return files, pointers, sizes

    def image_tables(self, field: str) -> ImageTables:
        """Return what finds the stored images of samples, by address, where nothing is out of the ordinary."""
        return ImageTables(
            ImageLayout(*self.readers[0].image_layout(field)),
            [
                FileTables(reader.table, reader.allocations, memory, reader.table_end, reader.data_end)
                for reader, memory in zip(self.readers, self.memory, strict=True)
            ],
        )

    def addresses(self, files: Indices, pointers: Integers) -> Integers:
        """Turn positions in files into memory addresses."""
        return pointers + self._bases[files]

    def view(self, field: str, index: int) -> npt.NDArray[np.uint8]:
        """Return a sample's stored bytes without copying them.

        Raises
        ------
        FormatError
            As `locate`.
        """
        file, sample = self.split_index(index)
        pointers, sizes = self.readers[file].locate(field, [sample])
        start = int(pointers[0])
        return self.memory[file][start : start + int(sizes[0])]

    def value(self, field: str, index: int) -> object:
        """Return a sample's value, as `Reader.value` does.

        Raises
        ------
        FormatError
            As `locate`, or the stored bytes are not a valid value.
        """
        file, sample = self.split_index(index)
        kind = self.readers[file].fields[field]
        payload = self.view(field, index) if kind.has_data else None
        return kind.decode(self.readers[file].column(field)[sample], payload)
