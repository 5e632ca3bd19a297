"""Hugging Face datasets on disk or in a store: parquet files, Arrow files, and folders by ``save_to_disk``.

Types come from the features that the ``datasets`` library leaves in the files: images, class labels with their names;
without them from the columns' own types. Encoded images are taken as they are and decoded in the workers alone. Files
are read with pyarrow, so that no copy is made in the library's cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dataloading import ConvertError, Field, UsageError

from ..field_grammar import FieldSpec, fields_of, parse_field
from .base import SampleFault, printable
from .listing import expand, list_folder
from .opening import child, exists, folder_of, is_folder, name_of, normalised, open_stream
from .tables import ARROW_ENDINGS, Rows, Tables, import_pyarrow
from .values import gathered, typed_value

__all__ = ["HuggingFace"]

_ENDINGS = (".parquet", *ARROW_ENDINGS)


class HuggingFace:
    """The rows of parquet or Arrow files.

    Parameters
    ----------
    patterns : sequence of str
        Files, folders of them, globs; or one folder by ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk``.
    split : str, optional
        Which part of a ``DatasetDict``, or of a folder whose files are named ``SPLIT-00000-of-00004.parquet``.
    columns : sequence of str, optional
        Columns to take; by default all whose type is known (images, class labels, numbers, texts).
    specs : mapping of str to FieldSpec, optional
        Fields of other columns, or other kinds and names.
    random_access : bool
        Rows will be asked for in random order.

    Raises
    ------
    ConvertError
        If a file cannot be read.
    UsageError
        If there is nothing of that name, there are no rows, files differ in their columns, or no column can be taken.

    Attributes
    ----------
    passed_over : list of str
        Columns that are not taken, with their types.
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
        self._table = Tables(paths)
        if not len(self._table):
            raise UsageError(f"{printable(paths[0])} has no rows")
        names = list(self._table.schema.names)
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
        self._specs = self._choose(columns, dict(specs or {}), features)
        self.class_names = self._class_names(features)
        if random_access:
            self._table.make_random(self._columns)

    @property
    def fields(self) -> Mapping[str, Field]:
        """The chosen columns in the order of the files."""
        return fields_of(self._specs)

    @property
    def provenance(self) -> Mapping[str, object]:
        """Kind and name of the source and how many samples it has."""
        return {"source": "huggingface", "source_name": printable(self._name), "source_samples": len(self)}

    @property
    def load(self) -> Callable[[Any], Mapping[str, Any]]:
        """See `converters.sources.base.Source`."""
        return _Load(self._table.rows(self._columns), tuple(self._specs.values()), self._root)

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
        by_column = {spec.column: spec for spec in given.values()}
        specs: dict[str, FieldSpec] = {}
        for column in self._table.schema:
            kind = _kind(column.type, features.get(column.name, {}))
            if column.name in by_column:
                continue  # added below, under the name it was given
            if columns is not None and column.name not in columns:
                continue
            if kind is None:
                self.passed_over.append(f"{column.name} ({column.type})")
                if columns is not None:
                    raise UsageError(
                        f"column '{column.name}' is {column.type}, which no kind of field is plain for; declare it "
                        f"with --field {column.name}=json, array:DTYPE:SHAPE, bytes or image"
                    )
            else:
                specs[column.name] = parse_field(f"{column.name}={kind}")
        clash = next((name for name in given if name in specs), None)
        if clash is not None:
            raise UsageError(f"--field {clash}: a column of that name is taken as well; --columns leaves it out")
        specs |= given
        if not specs:
            raise UsageError(
                f"no column can be taken by its type: {', '.join(self.passed_over)}; declare some by --field"
            )
        return specs

    def _class_names(self, features: Mapping[str, Any]) -> list[str] | None:
        labels = [
            spec for spec in self._specs.values()
            if spec.kind == "int" and features.get(spec.column, {}).get("_type") == "ClassLabel"
        ]  # fmt: skip
        chosen = next((spec for spec in labels if spec.name == "label"), labels[0] if len(labels) == 1 else None)
        names = features[chosen.column].get("names") if chosen is not None else None
        return [str(name) for name in names] if names else None


def _features(schema: Any) -> Mapping[str, Any]:
    """Return the features that ``datasets`` has left in a file's schema."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return {name: feature for name, feature in found.items() if isinstance(feature, dict)}


def _kind(kind: Any, feature: Mapping[str, Any]) -> str | None:
    """Return the grammar's word for a column, or None where none is plain."""
    types = import_pyarrow().types
    if feature.get("_type") == "Image":
        return "image"
    if types.is_struct(kind) and {kind.field(place).name for place in range(kind.num_fields)} == {"bytes", "path"}:
        return "image" if feature.get("_type") is None else None
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_integer(kind) or types.is_boolean(kind):
        return "int"
    if types.is_floating(kind):
        return "float"
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "bytes"
    return None


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
    """Return the files of a split by the hub's way of naming them; without one all, if all are of one split."""
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
        raise ConvertError(f"{printable(path)} is no JSON object; was it made by save_to_disk?")
    return found


class _Load:
    """Reads a row and the files it names; what travels to the workers."""

    def __init__(self, rows: Rows, specs: tuple[FieldSpec, ...], root: str) -> None:
        self._rows = rows
        self._specs = specs
        self._root = root

    def __call__(self, task: tuple[int, int, str]) -> dict[str, object]:
        row = self._rows.row(*task[:2])

        def read(spec: FieldSpec) -> object:
            try:
                return typed_value(spec, row[spec.column], self._root)
            except SampleFault as error:
                text = str(error)
                raise SampleFault(text if text.startswith("field ") else f"field '{spec.name}': {text}") from error

        return gathered((spec.name, partial(read, spec)) for spec in self._specs)
