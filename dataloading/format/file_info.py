"""The metadata of a ``.beton`` file: header, fields, table positions, and the extension block.

Reads only a few kilobytes at the start and the extension block's text, from any storage; it reads no sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy.typing as npt

from dataloading.errors import ChecksumError, FormatError, UsageError

from . import extension as ext
from .arrays import NDArrayField
from .base import Field, has_beton_kind
from .coordinates import check_coordinates
from .field_kinds import field_from_descriptor
from .fields import CustomField
from .layout import HEADER, Descriptor, Header, parse_descriptors, parse_header, record_dtype
from .ragged import VarArrayField

__all__ = ["FileInfo", "probe_descriptors", "probe_file", "probe_header"]

Read = Callable[[int, int], bytes]
"""``read(start, stop)`` returns bytes of a file, fewer at its end."""


def probe_header(read: Read, num_bytes: int, path: str) -> Header:
    """Read a file's header alone.

    Parameters
    ----------
    read : callable
        ``read(start, stop)`` returns bytes of the file.
    num_bytes : int
        Length of the file.
    path : str
        The file's name, for messages.

    Raises
    ------
    FormatError
        If the header is invalid.
    """
    return parse_header(read(0, min(HEADER.itemsize, num_bytes)), num_bytes, path)


def probe_descriptors(read: Read, num_bytes: int, path: str) -> list[Descriptor]:
    """Read the descriptors of a file's fields; arguments and errors are those of `probe_header`."""
    header = probe_header(read, num_bytes, path)
    return parse_descriptors(read(HEADER.itemsize, header.table_start), header.num_fields, path)


def probe_file(
    read: Read, num_bytes: int, path: str, custom_records: Mapping[str, npt.DTypeLike] | None = None
) -> FileInfo:
    """Read a file's metadata, from any storage; arguments and errors are those of `probe_header` and `FileInfo`."""
    return FileInfo(read, num_bytes, path, custom_records or {})


class FileInfo:
    """The metadata of a file.

    Parameters
    ----------
    read, num_bytes, path
        See `probe_header`.
    custom_records : mapping
        See `Reader`.

    Attributes
    ----------
    num_samples, page_size : int
    header : Header
    fields : mapping of str to Field
    locator : Locator or None
    extension : Extension or None
    table_end : int
        Position behind the sample table, which starts at ``header.table_start``.
    data_end : int
        No sample's bytes may lie outside [table_end, data_end).
    """

    def __init__(self, read: Read, num_bytes: int, path: str, custom_records: Mapping[str, npt.DTypeLike]) -> None:
        self.path, self.num_bytes = path, num_bytes
        self.header = probe_header(read, num_bytes, path)
        self.page_size, self.num_samples = self.header.page_size, self.header.num_samples
        head = read(0, self.header.table_start)
        descriptors = parse_descriptors(head[HEADER.itemsize :], self.header.num_fields, path)
        first = descriptors[0]
        # FFCV's custom classes may have arguments in the locator's position; we never write such fields.
        foreign = first.type_id == CustomField.type_id and not has_beton_kind(first.arguments)
        self.locator = None if foreign else ext.Locator.parse(first.arguments, num_bytes, path)
        self.extension = None if self.locator is None else self._read_extension(self.locator, head, read)
        try:
            fields = {
                each.name: field_from_descriptor(each.type_id, each.name, each.arguments, custom_records)
                for each in descriptors
            }
            for name, recorded in ({} if self.extension is None else self.extension.facts).items():
                if isinstance(field := fields.get(name), (NDArrayField, VarArrayField)):
                    field.coordinates = check_coordinates(recorded.get("coordinates"), field.shape, field.dtype)
        except (FormatError, UsageError) as error:
            raise FormatError(f"{path}: {error}") from error
        self.fields: Mapping[str, Field] = MappingProxyType(fields)
        self.record = record_dtype([field.record for field in fields.values()])
        self.table_end = self.header.table_start + self.num_samples * self.record.itemsize
        self.data_end = self.header.alloc_table_ptr if self.locator is None else self.locator.ptr
        if self.table_end > self.header.alloc_table_ptr:
            raise FormatError(
                f"{path}: the tables of {self.num_samples:,} samples of {self.record.itemsize:,} bytes would reach "
                f"byte {self.table_end:,}, beyond the allocation table's start at {self.header.alloc_table_ptr:,}"
            )
        for name, field in fields.items():
            if field.fixed_bytes is not None and field.fixed_bytes > num_bytes:
                raise FormatError(
                    f"{path}: a value of field '{name}' has {field.fixed_bytes:,} bytes, the whole file only "
                    f"{num_bytes:,}"
                )

    def _read_extension(self, locator: ext.Locator, head: bytes, read: Read) -> ext.Extension:
        end = locator.ptr + locator.text_bytes
        if not self.header.table_start <= locator.ptr <= end <= self.header.alloc_table_ptr:
            raise FormatError(f"{self.path}: the extension block at byte {locator.ptr:,} lies outside the pages")
        text = read(locator.ptr, end)
        if ext.digest(text) != locator.text_xxh3:
            raise ChecksumError(
                f"{self.path}: the extension block at byte {locator.ptr:,} is damaged; restore the file or convert "
                "again"
            )
        extension = ext.Extension.from_text(text, self.path)
        if ext.header_digest(head) != locator.header_xxh3:
            raise ChecksumError(
                f"{self.path}: the header or a field descriptor (bytes 0 to {len(head) - 1:,}) has changed since the "
                "file was written; restore the file or convert again"
            )
        return extension

    @property
    def tables(self) -> tuple[tuple[int, int], ...]:
        """The byte ranges that a `Reader` needs before any sample: the tables and their surroundings."""
        return (0, self.table_end), (self.data_end, self.num_bytes)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Class names in label order; None if the file records none (FFCV's files never do)."""
        return None if self.extension is None else self.extension.class_names

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the file's content (FFCV's files: its size, fields and samples)."""
        fields = [(field, type(kind).__name__) for field, kind in self.fields.items()]
        content = None if self.extension is None else self.extension.digests_xxh3
        identity = repr((self.num_samples, self.num_bytes, fields, content))
        return hashlib.sha256(identity.encode()).hexdigest()[:16]
