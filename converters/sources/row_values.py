"""Values of table rows as fields take them: paths are read, pairs of bytes and path resolved. Runs in the workers."""

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
    """Return what each reader returns, by name.

    Raises
    ------
    SampleFault
        The first of the readers', with the values of the other readers, which a placeholder keeps.
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
    """Return a path as a table gives it: URLs and absolute paths as they are, others below ``root``."""
    if is_url(path) or path.startswith("file://"):
        return normalised(path)
    return child(root, path)


def file_bytes(path: str, root: str) -> bytes:
    """Return the bytes of a file that a table names; raise `SampleFault`, naming it, if it cannot be read."""
    if not path:
        raise SampleFault("the path is empty")
    place = resolved(path, root)
    try:
        return read_file(place)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SampleFault(f"{printable(place)} cannot be read: {reason}") from error


def typed_value(spec: FieldSpec, value: Any, root: str) -> object:
    """Return what a field takes for a Python value of a row; relative paths begin at ``root``.

    For a file's field the value is its bytes, its path, or Hugging Face's pair of both. Raises `SampleFault` if the
    value does not fit or its file cannot be read.
    """
    if spec.is_file and value is not None:
        if isinstance(value, Mapping):
            data, path = value.get("bytes"), value.get("path")
            value = data if data is not None else path
        if isinstance(value, list):  # a file's bytes as numbers, as some tables have them
            with contextlib.suppress(ValueError, TypeError):
                value = bytes(value)
        if isinstance(value, str):
            return spec.from_bytes(file_bytes(value, root))
        if isinstance(value, bytes):
            return spec.from_bytes(value)
    return spec.from_value(value)


def labelled(read: Callable[[], bytes], label: int) -> dict[str, object]:
    """Return an image's bytes and its label; a fault keeps the label for a placeholder."""
    try:
        return {"image": read(), "label": label}
    except (OSError, SampleFault) as error:
        text = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        raise SampleFault(text, values={"label": label}) from error
