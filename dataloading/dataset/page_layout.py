"""The pages in which a file's samples lie, and read-ahead by the system.

Knows the files' layout and no order: the caller says which pages come next.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from dataloading.dataset.files import FileSet
from dataloading.format import ImageField, Reader, pointers_of
from dataloading.sampling.page_order import PageLayout
from dataloading.sampling.slicing import Ranges

__all__ = ["ReadAhead", "page_layout"]


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


class ReadAhead:
    """Asks the system to read parts of files into the page cache, without waiting.

    Parameters
    ----------
    paths : sequence of str
        The files. One file is open at a time.

    Notes
    -----
    ``posix_fadvise(WILLNEED)``, which is what ``madvise`` does to a mapping of the file; the cache is that of the
    whole machine, so the map sees what was read. Systems without it read on demand.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._open: tuple[int, int] | None = None  # the file's number and its descriptor
        self._note: object = None  # closes it when this object is dropped

    def __call__(self, ranges: Ranges) -> None:
        """Ask for byte ranges (number of the file, first byte, number of bytes)."""
        if not hasattr(os, "posix_fadvise"):
            return
        for file, start, num_bytes in ranges:
            with contextlib.suppress(
                OSError
            ):  # a file that was removed or moved is still mapped, and is read on demand
                os.posix_fadvise(self._descriptor(file), start, num_bytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close the file that is open."""
        if self._open is not None:
            (_, descriptor), self._open, self._note = self._open, None, None
            os.close(descriptor)

    def _descriptor(self, file: int) -> int:
        if self._open is None or self._open[0] != file:
            self.close()
            descriptor = os.open(self._paths[file], os.O_RDONLY | os.O_CLOEXEC)
            self._open = file, descriptor
            self._note = weakref.ref(self, functools.partial(_libc().close, descriptor))
        return self._open[1]


@functools.cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.close.argtypes = [ctypes.c_int, ctypes.py_object]  # the weak reference, which is ignored
    return library
