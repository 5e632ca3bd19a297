"""Tables of samples: one column with image paths, others with labels, numbers and texts.

CSV, TSV, JSON lines or parquet, in row order. Text labels become their positions among the sorted texts, as torchvision
numbers folders; integers are kept. Relative paths are below the table's folder unless a root is given. Blanks around
column names, labels and paths are ignored.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from converters.fields import FieldSpec, fields_of
from converters.source import SampleFault, printable
from dataloading import Field, ImageField, IntField, UsageError
from dataloading.tools import is_url

from .arrow_table import ArrowRows, ArrowTable, import_pyarrow
from .imagefolder import IMAGE_EXTENSIONS
from .labels import LABEL_COLUMNS, Labels, class_label, label_numbers, same_name, usual_name
from .reading import absolute, folder_of, name_of, normalised
from .row_values import file_bytes, gathered, resolved, typed_value
from .text_table import TextRows, TextTable

__all__ = ["Table"]

_IMAGE_COLUMNS = ("image", "path", "file", "filename", "file_name", "filepath", "file_path", "image_path")
_PATHS_KEPT = 4096
_KINDS = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


class Table:
    """The samples in a table.

    Parameters
    ----------
    path : str
        The table: ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``; path or URL.
    image_column : str, optional
        By default the first of the usual names that occurs (image, path, file, ...).
    label_column : str, optional
        By default the first of label, class, category, target and the like that occurs, in any case; or none.
    specs : mapping of str to FieldSpec, optional
        Further fields.
    class_names : sequence of str, optional
        Class names by label; then the label column holds names.
    root : str, optional
        Folder of relative paths.
    random_access : bool
        Whether rows will be read in random order.

    Raises
    ------
    ConvertError
        If the table cannot be read, or its labels are neither all numbers nor all names.
    UsageError
        If a column is missing, there are no rows, or there are too many distinct names.

    Attributes
    ----------
    passed_over : list of str
        Columns that are not used.
    delimiter : str
        The separator of cells; "" for other kinds of tables.
    has_words : bool
        Whether labels are text; labels are then positions among the sorted texts.
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
        self.delimiter = self._table.delimiter
        self._specs = dict(specs or {})
        taken = {spec.column for spec in self._specs.values()}
        found: dict[str, Labels] = {}

        def may_be_label(column: str) -> bool:
            if label_column is not None:
                return column == label_column
            return same_name(column) in LABEL_COLUMNS and column not in taken

        for column, value in self._table.find(may_be_label):
            found.setdefault(column, Labels()).add(value)
        columns = self._table.columns
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
        self.provenance = {
            "source": "manifest", "source_name": printable(name_of(self.path)), "source_samples": len(self),
        }  # fmt: skip
        self.files = [(name_of(self.path), self.path)]
        self._reader = self._open()
        self._paths: dict[int, str] = {}

    @property
    def fields(self) -> Mapping[str, Field]:
        """``image``, ``label`` if there is one, and the further fields."""
        label = {} if self.label_column is None else {"label": IntField()}
        return {"image": ImageField(), **label, **fields_of(self._specs)}

    @property
    def load(self) -> Callable[[Any], Mapping[str, Any]]:
        """See `converters.source.Source`."""
        assert self.image_column is not None
        labels, specs = label_numbers(self.class_names), tuple(self._specs.values())
        return _Load(self._open(), self.image_column, self.label_column, labels, specs, self._root)

    def __len__(self) -> int:
        return len(self._table)

    def task(self, index: int) -> tuple[int, int, str]:
        """Return the row's location, and the image's path, "" if the row has none."""
        row = self._table.task(index)
        path = self._image_path(index)
        return row[0], row[1], absolute(resolved(_without_blanks(path, self._root), self._root)) if path else ""

    def name(self, index: int) -> str:
        """Return the path in the row, or the row's number if it has none."""
        return printable(self._image_path(index)) or f"row {index}"

    def _image_path(self, index: int) -> str:
        path = self._paths.get(index)
        if path is None:
            try:
                value = self._reader.row(*self._table.task(index)[:2]).get(str(self.image_column))
            except SampleFault:
                value = None
            path = value if isinstance(value, str) else ""
            # Cached: needed for the task, and for the name when its result arrives.
            if len(self._paths) >= _PATHS_KEPT:
                del self._paths[next(iter(self._paths))]
            self._paths[index] = path
        return path

    def _open(self) -> TextRows | ArrowRows:
        table = self._table
        return table.rows() if isinstance(table, TextTable) else table.rows(self._wanted())

    def _wanted(self) -> list[str]:
        columns = [self.image_column, self.label_column, *(spec.column for spec in self._specs.values())]
        return [column for column in columns if column is not None]

    def _column(self, given: str | None, usual: Sequence[str], columns: Sequence[str], option: str) -> str | None:
        if given is None:
            return usual_name(usual, columns)
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


def _without_blanks(path: str, root: str) -> str:
    """Return a path without surrounding blanks, unless a file with exactly this name exists."""
    bare = path.strip()
    if bare == path or (not is_url(bare) and not is_url(root) and os.path.lexists(resolved(path, root))):
        return path
    return bare


@dataclasses.dataclass(frozen=True)
class _Load:
    """Reads a row and its file; sent to the workers."""

    rows: TextRows | ArrowRows
    image_column: str
    label_column: str | None
    labels: Mapping[str, int] | None
    specs: tuple[FieldSpec, ...]
    root: str

    def __call__(self, task: tuple[int, int, str]) -> dict[str, object]:
        row = self.rows.row(*task[:2])
        path = _cell(row, self.image_column)
        if not isinstance(path, str):
            raise SampleFault(f"column '{self.image_column}': expected a path, got {path!r}")
        path = _without_blanks(path, self.root)
        readers: list[tuple[str, Callable[[], object]]] = [("image", partial(file_bytes, path, self.root))]
        if (column := self.label_column) is not None:
            readers.append(("label", lambda: class_label(_cell(row, column), self.labels, f"column '{column}'")))
        readers += [(spec.name, partial(self._value, row, spec)) for spec in self.specs]
        return gathered(readers)

    def _value(self, row: Mapping[str, Any], spec: FieldSpec) -> object:
        value = _cell(row, spec.column)
        if isinstance(value, str) and self.rows.are_cells and not spec.is_file:
            return spec.from_text(value)
        return typed_value(spec, value, self.root)


def _cell(row: Mapping[str, Any], column: str) -> Any:
    if column not in row:
        raise SampleFault(f"its record has no '{column}', only {', '.join(map(repr, row))}")
    return row[column]
