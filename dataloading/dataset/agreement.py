"""Whether files can be one dataset: equal fields, and labels that mean the same."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from dataloading.errors import UsageError
from dataloading.format import Field, FileInfo
from dataloading.messages import counted

__all__ = ["check_fields", "common_classes", "field_differences"]


def field_differences(left: Mapping[str, Field], right: Mapping[str, Field], *, coordinates: bool = True) -> list[str]:
    """Return messages about how the fields of two files differ; none where they are equal, in the same order.

    Parameters
    ----------
    left, right : mapping of str to Field
    coordinates : bool
        Whether arrays must also hold the same kind of coordinates.
    """
    lines = []
    for name in {**left, **right}:
        one, two = left.get(name), right.get(name)
        places = [getattr(each, "coordinates", None) for each in (one, two)]
        if one is None or two is None:
            lines.append(f"'{name}' ({one or two!r}) is only in the {'first' if two is None else 'second'}")
        elif one != two:
            lines.append(f"'{name}' is {one!r} in the first, {two!r} in the second")
        elif coordinates and places[0] != places[1]:
            lines.append(f"'{name}' has coordinates {places[0]} in the first, {places[1]} in the second")
    if not lines and list(left) != list(right):
        lines.append(f"their order is {', '.join(left)} in the first, {', '.join(right)} in the second")
    return lines


def check_fields(first: FileInfo, other: FileInfo, *, prefix: str = "", coordinates: bool = True) -> None:
    """Raise `UsageError` if two files have different fields; ``prefix`` begins the message."""
    if differing := field_differences(first.fields, other.fields, coordinates=coordinates):
        listed = "\n".join(f"  {line}" for line in differing)
        raise UsageError(
            f"{prefix}{first.path} and {other.path} have different fields:\n{listed}\nFiles of one dataset need equal "
            f"fields; convert one of them again"
        )


def common_classes(
    files: Sequence[FileInfo], *, hint: str = "", advice: str = "", assume: bool = False
) -> tuple[str, ...] | None:
    """Return the class names that all files share, None if no file records any.

    Parameters
    ----------
    files : sequence of FileInfo
        Such as open readers.
    hint, advice : str
        Ends of the messages about different classes, and about files without class names.
    assume : bool
        Whether to assume that files without class names have those of the others.

    Raises
    ------
    UsageError
        Class names differ (the message names the first difference), or only some files have them, so it is unknown
        whether their labels mean the same.
    """
    named = next((file for file in files if file.class_names is not None), None)
    if named is None or named.class_names is None:
        return None
    for file in files:
        if file.class_names not in (None, named.class_names):
            pairs = enumerate(zip_longest(named.class_names, file.class_names or ()))
            label, pair = next((label, pair) for label, pair in pairs if pair[0] != pair[1])
            one, two = ("not a class" if name is None else repr(name) for name in pair)
            raise UsageError(
                f"the files name different classes. Label {label} is {one} in {named.path} "
                f"({counted(len(named.class_names), 'class')}) and {two} in {file.path} "
                f"({counted(len(file.class_names or ()), 'class')}){hint}"
            )
    unnamed = next((file for file in files if file.class_names is None), None)
    if unnamed is not None and not assume:
        kind = " (FFCV's files never do)" if unnamed.extension is None else ""
        raise UsageError(
            f"{unnamed.path} records no class names{kind}, {named.path} has "
            f"{counted(len(named.class_names), 'name')}: that labels mean the same in both would be a guess. If they "
            f"do, give it the names: `beton upgrade {shlex.quote(unnamed.path)} NEW.beton --class-names-from "
            f"{shlex.quote(named.path)}`{advice}"
        )
    return named.class_names
