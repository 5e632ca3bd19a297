"""Identifies a conversion: by its options, its samples' names, and the files it reads.

These are compared before an interrupted conversion is resumed, or an existing file is accepted as the result.
"""

from __future__ import annotations

import json
import operator
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from converters.source import Source, files_of
from converters.sources.reading import identity
from dataloading import ConvertError, Field
from dataloading.tools import is_url

__all__ = [
    "SamplesChecksum",
    "changed_files",
    "describe_fields",
    "differences",
    "file_stamps",
    "names_digest",
    "stamp_of",
    "stamps_of",
]

_SHOWN_AT_MOST = 6
_LISTED_AT_MOST = 32
_NAMES_AT_ONCE = 256


def names_digest(
    source: Source, order: npt.NDArray[np.int64], progress: Callable[[int], object] = lambda count: None
) -> str:
    """Return a checksum of the samples' names in stored order; ``progress`` is called with counts."""
    hasher = xxhash.xxh3_64()
    for start in range(0, len(order), _NAMES_AT_ONCE):
        indices = order[start : start + _NAMES_AT_ONCE].tolist()
        text = "\0".join([*map(source.name, indices), ""])
        hasher.update(text.encode("utf-8", "backslashreplace"))
        progress(len(indices))
    return str(hasher.hexdigest())


def file_stamps(source: Source) -> dict[str, str]:
    """Return size and age, by name, of the source's files that tasks do not name; one checksum if there are many."""
    stamps: dict[str, str] = {}
    hasher = xxhash.xxh3_64()
    count = 0
    for name, path in files_of(source):
        try:
            known = identity(path)
            stamp = f"{known.size} {known.mtime_ns}"
        except ConvertError:
            stamp = "absent"
        count += 1
        if count <= _LISTED_AT_MOST:
            stamps[name if name not in stamps else f"{name} ({count})"] = stamp
        hasher.update(f"{name}\0{stamp}\0".encode("utf-8", "backslashreplace"))
    return stamps if count <= _LISTED_AT_MOST else {f"{count:,} files": hasher.hexdigest()}


def changed_files(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the files with another size or age, for a message; "" if there are none.

    Examples
    --------
    >>> changed_files({"a.csv": "9 1", "b.csv": "9 1"}, {"a.csv": "9 2", "b.csv": "9 1"})
    'a.csv'
    >>> changed_files({"60,000 files": "1f"}, {"60,000 files": "2e"})
    'one of 60,000 files'
    """
    names = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    if any(name.endswith(" files") for name in names):
        return f"one of {names[0]}" if len(names) == 1 else "the number of files"
    return ", ".join(names[:_SHOWN_AT_MOST]) + (" and others" if len(names) > _SHOWN_AT_MOST else "")


def describe_fields(fields: Mapping[str, Field]) -> dict[str, str]:
    """Return the kind and the arguments of each field, in stored form."""
    return {
        name: " ".join([type(field).__name__, field.arguments().rstrip(bytes(1)).hex(), *_coordinates(field)])
        for name, field in fields.items()
    }


def _coordinates(field: Field) -> list[str]:
    words = getattr(field, "coordinates", None)
    return [] if words is None else [words]


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the differences of two descriptions, for a message; "" if they are equal.

    Examples
    --------
    >>> differences({"seed": 1, "images": {"quality": 90}}, {"seed": 1, "images": {"quality": 80}})
    'images.quality was 90, is 80 now'
    >>> differences({"seed": 1}, {"seed": 1})
    ''
    """
    before, after = _flat(json.loads(json.dumps(then))), _flat(json.loads(json.dumps(now)))
    found = [
        f"{key} was {_shown(before, key)}, is {_shown(after, key)} now"
        for key in sorted({*before, *after})
        if before.get(key, _ABSENT) != after.get(key, _ABSENT)
    ]
    more = f"; and {len(found) - _SHOWN_AT_MOST} more" if len(found) > _SHOWN_AT_MOST else ""
    return "; ".join(found[:_SHOWN_AT_MOST]) + more


_ABSENT = object()


def _shown(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "absent"
    text = json.dumps(values[key])
    return text if len(text) <= 80 else text[:77] + "..."


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            result |= _flat(value, f"{before}{key}.")
        else:
            result[before + key] = value
    return result


class SamplesChecksum:
    """A running checksum of samples: their names, and the stamps of their tasks (`stamp_of`)."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._hasher = xxhash.xxh3_64()

    @property
    def value(self) -> str:
        """The checksum of the samples so far."""
        return str(self._hasher.hexdigest())

    def add(self, indices: Sequence[int], known: Sequence[str] | None = None) -> None:
        """Add samples; ``known`` are the stamps of their tasks, if a worker has read them."""
        if known is None:
            known = stamps_of([self._source.task(index) for index in indices])
        lines = map(operator.add, map(self._source.name, indices), known)
        self._hasher.update("\n".join([*lines, ""]).encode("utf-8", "backslashreplace"))


def stamp_of(task: object, files: dict[str | bytes, str] | None = None) -> str:
    """Return what reveals a change of a sample: size and age of the files in its task, and the task's numbers.

    Parameters
    ----------
    task : object
        The source's.
    files : dict, optional
        Cache of stamps by path.
    """
    if type(task) is int:  # of a dataset, whose samples may be small and many
        return f"\0{task}"
    files = {} if files is None else files
    items = task if isinstance(task, (tuple, list)) else (task,)
    return "".join([_stamp(item, files) for item in items])


def stamps_of(tasks: Sequence[object]) -> list[str]:
    """Return `stamp_of` each task, with one look at each file."""
    files: dict[str | bytes, str] = {}
    if {*map(type, tasks)} != {tuple} or {*map(len, tasks)} != {2}:  # type: ignore[arg-type]
        return [stamp_of(task, files) for task in tasks]
    # Arrays, whose samples may be small and many: an index and a file.
    columns = []
    for column in zip(*tasks, strict=True):
        kinds = {*map(type, column)}
        if kinds == {int}:
            columns.append([f"\0{item}" for item in column])
        elif kinds == {str} and column.count(column[0]) == len(column):
            columns.append([_stamp(column[0], files)] * len(column))
        else:
            columns.append([_stamp(item, files) for item in column])
    return list(map(operator.add, *columns))


def _stamp(item: object, files: dict[str | bytes, str]) -> str:
    if isinstance(item, int):
        return f"\0{item}"
    if not isinstance(item, (str, bytes)):
        return ""
    stamp = files.get(item)
    if stamp is None:
        found = _file_stamp(item)
        stamp = files[item] = found and f"\0{found}"
    return stamp


def _file_stamp(path: str | bytes) -> str:
    """Return size and age of a regular file; "" if it is not a local path."""
    if not (b"/" in path if isinstance(path, bytes) else "/" in path and not is_url(path)):
        return ""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return "absent"
    return f"{status.st_size} {status.st_mtime_ns}" if stat.S_ISREG(status.st_mode) else ""
