"""Compares a file written by this library with its checksums, block by block.

Maps damaged blocks to the samples they affect. Reads the file a few megabytes at a time.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from dataloading.errors import ChecksumError

from .findings import Findings, Problem, in_order
from .layout import ALLOCATION
from .reader import Reader
from .regions import Region, checksum_list, regions

__all__ = ["Checksums"]

Progress = Callable[[int, int], None]
READ_BYTES = 1 << 23


class Checksums:
    """Compares every block of a file with the checksum that its writer recorded.

    Parameters
    ----------
    reader : Reader
        The file; opening it has checked the head, the locator and the extension's text.
    found : Findings
        Receives the problems.
    progress : callable, optional
        Called with (bytes done, bytes in all).
    """

    def __init__(self, reader: Reader, found: Findings, progress: Progress | None) -> None:
        self._reader = reader
        self._found = found
        self._progress = progress

    def run(self, pool: ThreadPoolExecutor, workers: int) -> None:
        """Check the whole file with ``workers`` threads of ``pool``."""
        tasks = [task for region in self._regions() for task in self._cut(region)]
        total = sum(stop - start for _, start, stop in tasks)
        done = 0
        with open(self._reader.path, "rb") as file:
            results = in_order(pool, 2 * workers, (partial(self._check, file.fileno(), *task) for task in tasks))
            for (region, start, stop), bad in zip(tasks, results, strict=True):
                if self._found.full:
                    return
                for low, high, reason in bad:
                    self._report(region, low, high, reason)
                done += stop - start
                if self._progress is not None:
                    self._progress(done, total)

    def _regions(self) -> list[Region]:
        """Return the file's regions; an empty list if the list of checksums is damaged."""
        try:
            return regions(self._reader)
        except ChecksumError:
            start, stop = checksum_list(self._reader)
            message = "the list of checksums is damaged, so the rest of the file cannot be compared with it"
            page = start // self._reader.page_size
            self._found.add(Problem(region="extension block", message=message, start=start, stop=stop, page=page))
            return []

    def _cut(self, region: Region) -> Iterator[tuple[Region, int, int]]:
        step = max(1, READ_BYTES // region.block_bytes) * region.block_bytes
        for start in range(region.start, region.stop, step):
            yield region, start, min(start + step, region.stop)

    def _check(self, fd: int, region: Region, start: int, stop: int) -> list[tuple[int, int, str]]:
        """Return the damaged parts of [start, stop) with the reason; runs in a worker."""
        try:
            data = np.frombuffer(_read_at(fd, start, stop - start), np.uint8)
        except OSError as error:
            return [(start, stop, f"cannot be read: {error}")]
        if region.digests is None:
            wrong = np.flatnonzero(data)[:1] + start
            return [(first, first + 1, "a padding byte is not zero") for first in wrong.tolist()]
        return [
            (low, high, "bytes have changed since the file was written")
            for low, high in region.damaged_blocks(start, data)
        ]

    def _report(self, region: Region, start: int, stop: int, reason: str) -> None:
        if reason.startswith("cannot be read"):
            self._found.unreadable = True
        reader = self._reader
        samples: tuple[tuple[int, int], ...] = ()
        if region.name == "sample table":
            size = reader.table.dtype.itemsize
            samples = (((start - region.start) // size, min(-((region.start - stop) // size), reader.num_samples)),)
        elif region.name == "allocation table" and len(reader.allocations):
            first = (start - region.start) // ALLOCATION.itemsize
            last = (stop - 1 - region.start) // ALLOCATION.itemsize
            values = max(1, len(reader.allocations) // reader.num_samples)
            samples = ((first // values, min(last // values + 1, reader.num_samples)),)
        elif region.name == "pages":
            samples = self._stored_in(start, stop)
        page = start // reader.page_size if region.name in ("pages", "padding") else None
        self._found.add(Problem(region=region.name, message=reason, start=start, stop=stop, page=page, samples=samples))

    def _stored_in(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the samples that have bytes in [start, stop); our allocation table ascends."""
        pointers = self._reader.allocations["ptr"]
        # NumPy's searchsorted would first copy the whole strided column.
        first = max(0, bisect.bisect_right(pointers, start) - 1)
        last = bisect.bisect_left(pointers, stop)
        entries = self._reader.allocations[first:last]
        ends = entries["ptr"] + entries["size"]
        owners = entries["sample_id"][ends > start]
        owners = owners[owners < self._reader.num_samples]
        return ((int(owners.min()), int(owners.max()) + 1),) if len(owners) else ()


def _read_at(fd: int, position: int, size: int) -> bytearray:
    """Read exactly ``size`` bytes, not through the map: a failing disk then gives an error and not SIGBUS."""
    data = bytearray(size)
    view = memoryview(data)
    while len(view):
        got = os.preadv(fd, [view], position)
        if got == 0:
            raise OSError(f"the file ended at byte {position:,} while it was being read")
        view = view[got:]
        position += got
    return data
