"""A table of samples: one column with the images' paths, others with labels, numbers and texts.

CSV, TSV, JSON lines or parquet. The order of the rows is kept. Labels that are words become the positions among the
sorted words, as torchvision numbers folders; whole numbers stay as they are. Relative paths begin at the manifest's
folder unless a root is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dataloading import ConvertError, Field, ImageField, IntField, UsageError

from ..field_grammar import FieldSpec, fields_of
from .base import SampleFault, printable
from .opening import absolute, folder_of, name_of, normalised
from .records import Records, TextRows
from .tables import Rows, Tables
from .values import file_bytes, gathered, resolved, typed_value

__all__ = ["Manifest", "label_names"]

_IMAGE_COLUMNS = ("image", "path", "file", "filename", "file_name", "filepath", "file_path", "image_path")
_LABEL_COLUMNS = ("label", "class", "category", "target")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_FRACTION = re.compile(r"[-+]?[0-9]+\.[0-9]*")
_MOST_CLASSES = 1_000_000
_PATHS_KEPT = 4096
_KINDS = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


class Manifest:
    """The samples that a table lists.

    Parameters
    ----------
    path : str
        The table: ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``; path or URL.
    image_column : str, optional
        By default the first of the usual names that occurs (image, path, file, ...).
    label_column : str, optional
        By default the first of label, class, category, target that occurs, or none.
    specs : mapping of str to FieldSpec, optional
        Further fields.
    class_names : sequence of str, optional
        Names of the classes in the order of their labels; then the label column holds names.
    root : str, optional
        Where relative paths begin.
    random_access : bool
        Rows will be asked for in random order.

    Raises
    ------
    ConvertError
        If the table cannot be read, or its labels are neither all numbers nor all words.
    UsageError
        If a column is not there, there are no rows, or the labels are too many different words.
    """

    def __init__(
        self,
        path: str,
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        specs: Mapping[str, FieldSpec] | None = None,
        class_names: Sequence[str] | None = None,
        root: str | None = None,
        random_access: bool = False,
    ) -> None:
        self.path = normalised(path)
        self._root = normalised(root) if root is not None else folder_of(self.path)
        kind = _KINDS.get("." + name_of(self.path).lower().rpartition(".")[2])
        if kind is None:
            raise UsageError(f"{printable(self.path)}: a manifest ends in {', '.join(_KINDS)}")
        self._table: TextRows | Tables = Tables([self.path]) if kind == "parquet" else TextRows(self.path, kind)
        columns = self._table.columns if isinstance(self._table, TextRows) else list(self._table.schema.names)
        self.image_column = self._column(image_column, _IMAGE_COLUMNS, columns, "--image-column")
        if self.image_column is None:
            raise UsageError(f"{self._with_columns(columns)}; --image-column says which of them has the images' paths")
        self.label_column = self._column(label_column, _LABEL_COLUMNS, columns, "--label-column")
        self._specs = dict(specs or {})
        for spec in self._specs.values():
            if spec.name in {"image", "label"}:
                raise UsageError(f"--field {spec.name}: --{spec.name}-column says where the {spec.name}s are")
            if spec.column not in columns:
                raise UsageError(f"--field {spec.name}: {self._with_columns(columns)}, not '{spec.column}'")
        self.class_names = None if class_names is None else list(class_names)
        found = label_names(self._pass_over(), self.class_names)
        if self.class_names is None and self.label_column is not None:
            self.class_names = found
        if not len(self._table):
            raise UsageError(f"{printable(self.path)} lists no samples")
        if random_access and isinstance(self._table, Tables):
            self._table.make_random(self._wanted())
        self._reader = self._open()
        self._paths: dict[int, str] = {}

    @property
    def fields(self) -> Mapping[str, Field]:
        """``image``, ``label`` where there is one, and the further fields."""
        label = {} if self.label_column is None else {"label": IntField()}
        return {"image": ImageField(), **label, **fields_of(self._specs)}

    @property
    def provenance(self) -> Mapping[str, object]:
        """Kind and name of the source and how many samples it has."""
        return {"source": "manifest", "source_name": printable(name_of(self.path)), "source_samples": len(self)}

    @property
    def files(self) -> list[tuple[str, str]]:
        """The table, see `converters.sources.base.files_of`."""
        return [(name_of(self.path), self.path)]

    @property
    def load(self) -> Callable[[Any], Mapping[str, Any]]:
        """See `converters.sources.base.Source`."""
        labels = None if self.class_names is None else {name: label for label, name in enumerate(self.class_names)}
        assert self.image_column is not None
        return _Load(
            self._open(), self.image_column, self.label_column, labels, tuple(self._specs.values()), self._root
        )

    def __len__(self) -> int:
        return len(self._table)

    def task(self, index: int) -> tuple[int, int, str]:
        """Return where the row lies, and the image's place, empty where the row has none."""
        place = self._table.task(index)
        path = self._image_path(index)
        return place[0], place[1], absolute(resolved(path, self._root)) if path else ""

    def name(self, index: int) -> str:
        """Return the path in the row, or its number where it has none."""
        return printable(self._image_path(index)) or f"row {index}"

    def _image_path(self, index: int) -> str:
        path = self._paths.get(index)
        if path is None:
            try:
                value = _row(self._reader, self._table.task(index)).get(str(self.image_column))
            except SampleFault:
                value = None
            path = value if isinstance(value, str) else ""
            # Asked for when the task goes out, and for the name when its result comes.
            if len(self._paths) >= _PATHS_KEPT:
                del self._paths[next(iter(self._paths))]
            self._paths[index] = path
        return path

    def _open(self) -> Records | Rows:
        table = self._table
        return table.records() if isinstance(table, TextRows) else table.rows(self._wanted())

    def _wanted(self) -> list[str]:
        columns = [self.image_column, self.label_column, *(spec.column for spec in self._specs.values())]
        return [column for column in columns if column is not None]

    def _pass_over(self) -> Iterator[Any]:
        if isinstance(self._table, TextRows):
            yield from self._table.find(self.label_column)
        elif self.label_column is not None:
            yield from table_labels(self._table, self.label_column)

    def _column(self, given: str | None, usual: Sequence[str], columns: Sequence[str], option: str) -> str | None:
        if given is None:
            return next((name for name in usual if name in columns), None)
        if given not in columns:
            raise UsageError(f"{option} {given}: {self._with_columns(columns)}")
        return given

    def _with_columns(self, columns: Sequence[str]) -> str:
        return f"{printable(self.path)} has the columns {', '.join(map(printable, columns)) or '(none)'}"


def table_labels(table: Tables, column: str) -> Iterator[Any]:
    """Yield the distinct labels of each batch of a parquet or Arrow column."""
    for values in table.values(column):
        yield from values.unique().to_pylist()


def label_names(labels: Iterable[Any], given: Sequence[str] | None) -> list[str] | None:
    """Return the sorted names among labels; None if all of them are whole numbers.

    Parameters
    ----------
    labels : iterable
        Labels as they occur: texts, whole numbers, None.
    given : sequence of str or None
        Names that are known already; then nothing is looked at.

    Raises
    ------
    ConvertError
        If there are numbers and words.
    UsageError
        If there are too many different words.

    Examples
    --------
    >>> label_names(["dog", "cat", "dog"], None)
    ['cat', 'dog']
    >>> label_names(["3", "0"], None) is None
    True
    >>> label_names(["100", "007"], None)
    ['007', '100']
    """
    names: set[str] = set()
    number = word = code = None
    for label in labels:
        if given is not None or label is None or label == "":  # the sample without one is refused by its name
            continue
        if isinstance(label, bool) or not isinstance(label, (int, str)):
            raise ConvertError(f"a label is a {type(label).__name__} ({label!r}), expected whole numbers or names")
        if isinstance(label, int) or _INTEGER.fullmatch(label):
            number = label
        elif _FRACTION.fullmatch(label):  # 10.0 would come before 2.0
            raise ConvertError(
                f"a label is {label!r}, expected whole numbers or names; write it without a fraction, or, if it is a "
                "name, list all names in a file for --classes"
            )
        elif label.isdecimal():
            code = label  # 007: a name, and so is 100 beside it
        else:
            word = label
        if isinstance(label, str) and len(names) <= _MOST_CLASSES:
            names.add(label)
    if word is None and code is None:
        return None
    if isinstance(number, int) or (number is not None and word is not None):
        # Sorted as words, numbers would become other numbers, all of them for the sake of one stray word.
        raise ConvertError(
            f"labels are numbers and names: {number!r} and {word or code!r}; make them one or the other, or, if the "
            "numbers are names as well, list all names in a file for --classes"
        )
    if len(names) > _MOST_CLASSES:
        raise UsageError(
            f"the labels are more than {_MOST_CLASSES:,} different words, such as {word or code!r}; keep such a column "
            "as text with --field NAME=text"
        )
    return sorted(names)


def _row(reader: Records | Rows, task: tuple[int, int, str] | tuple[int, int]) -> Mapping[str, Any]:
    return reader.record(task[0], task[1]) if isinstance(reader, Records) else reader.row(task[0], task[1])


class _Load:
    """Reads a row and the file it names; what travels to the workers."""

    def __init__(
        self,
        reader: Records | Rows,
        image_column: str,
        label_column: str | None,
        labels: Mapping[str, int] | None,
        specs: tuple[FieldSpec, ...],
        root: str,
    ) -> None:
        self._reader = reader
        self._are_cells = isinstance(reader, Records) and reader.is_cells
        self._image_column = image_column
        self._label_column = label_column
        self._labels = labels
        self._specs = specs
        self._root = root

    def __call__(self, task: tuple[int, int, str]) -> dict[str, object]:
        row = _row(self._reader, task)
        path = self._cell(row, self._image_column)
        if not isinstance(path, str):
            raise SampleFault(f"column '{self._image_column}': expected a path, got {path!r}")
        readers: list[tuple[str, Callable[[], object]]] = [("image", partial(file_bytes, path, self._root))]
        if self._label_column is not None:
            readers.append(("label", lambda: self._label(self._cell(row, str(self._label_column)))))
        readers += [(spec.name, partial(self._value, row, spec)) for spec in self._specs]
        return gathered(readers)

    def _value(self, row: Mapping[str, Any], spec: FieldSpec) -> object:
        value = self._cell(row, spec.column)
        if isinstance(value, str) and self._are_cells and not spec.is_file:
            return spec.from_text(value)
        return typed_value(spec, value, self._root)

    def _cell(self, row: Mapping[str, Any], column: str) -> Any:
        if column not in row:
            raise SampleFault(f"its record has no '{column}', only {', '.join(map(repr, row))}")
        return row[column]

    def _label(self, value: Any) -> int:
        if self._labels is not None:
            if value == "":
                raise SampleFault(f"it has no label: column '{self._label_column}' is empty")
            if not isinstance(value, str) or value not in self._labels:
                raise SampleFault(f"its label {value!r} is none of the {len(self._labels)} classes")
            return self._labels[value]
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise SampleFault(f"its label is {value!r}, expected a whole number")
        return value
