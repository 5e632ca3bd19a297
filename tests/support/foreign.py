"""Files as FFCV lays them out, without our extension block, built from nothing but the documented offsets.

A second, independent implementation of the format: the tests compare the library's with it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HEADER_BYTES, DESCRIPTOR_BYTES = 24, 1041
PAGE = 1 << 21


def descriptor(type_id: int, name: str, arguments: bytes = b"") -> bytes:
    return struct.pack("<B16s1024s", type_id, name.encode("ascii"), arguments)


def array_arguments(dtype: str, shape: Sequence[int]) -> bytes:
    text = json.dumps([["", dtype]]).encode("ascii")
    return struct.pack("<32QQ", *(list(shape) + [0] * (32 - len(shape))), len(text)) + text


def foreign_file(
    path: Path,
    *,
    descriptors: Sequence[bytes],
    records: Sequence[bytes],
    allocations: Sequence[tuple[int, int, int]],
    pages: bytes,
    page_size: int = PAGE,
    version: int = 2,
    num_samples: int | None = None,
    alloc_table_ptr: int | None = None,
) -> Path:
    """Write a file; ``pages`` starts at the first multiple of the page size behind the tables."""
    table = b"".join(records)
    table_end = HEADER_BYTES + len(descriptors) * DESCRIPTOR_BYTES + len(table)
    start = -(-table_end // page_size) * page_size if pages else table_end
    end = start + len(pages)
    header = struct.pack(
        "<HHIQQ",
        version,
        len(descriptors),
        page_size,
        len(records) if num_samples is None else num_samples,
        end if alloc_table_ptr is None else alloc_table_ptr,
    )
    entries = b"".join(struct.pack("<QQQ", *entry) for entry in allocations)
    path.write_bytes((header + b"".join(descriptors) + table).ljust(start, b"\0") + pages + entries)
    return path


def image_record(mode: int, width: int, height: int, ptr: int, label: int) -> bytes:
    """An image and an int: the image's 13 packed bytes, padded to the int's alignment of 8."""
    return struct.pack("<BHHQ3xq", mode, width, height, ptr, label)


def image_file(
    path: Path,
    payloads: Sequence[tuple[int, int, int, bytes]],
    *,
    order: Sequence[int] | None = None,
    **changes: object,
) -> Path:
    """Images (mode, width, height, bytes) with label i; the allocation table lists the samples in ``order``."""
    start = PAGE * -(-(HEADER_BYTES + 2 * DESCRIPTOR_BYTES + 24 * len(payloads)) // PAGE)
    records, entries, pages = [], [], bytearray()
    for index, (mode, width, height, data) in enumerate(payloads):
        records.append(image_record(mode, width, height, start + len(pages), index))
        entries.append((index, start + len(pages), len(data)))
        pages += data
    pages = pages.ljust(PAGE, b"\0")
    if order is not None:
        entries = [entries[position] for position in order]
    options: dict[str, object] = {
        "descriptors": [descriptor(2, "image"), descriptor(1, "label")],
        "records": records,
        "allocations": entries,
        "pages": bytes(pages),
    }
    return foreign_file(path, **{**options, **changes})  # type: ignore[arg-type]


def patch(path: Path, position: int, data: bytes) -> Path:
    """Overwrite some bytes of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)
    return path


def flip(path: Path, position: int, bit: int) -> None:
    """Flip one bit of a file; doing it twice undoes it."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


def noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()
