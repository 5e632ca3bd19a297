"""Whether ``.beton`` files can be one dataset: equal fields, and labels that mean the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from dataloading import Field, Reader, UsageError
from dataloading.messages import counted
from dataloading.tools import check_all_named, label_field

__all__ = ["NO_LABELS", "Classes", "agreed_classes", "check_alike", "check_fields", "field_differences"]

Classes = Literal["equal", "union"]

NO_LABELS = "no field of labels: integers named 'label', or the only integers"


def field_differences(left: Mapping[str, Field], right: Mapping[str, Field]) -> list[str]:
    """Return messages about how the fields of two files differ; none where they are equal, in the same order."""
    lines = []
    for name in {**left, **right}:
        one, two = left.get(name), right.get(name)
        if one is None or two is None:
            lines.append(f"'{name}' ({one or two!r}) is only in the {'first' if two is None else 'second'}")
        elif one != two:
            lines.append(f"'{name}' is {one!r} in the first, {two!r} in the second")
        elif (axes := [getattr(each, "coordinates", None) for each in (one, two)]) and axes[0] != axes[1]:
            lines.append(f"'{name}' has coordinates {axes[0]} in the first, {axes[1]} in the second")
    if not lines and list(left) != list(right):
        lines.append(f"their order is {', '.join(left)} in the first, {', '.join(right)} in the second")
    return lines


def check_fields(first: Reader, other: Reader, prefix: str = "") -> None:
    """Raise `UsageError` if two files have different fields; ``prefix`` begins the message."""
    if differing := field_differences(first.fields, other.fields):
        listed = "\n".join(f"  {line}" for line in differing)
        raise UsageError(f"{prefix}{first.path} and {other.path} have different fields:\n{listed}")


def check_alike(readers: Sequence[Reader]) -> None:
    """Raise `UsageError` if files have other fields, other class names, or names in some only; labels do not count."""
    first = readers[0]
    for other in readers[1:]:
        check_fields(first, other)
        if first.class_names is not None and other.class_names not in (first.class_names, None):
            raise UsageError(f"{first.path} and {other.path} name different classes; look at them one by one")
    check_all_named(readers, "; or look at them one by one")


def agreed_classes(
    readers: Sequence[Reader], classes: Classes, *, assume: bool = False, hint: str = "", advice: str = ""
) -> tuple[tuple[str, ...] | None, list[Mapping[int, int] | None]]:
    """Return the class names of a file made of several, and for each of these how its labels become the new ones.

    Parameters
    ----------
    readers : sequence of Reader
        The files, with equal fields.
    classes : {"equal", "union"}
        See `converters.tools.merge.merge`.
    assume : bool
        Whether files without class names have those of the others.
    hint, advice : str
        End the messages about classes that differ, and about files without class names.

    Returns
    -------
    names : tuple of str or None
    maps : list of (mapping of int to int, or None)
        None where labels stay.

    Raises
    ------
    UsageError
        If the classes do not fit together, or a label has no name.
    """
    if classes not in ("equal", "union"):
        raise UsageError(f"classes must be 'equal' or 'union', got {classes!r}")
    if assume and classes != "equal":
        raise UsageError("assume_classes goes with classes='equal': a union is made of names, which every file needs")
    named = next((reader for reader in readers if reader.class_names is not None), None)
    if named is None or named.class_names is None:
        return None, [None] * len(readers)
    if classes == "union":
        return _united_classes(readers)
    for reader in readers:
        if reader.class_names is not None and reader.class_names != named.class_names:
            raise UsageError(_difference(named.path, named.class_names, reader.path, reader.class_names) + hint)
    if not assume:
        check_all_named(readers, advice)
    for reader in readers:
        _check_labels(reader, len(named.class_names))
    return named.class_names, [None] * len(readers)


def _united_classes(readers: Sequence[Reader]) -> tuple[tuple[str, ...], list[Mapping[int, int] | None]]:
    """Return the names of all files in order of first appearance, and how each file's labels become theirs."""
    new_label: dict[str, int] = {}
    for reader in readers:
        names = reader.class_names
        if names is None:
            raise UsageError(
                f"{reader.path} records no class names, so its labels cannot be mapped by name; give it names with "
                "`beton upgrade --class-names-from`"
            )
        if label_field(reader) is None:
            raise UsageError(f"{reader.path} has {NO_LABELS}")
        _check_labels(reader, len(names))
        for name in names:
            new_label.setdefault(name, len(new_label))
    maps = [{old: new_label[name] for old, name in enumerate(reader.class_names or ())} for reader in readers]
    return tuple(new_label), list(maps)


def _check_labels(reader: Reader, num_classes: int) -> None:
    label = label_field(reader)
    column = () if label is None else reader.column(label)
    for start in range(0, len(column), 1 << 20):
        part = np.asarray(column[start : start + (1 << 20)])
        bad = np.flatnonzero((part < 0) | (part >= num_classes))
        if len(bad):
            raise UsageError(
                f"{reader.path}: sample {start + int(bad[0])} has the label {int(part[bad[0]])}, which has no "
                f"class name ({counted(num_classes, 'name')}: 0 to {num_classes - 1})"
            )


def _difference(first: str, names: Sequence[str], other: str, others: Sequence[str]) -> str:
    pairs: list[tuple[Any, Any]] = list(zip_longest(names, others))
    label = next(position for position, (one, two) in enumerate(pairs) if one != two)
    one, two = ("no such class" if name is None else repr(name) for name in pairs[label])
    return (
        f"the files name different classes. Label {label} is {one} in {first} ({counted(len(names), 'class')}) and "
        f"{two} in {other} ({counted(len(others), 'class')})"
    )
