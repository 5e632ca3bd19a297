"""Records of CSV, TSV and JSON-lines files: where each begins, found in one pass; parsed one by one in the workers.

The parent keeps eight bytes a record. A manifest behind a URL is copied to a nameless temporary file first. Knows
columns and texts, and nothing of images or labels.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from dataloading import ConvertError

from .base import SampleFault, printable
from .opening import Ranges, identity, is_url, open_stream
from .spool import Spool

__all__ = ["Records", "TextRows"]

_COPY_BYTES = 4 << 20
_COUNTED_BYTES = 64 << 20
_DELIMITERS = {"csv": ",", "tsv": "\t"}


class TextRows:
    """The rows of one text file.

    Parameters
    ----------
    path : str
        Path or URL.
    kind : {"csv", "tsv", "jsonl"}
        How it is written; UTF-8, the first two with a line of column names.

    Attributes
    ----------
    columns : list of str
        Names of the columns; for JSON lines those of the first record.
    """

    def __init__(self, path: str, kind: str) -> None:
        self._label = printable(path)
        self._kind = kind
        self._spool: Spool | None = None
        self._path = self._local(path) if is_url(path) else path
        self._identity = identity(self._path)
        self._starts = array("Q")
        self.columns: list[str] = []
        with open_stream(self._path) as file:
            start = _after_mark(file, self._label)
            file.seek(start)
            if kind == "jsonl":
                first = next((line for line in file if line.strip()), b"")
                record = _parsed(first, self._label) if first else {}
                self.columns = list(record)
            else:
                self.columns, start = self._read_header(file, start)
        self._first = start

    def __len__(self) -> int:
        return max(0, len(self._starts) - 1)

    def find(self, watched: str | None) -> Iterator[Any]:
        """Find all rows; yield what each has in the column ``watched``, as long as there is one.

        Raises
        ------
        ConvertError
            If the file's quotes do not match.
        """
        del self._starts[:]
        with open_stream(self._path) as file:
            file.seek(self._first)
            if self._kind == "jsonl":
                yield from self._find_lines(file, watched)
            else:
                yield from self._find_records(file, watched)

    def task(self, index: int) -> tuple[int, int]:
        """Return where the record lies in the file, in bytes."""
        return self._starts[index], self._starts[index + 1] - self._starts[index]

    def records(self) -> Records:
        """Return what reads records in a worker."""
        return Records(self._path, self._identity, self._kind, tuple(self.columns))

    def _local(self, url: str) -> str:
        self._spool = Spool(
            f"the table {url}", "copy it to a folder that all machines see, or convert with --engine local"
        )
        with open_stream(url) as file:
            while block := file.read(_COPY_BYTES):
                self._spool.file.write(block)
        self._spool.file.flush()
        return self._spool.path

    def _read_header(self, file: BinaryIO, start: int) -> tuple[list[str], int]:
        lines = _Lines(file, start)
        try:
            header = next(filter(None, csv.reader(lines, delimiter=_DELIMITERS[self._kind], strict=True)), [])
        except csv.Error as error:
            raise ConvertError(f"{self._label}: its first line cannot be read: {error}") from error
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice or not header:
            what = f"names the column '{twice[0]}' twice" if twice else "is empty"
            raise ConvertError(f"{self._label}: the first line {what}; expected the names of the columns")
        return header, lines.position

    def _find_records(self, file: BinaryIO, watched: str | None) -> Iterator[str]:
        lines = _Lines(file, self._first)
        column = self.columns.index(watched) if watched is not None else None
        start = self._first
        try:
            for row in csv.reader(lines, delimiter=_DELIMITERS[self._kind], strict=True):
                if row:
                    self._starts.append(start)
                    if column is not None and column < len(row):
                        yield row[column]
                    start = lines.position
        except csv.Error as error:
            raise ConvertError(
                f"{self._label}: the record at line {lines.number} cannot be read: {error}; a cell with quotes or line "
                'breaks in it must be quoted, "like ""this"""'
            ) from error
        self._starts.append(lines.position)

    def _find_lines(self, file: BinaryIO, watched: str | None) -> Iterator[Any]:
        start = self._first
        for line in file:
            if line.strip():
                self._starts.append(start)
                if watched is not None:
                    try:
                        record = json.loads(line)
                    except (ValueError, RecursionError):
                        record = None  # the worker that converts it will say what is wrong
                    if isinstance(record, dict) and watched in record:
                        yield record[watched]
            start += len(line)
        self._starts.append(start)


class Records:
    """Reads and parses single records; what travels to the workers."""

    def __init__(self, path: str, known: Any, kind: str, columns: tuple[str, ...]) -> None:
        self._path = path
        self._identity = known
        self._kind = kind
        self._columns = columns
        self._ranges = Ranges()

    @property
    def is_cells(self) -> bool:
        """Whether all values are text, in which numbers are written."""
        return self._kind != "jsonl"

    def record(self, start: int, size: int) -> Mapping[str, Any]:
        """Return a record's values by column: texts, or for JSON lines whatever they are.

        Raises
        ------
        SampleFault
            If the record is damaged.
        """
        data = self._ranges.read(self._path, start, size, self._identity)
        if self._kind == "jsonl":
            try:
                return _parsed(data, "the record")
            except ConvertError as error:
                raise SampleFault(f"{self._place(start)}: {error}") from error
        row = _cells(data, _DELIMITERS[self._kind])
        if len(row) != len(self._columns):
            blank = len(data) - len(data.lstrip(b"\r\n"))
            raise SampleFault(
                f"{self._place(start + blank)}: its record has {len(row)} cells, expected {len(self._columns)}: "
                f"{_shortened(data)}"
            )
        return dict(zip(self._columns, row, strict=True))

    def _place(self, start: int) -> str:
        """Return where a record begins, as an editor counts lines; far into a large file as its byte."""
        if start > _COUNTED_BYTES:
            return f"byte {start:,}"
        num_breaks = self._ranges.read(self._path, 0, start, self._identity).count(b"\n")
        return f"line {num_breaks + 1:,}"


def _cells(data: bytes, delimiter: str) -> list[str]:
    """Return the cells of one record.

    Examples
    --------
    >>> _cells(b'a,b', ","), _cells(b'a,"b,c"', ",")
    (['a', 'b'], ['a', 'b,c'])
    """
    line = data.rstrip(b"\r\n")
    if not (b'"' in line or b"\r" in line or b"\n" in line):  # nearly all, and many times as fast
        return line.decode("utf-8", "surrogateescape").split(delimiter)
    lines = _Lines(io.BytesIO(data), 0)  # cut where the file was, and not at every character that ends a line
    return next(filter(None, csv.reader(lines, delimiter=delimiter, strict=True)), [])


class _Lines:
    """Lines of a file as text, and how far they have been taken."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file = file
        self.position = start
        self.number = 1 if start <= len(codecs.BOM_UTF8) else 2

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._file)
        self.position += len(line)
        self.number += 1
        return line.decode("utf-8", "surrogateescape")


def _after_mark(file: BinaryIO, label: str) -> int:
    head = file.read(3)
    if head[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}:
        raise ConvertError(f"{label} is UTF-16; save it as UTF-8")
    return len(codecs.BOM_UTF8) if head == codecs.BOM_UTF8 else 0


def _parsed(line: bytes, label: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8", "surrogateescape").strip())
    except (ValueError, RecursionError) as error:
        where = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
        raise ConvertError(f"{label} is not JSON ({where}): {_shortened(line)}") from error
    if not isinstance(record, dict):
        raise ConvertError(f"{label} is a JSON {type(record).__name__}, expected an object: {_shortened(line)}")
    return record


def _shortened(data: bytes) -> str:
    text = repr(data.decode("utf-8", "backslashreplace").strip())
    return text if len(text) <= 100 else text[:97] + "..."
