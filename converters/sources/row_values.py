"""Values of table rows -> what fields take: paths are read, pairs of bytes and path resolved. Runs in the workers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from converters.fields import FieldSpec
from converters.source import SampleFault, printable
from dataloading.tools import is_url

from .reading import child, normalised, read_file

__all__ = ["class_label", "file_bytes", "gathered", "resolved", "typed_value"]

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")


def gathered(readers: Iterable[tuple[str, Callable[[], object]]]) -> dict[str, object]:
    """Return what each reader returns, by name.

    Raises
    ------
    SampleFault
        The first of the readers', with the values of those that had none: what a placeholder keeps.
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
    """Return the bytes of a file that a table names.

    Raises
    ------
    SampleFault
        If it cannot be read; names it.
    """
    if not path:
        raise SampleFault("the path is empty")
    place = resolved(path, root)
    try:
        return read_file(place)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SampleFault(f"{printable(place)} cannot be read: {reason}") from error


def typed_value(spec: FieldSpec, value: Any, root: str) -> object:
    """Return what a field takes for a typed value of a row.

    Parameters
    ----------
    spec : FieldSpec
        The field.
    value : object
        A Python value; for a file's field its bytes, its path, or Hugging Face's pair of both.
    root : str
        Where relative paths begin.

    Raises
    ------
    SampleFault
        If the value does not fit or its file cannot be read.
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


def class_label(value: object, labels: Mapping[str, int] | None, where: str) -> int:
    """Return the number of a label: a name's among the classes, or without classes the whole number that it is.

    Parameters
    ----------
    value : object
        A name, with or without blanks around it, or a whole number, which may be text.
    labels : mapping of str to int, optional
        The classes.
    where : str
        What a message calls the place, such as "column 'label'".

    Raises
    ------
    SampleFault
        If it is neither, or none of the classes.

    Examples
    --------
    >>> class_label(" cat", {"cat": 0}, "column 'label'"), class_label("7", None, "column 'label'")
    (0, 7)
    """
    value = value.strip() if isinstance(value, str) else value
    if value is None or value == "":
        raise SampleFault(f"its label is {value!r}, expected a whole number or name: {where} has no label for it")
    if labels is not None:
        if not isinstance(value, str) or value not in labels:
            raise SampleFault(f"its label {value!r} is none of the {len(labels)} classes")
        return labels[value]
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise SampleFault(f"its label is {value!r}, expected a whole number")
    return value
