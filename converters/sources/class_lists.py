"""Reads the class names of a dataset, by label, from a file, a folder or another dataset."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from converters.beton_files import shards_of
from converters.source import printable
from dataloading import Reader, UsageError
from dataloading.tools import is_manifest

from .listing import list_folder
from .reading import is_folder, open_stream

__all__ = ["ClassOrder", "are_numbers", "class_list", "in_order"]

ClassOrder = Literal["name", "number"]


def class_list(path: str, *, order: ClassOrder = "name") -> list[str]:
    """Return class names by label.

    Parameters
    ----------
    path : str
        A folder with one folder per class; a ``.beton`` file or a set's manifest; JSON, a list of names or an object
        ``{name: label}``; or text, one name per line. All but a ``.beton`` file may be a URL.
    order : {"name", "number"}
        How a folder's classes are sorted.

    Raises
    ------
    UsageError
        If there are none, one occurs twice, or the labels have gaps.
    """
    if path.endswith(".beton") or is_manifest(path):
        names = _of_beton(path)
    elif is_folder(path):
        names = in_order(list_folder(path)[0], order)
        if not names:
            raise UsageError(f"{printable(path)} has no sub-folders, so there are no class names to take from it")
    else:
        names = _of_text(path)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if not names or twice:
        raise UsageError(f"{printable(path)} has {f'the class {twice[0]!r} twice' if names else 'no lines'}")
    return names


def are_numbers(names: Sequence[str]) -> bool:
    """Return whether all names are written as whole numbers."""
    return bool(names) and all(name.isascii() and name.isdecimal() for name in names)


def in_order(names: Sequence[str], order: ClassOrder) -> list[str]:
    """Return names sorted as text or as numbers; raise `UsageError` if a name is not a number.

    Examples
    --------
    >>> in_order(["10", "9"], "name"), in_order(["10", "9"], "number")
    (['10', '9'], ['9', '10'])
    """
    if order == "name":
        return sorted(names)
    if not are_numbers(names):
        other = next((name for name in names if not are_numbers([name])), "")
        raise UsageError(f"the class folder {printable(other)!r} is not a whole number; leave --class-order number out")
    return sorted(names, key=lambda name: (int(name), name))


def _of_beton(path: str) -> list[str]:
    with Reader(shards_of(path)[0] if is_manifest(path) else path) as reader:
        if reader.class_names is None:
            raise UsageError(f"{printable(path)} records no class names to take")
        return list(reader.class_names)


def _of_text(path: str) -> list[str]:
    with open_stream(path) as file:
        text = file.read().decode("utf-8-sig", "surrogateescape")
    if path.lower().endswith(".json"):
        return _of_json(text, path)
    names = [line.strip() for line in text.splitlines()]
    return names[: -1 if names and not names[-1] else None]


def _of_json(text: str, path: str) -> list[str]:
    wanted = f'{printable(path)}: expected a list of names or an object {{"name": label}}'
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{wanted}; it is not JSON: {error}") from error
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value
    if not isinstance(value, dict) or not all(type(label) is int for label in value.values()):
        raise UsageError(f"{wanted}, got {text.strip()[:60]!r}")
    by_label = {label: name for name, label in value.items()}
    if sorted(value.values()) != list(range(len(value))):
        raise UsageError(f"{wanted} with each label from 0 to {len(value) - 1} once, got {sorted(value.values())[:20]}")
    return [by_label[label] for label in range(len(value))]
