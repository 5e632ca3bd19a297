"""A file as pages: where its samples lie, and asking the system to read ahead.

Knows the file's layout and no order: which pages come next is told.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

from dataloading.format import ImageField, Reader
from dataloading.pages import PageLayout

__all__ = ["ReadAhead", "page_layout"]


def page_layout(reader: Reader) -> PageLayout:
    """Find the page of every sample, by the stored bytes of the first image field (else of the first with any).

    Where our writer recorded that samples lie in order, a few table entries a page are looked at; otherwise the
    whole column is. A file without stored bytes is cut into blocks of consecutive table records.
    """
    stored = [name for name, field in reader.fields.items() if field.has_data]
    images = [name for name in stored if isinstance(reader.fields[name], ImageField)]
    if not stored:
        return PageLayout.blocks(reader.num_samples, max(1, reader.page_size // reader.table.dtype.itemsize))
    column: npt.NDArray[Any] = reader.column((images or stored)[0])
    pointer_name = next((name for name in ("data_ptr", "ptr") if name in (column.dtype.names or ())), None)
    pointers = column if pointer_name is None else column[pointer_name]
    if reader.extension is not None and reader.extension.allocations_sorted:
        return PageLayout.from_sorted_pointers(pointers, reader.page_size)
    return PageLayout.from_pointers(pointers, reader.page_size)


class ReadAhead:
    """Asks the system to bring parts of a file into the page cache, and does not wait for them.

    Parameters
    ----------
    path : str
        The file. Opened at the first call, closed with this object.

    Notes
    -----
    ``posix_fadvise(WILLNEED)``, which is what ``madvise`` does to a mapping of the file; the cache is that of the
    whole machine, so the map sees what was read. Systems without it read on demand.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None

    def __call__(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Ask for byte ranges (first byte, number of bytes)."""
        for start, num_bytes in ranges:
            if self._file is None:
                if not hasattr(os, "posix_fadvise"):
                    return
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                weakref.finalize(self, os.close, self._file)
            os.posix_fadvise(self._file, start, num_bytes, os.POSIX_FADV_WILLNEED)
