"""A table of samples: one column with the images' paths, others with labels, numbers and texts.

CSV, TSV, JSON lines or parquet. The order of the rows is kept. Labels that are words become the positions among the
sorted words, as torchvision numbers folders; whole numbers stay as they are. Relative paths begin at the table's
folder unless a root is given. Blanks around names of columns, labels and paths do not count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from converters.fields import FieldSpec, fields_of
from converters.source import SampleFault, printable
from dataloading import ConvertError, Field, ImageField, IntField, UsageError
from dataloading.tools import is_url

from .arrow_table import ArrowRows, ArrowTable, import_pyarrow
from .imagefolder import IMAGE_EXTENSIONS
from .reading import absolute, folder_of, name_of, normalised
from .row_values import class_label, file_bytes, gathered, resolved, typed_value
from .text_table import TextRows, TextTable

__all__ = ["LABEL_COLUMNS", "Labels", "Table", "label_names", "table_labels", "usual_column"]

_IMAGE_COLUMNS = ("image", "path", "file", "filename", "file_name", "filepath", "file_path", "image_path")
LABEL_COLUMNS = ("label", "labels", "class", "category", "target", "targets", "class_name", "label_name")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_FRACTION = re.compile(r"[-+]?[0-9]+\.[0-9]*")
_MOST_CLASSES = 1_000_000
_PATHS_KEPT = 4096
_KINDS = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


class Table:
    """The samples that a table lists.

    Parameters
    ----------
    path : str
        The table: ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``; path or URL.
    image_column : str, optional
        By default the first of the usual names that occurs (image, path, file, ...).
    label_column : str, optional
        By default the first of label, class, category, target and the like that occurs, in any case of letters; or
        none.
    specs : mapping of str to FieldSpec, optional
        Further fields.
    class_names : sequence of str, optional
        Names of the classes in the order of their labels; then the label column holds names.
    root : str, optional
        Where relative paths begin.
    random_access : bool
        Whether rows will be asked for in random order.

    Raises
    ------
    ConvertError
        If the table cannot be read, or its labels are neither all numbers nor all words.
    UsageError
        If a column is not there, there are no rows, or the labels are too many different words.

    Attributes
    ----------
    passed_over : list of str
        Columns that are not taken.
    delimiter : str
        What separates cells; nothing where there are none.
    has_words : bool
        Whether labels are words, and their numbers the positions among the sorted words.
    """

    _table: TextTable | ArrowTable

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
            advice = "; `jq -c '.[]' FILE.json > FILE.jsonl` makes lines of a list" if path.endswith(".json") else ""
            raise UsageError(f"{printable(self.path)}: a table ends in {', '.join(_KINDS)}{advice}")
        self._table = ArrowTable([self.path]) if kind == "parquet" else TextTable(self.path, kind)
        self.delimiter = self._table.delimiter if isinstance(self._table, TextTable) else ""
        self._specs = dict(specs or {})
        taken = {spec.column for spec in self._specs.values()}
        found: dict[str, Labels] = {}
        for column, value in self._pass_over(label_column, taken):
            found.setdefault(column, Labels()).add(value)
        columns = self._table.columns if isinstance(self._table, TextTable) else list(self._table.schema.names)
        self.image_column = self._column(image_column, _IMAGE_COLUMNS, columns, "--image-column")
        if self.image_column is None:
            raise UsageError(self._without_images(columns))
        self._check_paths()
        for spec in self._specs.values():
            if spec.name in {"image", "label"}:
                raise UsageError(f"--field {spec.name}: --{spec.name}-column says where the {spec.name}s are")
            if spec.column not in columns:
                raise UsageError(f"--field {spec.name}: {self._with_columns(columns)}, not '{spec.column}'")
        others = [column for column in columns if column not in taken and column != self.image_column]
        free = columns if label_column is not None else others
        self.label_column = self._column(label_column, LABEL_COLUMNS, free, "--label-column")
        self.passed_over = [column or "(without a name)" for column in others if column != self.label_column]
        self.class_names = None if class_names is None else list(class_names)
        if self.class_names is None and self.label_column is not None:
            self.class_names = found.get(self.label_column, Labels()).names()
        self.has_words = class_names is None and self.class_names is not None
        if not len(self._table):
            raise UsageError(f"{printable(self.path)} lists no samples")
        if random_access and isinstance(self._table, ArrowTable):
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
        """The table, see `converters.source.files_of`."""
        return [(name_of(self.path), self.path)]

    @property
    def load(self) -> Callable[[Any], Mapping[str, Any]]:
        """See `converters.source.Source`."""
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
        return place[0], place[1], absolute(resolved(_without_blanks(path, self._root), self._root)) if path else ""

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

    def _open(self) -> TextRows | ArrowRows:
        table = self._table
        return table.records() if isinstance(table, TextTable) else table.rows(self._wanted())

    def _wanted(self) -> list[str]:
        columns = [self.image_column, self.label_column, *(spec.column for spec in self._specs.values())]
        return [column for column in columns if column is not None]

    def _pass_over(self, label_column: str | None, taken: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Find all rows; yield column and value of what may be their labels."""

        def is_label(column: str) -> bool:
            if label_column is not None:
                return column == label_column
            return _usual(column) in LABEL_COLUMNS and column not in taken

        if isinstance(self._table, TextTable):
            yield from self._table.find(is_label)
            return
        for column in filter(is_label, self._table.schema.names):
            for label in table_labels(self._table, column):
                yield column, label

    def _column(self, given: str | None, usual: Sequence[str], columns: Sequence[str], option: str) -> str | None:
        if given is None:
            return usual_column(usual, columns)
        if given not in columns:
            raise UsageError(f"{option} {given}: {self._with_columns(columns)}")
        return given

    def _with_columns(self, columns: Sequence[str]) -> str:
        return f"{printable(self.path)} has the columns {', '.join(map(printable, columns)) or '(none)'}"

    def _without_images(self, columns: Sequence[str]) -> str:
        if any(name.lower().endswith(IMAGE_EXTENSIONS) or "://" in name for name in columns):
            names = self.delimiter.join(["path", "label", *(f"column{n}" for n in range(3, len(columns) + 1))])
            return (
                f"{printable(self.path)}: the first line ({', '.join(map(printable, columns))}) looks like a sample, "
                f"expected the names of the columns; put them there, such as by sed -i '1i {names}' FILE"
            )
        return f"{self._with_columns(columns)}; --image-column says which of them has the images' paths"

    def _check_paths(self) -> None:
        if isinstance(self._table, ArrowTable):
            kind = import_pyarrow().types
            held = self._table.schema.field(self.image_column).type
            held = held.value_type if kind.is_dictionary(held) else held
            if not any(test(held) for test in (kind.is_string, kind.is_large_string, kind.is_string_view)):
                raise UsageError(
                    f"{printable(self.path)}: column '{self.image_column}' is {held}, expected paths; `beton convert "
                    "huggingface` takes tables that hold the images themselves"
                )


def _usual(column: str) -> str:
    return column.strip().casefold()


def usual_column(usual: Sequence[str], columns: Sequence[str]) -> str | None:
    """Return the first of the usual names that occurs, as it is written; else in other letters, as `Label`."""
    exact = [name for name in usual if name in columns]
    return exact[0] if exact else next((each for name in usual for each in columns if _usual(each) == name), None)


def table_labels(table: ArrowTable, column: str) -> Iterator[Any]:
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
    seen = Labels()
    for label in labels if given is None else ():
        seen.add(label)
    return seen.names()


class Labels:
    """Labels as they occur, of which it is to be told whether they are numbers or names."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._number: int | str | None = None
        self._word: str | None = None
        self._code: str | None = None
        self._problem = ""

    def add(self, label: Any) -> None:
        """Take one more; nothing (None, an empty text) is none: the sample is refused by its name."""
        if isinstance(label, str):
            if label in self._names:
                return
            label = label.strip()
        if label is None or label == "" or self._problem:
            return
        if isinstance(label, bool) or not isinstance(label, (int, str)):
            self._problem = f"a label is a {type(label).__name__} ({label!r}), expected whole numbers or names"
        elif isinstance(label, int) or _INTEGER.fullmatch(label):
            self._number = label
        elif _FRACTION.fullmatch(label):  # 10.0 would come before 2.0
            self._problem = (
                f"a label is {label!r}, expected whole numbers or names; write it without a fraction, or, if it is a "
                "name, list all names in a file for --classes"
            )
        elif not label.isascii() and any("\udc80" <= sign <= "\udcff" for sign in label):
            self._problem = (
                f"the label {printable(label)} is not UTF-8; save it as UTF-8: iconv -f WINDOWS-1252 -t UTF-8 "
                "FILE > NEW"
            )
        elif label.isdecimal():
            self._code = label  # 007: a name, and so is 100 beside it
        else:
            self._word = label
        if isinstance(label, str) and len(self._names) <= _MOST_CLASSES:
            self._names.add(label)

    @property
    def has_words(self) -> bool:
        """Whether there is a text that is no number."""
        return bool(self._word or self._code)

    @property
    def num_names(self) -> int:
        """How many different texts there are."""
        return len(self._names)

    def names(self) -> list[str] | None:
        """Return the sorted names; None if all are whole numbers. Errors as `label_names`."""
        number, word = self._number, self._word or self._code
        if self._problem:
            raise ConvertError(self._problem)
        if word is None:
            return None
        if isinstance(number, int) or (number is not None and self._word is not None):
            # Sorted as words, numbers would become other numbers, all of them for the sake of one stray word.
            raise ConvertError(
                f"labels are numbers and names: {number!r} and {word!r}; make them one or the other, or, if the "
                "numbers are names as well, list all names in a file for --classes"
            )
        if len(self._names) > _MOST_CLASSES:
            raise UsageError(
                f"the labels are more than {_MOST_CLASSES:,} different words, such as {word!r}; keep such a column as "
                "text with --field NAME=text"
            )
        return sorted(self._names)


def _row(reader: TextRows | ArrowRows, task: tuple[int, int, str] | tuple[int, int]) -> Mapping[str, Any]:
    return reader.record(task[0], task[1]) if isinstance(reader, TextRows) else reader.row(task[0], task[1])


def _without_blanks(path: str, root: str) -> str:
    """Return a path without blanks around it, unless there is a file of its very name."""
    bare = path.strip()
    if bare == path or (not is_url(bare) and not is_url(root) and os.path.lexists(resolved(path, root))):
        return path
    return bare


class _Load:
    """Reads a row and the file it names; what travels to the workers."""

    def __init__(
        self,
        reader: TextRows | ArrowRows,
        image_column: str,
        label_column: str | None,
        labels: Mapping[str, int] | None,
        specs: tuple[FieldSpec, ...],
        root: str,
    ) -> None:
        self._reader = reader
        self._are_cells = isinstance(reader, TextRows) and reader.is_cells
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
        path = _without_blanks(path, self._root)
        readers: list[tuple[str, Callable[[], object]]] = [("image", partial(file_bytes, path, self._root))]
        if self._label_column is not None:
            column = self._label_column
            readers.append(("label", lambda: class_label(self._cell(row, column), self._labels, f"column '{column}'")))
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
