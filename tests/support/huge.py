"""Files with millions of samples, made in seconds: the pages are a hole that takes no room on the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dataloading.format import MODE_RAW, ImageField, IntField, extension, layout

CHUNK = 1 << 20


def make_huge_file(
    path: Path,
    num_samples: int,
    *,
    side: int = 32,
    image_bytes: int | None = None,
    page_size: int = 1 << 23,
    filled: bool = True,
    with_extension: bool = True,
) -> Path:
    """Write a file of raw images (all black) with label i, without looking at any sample.

    Parameters
    ----------
    path : Path
        The file.
    num_samples : int
        How many images; each takes 48 bytes of real disk space, or none if not ``filled``.
    side : int
        Width and height in pixels.
    image_bytes : int, optional
        Bytes from one image to the next; by default just enough, so that no page border is crossed.
    filled : bool
        Whether the two tables hold true entries; otherwise they are holes too, which is enough to time opening.
    with_extension : bool
        Whether to add an extension block; its list of checksums has the right size and holds zeros.
    """
    size = side * side * 3
    stride = image_bytes or 1 << (size - 1).bit_length()
    fields = {"image": ImageField(), "label": IntField()}
    record = layout.record_dtype([field.record for field in fields.values()])
    table_start = layout.HEADER.itemsize + len(fields) * layout.DESCRIPTOR.itemsize
    table_end = table_start + num_samples * record.itemsize
    data_start = layout.align_up(table_end, page_size)
    ptr = data_start + num_samples * stride
    table_ptr = layout.align_up(ptr + (1 << 20), page_size)
    file_bytes = table_ptr + num_samples * layout.ALLOCATION.itemsize
    counts = {"table": (table_start, table_end), "pages": (data_start, ptr), "allocations": (table_ptr, file_bytes)}
    num_blocks = {region: -((start - stop) // extension.BLOCK_BYTES) for region, (start, stop) in counts.items()}
    table_ptr = layout.align_up(ptr + (1 << 16) + 8 * sum(num_blocks.values()), page_size)
    file_bytes = table_ptr + num_samples * layout.ALLOCATION.itemsize
    header = layout.Header(
        num_fields=len(fields), page_size=page_size, num_samples=num_samples, alloc_table_ptr=table_ptr
    )
    head = header.to_bytes() + b"".join(
        layout.Descriptor(type_id=field.type_id, name=name, arguments=b"").to_bytes() for name, field in fields.items()
    )
    with path.open("wb") as file:
        file.truncate(file_bytes)
        file.write(head)
        if with_extension:
            text = extension.Extension(
                class_names=None,
                provenance={},
                writer="test",
                facts={"image": {"uniform_size": [side, side]}},
                allocations_sorted=True,
                data_start=data_start,
                block_bytes=extension.BLOCK_BYTES,
                num_blocks=num_blocks,
                digests_xxh3=0,
            ).to_text()
            locator = extension.Locator(
                ptr=ptr,
                text_bytes=len(text),
                text_xxh3=extension.digest(text),
                header_xxh3=extension.header_digest(head),
                file_bytes=file_bytes,
            )
            file.seek(extension.LOCATOR_POSITION)
            file.write(locator.to_bytes())
            file.seek(ptr)
            file.write(text)
        for start in range(0, num_samples if filled else 0, CHUNK):
            index = np.arange(start, min(start + CHUNK, num_samples), dtype=np.uint64)
            pointers = np.uint64(data_start) + index * np.uint64(stride)
            records = np.zeros(len(index), dtype=record)
            records["f0"]["mode"], records["f0"]["width"], records["f0"]["height"] = MODE_RAW, side, side
            records["f0"]["data_ptr"], records["f1"] = pointers, index
            file.seek(table_start + start * record.itemsize)
            file.write(records.tobytes())
            allocations = np.empty(len(index), dtype=layout.ALLOCATION)
            allocations["sample_id"], allocations["ptr"], allocations["size"] = index, pointers, size
            file.seek(table_ptr + start * layout.ALLOCATION.itemsize)
            file.write(allocations.tobytes())
    return path
