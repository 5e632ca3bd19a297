"""Class names of a file made of several, and the mapping of their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from dataloading import Reader, UsageError
from dataloading.messages import counted
from dataloading.tools import common_classes, label_field

__all__ = ["NO_LABELS", "Classes", "agreed_classes"]

Classes = Literal["equal", "union"]

NO_LABELS = "no label field: an integer field named 'label', or the only integer field"


def agreed_classes(
    readers: Sequence[Reader], classes: Classes, *, assume: bool = False, hint: str = "", advice: str = ""
) -> tuple[tuple[str, ...] | None, list[Mapping[int, int] | None]]:
    """Return the class names of a file made of several, and the label mapping of each.

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
        None if labels do not change.

    Raises
    ------
    UsageError
        If the classes do not fit together, or a label has no name.
    """
    if classes not in ("equal", "union"):
        raise UsageError(f"classes must be 'equal' or 'union', got {classes!r}")
    if assume and classes != "equal":
        raise UsageError("assume_classes requires classes='equal': a union needs the class names of every file")
    if classes == "union" and any(reader.class_names is not None for reader in readers):
        return _united_classes(readers)
    names = common_classes(readers, hint=hint, advice=advice, assume=assume)
    for reader in readers if names is not None else ():
        _check_labels(reader, len(names or ()))
    return names, [None] * len(readers)


def _united_classes(readers: Sequence[Reader]) -> tuple[tuple[str, ...], list[Mapping[int, int] | None]]:
    """Return the class names of all files in order of first appearance, and each file's label mapping."""
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
