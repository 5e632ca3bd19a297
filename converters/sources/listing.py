"""Lists folders and expands globs and brace patterns, on this machine and in stores.

``reading.py`` reads files, retries, and formats errors.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from converters.source import printable
from dataloading import ConvertError, UsageError
from dataloading.tools import is_url

from .reading import child, exists, is_folder, normalised, with_retries

__all__ = ["expand", "is_fork", "list_folder", "walk"]


def list_folder(path: str, hidden: list[str] | None = None) -> tuple[list[str], list[str]]:
    """Return the sorted names of a folder's folders and files; links count as their targets.

    Hidden folders (``.ipynb_checkpoints``) and macOS's ``._a.jpg`` files are skipped; ``hidden`` gets their names.
    Raises `ConvertError` if the folder, a path or URL, cannot be listed.
    """
    folders: list[str] = []
    files: list[str] = []
    if is_url(path):
        for name, is_dir in with_retries(path, lambda store, key: _entries(store, key, path), ConvertError):
            (folders if is_dir else files).append(name)
    else:
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    (folders if entry.is_dir() else files).append(entry.name)
        except OSError as error:
            raise ConvertError(f"cannot list {printable(path)}: {error.strerror}") from error
    passed_over = [name for name in folders if name.startswith(".")] + [name for name in files if is_fork(name)]
    if hidden is not None:
        hidden += sorted(passed_over)
    return sorted({*folders}.difference(passed_over)), sorted(name for name in files if not is_fork(name))


def is_fork(name: str) -> bool:
    """Return whether a file holds macOS's attributes of another file (``._name``)."""
    return name.startswith("._")


def walk(url: str, below: str, hidden: list[str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield (folder, file names) for ``below`` and every folder in it, in a store; folders are relative to ``url``.

    ``hidden`` gets the skipped names, relative to ``url``; see `list_folder`.
    """
    waiting = [below]
    while waiting:
        folder = waiting.pop()
        names: list[str] = []
        folders, files = list_folder(child(url, folder), names)
        if hidden is not None:
            hidden += [f"{folder}/{name}" for name in names]
        yield folder, files
        waiting += [f"{folder}/{name}" for name in folders]


def _entries(store: Any, key: str, url: str) -> list[tuple[str, bool]]:
    found = []
    own = key.rstrip("/")
    store.invalidate_cache(key)  # another conversion in this process may have cached an old listing
    for entry in store.ls(key, detail=True):
        name = entry["name"].rstrip("/")
        if name == own:  # the marker object of an empty folder, or a server's link to itself
            if entry["type"] == "file" and entry.get("size"):
                raise NotADirectoryError(f"{url} is a file")
            continue
        last = name.rpartition("/")[2]
        if url.startswith("http"):
            last = unquote(last.partition("?")[0], errors="surrogateescape")
            if not name.startswith(own + "/"):  # a link out of the folder, such as to the one above
                continue
        found.append((last, entry["type"] == "directory"))
    return found


def expand(patterns: Sequence[str], endings: Sequence[str]) -> list[str]:
    """Return the files of paths, folders, globs and brace patterns, in the given order; the files of each are sorted.

    Parameters
    ----------
    patterns : sequence of str
        ``shard-{000..003}.tar``, ``shard-*.tar``, a folder, or a file; paths or URLs.
    endings : sequence of str
        Extensions of the files to take from a folder, such as ".tar".

    Raises
    ------
    UsageError
        If one matches nothing, or a file is named twice.
    """
    found: list[str] = []
    for pattern in patterns:
        found += _matches(normalised(pattern), tuple(endings))
    twice = sorted({path for path in found if found.count(path) > 1}) if len(set(found)) < len(found) else []
    if twice:
        raise UsageError(f"{printable(twice[0])} is named twice")
    return found


def _matches(pattern: str, endings: tuple[str, ...]) -> list[str]:
    if not is_url(pattern) and os.path.isfile(pattern):
        return [pattern]
    spread = _braces(pattern)
    if len(spread) > 1:
        return [path for each in spread for path in _matches(each, endings)]
    if is_folder(pattern):
        names = [name for name in list_folder(pattern)[1] if name.lower().endswith(endings)]
        if not names:
            raise UsageError(f"the folder {printable(pattern)} has no files that end in {' or '.join(endings)}")
        return [child(pattern, name) for name in names]
    if any(mark in pattern for mark in "*?[") and not (pattern.startswith("http") and "*" not in pattern):
        # glob.glob keeps relative paths relative.
        listed = with_retries(pattern, _glob, ConvertError) if is_url(pattern) else glob.glob(pattern)
        if not listed:
            raise UsageError(f"nothing matches {printable(pattern)}")
        return sorted(listed)
    if not exists(pattern):
        raise UsageError(f"{printable(pattern)} does not exist")
    return [pattern]


def _glob(store: Any, key: str) -> list[str]:
    store.invalidate_cache()
    return [store.unstrip_protocol(path) for path in store.glob(key)]


def _braces(pattern: str) -> list[str]:
    """Expand the first ``{a,b}`` or ``{000..003}`` of a pattern; other braces are kept."""
    head, opened, rest = pattern.partition("{")
    inside, closed, tail = rest.partition("}")
    if not opened or not closed:
        return [pattern]
    low, dots, high = inside.partition("..")
    if dots and low.isdecimal() and high.isdecimal():
        if int(low) > int(high):
            raise UsageError(f"{pattern}: the range {{{inside}}} runs backwards")
        width = len(low) if low.startswith("0") else 0
        words = [f"{number:0{width}}" for number in range(int(low), int(high) + 1)]
    elif "," in inside:
        words = inside.split(",")
    else:
        return [pattern]
    return [one for word in words for one in _braces(head + word + tail)]
