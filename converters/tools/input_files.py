"""Reads stored samples of ``.beton`` files in any order, of one file or several as one dataset.

Returns stored bytes without decoding, one sample at a time. Uses read calls and not the memory map, so a failing disk
raises an error instead of a signal, and memory use stays low.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from converters.beton_files import list_files
from converters.tools.agreement import agreed_classes
from dataloading import ConvertError, Field, FormatError, Reader, UsageError, verify_file
from dataloading.tools import FileSet, check_fields, label_field

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["InputFile", "InputFiles", "Sample", "Stored", "check_sources", "file_name", "stored_bytes"]

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Integers: TypeAlias = "npt.NDArray[np.int64]"
Stored: TypeAlias = "tuple[tuple[int | float, ...], Bytes | None]"
"""A stored value: its record without the pointer, and its bytes."""

Sample: TypeAlias = "dict[str, Stored]"
"""Stored values by field name."""

_BLOCK = 4096
_OPEN_AT_ONCE = 64
_PROBLEMS_SHOWN = 5
# These parts of a record say where the bytes are; all others belong to the value.
_PLACE = ("ptr", "data_ptr", "size")


class _Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InputFile(_Closing):
    """A ``.beton`` file that yields its samples as they are stored.

    Parameters
    ----------
    path : str or path-like
        The file, ours or FFCV's.

    Attributes
    ----------
    reader : Reader
    path : str
    fields : dict of str to Field
    identity : tuple of int
        Changes when the file is rewritten.

    Raises
    ------
    FormatError
        If the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.reader = Reader(path)
        self.path = self.reader.path
        self.fields: dict[str, Field] = dict(self.reader.fields)
        self._fd = -1
        self.identity = _identity(os.stat(self.path))
        for name, field in self.fields.items():
            self._check_field(name, field)

    def _check_field(self, name: str, field: Field) -> None:
        """Refuse a field whose records would not be written as they were read."""
        record = self.reader.column(name)[:1].copy()
        [head] = _heads(record, field)
        names = record.dtype.names
        pointer, size = 0, 0
        if field.has_data:
            pointer = record[0].item() if names is None else int(record[0][next(n for n in names if n in _PLACE)])
            size = int(record[0]["size"]) if names and "size" in names else 0
        again = np.array([field.entry(head, pointer, size)], dtype=record.dtype)
        # Padding inside a record may differ; its values may not.
        if again.tobytes() != record.tobytes() and not (again == record).all():
            raise UsageError(f"{self.path}: field '{name}' ({type(field).__name__}) cannot be copied as it is stored")

    def __len__(self) -> int:
        return self.reader.num_samples

    def samples(
        self, indices: Sequence[int] | Integers | None = None, *, only: Collection[str] | None = None
    ) -> Iterator[Sample]:
        """Yield samples by field name, as `derived_writer` takes them; by default all samples with all fields.

        Raises
        ------
        FormatError
            If a sample's bytes lie outside the file's pages.
        OSError
            If the disk fails.
        """
        chosen = np.arange(len(self)) if indices is None else np.asarray(indices, dtype=np.int64)
        names = [name for name in self.fields if only is None or name in only]
        for start in range(0, len(chosen), _BLOCK):
            yield from self._block(chosen[start : start + _BLOCK], names)

    def _block(self, indices: Integers, names: Sequence[str]) -> Iterator[Sample]:
        heads = {name: self.heads(name, indices) for name in names}
        places = {
            name: [numbers.tolist() for numbers in self.reader.locate(name, indices)]
            for name in names
            if self.fields[name].has_data
        }
        for row in range(len(indices)):
            sample: Sample = {}
            for name in names:
                payload = None
                if name in places:
                    pointers, sizes = places[name]
                    payload = self.read(pointers[row], sizes[row])
                sample[name] = (heads[name][row], payload)
            yield sample

    def heads(self, name: str, indices: Integers) -> list[tuple[int | float, ...]]:
        """Return the records of some samples for a field, without pointers."""
        return _heads(self.reader.column(name)[indices], self.fields[name])

    def read(self, position: int, size: int) -> Bytes:
        """Return a copy of ``size`` bytes of the file from ``position`` on."""
        if self._fd < 0:
            self._open()
        data = np.empty(size, np.uint8)
        view = data.data
        while len(view):
            got = os.preadv(self._fd, [view], position)
            if got == 0:
                raise FormatError(f"{self.path}: the file ended at byte {position} while it was being read")
            view = view[got:]
            position += got
        return data

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if _identity(os.fstat(self._fd)) != self.identity:
            raise FormatError(f"{self.path} was replaced or changed while it was being read; start again")

    def close_until_read(self) -> None:
        """Close the file until the next read, so that thousands can be used; its tables stay mapped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def decoded(self, name: str, stored: Stored) -> Any:
        """Return the value that ``stored`` stands for, as `Reader.value` does.

        Raises
        ------
        FormatError
            If its bytes are not a valid value of this field.
        """
        field = self.fields[name]
        head, payload = stored
        record = np.zeros(1, dtype=field.record)
        record[0] = field.entry(head, 0, 0 if payload is None else payload.size)
        return field.decode(record[0], payload)

    def close(self) -> None:
        """Close the file and its map."""
        self.close_until_read()
        self.reader.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _heads(records: npt.NDArray[Any], field: Field) -> list[tuple[int | float, ...]]:
    names = records.dtype.names
    if names is None:
        return [()] * len(records) if field.has_data else [(value,) for value in records.tolist()]
    columns = [records[name].tolist() for name in names if name not in _PLACE]
    return list(zip(*columns, strict=True)) if columns else [()] * len(records)


class InputFiles(_Closing):
    """The samples of files and shard sets, in the order given; a single file is the simplest case.

    Parameters
    ----------
    paths : sequence of str
        ``.beton`` files and manifests (``.beton.json``), with equal fields.
    check_classes : bool
        Whether several files must also have equal classes.

    Attributes
    ----------
    path : str
        The file or manifest, or the first and how many more; for messages.
    files : list of InputFile
    fields : dict of str to Field
    label : str or None
        The field of labels, see `dataloading.label_field`.
    class_names : tuple of str or None
        Of the first file.

    Raises
    ------
    UsageError
        If fields or classes differ, or a file is named twice.
    FormatError
        If a manifest or file cannot be read, or a shard is missing.
    """

    def __init__(self, paths: Sequence[str], *, check_classes: bool = True) -> None:
        self.path = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        self.files: list[InputFile] = []
        try:
            for path in list_files(paths):
                self.files.append(InputFile(path))
                check_fields(self.readers[0], self.readers[-1])
            if check_classes and len(self.files) > 1:
                agreed_classes(self.readers, "equal", hint="; `beton merge --classes union` makes one file of them")
        except BaseException:
            self.close()
            raise
        self.fields = self.files[0].fields
        self.label = label_field(self.readers[0])
        self.class_names = self.readers[0].class_names
        self._set = FileSet(self.readers, check_classes=False)
        self._in_use: list[int] = []  # numbers of open files, the one that was read last at the end

    @property
    def readers(self) -> list[Reader]:
        """The files' readers."""
        return [file.reader for file in self.files]

    @property
    def paths(self) -> list[str]:
        """The files' paths."""
        return [file.path for file in self.files]

    def __len__(self) -> int:
        return self._set.num_samples

    def identity(self) -> list[list[str | int]]:
        """Return each file's path and identity, as JSON values."""
        return [[os.path.abspath(file.path), *file.identity] for file in self.files]

    def column(self, field: str) -> npt.NDArray[np.generic]:
        """Return a field's part of every sample's record: a view of the only file, a copy of several."""
        return self._set.column(field)

    def split_index(self, index: int) -> tuple[InputFile, int]:
        """Return the file that holds a sample, and the sample's index there; `UsageError` if there is none."""
        if not 0 <= index < len(self):
            raise UsageError(f"{self.path} has samples 0 to {len(self) - 1}, not {index}")
        number, local = self._set.split_index(index)
        return self.files[number], local

    def samples(self, indices: Sequence[int] | Integers | None = None) -> Iterator[Sample]:
        """Yield samples by field name, see `InputFile.samples`."""
        if indices is None:
            for number, file in enumerate(self.files):
                self._use(number)
                yield from file.samples()
            return
        chosen = np.asarray(indices, dtype=np.int64)
        owners, _ = self._set.split_indices(chosen)
        for start in range(0, len(chosen), _BLOCK):
            part, numbers = chosen[start : start + _BLOCK], owners[start : start + _BLOCK]
            # Each file looks up all its samples of the block at once; they are yielded in the requested order.
            found = {
                number: self.files[number].samples(part[numbers == number] - int(self._set.starts[number]))
                for number in np.unique(numbers).tolist()
            }
            for number in numbers.tolist():
                self._use(number)
                yield next(found[number])

    def _use(self, number: int) -> None:
        """Close the least recently read file if too many would be open."""
        if number in self._in_use:
            self._in_use.remove(number)
        elif len(self._in_use) == _OPEN_AT_ONCE:
            self.files[self._in_use.pop(0)].close_until_read()
        self._in_use.append(number)

    def decoded(self, name: str, stored: Stored) -> Any:
        """Return the value that ``stored`` stands for, see `InputFile.decoded`."""
        return self.files[0].decoded(name, stored)

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()


def stored_bytes(sample: Mapping[str, Stored]) -> int:
    """Return the bytes that a sample takes in the pages."""
    return sum(payload.size for _, payload in sample.values() if payload is not None)


def file_name(path: str | os.PathLike[str]) -> str:
    """Return a file's name without folders, as it can be printed and stored as JSON."""
    return os.fsencode(os.path.basename(os.fspath(path))).decode("utf-8", "backslashreplace")


def check_sources(paths: Iterable[str], *, num_workers: int) -> None:
    """Compare files with their checksums before they are copied, so that no damage gets a valid checksum.

    A file that FFCV wrote has none; there the structure is checked. Uses at least one thread.

    Raises
    ------
    ConvertError
        If one is damaged.
    """
    for path in paths:
        report = verify_file(path, num_workers=max(1, num_workers))
        if not report.ok:
            shown = "\n".join(f"  {problem}" for problem in report.problems[:_PROBLEMS_SHOWN])
            more = len(report.problems) - _PROBLEMS_SHOWN
            raise ConvertError(
                f"{path} is damaged, and a copy would be damaged too:\n{shown}\n"
                + (f"  ... and {more:,} more\n" if more > 0 else "")
                + "`beton repair` makes an intact file of it"
            )
