"""The layout of a ``.beton`` file: header, field descriptors, tables, pages.

Defines the on-disk structures of version 2 of the format, which FFCV introduced, and the checks that need only the
first bytes and the length of a file. Does not know how values are encoded (:mod:`.fields`) or what the extension block
holds (:mod:`.extension`). Reads no per-sample data, so parsing takes the same time for two samples and fifty million.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from dataloading.errors import FormatError, UsageError

__all__ = [
    "ALLOCATION",
    "ARGUMENTS_BYTES",
    "DEFAULT_PAGE_SIZE",
    "DESCRIPTOR",
    "HEADER",
    "MAX_NAME_BYTES",
    "MAX_PAGE_SIZE",
    "MIN_PAGE_SIZE",
    "VERSION",
    "Descriptor",
    "Header",
    "align_up",
    "check_name",
    "check_page_size",
    "parse_descriptors",
    "parse_header",
    "record_dtype",
]

VERSION = 2
MIN_PAGE_SIZE = 1 << 21
MAX_PAGE_SIZE = 1 << 31
"""Largest page: the header has 32 bits for it, and a page is a power of two."""
DEFAULT_PAGE_SIZE = 1 << 23
MAX_NAME_BYTES = 16
ARGUMENTS_BYTES = 1024
MAX_FIELDS = 1024
"""More than any real file has; bounds the memory that a damaged count can make the reader allocate."""

HEADER = np.dtype(
    [
        ("version", "<u2"),
        ("num_fields", "<u2"),
        ("page_size", "<u4"),
        ("num_samples", "<u8"),
        ("alloc_table_ptr", "<u8"),
    ]
)
DESCRIPTOR = np.dtype(
    [
        ("type_id", "u1"),
        ("name", "u1", (MAX_NAME_BYTES,)),
        ("arguments", "u1", (ARGUMENTS_BYTES,)),
    ]
)
ALLOCATION = np.dtype([("sample_id", "<u8"), ("ptr", "<u8"), ("size", "<u8")])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """The 24 bytes every file starts with.

    Parameters
    ----------
    num_fields, page_size, num_samples, alloc_table_ptr : int
        Counts, and positions and sizes in bytes.
    """

    num_fields: int
    page_size: int
    num_samples: int
    alloc_table_ptr: int

    def to_bytes(self) -> bytes:
        """Return the header as it is stored."""
        record = np.zeros((), dtype=HEADER)
        record["version"] = VERSION
        for name in ("num_fields", "page_size", "num_samples", "alloc_table_ptr"):
            record[name] = getattr(self, name)
        return record.tobytes()

    @property
    def table_start(self) -> int:
        """Position of the sample table's first byte."""
        return HEADER.itemsize + self.num_fields * DESCRIPTOR.itemsize


@dataclasses.dataclass(frozen=True, kw_only=True)
class Descriptor:
    """One field's entry in the file: its type, its name, and 1,024 bytes of arguments."""

    type_id: int
    name: str
    arguments: bytes

    def to_bytes(self) -> bytes:
        """Return the descriptor as it is stored."""
        name = self.name.encode("ascii").ljust(MAX_NAME_BYTES, b"\0")
        return bytes([self.type_id]) + name + self.arguments.ljust(ARGUMENTS_BYTES, b"\0")


def align_up(position: int, alignment: int) -> int:
    """Return the first multiple of ``alignment`` at or after ``position``.

    Examples
    --------
    >>> align_up(17, 8)
    24
    """
    return -(-position // alignment) * alignment


def record_dtype(field_dtypes: Sequence[np.dtype[np.generic]]) -> np.dtype[np.void]:
    """Return the dtype of one record of the sample table; field ``i`` is ``"f{i}"``.

    NumPy's aligned struct is the definition (FFCV builds the same one): numbers are aligned to 8 bytes, packed
    structures such as an image's are not aligned at all.
    """
    return np.dtype([("", dtype) for dtype in field_dtypes], align=True)


def check_name(name: object) -> str:
    """Return ``name`` if it can be stored.

    Raises
    ------
    UsageError
        If it is not a string of 1 to 16 printable ASCII characters.
    """
    if not isinstance(name, str):
        raise UsageError(f"a field's name must be a string, got {type(name).__name__}: {name!r}")
    if not name.isascii() or not name.isprintable():
        raise UsageError(f"the field name {name!r} is not printable ASCII; choose one that is")
    if not 1 <= len(name) <= MAX_NAME_BYTES:
        raise UsageError(
            f"the field name {name!r} has {len(name)} characters; the format has room for 1 to {MAX_NAME_BYTES}"
        )
    return name


def check_page_size(page_size: int) -> int:
    """Return ``page_size`` if it is a power of two between 2 MiB and 2 GiB.

    Raises
    ------
    UsageError
        Otherwise.
    """
    if not isinstance(page_size, (int, np.integer)) or isinstance(page_size, bool):
        raise UsageError(f"page_size must be a whole number of bytes, got {page_size!r}")
    size = int(page_size)
    if size < MIN_PAGE_SIZE or size > MAX_PAGE_SIZE or size & (size - 1):
        raise UsageError(
            f"page_size must be a power of two from {MIN_PAGE_SIZE} (2 MiB) to {MAX_PAGE_SIZE} (2 GiB), got {size}"
        )
    return size


def parse_header(data: bytes, file_bytes: int, path: str) -> Header:
    """Return the header of a file of ``file_bytes`` bytes that starts with ``data``.

    Raises
    ------
    FormatError
        If the header is invalid; the message says which value is wrong.
    """
    if len(data) < HEADER.itemsize:
        raise FormatError(f"{path}: {len(data)} bytes are too few for a .beton file's header of {HEADER.itemsize}")
    record = np.frombuffer(data, dtype=HEADER, count=1)[0]
    version = int(record["version"])
    if version != VERSION:
        hint = "; an unfinished file looks like this" if not any(data[: HEADER.itemsize]) else ""
        if data[:1] == b"{":
            hint = (
                "; it starts as JSON does, such as the manifest of several files: give one of those files, or make one "
                "of them with `beton merge`"
            )
        raise FormatError(f"{path}: not a .beton file of version {VERSION}: the version field holds {version}{hint}")
    header = Header(
        num_fields=int(record["num_fields"]),
        page_size=int(record["page_size"]),
        num_samples=int(record["num_samples"]),
        alloc_table_ptr=int(record["alloc_table_ptr"]),
    )
    if not 1 <= header.num_fields <= MAX_FIELDS:
        raise FormatError(f"{path}: the header declares {header.num_fields} fields; expected 1 to {MAX_FIELDS}")
    page_size = header.page_size
    if page_size < MIN_PAGE_SIZE or page_size & (page_size - 1):
        raise FormatError(f"{path}: the header's page size {page_size} is not a power of two of at least 2 MiB")
    if header.num_samples < 1:
        raise FormatError(f"{path}: the file has no samples")
    if header.alloc_table_ptr == 0:
        raise FormatError(f"{path}: the writer never finished this file (it has no allocation table); write it again")
    if not header.table_start <= header.alloc_table_ptr <= file_bytes:
        raise FormatError(
            f"{path}: the allocation table should start at byte {header.alloc_table_ptr:,}, outside the file's "
            f"{file_bytes:,} bytes; the file was cut short or its header is damaged"
        )
    rest = file_bytes - header.alloc_table_ptr
    if rest % ALLOCATION.itemsize:
        raise FormatError(
            f"{path}: {rest:,} bytes lie between the allocation table's start and the end of the file; expected a "
            f"multiple of {ALLOCATION.itemsize}, so bytes are missing at the end or were added there"
        )
    return header


def parse_descriptors(data: bytes, num_fields: int, path: str) -> list[Descriptor]:
    """Return the field descriptors stored in ``data``, which starts at byte 24 of the file.

    Raises
    ------
    FormatError
        If a field's name is invalid or used twice.
    """
    if len(data) < num_fields * DESCRIPTOR.itemsize:
        raise FormatError(f"{path}: the file ends inside the descriptors of its {num_fields} fields")
    result: list[Descriptor] = []
    for position, record in enumerate(np.frombuffer(data, dtype=DESCRIPTOR, count=num_fields)):
        raw = record["name"].tobytes()
        text, _, rest = raw.partition(b"\0")
        if any(rest) or not text or not text.isascii() or not text.decode("ascii").isprintable():
            raise FormatError(f"{path}: field {position} has the name {raw!r}; expected printable ASCII, NUL-padded")
        name = text.decode("ascii")
        if any(name == other.name for other in result):
            raise FormatError(
                f"{path}: two fields are named '{name}' (FFCV cuts names to {MAX_NAME_BYTES} characters silently)"
            )
        result.append(Descriptor(type_id=int(record["type_id"]), name=name, arguments=record["arguments"].tobytes()))
    return result
