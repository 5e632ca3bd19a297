"""Hugging Face datasets on disk or in a store: parquet files, Arrow files, and folders by ``save_to_disk``.

Types come from the features that the ``datasets`` library stores in the files: images, and class labels with names.
Without features they come from the column types, and bytes that begin like an image file are images. Names in a label
column become classes. Encoded images are not decoded here, but in the workers. Files are read with pyarrow, so that no
copy is made in the library's cache.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from converters.fields import FieldSpec, fields_of, name_fault, plain_spec, short_name
from converters.source import SampleFault, printable
from dataloading import ConvertError, Field, UsageError

from .arrow_table import ARROW_ENDINGS, INDEX, ArrowRows, ArrowTable, import_pyarrow
from .imagefolder import IMAGE_EXTENSIONS
from .labels import LABEL_COLUMNS, Labels, class_label, usual_name
from .listing import expand, list_folder
from .reading import child, exists, folder_of, is_folder, name_of, normalised, open_stream
from .row_values import gathered, typed_value

__all__ = ["HuggingFace"]

_ENDINGS = (".parquet", *ARROW_ENDINGS)
_HEAD_BYTES = 16
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"II*\0", b"MM\0*", b"P5\n", b"P6\n", b"BM", b"\0\0\0\x0cjP  ")
_BATCHES_TRIED = 16
_FEW_CLASSES = 1000


class HuggingFace:
    """The rows of parquet or Arrow files.

    Parameters
    ----------
    patterns : sequence of str
        Files, folders of them, globs; or one folder by ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk``.
    split : str, optional
        A part of a ``DatasetDict``, or of a folder whose files are named ``SPLIT-00000-of-00004.parquet``.
    columns : sequence of str, optional
        Columns to include; by default all of known type (images, class labels, numbers, texts).
    specs : mapping of str to FieldSpec, optional
        Fields of further columns, or with other kinds and names.
    random_access : bool
        Whether rows will be read in random order.

    Raises
    ------
    ConvertError
        If a file cannot be read.
    UsageError
        If nothing has that name, there are no rows, files differ in their columns, or no column is usable.

    Attributes
    ----------
    passed_over : list of str
        Columns that are not used, with their types.
    hints : list of str
        Suggested options for columns whose type is ambiguous.
    has_words : bool
        Whether labels are words, and their numbers the positions among the sorted words.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        *,
        split: str | None = None,
        columns: Sequence[str] | None = None,
        specs: Mapping[str, FieldSpec] | None = None,
        random_access: bool = False,
    ) -> None:
        self._name = name_of(normalised(patterns[0]))
        paths = _files(patterns, split)
        self._root = folder_of(paths[0])
        self._table = ArrowTable(paths)
        if not len(self._table):
            raise UsageError(f"{printable(paths[0])} has no rows")
        names = self._table.columns
        for name in columns or ():
            if name not in names:
                raise UsageError(f"there is no column '{name}'; there are {', '.join(names)}")
        for spec in (specs or {}).values():
            if spec.column not in names:
                raise UsageError(
                    f"--field {spec.name}: there is no column '{spec.column}'; there are {', '.join(names)}"
                )
        features = _features(self._table.schema)
        self.passed_over: list[str] = []
        self.hints: list[str] = []
        self._specs = self._choose(columns, dict(specs or {}), features)
        self._label: str | None = None
        self.class_names = self._class_names(features) or self._classes_of_words(specs or {})
        self.provenance = {"source": "huggingface", "source_name": printable(self._name), "source_samples": len(self)}
        self.has_words = self._label is not None and self.class_names is not None
        if random_access:
            self._table.make_random(self._columns)

    @property
    def fields(self) -> Mapping[str, Field]:
        """The chosen columns in the order of the files."""
        return fields_of(self._specs)

    @property
    def load(self) -> Callable[[Any], Mapping[str, Any]]:
        """See `converters.source.Source`."""
        files = [spec.column for spec in self._specs.values() if spec.is_file]
        labels = None if self._label is None else {name: label for label, name in enumerate(self.class_names or ())}
        rows = self._table.rows(self._columns, files=files)
        return _Load(rows, tuple(self._specs.values()), self._root, self._label, labels or None)

    def __len__(self) -> int:
        return len(self._table)

    def task(self, index: int) -> tuple[int, int, str]:
        """Return the file's number, the row and the file's path."""
        return self._table.task(index)

    def name(self, index: int) -> str:
        """Return the row's number."""
        return f"row {index}"

    @property
    def _columns(self) -> list[str]:
        return [spec.column for spec in self._specs.values()]

    def _choose(
        self, columns: Sequence[str] | None, given: dict[str, FieldSpec], features: Mapping[str, Any]
    ) -> dict[str, FieldSpec]:
        by_column = {spec.column for spec in given.values()}
        specs: dict[str, FieldSpec] = {}
        for column in self._table.schema:
            name = column.name
            if name in by_column or (columns is not None and name not in columns):
                continue  # the declared ones are added below, under their own names
            kind = _kind(column.type, features.get(name, {}))
            if kind in {None, "bytes"} and _is_image(self._first(name)):
                kind = "image"
            if columns is None and INDEX.fullmatch(name):
                self.passed_over.append(f"{name} (the index of pandas)")
            elif kind is None:
                self.passed_over.append(f"{name} ({column.type})")
                if columns is not None:
                    raise UsageError(
                        f"column '{name}' is {column.type}, which no kind of field is plain for; declare it "
                        f"with --field {name}=json, array:DTYPE:SHAPE, bytes or image"
                    )
            elif fault := name_fault(name):
                words = shlex.quote(f"{short_name(name, self._table.columns)}={kind}@{name}")
                if columns is not None or kind == "image" or _is_label(name, features):
                    others = ",".join(other for other in self._table.columns if not name_fault(other))
                    raise UsageError(
                        f"{fault}; --field {words} takes the column under another name, --columns "
                        f"{shlex.quote(others)} leaves it out"
                    )
                self.passed_over.append(f"{name} ({fault}; --field {words} takes it)")
            else:
                specs[name] = plain_spec(name, kind)
        clash = next((name for name in given if name in specs), None)
        if clash is not None:
            raise UsageError(f"--field {clash}: a column of that name is taken as well; --columns leaves it out")
        specs |= given
        if not specs:
            raise UsageError(
                f"no column can be taken by its type: {', '.join(self.passed_over)}; declare some by --field"
            )
        if not any(spec.is_file for spec in specs.values()):
            self.hints += [hint for name in specs if name not in given and (hint := self._hint(name, specs[name].kind))]
        return specs

    def _hint(self, column: str, kind: str) -> str:
        """Return a hint for a column that may hold images, if there are no image columns."""
        first = self._first(column) if kind == "text" else ""
        if kind == "bytes" or (isinstance(first, str) and first.lower().endswith(IMAGE_EXTENSIONS)):
            typed = shlex.quote(f"image=image@{column}")
            return f"no images: '{column}' is taken as {kind}; --field {typed} makes images of it"
        return ""

    def _first(self, column: str) -> object:
        """Return a column's first value that is not null."""
        for values in itertools.islice(self._table.values(column), _BATCHES_TRIED):
            for value in values:
                if value.is_valid:
                    return value.as_py()
        return None

    def _classes_of_words(self, given: Mapping[str, FieldSpec]) -> list[str] | None:
        """Return the sorted names of a column of text labels, whose field becomes an integer."""
        column = usual_name(LABEL_COLUMNS, list(self._specs))
        if column is None or column in given or self._specs[column].kind != "text":
            return None
        labels = Labels(label for _, label in self._table.find(column.__eq__))
        if labels.num_names > max(_FEW_CLASSES, len(self._table) // 2):
            self.hints.append(
                f"{column}: text, since nearly every row has another one ({labels.num_names:,}); --field "
                f"{column}=text says so"
            )
            return None
        try:
            names = labels.names()
        except ConvertError as error:
            self.hints.append(f"{column}: text, since {str(error).partition(';')[0]}; --field {column}=text says so")
            return None
        self._specs[column] = plain_spec(column, "int")
        self._label = column
        return names

    def _class_names(self, features: Mapping[str, Any]) -> list[str] | None:
        labels = [
            spec for spec in self._specs.values()
            if spec.kind == "int" and _is_label(spec.column, features)
        ]  # fmt: skip
        chosen = next((spec for spec in labels if spec.name == "label"), labels[0] if len(labels) == 1 else None)
        names = features[chosen.column].get("names") if chosen is not None else None
        return [str(name) for name in names] if names else None


def _features(schema: Any) -> Mapping[str, Any]:
    """Return the features that ``datasets`` stored in a file's schema."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return {name: feature for name, feature in found.items() if isinstance(feature, dict)}


def _kind(kind: Any, feature: Mapping[str, Any]) -> str | None:
    """Return the field declaration for a column, or None if none is obvious."""
    pa = import_pyarrow()
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    while types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        kind = kind.value_type
    if feature.get("_type") == "Image":
        return "image"
    if types.is_struct(kind) and {kind.field(place).name for place in range(kind.num_fields)} == {"bytes", "path"}:
        return "image" if feature.get("_type") is None else None
    plain = {
        "int": (types.is_integer, types.is_boolean),
        "float": (types.is_floating,),
        "text": (types.is_string, types.is_large_string, types.is_string_view),
        "bytes": (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view),
    }
    return next((name for name, tests in plain.items() if any(test(kind) for test in tests)), None)


def _is_image(value: object) -> bool:
    """Return whether a value is an image file's bytes: as bytes, as numbers or in Hugging Face's pair."""
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if isinstance(value, list) and len(value) > _HEAD_BYTES:
        try:
            value = bytes(value[:_HEAD_BYTES])
        except (ValueError, TypeError):
            return False
    if not isinstance(value, bytes):
        return False
    return value.startswith(_MAGIC) or (value[:4] == b"RIFF" and value[8:12] == b"WEBP")


def _is_label(name: str, features: Mapping[str, Any]) -> bool:
    return bool(features.get(name, {}).get("_type") == "ClassLabel")


def _files(patterns: Sequence[str], split: str | None) -> list[str]:
    first = normalised(patterns[0])
    if len(patterns) > 1 or not is_folder(first):
        return _of_split(expand(patterns, _ENDINGS), split)
    if exists(child(first, "dataset_dict.json")):
        splits = _json(child(first, "dataset_dict.json")).get("splits", [])
        if split is None or split not in splits:
            raise UsageError(f"{printable(first)} has the splits {', '.join(splits)}; --split says which one")
        first, split = child(first, split), None
    if exists(child(first, "state.json")):
        if split is not None:
            raise UsageError(f"{printable(first)} is one dataset without splits; leave --split out")
        files = _json(child(first, "state.json")).get("_data_files", [])
        return [child(first, each["filename"]) for each in files]
    folders, names = list_folder(first)
    if folders and not any(name.lower().endswith(_ENDINGS) for name in names):
        raise UsageError(
            f"{printable(first)} has no files that end in {' or '.join(_ENDINGS)}, but folders: "
            f"{', '.join(folders[:5])}; name one of them"
        )
    return _of_split(expand([first], _ENDINGS), split)


def _of_split(paths: list[str], split: str | None) -> list[str]:
    """Return the files of a split by the hub's naming scheme; without a split all, if they belong to one split."""
    splits = [name_of(path).partition("-")[0] if "-of-" in name_of(path) else "" for path in paths]
    known = sorted(set(splits))
    if split is None:
        if len(known) > 1:
            raise UsageError(f"there are files of the splits {', '.join(filter(None, known))}; --split says which one")
        return paths
    chosen = [path for path, own in zip(paths, splits, strict=True) if own == split]
    if not chosen:
        raise UsageError(
            f"there are no files of the split {split!r}, only of {', '.join(filter(None, known)) or 'none'}"
        )
    return chosen


def _json(path: str) -> dict[str, Any]:
    with open_stream(path) as file:
        try:
            found = json.loads(file.read())
        except ValueError as error:
            raise ConvertError(f"{printable(path)} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConvertError(f"{printable(path)} is not a JSON object; was it made by save_to_disk?")
    return found


@dataclasses.dataclass(frozen=True)
class _Load:
    """Reads a row and its files; sent to the workers."""

    rows: ArrowRows
    specs: tuple[FieldSpec, ...]
    root: str
    label: str | None
    labels: Mapping[str, int] | None

    def __call__(self, task: tuple[int, int, str]) -> dict[str, object]:
        row = self.rows.row(*task[:2])

        def read(spec: FieldSpec) -> object:
            try:
                if spec.name == self.label:
                    return class_label(row[spec.column], self.labels, f"column '{spec.column}'")
                return typed_value(spec, row[spec.column], self.root)
            except SampleFault as error:
                text = str(error)
                raise SampleFault(text if text.startswith("field ") else f"field '{spec.name}': {text}") from error

        return gathered((spec.name, partial(read, spec)) for spec in self.specs)
