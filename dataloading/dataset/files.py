"""Several ``.beton`` files, one after another, as one dataset; a single file is the simplest case.

Owns the check that files fit together, and the arithmetic between an index in the dataset and a sample of a file.
Whoever decodes asks here where stored bytes lie: `FileSet.locate` says
file, position and size, and `FileSet.memory` is what is read there, so that bytes may also come from elsewhere than
the file's own map. Knows no pixels, orders or batches.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.arrays import Indices
from dataloading.errors import UsageError
from dataloading.format import Field, Reader, TableSet
from dataloading.messages import counted

__all__ = ["FileSet", "check_all_named"]

Integers = npt.NDArray[np.uint64]


class FileSet:
    """Open files whose samples follow one another: sample i of file k has the index ``starts[k] + i``.

    Parameters
    ----------
    readers : sequence of Reader
        At least one, with the same fields.

    Attributes
    ----------
    readers : tuple of Reader
    paths : tuple of str
    starts : ndarray of int64, shape (num_files + 1,)
    num_samples : int
    fields : mapping of str to Field
        Of the first file, in its order.
    memory : list of uint8 arrays
        Where each file's stored bytes are read from: byte p of file k is ``memory[k][p]``. The files' maps, unless
        somebody has put other memory of the same size there before anything is decoded (see `use_memory`).
    class_names : tuple of str or None

    Raises
    ------
    UsageError
        Fields or class names differ, or only some files have class names; the first difference is named.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
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
            _check_fields(readers[0], reader)
        self.class_names = _common_names(readers)
        self._tables = None if len(readers) == 1 else TableSet(readers)

    @property
    def path(self) -> str:
        """The file, or the first and how many more, for messages."""
        more = len(self.paths) - 1
        return f"{self.paths[0]} and {more} more file{'s' if more > 1 else ''}" if more else self.paths[0]

    def __len__(self) -> int:
        return len(self.readers)

    def __repr__(self) -> str:
        return f"FileSet({list(self.paths)}, num_samples={self.num_samples})"

    def use_memory(self, memory: Sequence[npt.NDArray[np.uint8]], owner: object = None) -> None:
        """Read stored bytes from there; sample tables still come from the files.

        Parameters
        ----------
        memory : sequence of uint8 arrays
            One for each file, as long as the file.
        owner : object, optional
            Kept for as long as this object.
        """
        self.memory = list(memory)
        self._memory_owner = owner
        self._bases = np.array([each.ctypes.data for each in memory], np.uint64)

    # ---- samples

    def place(self, index: int) -> tuple[int, int]:
        """Find the number of the file that holds a sample, and the sample's index there."""
        if len(self.readers) == 1:
            return 0, index
        file = int(np.searchsorted(self.starts, index, side="right")) - 1
        return file, index - int(self.starts[file])

    def places(self, indices: Indices) -> tuple[Indices, Indices]:
        """Find the number of the file that holds each sample, and the samples' indices there."""
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
        """Copy a field's part of the sample table for some samples: numbers, or what describes stored bytes."""
        if self._tables is None:
            return self.readers[0].column(field)[indices]
        return self._tables.records(field, *self.places(indices))

    def column(self, field: str) -> npt.NDArray[Any]:
        """Give a field's part of the whole sample table: a view of the only file, a copy of several."""
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
            A sample's bytes lie outside its file; names the file and the sample in it.
        """
        files, samples = self.places(indices)
        if self._tables is None:
            return files, *self.readers[0].locate(field, samples)
        pointers, sizes, known = self._tables.locate(field, files, samples)
        doubtful = np.flatnonzero(~known)
        for file in np.unique(files[doubtful]).tolist():
            rows = doubtful[files[doubtful] == file]
            pointers[rows], sizes[rows] = self.readers[file].locate(field, samples[rows])
        return files, pointers, sizes

    def addresses(self, files: Indices, pointers: Integers) -> Integers:
        """Turn positions in files into memory addresses."""
        return pointers + self._bases[files]

    def view(self, field: str, index: int) -> npt.NDArray[np.uint8]:
        """Give a sample's stored bytes, without copying them.

        Raises
        ------
        FormatError
            As `locate`.
        """
        file, sample = self.place(index)
        pointers, sizes = self.readers[file].locate(field, [sample])
        start = int(pointers[0])
        return self.memory[file][start : start + int(sizes[0])]

    def value(self, field: str, index: int) -> object:
        """Give a sample's value, as `Reader.value` does.

        Raises
        ------
        FormatError
            As `locate`, or the stored bytes are no such value.
        """
        file, sample = self.place(index)
        kind = self.readers[file].fields[field]
        payload = self.view(field, index) if kind.has_data else None
        return kind.decode(self.readers[file].column(field)[sample], payload)


def _check_fields(first: Reader, other: Reader) -> None:
    """Refuse a file whose fields are not those of the first, in the same order."""
    mine, theirs = first.fields, other.fields
    differences = [
        f"'{name}' is {mine.get(name, 'missing')} in the first, {theirs.get(name, 'missing')} in the other"
        for name in {**mine, **theirs}
        if name not in mine or name not in theirs or not _equal(mine[name], theirs[name])
    ]
    if not differences and list(mine) != list(theirs):
        differences = [f"the first has {', '.join(mine)} in this order, the other {', '.join(theirs)}"]
    if differences:
        raise UsageError(
            f"{first.path} and {other.path} do not have the same fields: {'; '.join(differences)}. Files of one "
            f"dataset must have equal fields; convert one of them again"
        )


def _equal(mine: Field, theirs: Field) -> bool:
    kinds = type(mine) is type(theirs)
    return kinds and mine.record == theirs.record and mine.arguments() == theirs.arguments()


def check_all_named(readers: Sequence[Reader], advice: str = "") -> None:
    """Refuse files some of which record class names and some do not: that their labels mean the same is a guess.

    Parameters
    ----------
    readers : sequence of Reader
        Files that are to be one dataset.
    advice : str
        Another way out than giving the file names, as the end of the message.

    Raises
    ------
    UsageError
        Naming a file without class names, one with, and how to give the one those of the other.
    """
    named = next((reader for reader in readers if reader.class_names is not None), None)
    unnamed = next((reader for reader in readers if reader.class_names is None), None)
    if named is None or unnamed is None:
        return
    kind = " (FFCV's files never do)" if unnamed.extension is None else ""
    known = counted(len(named.class_names or ()), "name")
    raise UsageError(
        f"{unnamed.path} records no class names{kind}, {named.path} has {known}: that labels mean the same "
        f"in both would be a guess. If they do, give it the names: `beton upgrade "
        f"{shlex.quote(unnamed.path)} NEW.beton --class-names-from {shlex.quote(named.path)}`{advice}"
    )


def _common_names(readers: Sequence[Reader]) -> tuple[str, ...] | None:
    """Find the class names that all files share."""
    check_all_named(readers)
    common: tuple[str, ...] | None = None
    owner = ""
    for reader in readers:
        names = reader.class_names
        if names is None:
            continue
        if common is None:
            common, owner = names, reader.path
        elif names != common:
            pairs = zip((*common, None), (*names, None), strict=False)
            label, (mine, theirs) = next((k, pair) for k, pair in enumerate(pairs) if pair[0] != pair[1])
            raise UsageError(
                f"{owner} and {reader.path} do not have the same classes: label {label} is {mine!r} in the first and "
                f"{theirs!r} in the other. Files of one dataset need equal class names; 'beton merge --classes union' "
                f"makes one file of them and renumbers labels"
            )
    return common
