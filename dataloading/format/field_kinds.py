"""Makes a field from its descriptor: FFCV's kinds by type number, our own by a text in the arguments.

A kind of ours either uses the record of one of FFCV's kinds, and FFCV reads it as that kind (text and variable-length
arrays as bytes), or has FFCV's number for custom fields, 255. Both are recognised by a magic at the start of the
arguments, which FFCV leaves blank or ignores.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from dataloading.errors import FormatError, UsageError

from .arrays import NDArrayField, TorchTensorField
from .base import Field, parse_kind
from .fields import BytesField, CustomField, FloatField, IntField, JSONField, TextField
from .images import ImageField, MaskField, RasterField
from .ragged import VarArrayField

__all__ = ["field_from_descriptor"]

_KINDS: dict[int, type[Field]] = {
    kind.type_id: kind for kind in (FloatField, IntField, ImageField, BytesField, JSONField)
}
_ARRAY_KINDS: dict[int, type[NDArrayField]] = {kind.type_id: kind for kind in (NDArrayField, TorchTensorField)}
_OUR_KINDS: dict[str, tuple[int, Callable[..., Field]]] = {
    "text": (TextField.type_id, TextField),
    "vararray": (VarArrayField.type_id, VarArrayField.from_description),
    "raster": (RasterField.type_id, RasterField),
    "mask": (MaskField.type_id, MaskField),
}


def field_from_descriptor(
    type_id: int, name: str, arguments: bytes, custom_records: Mapping[str, npt.DTypeLike]
) -> Field:
    """Return the field that a descriptor stands for.

    ``custom_records`` gives the record dtype of each custom field (type 255) that is not ours, by name.

    Raises
    ------
    FormatError
        If the type is unknown, its arguments are invalid, or a custom field's record dtype is not given.
    """
    try:
        described = parse_kind(arguments)
        if described is not None:
            return _our_field(type_id, *described)
        if type_id in _ARRAY_KINDS:
            return _ARRAY_KINDS[type_id].from_arguments(arguments)
    except FormatError as error:
        raise FormatError(f"field '{name}': {error}") from error
    if type_id in _KINDS:
        return _KINDS[type_id]()
    if type_id != CustomField.type_id:
        raise FormatError(f"field '{name}' has the unknown type {type_id}; expected 0 to 6, or 255 for a custom field")
    if name not in custom_records:
        raise FormatError(
            f"field '{name}' is of a custom type, so only the program that wrote it knows the size of its records; "
            f"pass custom_records={{'{name}': dtype}} (metadata_type of its FFCV class)"
        )
    return CustomField(custom_records[name], arguments)


def _our_field(type_id: int, kind: str, parameters: dict[str, Any]) -> Field:
    if kind not in _OUR_KINDS:
        raise FormatError(f"it is of the kind '{kind}', which this library does not know; update it")
    expected, make = _OUR_KINDS[kind]
    if type_id != expected:
        raise FormatError(f"a field of the kind '{kind}' has the type {expected}, this one says {type_id}")
    try:
        return make(**parameters)
    except (UsageError, TypeError) as error:
        raise FormatError(f"its description {json.dumps(parameters)} of a '{kind}' is not usable: {error}") from error
