"""Samples from file to file as they are stored: bytes are copied, never decoded.

Owns reading stored samples in any order with memory for one sample at a time, and what a new file inherits from those
it is made of (page size, class names, provenance, facts). Stored bytes are read with ordinary reads and not through the
memory map, so that a failing disk is an error and no signal, and what was read does not stay in the process.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dataloading import ConvertError, Field, FormatError, Reader, UsageError, Writer, verify_file

if TYPE_CHECKING:
    from dataloading import VerifyReport

__all__ = [
    "InputFile",
    "Stored",
    "check_sources",
    "derived_writer",
    "field_differences",
    "file_name",
    "open_inputs",
    "stored_bytes",
]

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Stored: TypeAlias = "tuple[tuple[int | float, ...], Bytes | None]"
"""A value as the sample table and the pages hold it: what the record says besides the place, and the bytes."""

_BLOCK = 4096
_PROBLEMS_SHOWN = 5
# In a record of the sample table these say where the bytes are; everything else belongs to the value.
_PLACE = ("ptr", "data_ptr", "size")
# What a converter records and what holds for any selection of samples. Others are left out rather than carried stale.
_CARRIED_FACTS = ("restart_markers",)


class InputFile:
    """A ``.beton`` file that gives its samples as they are stored.

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
        Changes when the file is written anew.

    Raises
    ------
    FormatError
        If it is no readable file.
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
        """Refuse a kind of field whose records this module would not give back as they were."""
        record = self.reader.column(name)[:1].copy()
        [head] = _heads(record, field)
        names = record.dtype.names
        pointer, size = 0, 0
        if field.has_data:
            pointer = record[0].item() if names is None else int(record[0][next(n for n in names if n in _PLACE)])
            size = int(record[0]["size"]) if names and "size" in names else 0
        again = np.array([field.entry(head, pointer, size)], dtype=record.dtype)
        if again.tobytes() != record.tobytes() and not _same_numbers(again, record):
            raise UsageError(f"{self.path}: field '{name}' ({type(field).__name__}) cannot be copied as it is stored")

    def __len__(self) -> int:
        return self.reader.num_samples

    def samples(
        self,
        indices: Sequence[int] | npt.NDArray[np.int64] | None = None,
        *,
        only: Sequence[str] | None = None,
        without: Sequence[str] = (),
    ) -> Iterator[dict[str, Stored]]:
        """Yield samples by field name, as `derived_writer` takes them.

        Parameters
        ----------
        indices : sequence of int, optional
            Which, in any order; by default all.
        only : sequence of str, optional
            Fields to read; by default all.
        without : sequence of str
            Fields to leave out.

        Raises
        ------
        FormatError
            If a sample's place lies outside the file's pages.
        OSError
            If the disk fails.
        """
        chosen = np.arange(len(self)) if indices is None else np.asarray(indices, dtype=np.int64)
        names = [name for name in self.fields if (only is None or name in only) and name not in without]
        for start in range(0, len(chosen), _BLOCK):
            yield from self._block(chosen[start : start + _BLOCK], names)

    def _block(self, indices: npt.NDArray[np.int64], names: Sequence[str]) -> Iterator[dict[str, Stored]]:
        heads, places = {}, {}
        for name in names:
            field = self.fields[name]
            heads[name] = _heads(self.reader.column(name)[indices], field)
            if field.has_data:
                pointers, sizes = self.reader.locate(name, indices)
                places[name] = (pointers.tolist(), sizes.tolist())
        for row in range(len(indices)):
            sample: dict[str, Stored] = {}
            for name in names:
                payload = None
                if name in places:
                    pointers, sizes = places[name]
                    payload = self.read(pointers[row], sizes[row])
                sample[name] = (heads[name][row], payload)
            yield sample

    def heads(self, name: str, indices: npt.NDArray[np.int64]) -> list[tuple[int | float, ...]]:
        """Return what the records of some samples say of a field besides the place of its bytes."""
        return _heads(self.reader.column(name)[indices], self.fields[name])

    def read(self, position: int, size: int) -> Bytes:
        """Return ``size`` bytes of the file from ``position`` on, a copy of its own."""
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

    def rest(self) -> None:
        """Close the file until it is read again, so that thousands can be worked on; its tables stay at hand."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def decoded(self, name: str, stored: Stored) -> Any:
        """Return the value that ``stored`` stands for, as `Reader.value` does.

        Raises
        ------
        FormatError
            If its bytes make no value of this field.
        """
        field = self.fields[name]
        head, payload = stored
        record = np.zeros(1, dtype=field.record)
        record[0] = field.entry(head, 0, 0 if payload is None else payload.size)
        return field.decode(record[0], payload)

    def close(self) -> None:
        """Let go of the file."""
        self.rest()
        self.reader.close()

    def __enter__(self) -> InputFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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


def _same_numbers(left: npt.NDArray[np.generic], right: npt.NDArray[np.generic]) -> bool:
    # Padding inside a record may differ; what it says may not.
    return bool((left == right).all())


def stored_bytes(sample: Mapping[str, Stored]) -> int:
    """Return how many bytes a sample takes in the pages."""
    return sum(payload.size for _, payload in sample.values() if payload is not None)


@functools.cache
def _stored_kind(kind: type[Field]) -> type[Field]:
    def encode(self: Field, value: Any) -> Stored:
        return value  # type: ignore[no-any-return]

    return type(f"Stored{kind.__name__}", (kind,), {"encode": encode, "__doc__": kind.__doc__})


def _as_stored(field: Field) -> Field:
    """Return a field that takes values as they are stored, and is written into the file just as ``field`` is."""
    clone = copy.copy(field)
    clone.__class__ = _stored_kind(type(field))
    return clone


def open_inputs(paths: Sequence[str]) -> list[InputFile]:
    """Open files that are to go into one; their fields must be equal.

    Parameters
    ----------
    paths : sequence of str
        At least one.

    Raises
    ------
    UsageError
        If two files have other fields; names the first difference.
    """
    input_files: list[InputFile] = []
    try:
        for path in paths:
            input_files.append(InputFile(path))
            if len(input_files) > 1:
                _compare_fields(input_files[0], input_files[-1])
    except BaseException:
        for input_file in input_files:
            input_file.close()
        raise
    return input_files


def _compare_fields(first: InputFile, other: InputFile) -> None:
    differing = field_differences(first.fields, other.fields)
    if differing:
        listed = "\n".join(f"  {line}" for line in differing)
        raise UsageError(f"{first.path} and {other.path} have different fields:\n{listed}")


def field_differences(left: Mapping[str, Field], right: Mapping[str, Field]) -> list[str]:
    """Return in words how the fields of two files differ; empty where they are equal.

    Parameters
    ----------
    left, right : mapping of str to Field
        The fields of either file in order.
    """
    lines = []
    for name in {**left, **right}:
        one, two = left.get(name), right.get(name)
        if one is None or two is None:
            lines.append(f"'{name}' ({one or two!r}) is only in the {'first' if two is None else 'second'}")
        elif one != two:
            lines.append(f"'{name}' is {one!r} in the first, {two!r} in the second")
        elif (words := [getattr(each, "coordinates", None) for each in (one, two)]) and words[0] != words[1]:
            lines.append(f"'{name}' has coordinates {words[0]} in the first, {words[1]} in the second")
    if not lines and list(left) != list(right):
        lines.append(f"their order is {', '.join(left)} in the first, {', '.join(right)} in the second")
    return lines


def check_sources(paths: Iterable[str], *, num_workers: int) -> list[VerifyReport]:
    """Compare files with their checksums before they are copied, so that no damage gets a valid checksum.

    A file that FFCV wrote has none; there the structure is checked.

    Parameters
    ----------
    paths : iterable of str
        The files.
    num_workers : int
        Threads; at least 1 is used.

    Raises
    ------
    ConvertError
        If one is damaged.
    """
    reports = []
    for path in paths:
        report = verify_file(path, num_workers=max(1, num_workers))
        if not report.ok:
            shown = "\n".join(f"  {problem}" for problem in report.problems[:_PROBLEMS_SHOWN])
            more = len(report.problems) - _PROBLEMS_SHOWN
            raise ConvertError(
                f"{path} is damaged, and a copy would carry the damage on:\n{shown}\n"
                + (f"  ... and {more:,} more\n" if more > 0 else "")
                + "`beton repair` makes a sound file of it"
            )
        reports.append(report)
    return reports


def file_name(path: str | os.PathLike[str]) -> str:
    """Return a file's name without folders, as it can be printed and stored as JSON."""
    return os.fsencode(os.path.basename(os.fspath(path))).decode("utf-8", "backslashreplace")


def derived_writer(
    path: str | os.PathLike[str],
    input_files: Sequence[InputFile],
    *,
    num_samples: int,
    step: Mapping[str, Any],
    class_names: Sequence[str] | None,
    overwrite: bool,
    grow_pages: bool = False,
    keep_facts: bool = True,
) -> Writer:
    """Open a file that takes the stored samples of others.

    Parameters
    ----------
    path : str or path-like
        The file to make.
    input_files : sequence of InputFile
        What it is made of; fields, provenance and page size come from them.
    num_samples : int
        How many samples it gets at most.
    step : mapping
        What is being done, appended to the ``history`` in the provenance: the command and its options.
    class_names : sequence of str or None
        Names of the classes.
    overwrite : bool
        Whether an existing file may be replaced.
    grow_pages : bool
        Whether values may be larger than they were, so that the page size of the input files may not do.
    keep_facts : bool
        Whether facts that the converter recorded about a field (alike in all input files) still hold.
    """
    readers = [input_file.reader for input_file in input_files]
    page_size = None
    if not grow_pages and all(reader.extension is not None for reader in readers):
        # FFCV packs a page fuller than our writer, which aligns arrays: there pages must be free to grow.
        page_size = max(reader.page_size for reader in readers)
    return Writer(
        path,
        {name: _as_stored(field) for name, field in input_files[0].fields.items()},
        num_samples=num_samples,
        page_size=page_size,
        class_names=class_names,
        provenance=_provenance(input_files, step),
        field_facts=_shared_facts(readers) if keep_facts else None,
        overwrite=overwrite,
    )


def _provenance(input_files: Sequence[InputFile], step: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all input files say alike, and a history that ends with ``step``."""
    said = [
        {} if input_file.reader.extension is None else dict(input_file.reader.extension.provenance)
        for input_file in input_files
    ]
    histories = [list(each.pop("history", [])) for each in said]
    shared = {
        key: value for key, value in said[0].items() if all(key in each and each[key] == value for each in said[1:])
    }
    sources = []
    for input_file, own, history in zip(input_files, said, histories, strict=True):
        entry: dict[str, Any] = {"file": file_name(input_file.path), "num_samples": len(input_file)}
        if input_file.reader.extension is None:
            entry["writer"] = "FFCV"
        if len(input_files) > 1:
            entry |= {key: value for key, value in own.items() if key not in shared and key not in entry}
            entry |= {"history": history} if history else {}
        sources.append(entry)
    before = histories[0] if len(input_files) == 1 else []
    return {**shared, "history": [*before, {**step, "from": sources}]}


def _shared_facts(readers: Sequence[Reader]) -> dict[str, dict[str, Any]]:
    """Return the facts about single values that all files agree on; the writer finds all others itself."""
    result: dict[str, dict[str, Any]] = {}
    for name in readers[0].fields:
        facts = [{} if reader.extension is None else dict(reader.extension.facts.get(name, {})) for reader in readers]
        own = {key: value for key, value in facts[0].items() if key in _CARRIED_FACTS}
        result[name] = {key: value for key, value in own.items() if all(each.get(key) == value for each in facts[1:])}
    return result
