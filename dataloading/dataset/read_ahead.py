"""Reading stored bytes ahead: the system is asked for them before workers touch them, which would wait for each.

Knows where samples lie, and no order: the caller says what comes next.
"""

from __future__ import annotations

import contextlib
import mmap
import resource
from collections.abc import Iterable

import numpy as np

from dataloading._native import read_ahead
from dataloading.arrays import Indices
from dataloading.dataset.files import FileSet, Integers
from dataloading.errors import FormatError
from dataloading.limits import memory_bytes
from dataloading.sampling.slicing import Ranges
from dataloading.stats import Clock

__all__ = ["ReadAhead"]

# What the system reads around a page fault by default.
_BLOCK_BYTES = 1 << 17

# Batches that are asked for after one that made the system read something, and after a page fault.
_AFTER_A_READ, _AFTER_A_FAULT = 8, 256


class ReadAhead:
    """Asks the system to read parts of files into the page cache.

    Parameters
    ----------
    files : FileSet
        With the files' own maps.
    clock : Clock
        Knows how often workers touched what was not in memory.

    Notes
    -----
    Asking returns before the bytes are there, but waits while the disk has too many requests. It takes longer than
    loading a small image, even if all is in the page cache. So samples are asked for only while some of them are
    missing: in the first batches, as long as that makes the system read something, and after page faults.

    Where all files fit into memory, whole blocks are read, as page faults would: what lies beside a sample is needed
    later in the epoch. Else only the pages of the system in which a sample lies.
    """

    def __init__(self, files: FileSet, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._num_faults = clock.num_page_faults
        self._num_batches = _AFTER_A_READ
        fits = 2 * sum(len(each) for each in files.memory) <= memory_bytes()
        self._block_bytes = max(_BLOCK_BYTES if fits else 0, mmap.PAGESIZE)

    def ranges(self, ranges: Ranges) -> None:
        """Ask for byte ranges (number of the file, first byte, number of bytes)."""
        if ranges:
            files, starts, sizes = np.array(ranges, np.uint64).T
            self._ask(files.astype(np.int64), starts, sizes, mmap.PAGESIZE)

    def samples(self, indices: Indices, fields: Iterable[str]) -> None:
        """Ask for the stored bytes of a batch, unless the last ones were in the page cache.

        Samples in file order are left to the system, which reads ahead of reads in order, and in larger pieces.
        """
        before, self._num_faults = self._num_faults, self._clock.num_page_faults
        if self._num_faults > before:
            self._num_batches = _AFTER_A_FAULT
        if self._num_batches == 0 or (len(indices) > 1 and (np.diff(indices) > 0).all()):
            return
        self._num_batches -= 1
        for field in fields:
            with contextlib.suppress(FormatError):  # whoever decodes the sample reports it
                if self._ask(*self._files.locate(field, indices), self._block_bytes):
                    self._num_batches = max(self._num_batches, _AFTER_A_READ)

    def _ask(self, files: Indices, starts: Integers, sizes: Integers, block_bytes: int) -> int:
        """Ask for parts of files; return how many bytes the system reads for it, 0 where it does not say."""
        before = _bytes_read()
        with self._clock.measure("view"):
            read_ahead(self._files.addresses(files, starts), sizes, block_bytes)
        num_bytes = _bytes_read() - before
        self._clock.count_bytes_read_ahead(num_bytes)
        return num_bytes


def _bytes_read() -> int:
    """Return what the calling thread has made the system read from storage."""
    if not hasattr(resource, "RUSAGE_THREAD"):  # not Linux
        return 0
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock * 512
