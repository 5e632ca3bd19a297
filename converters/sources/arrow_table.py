"""Reads rows of parquet and Arrow files: schema and counts in the parent, values row by row in the workers.

Only the requested columns are read. Parquet is read sequentially in small batches, so a worker needs a few megabytes
for any size of row groups. Parquet has no random access to rows: for a random order it is first copied into an
uncompressed Arrow file (``local_copies.py``). Needs pyarrow, imported on first use.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from converters.source import SampleFault, printable
from dataloading import ConvertError, UsageError
from dataloading.tools import is_url

from .local_copies import LocalCopy, local_paths
from .reading import absolute, open_stream

__all__ = ["ARROW_ENDINGS", "INDEX", "ArrowRows", "ArrowTable", "import_pyarrow"]

ARROW_ENDINGS = (".arrow", ".feather", ".ipc")
INDEX = re.compile(r"__index_level_\d+__")
"""The columns in which pandas keeps an index."""
_BATCH_BYTES, _BATCH_ROWS = 1 << 20, 4096
_FILE_MAGIC, _PARQUET_MAGIC = b"ARROW1", b"PAR1"
_OPEN_AT_MOST = 16


def import_pyarrow() -> Any:
    """Return pyarrow with its modules for parquet and Arrow files, or raise `UsageError` if it is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError('parquet and Arrow files need pyarrow: pip install "beton[hf]"') from error
    return pa


class ArrowTable:
    """Several parquet and Arrow files with the same columns, as one list of rows.

    ``paths`` are paths or URLs; Arrow files at URLs are first copied to this machine.

    Raises
    ------
    ConvertError
        If a file cannot be read.
    UsageError
        If the columns of a file differ from the first's.
    """

    delimiter = ""  # cells are typed, not text

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths, self._copies = _local_arrow(paths)
        self.schema: Any = None
        self._ends: list[int] = []
        self._copy: LocalCopy | None = None
        self._origins: tuple[list[str], list[int]] = (list(paths), self._ends)
        total = 0
        for path, local in zip(paths, self.paths, strict=True):
            try:
                table = _open(local)
            except SampleFault as error:
                raise ConvertError(str(error).replace(local, path)) from error
            with contextlib.closing(table):
                if self.schema is None:
                    self.schema = table.schema
                elif not _same_columns(table.schema, self.schema):
                    raise UsageError(
                        f"{printable(path)} has other columns than {printable(paths[0])}: "
                        f"{_difference(table.schema, self.schema)}"
                    )
                total += table.num_rows
                self._ends.append(total)

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def task(self, index: int) -> tuple[int, int, str]:
        """Return the number of the file, the row in it, and the file's path."""
        paths, ends = self._origins
        origin = absolute(paths[bisect.bisect_right(ends, index)])
        file = bisect.bisect_right(self._ends, index)
        return file, index - (self._ends[file - 1] if file else 0), origin

    def values(self, column: str) -> Iterator[Any]:
        """Yield a column's values as pyarrow arrays, in row order and bounded memory."""
        for path in self.paths:
            with contextlib.closing(_open(path)) as table:  # also if the caller stops early
                for batch in table.batches([column]):
                    yield batch.column(0)

    def find(self, is_watched: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
        """Yield column and value of each batch's distinct values in the given columns."""
        for column in filter(is_watched, self.columns):
            for values in self.values(column):
                for value in values.unique().to_pylist():
                    yield column, value

    def make_random(self, columns: Sequence[str]) -> None:
        """Copy parquet's ``columns`` to a file with random access to rows; Arrow files already have it."""
        if all(_is_arrow(path) for path in self.paths):
            return
        pa = import_pyarrow()
        copy = LocalCopy(
            f"the rows of {printable(self.paths[0])} that a random order needs",
            "leave out --shuffle (Loader shuffles when it reads), keep the rows as an Arrow file in a folder that all "
            "machines see, or convert with --engine local",
        )
        wanted = list(dict.fromkeys(columns))
        schema = pa.schema([_without_dictionary(pa, self.schema.field(name)) for name in wanted])
        with pa.ipc.new_file(copy.file, schema) as writer:
            for path in self.paths:
                with contextlib.closing(_open(path)) as table:
                    for batch in table.batches(wanted):
                        writer.write_table(pa.Table.from_batches([batch]).select(wanted).cast(schema))
        copy.file.flush()
        self._copy = copy
        self.paths = [copy.path]
        self._ends = self._ends[-1:]

    def rows(self, columns: Sequence[str], *, files: Collection[str] = ()) -> ArrowRows:
        """Return a reader of these columns for the workers; lists of uint8 in ``files`` are returned as bytes."""
        return ArrowRows(tuple(self.paths), tuple(dict.fromkeys(columns)), frozenset(files))


class ArrowRows:
    """Reads single rows; pickled without its open files, which it closes when it is dropped."""

    are_cells = False

    def __init__(self, paths: tuple[str, ...], columns: tuple[str, ...], files: frozenset[str]) -> None:
        self._paths = paths
        self._columns = columns
        self._files = files
        self._open: dict[int, Any] = {}

    def row(self, file: int, row: int) -> dict[str, Any]:
        """Return a row's values by column, as Python objects.

        Raises
        ------
        SampleFault
            If the file cannot be read.
        """
        table = self._open.get(file)
        try:
            if table is None:
                while len(self._open) >= _OPEN_AT_MOST:
                    self._open.pop(next(iter(self._open))).close()
                table = self._open[file] = _open(self._paths[file])
            batch, at = table.find(row, self._columns)
            values = {name: batch.column(name)[at] for name in self._columns}
            return {name: _bytes(value) if name in self._files else value.as_py() for name, value in values.items()}
        except (OSError, ConvertError, import_pyarrow().ArrowException) as error:
            raise SampleFault(f"{printable(self._paths[file])}, row {row} cannot be read: {error}") from error

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        while self._open:
            self._open.popitem()[1].close()

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


class _Parquet:
    """A parquet file, read sequentially."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._table = import_pyarrow().parquet.ParquetFile(file, pre_buffer=False)
        self.schema = self._table.schema_arrow
        self.num_rows: int = self._table.metadata.num_rows
        metadata = self._table.metadata
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        self._ends = list(itertools.accumulate(group.num_rows for group in groups))
        self._row_bytes = [group.total_byte_size // max(1, group.num_rows) + 1 for group in groups]
        self._group = -1
        self._start = 0
        self._batch: Any = None
        self._rest: Iterator[Any] = iter(())

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        for group in range(len(self._ends)):
            yield from self._in_group(group, columns)

    def _in_group(self, group: int, columns: Sequence[str]) -> Iterator[Any]:
        size = max(1, min(_BATCH_ROWS, _BATCH_BYTES // self._row_bytes[group]))
        batches: Iterator[Any] = self._table.iter_batches(
            batch_size=size, row_groups=[group], columns=list(columns), use_threads=False
        )
        return batches

    def find(self, row: int, columns: Sequence[str]) -> tuple[Any, int]:
        """Return the batch that holds a row, and the row's index in it."""
        group = bisect.bisect_right(self._ends, row)
        if group != self._group or self._batch is None or row < self._start:
            self._group = group
            self._start = self._ends[group - 1] if group else 0
            self._rest = self._in_group(group, columns)
            self._batch = next(self._rest)
        while row >= self._start + len(self._batch):
            self._start += len(self._batch)
            self._batch = next(self._rest)
        return self._batch, row - self._start

    def close(self) -> None:
        self._rest = iter(())
        self._batch = None
        self._table.close()
        self._file.close()


class _Arrow:
    """A memory-mapped Arrow file in either of its two formats; nothing is copied."""

    def __init__(self, path: str, *, is_stream: bool) -> None:
        pa = import_pyarrow()
        self._map = pa.memory_map(path)
        if is_stream:
            reader = pa.ipc.open_stream(self._map)
            batches = list(reader)  # views of the map; this format has no index of batches
            self._num_batches, self._get = len(batches), batches.__getitem__
        else:
            reader = pa.ipc.open_file(self._map)
            self._num_batches, self._get = reader.num_record_batches, reader.get_batch
        self.schema = reader.schema
        self._ends = list(itertools.accumulate(self._get(number).num_rows for number in range(self._num_batches)))
        self.num_rows: int = self._ends[-1] if self._ends else 0

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        for number in range(self._num_batches):
            yield self._get(number).select(list(columns))

    def find(self, row: int, columns: Sequence[str]) -> tuple[Any, int]:
        number = bisect.bisect_right(self._ends, row)
        return self._get(number), row - (self._ends[number - 1] if number else 0)

    def close(self) -> None:
        del self._get
        self._map.close()


def _local_arrow(paths: Sequence[str]) -> tuple[list[str], list[LocalCopy]]:
    """Copy Arrow files at URLs, because they are memory-mapped; parquet files are not."""

    def is_parquet(url: str) -> bool:
        with contextlib.closing(open_stream(url)) as file:
            return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC

    arrow = [path for path in paths if is_url(path) and not is_parquet(path)]
    local, copies = local_paths(arrow)
    known = dict(zip(arrow, local, strict=True))
    return [known.get(path, path) for path in paths], copies


def _open(path: str) -> Any:
    """Open a table by its content; raises SampleFault."""
    pa = import_pyarrow()
    file: Any = None
    try:
        file = open_stream(path)
        head = file.read(6)
        if head[:4] == _PARQUET_MAGIC:
            return _Parquet(file)
        file.close()
        if is_url(path):
            raise SampleFault(f"{path} is not parquet any more: it has been changed since the conversion began")
        return _Arrow(path, is_stream=head != _FILE_MAGIC)
    except ConvertError as error:
        raise SampleFault(str(error)) from error
    except (pa.ArrowException, OSError) as error:
        if file is not None:
            file.close()
        raise SampleFault(f"{printable(path)} cannot be read as a parquet or Arrow file: {error}") from error


def _is_arrow(path: str) -> bool:
    with contextlib.closing(_open(path)) as table:
        return isinstance(table, _Arrow)


def _bytes(value: Any) -> Any:
    """Return a value as a Python object; a list of uint8 as bytes, without converting each number."""
    types = import_pyarrow().types
    if not (types.is_list(value.type) or types.is_large_list(value.type) or types.is_fixed_size_list(value.type)):
        return value.as_py()
    if value.values is None or value.values.null_count or not types.is_uint8(value.type.value_type):
        return value.as_py()
    return value.values.to_numpy().tobytes()


def _without_dictionary(pa: Any, field: Any) -> Any:
    # An Arrow file has one dictionary per column, parquet one per row group.
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _same_columns(got: Any, expected: Any) -> bool:
    """Return whether two schemas have the same columns, except pandas' index, which it adds only to some files."""
    columns = [
        [(field.name, field.type) for field in each if not INDEX.fullmatch(field.name)] for each in (got, expected)
    ]
    return columns[0] == columns[1]


def _difference(got: Any, expected: Any) -> str:
    for field in expected:
        if field.name not in got.names:
            return f"there is no column '{field.name}'"
        if got.field(field.name).type != field.type:
            return f"column '{field.name}' is {got.field(field.name).type}, expected {field.type}"
    extra = [name for name in got.names if name not in expected.names]
    return f"there is a column '{extra[0]}' more" if extra else "their order differs"
