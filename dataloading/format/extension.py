"""What our files add to FFCV's format: class names, provenance, field statistics and checksums.

Defines the layout of the extension block and of the locator that points to it, and the rule that a file was written by
FFCV only if the locator's bytes are all zero: a damaged locator is an error and does not make a file FFCV's.

The locator is the last 64 bytes of field 0's arguments, which FFCV never reads. The block lies in the pages after the
last sample's bytes, where no allocation points, so FFCV never reads it either::

    locator (64 bytes):  magic u1[8] | version u4 | finished u4 | ptr u8 | text_bytes u8 | text_xxh3 u8
                         | header_xxh3 u8 | file_bytes u8 | xxh3 of the 56 bytes before u8
    block at ptr:        JSON text (text_bytes) | zeros to a multiple of 8
                         | xxh3 of each table block u8[] | of each page block u8[] | of each allocation block u8[]
                         | zeros to the end of its last page

Each of the three regions is cut into blocks of ``block_bytes``; the last block may be shorter. The locator holds the
checksums of the header and descriptors (with the locator zeroed) and of the text; the text holds the checksum of the
three arrays. So the locator verifies every byte of the file; padding must be zero.
"""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from dataloading.errors import ChecksumError, FormatError, UsageError

from .layout import ARGUMENTS_BYTES, DESCRIPTOR, HEADER

__all__ = [
    "BLOCK_BYTES",
    "LOCATOR",
    "LOCATOR_POSITION",
    "REGIONS",
    "BlockHasher",
    "Extension",
    "Locator",
    "digest",
    "header_digest",
]

MAGIC = b"\x89beton\r\n"
EXTENSION_VERSION = 1
BLOCK_BYTES = 1 << 16
"""Bytes per checksum: small enough that a damaged block affects few samples; the checksums take 0.01 % of the file."""
REGIONS = ("table", "pages", "allocations")

LOCATOR = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("finished", "<u4"),
        ("ptr", "<u8"),
        ("text_bytes", "<u8"),
        ("text_xxh3", "<u8"),
        ("header_xxh3", "<u8"),
        ("file_bytes", "<u8"),
        ("own_xxh3", "<u8"),
    ]
)
LOCATOR_POSITION = HEADER.itemsize + DESCRIPTOR.itemsize - LOCATOR.itemsize
"""Position of the locator in the file: the end of field 0's arguments."""

_NUMBERS = ("ptr", "text_bytes", "text_xxh3", "header_xxh3", "file_bytes")

Digests = npt.NDArray[np.uint64]


def digest(data: Any) -> int:
    """Return the 64-bit XXH3 checksum of a bytes-like object."""
    return int(xxhash.xxh3_64_intdigest(data))


def header_digest(head: bytes) -> int:
    """Return the checksum of header and descriptors, with the locator zeroed.

    Parameters
    ----------
    head : bytes
        The file up to its sample table.
    """
    blank = bytes(LOCATOR.itemsize)
    return digest(head[:LOCATOR_POSITION] + blank + head[LOCATOR_POSITION + LOCATOR.itemsize :])


class BlockHasher:
    """Computes a checksum for each fixed-size block of a stream.

    Parameters
    ----------
    block_bytes : int
        Size of a block.

    Examples
    --------
    >>> hasher = BlockHasher(4)
    >>> hasher.update(b"abcdef")
    >>> hasher.finish().tolist() == [digest(b"abcd"), digest(b"ef")]
    True
    """

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._partial = xxhash.xxh3_64()
        self._filled = 0
        self._digests = array("Q")  # a list of integers would take five times the memory

    @property
    def num_blocks(self) -> int:
        """Number of blocks that are complete."""
        return len(self._digests)

    def complete_from(self, first: int) -> bytes:
        """Return the checksums of the complete blocks from number ``first`` on, 8 bytes each."""
        return np.array(self._digests[first:], dtype="<u8").tobytes()

    def restore(self, digests: bytes) -> None:
        """Append checksums of complete blocks from an earlier run; then pass the partial block to `update`."""
        self._digests.extend(np.frombuffer(digests, dtype="<u8").tolist())

    def update(self, data: Any) -> None:
        """Add the stream's next bytes."""
        view = memoryview(data).cast("B")
        position = 0
        if self._filled:
            position = min(self._block_bytes - self._filled, len(view))
            self._partial.update(view[:position])
            self._filled += position
            if self._filled < self._block_bytes:
                return
            self._close_block()
        size = self._block_bytes
        while position + size <= len(view):
            self._digests.append(digest(view[position : position + size]))
            position += size
        if position < len(view):
            self._partial.update(view[position:])
            self._filled = len(view) - position

    def finish(self) -> Digests:
        """Return all checksums, including that of the last, shorter block."""
        if self._filled:
            self._close_block()
        return np.array(self._digests, dtype="<u8")

    def _close_block(self) -> None:
        self._digests.append(int(self._partial.intdigest()))
        self._partial.reset()
        self._filled = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Locator:
    """Where the extension block is, and how long the file must be."""

    ptr: int
    text_bytes: int
    text_xxh3: int
    header_xxh3: int
    file_bytes: int
    finished: bool = True

    def to_bytes(self) -> bytes:
        """Return the locator as it is stored."""
        record = np.zeros((), dtype=LOCATOR)
        record["magic"] = MAGIC
        record["version"] = EXTENSION_VERSION
        record["finished"] = self.finished
        for name in _NUMBERS:
            record[name] = getattr(self, name)
        body = record.tobytes()[:-8]
        return body + digest(body).to_bytes(8, "little")

    @classmethod
    def parse(cls, arguments: bytes, file_bytes: int, path: str) -> Locator | None:
        """Return the locator in field 0's arguments, or None for a file that FFCV wrote.

        Raises
        ------
        FormatError
            If the locator is damaged, the file was not finished, or its length differs.
        """
        raw = arguments[ARGUMENTS_BYTES - LOCATOR.itemsize :]
        if not any(raw):
            return None
        record = np.frombuffer(raw, dtype=LOCATOR)[0]
        if digest(raw[:-8]) != int(record["own_xxh3"]):
            raise ChecksumError(
                f"{path}: the locator of the extension block (bytes {LOCATOR_POSITION} to "
                f"{LOCATOR_POSITION + LOCATOR.itemsize - 1}) is damaged; restore the file or convert the data again"
            )
        version = int(record["version"])
        if bytes(record["magic"]) != MAGIC or version != EXTENSION_VERSION:
            raise FormatError(
                f"{path}: its extension block has version {version}, this library reads {EXTENSION_VERSION}; update it"
            )
        if int(record["finished"]) != 1:
            raise FormatError(f"{path}: the writer never finished this file; write it again")
        numbers: dict[str, Any] = {name: int(record[name]) for name in _NUMBERS}
        locator = cls(**numbers)
        if locator.file_bytes != file_bytes:
            raise FormatError(
                f"{path}: the file has {file_bytes:,} bytes, but {locator.file_bytes:,} were written; it was cut "
                "short or something was added to it"
            )
        return locator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extension:
    """The metadata of a file that this library wrote.

    Parameters
    ----------
    class_names : tuple of str or None
        Name of each class; the label is the position.
    provenance : mapping
        What the conversion recorded: source, options, number of samples.
    writer : str
        Name and version of the library that wrote the file.
    facts : mapping
        By field name: ``total_bytes``, ``max_bytes``, ``max_sample`` and, for images, ``num_jpeg``, ``num_raw``,
        ``min_size``, ``max_size`` and ``uniform_size`` ([width, height] or None), ``longest_sides`` (how many images
        have a longest side of at most that many pixels and more than the key before), and what the converter added,
        such as ``restart_markers``.
    allocations_sorted : bool
        Whether the allocation table ascends and holds each sample's values in order.
    data_start : int
        Position of the first page.
    block_bytes : int
        Bytes per checksum.
    num_blocks : mapping
        Number of checksums of each region.
    digests_xxh3 : int
        Checksum of the three arrays of block checksums.
    """

    class_names: tuple[str, ...] | None
    provenance: Mapping[str, Any]
    writer: str
    facts: Mapping[str, Mapping[str, Any]]
    allocations_sorted: bool
    data_start: int
    block_bytes: int
    num_blocks: Mapping[str, int]
    digests_xxh3: int

    @property
    def class_to_idx(self) -> dict[str, int] | None:
        """The label of each class name, as torchvision's ``ImageFolder`` gives it."""
        return None if self.class_names is None else {name: label for label, name in enumerate(self.class_names)}

    def uniform_size(self, field: str) -> tuple[int, int] | None:
        """Return (width, height) if every image of the field has that size, else None."""
        size = self.facts.get(field, {}).get("uniform_size")
        return None if size is None else (int(size[0]), int(size[1]))

    def to_text(self) -> bytes:
        """Return the block's JSON text; equal extensions give equal bytes.

        Raises
        ------
        UsageError
            If class names or provenance cannot be written as JSON, or the provenance has a ``history`` of another form.
        """
        try:
            message = _history_error(self.provenance.get("history", []))
            if not message:
                return json.dumps(dataclasses.asdict(self), allow_nan=False, sort_keys=True, indent=1).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"class names and provenance must be JSON values: {error}") from error
        raise UsageError(f"provenance: {message}; 'history' is reserved for this library's commands, use another name")

    @classmethod
    def from_text(cls, text: bytes, path: str) -> Extension:
        """Return the extension whose text was read from ``path``.

        Raises
        ------
        FormatError
            If the text is not valid. Its checksum has been verified before, so its writer is faulty.
        """
        try:
            values = json.loads(text)
            message = _type_error(values)
        except (ValueError, RecursionError) as error:
            message = str(error)
        if message:
            raise FormatError(f"{path}: the extension block does not describe a file: {message}; write the file again")
        names = values["class_names"]
        values["class_names"] = None if names is None else tuple(names)
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_size(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))


def _type_error(values: object) -> str:
    """Return an error message if an extension's text has values of wrong types, else an empty string."""
    if not isinstance(values, dict):
        return f"expected an object, got {_shown(values)}"
    # By key: the expected type, for messages, and its check.
    checks: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "class_names": ("null or a list of strings", lambda value: value is None or _is_list(value, str)),
        "provenance": ("an object", lambda value: isinstance(value, dict)),
        "writer": ("a string", lambda value: isinstance(value, str)),
        "facts": ("an object of objects", lambda value: isinstance(value, dict) and _is_list([*value.values()], dict)),
        "allocations_sorted": ("true or false", lambda value: isinstance(value, bool)),
        "data_start": ("a whole number", _is_count),
        "block_bytes": ("a whole number of at least 1", lambda value: _is_count(value) and value >= 1),
        "num_blocks": (f"numbers for {', '.join(REGIONS)}", lambda value: _is_counts(value) and {*value} == {*REGIONS}),
        "digests_xxh3": ("a checksum", lambda value: type(value) is int and 0 <= value < 1 << 64),
    }
    for name, (wanted, is_right) in checks.items():
        if name not in values or not is_right(values[name]):
            got = _shown(values[name]) if name in values else "nothing"
            return f"'{name}' must be {wanted}, got {got}"
    for field, facts in values["facts"].items():
        for name, value in facts.items():
            wanted, is_right = _STATISTICS.get(name, ("", lambda _: True))
            if not is_right(value):
                return f"'{name}' of field '{field}' must be {wanted}, got {_shown(value)}"
    return _history_error(values["provenance"].get("history", []))


_STATISTICS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        ("total_bytes", "max_bytes", "max_sample", "num_jpeg", "num_raw", "num_png"), ("a whole number", _is_count)
    ),
    **dict.fromkeys(("min_size", "max_size"), ("two whole numbers", _is_size)),
    "uniform_size": ("null or two whole numbers", lambda value: value is None or _is_size(value)),
    "longest_sides": ("an object of whole numbers", _is_counts),
}


def _history_error(history: object) -> str:
    """Return an error message if the provenance's history (the commands that made the file) is malformed, else ""."""
    if not _is_list(history, dict):
        return f"its history must be a list of objects, got {_shown(history)}"
    assert isinstance(history, list)
    for step in history:
        sources = step.get("from", [])
        if not (
            isinstance(step.get("command", ""), str)
            and _is_list(sources, dict)
            and all(isinstance(each.get("file"), str) and _is_count(each.get("num_samples")) for each in sources)
            and _is_list(step.get("dropped", []), int)
            and isinstance(step.get("blanked", {}), dict)
            and _is_list(step.get("assumed_classes_of", []), str)
        ):
            return f"its history holds a step {_shown(step)}"
        for each in sources:
            message = _history_error(each.get("history", []))
            if message:
                return message
    return ""


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
