"""Converts table values to field values: reads paths, and resolves pairs of bytes and path. Runs in the workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from converters.fields import FieldSpec
from converters.source import SampleFault, printable
from dataloading.tools import is_url

from .reading import child, normalised, read_file

__all__ = ["file_bytes", "gathered", "labelled", "resolved", "typed_value"]


def gathered(readers: Iterable[tuple[str, Callable[[], object]]]) -> dict[str, object]:
    """Return the results of all readers, by name.

    Raises
    ------
    SampleFault
        The first reader's fault, with the values of the other readers, which a placeholder keeps.
    """
    values: dict[str, object] = {}
    fault: SampleFault | None = None
    for name, read in readers:
        try:
            values[name] = read()
        except SampleFault as error:
            fault = fault or error
    if fault is not None:
        raise SampleFault(str(fault), values=values) from fault
    return values


def resolved(path: str, root: str) -> str:
    """Resolve a table's path: URLs and absolute paths are unchanged, others are below ``root``."""
    if is_url(path) or path.startswith("file://"):
        return normalised(path)
    return child(root, path)


def file_bytes(path: str, root: str) -> bytes:
    """Return the bytes of a file in a table; raise `SampleFault` with its name if it cannot be read."""
    if not path:
        raise SampleFault("the path is empty")
    full_path = resolved(path, root)
    try:
        return read_file(full_path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SampleFault(f"{printable(full_path)} cannot be read: {reason}") from error


def typed_value(spec: FieldSpec, value: Any, root: str) -> object:
    """Convert a Python value of a row to the field's value; relative paths are below ``root``.

    For fields read from files the value is the bytes, the path, or Hugging Face's pair of both. Raises `SampleFault` if
    the value does not fit or its file cannot be read.
    """
    if spec.is_file and value is not None:
        if isinstance(value, Mapping):
            data, path = value.get("bytes"), value.get("path")
            value = data if data is not None else path
        if isinstance(value, list):  # some tables store a file's bytes as numbers
            with contextlib.suppress(ValueError, TypeError):
                value = bytes(value)
        if isinstance(value, str):
            return spec.from_bytes(file_bytes(value, root))
        if isinstance(value, bytes):
            return spec.from_bytes(value)
    return spec.from_value(value)


def labelled(read: Callable[[], bytes], label: int) -> dict[str, object]:
    """Return an image's bytes and its label; on a fault the label is kept for a placeholder."""
    try:
        return {"image": read(), "label": label}
    except (OSError, SampleFault) as error:
        text = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        raise SampleFault(text, values={"label": label}) from error
