"""What is in a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading import format as stored
from dataloading.errors import UsageError
from dataloading.ffcv.fields import (
    BytesField,
    FloatField,
    IntField,
    JSONField,
    NDArrayField,
    RGBImageField,
    TorchTensorField,
)
from dataloading.ffcv.fields.base import ARG_TYPE, EngineField

__all__ = ["FIELDS", "Reader"]

FIELDS: dict[type[stored.Field], type[EngineField]] = {
    stored.IntField: IntField,
    stored.FloatField: FloatField,
    stored.ImageField: RGBImageField,
    stored.BytesField: BytesField,
    stored.JSONField: JSONField,
    stored.NDArrayField: NDArrayField,
    stored.TorchTensorField: TorchTensorField,
}


class Reader:
    """The fields and records of a ``.beton`` file.

    Parameters
    ----------
    fname : str
    custom_handlers : mapping of str to class
        The class of each field of the user's own, by name.

    Attributes
    ----------
    file_name : str
    num_samples, page_size, num_fields : int
    field_names : list of str
    handlers : dict of str to Field
        Fields that FFCV does not have are those of `dataloading`.
    stored : mapping of str to dataloading's Field
        How our engine reads them.
    custom_records : dict of str to dtype
        Of the fields of the user's own.
    metadata : ndarray
        The sample table, with columns ``f0``, ``f1`` ...; straight from the file, read-only.
    alloc_table : ndarray
        Sample, position and number of bytes of each stored value.
    """

    def __init__(self, fname: str | os.PathLike[str], custom_handlers: Mapping[str, Any] | None = None) -> None:
        self.file_name = os.fspath(fname)
        handlers = _custom_handlers(self.file_name, custom_handlers or {})
        self.custom_records = {name: np.dtype(each.metadata_type) for name, each in handlers.items()}
        self._reader = stored.Reader(self.file_name, self.custom_records)
        self.num_samples = self._reader.num_samples
        self.page_size = self._reader.page_size
        self.stored = self._reader.fields
        self.handlers: dict[str, Any] = {
            name: handlers[name] if name in handlers else _field(field) for name, field in self.stored.items()
        }
        self.field_names = list(self.handlers)
        self.num_fields = len(self.handlers)
        self.metadata = self._reader.table
        self.alloc_table = self._reader.allocations

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The file's bytes, read-only."""
        return self._reader.data

    def column(self, name: str) -> Any:
        """Return a field's column of the sample table."""
        return self._reader.column(name)


def _custom_handlers(path: str, classes: Mapping[str, Any]) -> dict[str, Any]:
    """Make the fields of the user's own of what the file keeps of them."""
    with open(path, "rb") as file:
        descriptor = file.fileno()
        found = stored.probe_descriptors(
            lambda start, stop: os.pread(descriptor, stop - start, start), os.fstat(descriptor).st_size, path
        )
    kinds = {each.name: each for each in found}
    missing = [
        name
        for name, each in kinds.items()
        if each.type_id == stored.CustomField.type_id
        and name not in classes
        and not stored.has_beton_kind(each.arguments)
    ]
    if missing:
        raise UsageError(
            f"{path}: {', '.join(map(repr, missing))} holds values of a class of your own: name it, as in "
            f"custom_fields={{{missing[0]!r}: YourField}}"
        )
    unknown = [name for name in classes if name not in kinds]
    if unknown:
        raise UsageError(f"custom_fields: there is no field {unknown[0]!r} in {path}: it has {', '.join(kinds)}")
    return {
        name: classes[name].from_binary(np.frombuffer(each.arguments, ARG_TYPE)[0][0])
        for name, each in kinds.items()
        if name in classes
    }


def _field(field: stored.Field) -> Any:
    kind = FIELDS.get(type(field))
    if kind is None:
        return field
    arguments = field.arguments().ljust(ARG_TYPE.itemsize, b"\0")
    return kind.from_binary(np.frombuffer(arguments, ARG_TYPE)[0][0])
