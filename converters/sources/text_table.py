"""Rows of CSV, TSV and JSON-lines files: located in one pass, and parsed one by one in the workers.

The parent keeps eight bytes per row. A table at a URL is first copied to a temporary file. Cells are those of Python's
csv module, except that blanks around quoted cells are dropped and cells may have any length (the module's limit applies
to the whole process).
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from converters.source import SampleFault, printable
from dataloading import ConvertError
from dataloading.tools import is_url

from .local_copies import LocalCopy, copied
from .reading import Identity, Ranges, identity, open_stream

__all__ = ["TextRows", "TextTable"]

_COUNTED_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 18
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_OTHER_DELIMITERS = (",", "\t", ";", "|")
# A longer quoted cell has most likely lost its closing quote.
_RECORD_BYTES = 64 << 20
_MOST_COLUMNS = 10_000
_WIDE_MARKS = {
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
_QUOTE, _QUOTED = re.compile(r' *"'), re.compile(r' *"([^"]*(?:""[^"]*)*)"(?!") *')


class TextTable:
    """The rows of one text file, a path or URL: UTF-8; ``kind`` is "csv", "tsv" (both with a line of names) or "jsonl".

    Attributes
    ----------
    columns : list of str
        Names of the columns, without blanks around them; for JSON lines the keys of all records, known after `find`.
    delimiter : str
        The separator of cells: that of the kind, or another one if the first line does not contain it.
    """

    def __init__(self, path: str, kind: str) -> None:
        self._label = printable(path)
        self._kind = kind
        self._copy: LocalCopy | None = None
        self._path = self._local(path) if is_url(path) else path
        self._identity = identity(self._path)
        self._starts = array("Q")
        self.columns: list[str] = []
        self.delimiter = _DELIMITERS.get(kind, "")
        with open_stream(self._path) as file:
            self._first = _after_mark(file, self._label)
            if kind != "jsonl":
                self.columns, self._first = self._read_header(file, self._first)

    def __len__(self) -> int:
        return max(0, len(self._starts) - 1)

    def find(self, is_watched: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
        """Find all rows; yield column and value of each row in the given columns.

        Raises
        ------
        ConvertError
            If the file's quotes do not match, or no line of JSON lines is an object.
        """
        del self._starts[:]
        with open_stream(self._path) as file:
            file.seek(self._first)
            if self._kind == "jsonl":
                yield from self._find_lines(file, is_watched)
            else:
                yield from self._find_records(file, is_watched)

    def task(self, index: int) -> tuple[int, int]:
        """Return the byte range of the record in the file."""
        return self._starts[index], self._starts[index + 1] - self._starts[index]

    def rows(self) -> TextRows:
        """Return the reader of rows for the workers."""
        return TextRows(self._path, self._identity, self.delimiter, tuple(self.columns))

    def _local(self, url: str) -> str:
        advice = "copy it to a folder that all machines see, or convert with --engine local"
        self._copy = copied(url, f"the table {url}", advice)
        return self._copy.path

    def _read_header(self, file: BinaryIO, start: int) -> tuple[list[str], int]:
        file.seek(start)
        lines = _Lines(file, start)
        line = next((line for line in lines if line.strip("\r\n")), "")
        bare = _QUOTED.sub("", line)
        present = [mark for mark in (self.delimiter, *_OTHER_DELIMITERS) if mark in bare]
        self.delimiter = present[0] if present else self.delimiter
        try:
            header = [name.strip() for name in _whole(line, lines, self.delimiter) or []]
        except ValueError as error:
            raise ConvertError(f"{self._label}: its first line cannot be read: {error}") from error
        twice = sorted({name for name in header if name and header.count(name) > 1})
        if twice or not any(header):
            what = f"names the column '{twice[0]}' twice" if twice else "is empty"
            raise ConvertError(f"{self._label}: the first line {what}; expected the names of the columns")
        return header, lines.position

    def _find_records(self, file: BinaryIO, is_watched: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
        lines = _Lines(file, self._first)
        watched = [(column, name) for column, name in enumerate(self.columns) if is_watched(name)]
        start = self._first
        for line in lines:
            first = lines.number
            try:
                cells = _whole(line, lines, self.delimiter)
            except ValueError as error:
                raise ConvertError(
                    f"{self._label}: {self._lines(first, lines.number + 1)} cannot be read: {error}; a cell with "
                    'quotes or line breaks in it must be quoted, "like ""this"""'
                ) from error
            if cells is not None:
                self._starts.append(start)
                for column, name in watched:
                    if column < len(cells):
                        yield name, cells[column]
                start = lines.position
        self._starts.append(lines.position)

    def _lines(self, first: int, last: int) -> str:
        """Return a record's line numbers in the file, from those after the header."""
        with open_stream(self._path) as file:
            header = _num_breaks(file.read(self._first))
        return f"the record from line {header + first:,} to line {header + last:,}"

    def _find_lines(self, file: BinaryIO, is_watched: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
        lines = _Lines(file, self._first)
        columns: dict[str, bool] = {}
        start, first = self._first, b""
        for line in lines.raw():
            if line.strip():
                first = first or line
                self._starts.append(start)
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    record = None  # the worker that converts it raises the error
                for name in record if isinstance(record, dict) else ():
                    if columns.setdefault(name, is_watched(name)):
                        yield name, record[name]
                if len(columns) > _MOST_COLUMNS:
                    raise ConvertError(
                        f"{self._label}: its records have more than {_MOST_COLUMNS:,} different keys; expected the "
                        "names of columns"
                    )
            start += len(line)
        self._starts.append(start)
        self.columns = list(columns)
        if first and not columns:
            _parsed(first, self._label)


@dataclasses.dataclass(frozen=True)
class TextRows:
    """Reads and parses single rows; sent to the workers."""

    path: str
    identity: Identity
    delimiter: str
    columns: tuple[str, ...]
    ranges: Ranges = dataclasses.field(default_factory=Ranges)

    @property
    def are_cells(self) -> bool:
        """Whether all values are text, including numbers."""
        return bool(self.delimiter)

    def row(self, start: int, size: int) -> Mapping[str, Any]:
        """Return a record's values by column: texts, or for JSON lines the parsed values.

        Raises
        ------
        SampleFault
            If the record is damaged.
        """
        data = self.ranges.read(self.path, start, size, self.identity)
        if not self.delimiter:
            try:
                return _parsed(data, "the record")
            except ConvertError as error:
                raise SampleFault(f"{self._place(start)}: {error}") from error
        row = _cells(data, self.delimiter)
        if len(row) != len(self.columns):
            blank = len(data) - len(data.lstrip(b"\r\n"))
            raise SampleFault(
                f"{self._place(start + blank)}: its record has {len(row)} cells, expected {len(self.columns)}: "
                f"{_shortened(data)}"
            )
        return dict(zip(self.columns, row, strict=True))

    def _place(self, start: int) -> str:
        """Return the line where a record begins, or its byte offset if it is far into a large file."""
        if start > _COUNTED_BYTES:
            return f"byte {start:,}"
        return f"line {_num_breaks(self.ranges.read(self.path, 0, start, self.identity)) + 1:,}"


def _cells(data: bytes, delimiter: str) -> list[str]:
    """Return the cells of one record.

    Examples
    --------
    >>> _cells(b'a,b', ","), _cells(b'a,"b,c"', ",")
    (['a', 'b'], ['a', 'b,c'])
    """
    line = data.rstrip(b"\r\n")
    if not (b'"' in line or b"\r" in line or b"\n" in line):  # the common case, and many times as fast
        return line.decode("utf-8", "surrogateescape").split(delimiter)
    lines = _Lines(io.BytesIO(data), 0)  # split at the file's line ends, not at every line-ending character
    return next((cells for line in lines if (cells := _whole(line, lines, delimiter)) is not None), [])


def _whole(line: str, following: Iterator[str], delimiter: str) -> list[str] | None:
    """Return the cells of the record that begins with a line; None for an empty line.

    Raises
    ------
    ValueError
        If its quotes do not match.
    """
    text = line.rstrip("\r\n")
    if '"' not in text:
        return text.split(delimiter) if text else None
    taken, held = [line], len(line)
    while (cells := _split("".join(taken).rstrip("\r\n"), delimiter)) is None:
        while True:
            more = next(following, None)
            if more is None or held > _RECORD_BYTES:
                raise ValueError("a quote is never closed")
            taken.append(more)
            held += len(more)
            if '"' in more:
                break
    return cells


def _split(text: str, delimiter: str) -> list[str] | None:
    """Return the cells of a record, as Python's csv module does; None if a quote is still open.

    Examples
    --------
    >>> _split('a; "b;c" ;d"e', ";"), _split('"a', ";")
    (['a', 'b;c', 'd"e'], None)
    """
    cells = []
    at = 0
    while True:
        if _QUOTE.match(text, at):
            quoted = _QUOTED.match(text, at)
            if quoted is None:
                return None
            cells.append(quoted[1].replace('""', '"'))
            at = quoted.end()
            if at < len(text) and text[at] != delimiter:
                raise ValueError(f"{text[at : at + 20]!r} follows a closing quote")
        else:
            end = text.find(delimiter, at)
            end = len(text) if end < 0 else end
            cells.append(text[at:end])
            at = end
        if at == len(text):
            return cells
        at += 1


class _Lines:
    """Lines of a file as text, and the current offset; lines end in line feed, carriage return or both."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._raw = _pieces(file)
        self.position = start
        self.number = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._raw)
        self.position += len(line)
        self.number += 1
        return line.decode("utf-8", "surrogateescape")

    def raw(self) -> Iterator[bytes]:
        return self._raw


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    rest = b""
    while block := file.read(_BLOCK_BYTES):
        lines = (rest + block).splitlines(keepends=True)
        # The next character may be the carriage return's line feed.
        rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
        yield from lines
    if rest:
        yield rest


def _num_breaks(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


def _after_mark(file: BinaryIO, label: str) -> int:
    head = file.read(4096)
    wide = next((name for name, marks in _WIDE_MARKS.items() if head.startswith(marks)), "UTF-16" * (b"\0" in head))
    if wide:
        raise ConvertError(f"{label} is {wide}; save it as UTF-8: iconv -f {wide} -t UTF-8 FILE > NEW")
    return len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0


def _parsed(line: bytes, label: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8", "surrogateescape").strip())
    except (ValueError, RecursionError) as error:
        where = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
        raise ConvertError(f"{label} is not JSON ({where}): {_shortened(line)}") from error
    if not isinstance(record, dict):
        raise ConvertError(
            f"{label} is a JSON {type(record).__name__}, expected an object (one per line; `jq -c '.[]'` makes lines "
            f"of a list): {_shortened(line)}"
        )
    return record


def _shortened(data: bytes) -> str:
    text = repr(data.decode("utf-8", "backslashreplace").strip())
    return text if len(text) <= 100 else text[:97] + "..."
