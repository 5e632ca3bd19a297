"""The pages in which a file's samples lie. Knows the files' layout and no order."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from dataloading.dataset.files import FileSet
from dataloading.format import ImageField, Reader, pointers_of
from dataloading.sampling.page_order import PageLayout

__all__ = ["page_layout"]


def page_layout(files: FileSet) -> PageLayout:
    """Find the page of every sample, by the stored bytes of the first image field (else of the first with any).

    If our writer recorded that samples lie in order, only a few table entries per page are read; otherwise the whole
    column. A file without stored bytes is cut into blocks of consecutive table records.
    """
    layouts = [_file_layout(reader) for reader in files.readers]
    return layouts[0] if len(layouts) == 1 else PageLayout.joined(layouts)


def _file_layout(reader: Reader) -> PageLayout:
    stored = [name for name, field in reader.fields.items() if field.has_data]
    images = [name for name in stored if isinstance(reader.fields[name], ImageField)]
    if not stored:
        return PageLayout.blocks(reader.num_samples, max(1, reader.page_size // reader.table.dtype.itemsize))
    column: npt.NDArray[Any] = reader.column((images or stored)[0])
    pointers = pointers_of(column)
    if reader.extension is not None and reader.extension.allocations_sorted:
        return PageLayout.from_sorted_pointers(pointers, reader.page_size)
    return PageLayout.from_pointers(pointers, reader.page_size)
