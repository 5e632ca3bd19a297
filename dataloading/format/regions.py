"""The byte ranges of a file, with the checksums of their blocks if our writer recorded them."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from dataloading.errors import ChecksumError

from . import extension as ext
from .layout import align_up
from .reader import Reader

__all__ = ["Region", "checksum_list", "regions"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Region:
    """A byte range of a file.

    Parameters
    ----------
    name : str
        ``"sample table"``, ``"pages"``, ``"allocation table"`` or ``"padding"``.
    start, stop : int
        Position of the first byte, and past the last one.
    block_bytes : int
        Bytes that each checksum covers; the last one fewer.
    digests : uint64 array or None
        The checksums; None in files that FFCV wrote, and for padding, which is zero.
    """

    name: str
    start: int
    stop: int
    block_bytes: int = ext.BLOCK_BYTES
    digests: ext.Digests | None = None

    def damaged_blocks(self, offset: int, data: npt.NDArray[np.uint8]) -> list[tuple[int, int]]:
        """Return the byte ranges of damaged blocks among those entirely in `data`, which starts at `offset`."""
        size, damaged = self.block_bytes, []
        first = -(-max(offset - self.start, 0) // size)
        for block in range(first, 0 if self.digests is None else len(self.digests)):
            low = self.start + block * size
            high = min(low + size, self.stop)
            if high > offset + len(data):
                break
            assert self.digests is not None
            if ext.digest(data[low - offset : high - offset].data) != int(self.digests[block]):
                damaged.append((low, high))
        return damaged


def checksum_list(reader: Reader) -> tuple[int, int]:
    """Return the byte range of the block checksums; not for files that FFCV wrote, which have none."""
    assert reader.extension is not None
    assert reader.locator is not None
    start = align_up(reader.locator.ptr + reader.locator.text_bytes, 8)
    return start, start + 8 * sum(reader.extension.num_blocks.values())


def regions(reader: Reader) -> list[Region]:
    """Return the regions of a file after its head, except the extension block and the checksums.

    Parameters
    ----------
    reader : Reader
        The file; the checksums are read from its data.

    Raises
    ------
    ChecksumError
        If the list of checksums is damaged.
    """
    extension, locator, table_ptr = reader.extension, reader.locator, reader.header.alloc_table_ptr
    data_start = reader.table_end if extension is None else extension.data_start
    bounds = {
        "sample table": (reader.header.table_start, reader.table_end),
        "pages": (data_start, reader.data_end),
        "allocation table": (table_ptr, reader.num_bytes),
    }
    if extension is None or locator is None:
        return [Region(name=name, start=start, stop=stop) for name, (start, stop) in bounds.items()]
    first, end = checksum_list(reader)
    counts = [extension.num_blocks[region] for region in ext.REGIONS]
    size = extension.block_bytes
    fits = reader.table_end <= data_start <= locator.ptr and end <= table_ptr
    fits &= counts == [-((start - stop) // size) for start, stop in bounds.values()]
    raw = reader.data[first:end].tobytes() if fits else b""
    if not fits or ext.digest(raw) != extension.digests_xxh3:
        raise ChecksumError(f"{reader.path}: the list of checksums at byte {first} is damaged")
    digests = np.split(np.frombuffer(raw, "<u8"), np.cumsum(counts)[:-1])
    found = [
        Region(name=name, start=start, stop=stop, block_bytes=size, digests=own)
        for (name, (start, stop)), own in zip(bounds.items(), digests, strict=True)
    ]
    padding = (reader.table_end, data_start), (locator.ptr + locator.text_bytes, first), (end, table_ptr)
    found += [Region(name="padding", start=start, stop=stop) for start, stop in padding if stop > start]
    return found
