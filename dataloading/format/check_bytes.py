"""Comparing a file of ours with its checksums, block by block.

Owns the list of byte ranges that together cover a file, and the way from a damaged block to the samples it touches.
Reads a few megabytes at a time through ordinary reads.
"""

from __future__ import annotations

import bisect
import dataclasses
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from . import extension as ext
from .findings import Findings, Problem, in_order
from .layout import ALLOCATION, align_up
from .reader import Reader

__all__ = ["Checksums"]

Progress = Callable[[int, int], None]
READ_BYTES = 1 << 23


@dataclasses.dataclass(frozen=True)
class _Span:
    """A run of bytes with one checksum for each block, or none where it must be zero."""

    region: str
    start: int
    stop: int
    digests: ext.Digests | None


class Checksums:
    """Compares each byte of a file of ours with what its writer recorded.

    Parameters
    ----------
    reader : Reader
        The file; opening it has checked the head, the locator and the extension's text.
    found : Findings
        Takes what is wrong.
    progress : callable, optional
        Called with (bytes done, bytes in all).
    """

    def __init__(self, reader: Reader, found: Findings, progress: Progress | None) -> None:
        assert reader.extension is not None and reader.locator is not None
        self._reader = reader
        self._extension = reader.extension
        self._locator = reader.locator
        self._found = found
        self._progress = progress

    def run(self, pool: ThreadPoolExecutor, workers: int) -> None:
        """Check the whole file with ``workers`` threads of ``pool``."""
        spans = self._spans()
        if spans is None:
            return
        tasks = [task for span in spans for task in self._cut(span)]
        total = sum(stop - start for _, start, stop in tasks)
        done = 0
        with open(self._reader.path, "rb") as file:
            results = in_order(pool, 2 * workers, (partial(self._check, file.fileno(), *task) for task in tasks))
            for (span, start, stop), bad in zip(tasks, results, strict=True):
                if self._found.full:
                    return
                for low, high, reason in bad:
                    self._report(span, low, high, reason)
                done += stop - start
                if self._progress is not None:
                    self._progress(done, total)

    def _spans(self) -> list[_Span] | None:
        """Return the runs that cover the file behind its head, or None if the list of checksums itself is damaged."""
        reader, extension = self._reader, self._extension
        text_end = self._locator.ptr + self._locator.text_bytes
        arrays_start = align_up(text_end, 8)
        arrays_end = arrays_start + 8 * sum(extension.num_blocks.values())
        table_ptr = reader.header.alloc_table_ptr
        bounds = {
            "table": (reader.header.table_start, reader.table_end),
            "pages": (extension.data_start, self._locator.ptr),
            "allocations": (table_ptr, reader.num_bytes),
        }
        fits = reader.table_end <= extension.data_start <= self._locator.ptr and arrays_end <= table_ptr
        for region, (start, stop) in bounds.items():
            fits &= extension.num_blocks[region] == -((start - stop) // extension.block_bytes)
        arrays = reader.data[arrays_start:arrays_end].tobytes() if fits else b""
        if not fits or ext.digest(arrays) != extension.digests_xxh3:
            self._found.add(
                Problem(
                    region="extension block",
                    message="the list of checksums is damaged, so the rest of the file cannot be compared with it",
                    start=arrays_start,
                    stop=max(arrays_start, arrays_end),
                    page=arrays_start // reader.page_size,
                )
            )
            return None
        digests = np.frombuffer(arrays, dtype="<u8")
        spans = []
        position = 0
        names = {"table": "sample table", "pages": "pages", "allocations": "allocation table"}
        for region in ext.REGIONS:
            count = extension.num_blocks[region]
            spans.append(_Span(names[region], *bounds[region], digests[position : position + count]))
            position += count
        spans += [
            _Span("padding", reader.table_end, extension.data_start, None),
            _Span("padding", text_end, arrays_start, None),
            _Span("padding", arrays_end, table_ptr, None),
        ]
        return [span for span in spans if span.stop > span.start]

    def _cut(self, span: _Span) -> Iterator[tuple[_Span, int, int]]:
        block = self._extension.block_bytes
        step = max(1, READ_BYTES // block) * block
        for start in range(span.start, span.stop, step):
            yield span, start, min(start + step, span.stop)

    def _check(self, fd: int, span: _Span, start: int, stop: int) -> list[tuple[int, int, str]]:
        """Return the damaged parts of [start, stop) with the reason; runs in a worker."""
        try:
            data = _read_at(fd, start, stop - start)
        except OSError as error:
            return [(start, stop, f"cannot be read: {error}")]
        if span.digests is None:
            if any_byte(data):
                first = start + int(np.flatnonzero(np.frombuffer(data, dtype=np.uint8))[0])
                return [(first, first + 1, "a byte that belongs to nothing is not zero")]
            return []
        block = self._extension.block_bytes
        view = memoryview(data)
        bad = []
        for low in range(start, stop, block):
            high = min(low + block, stop)
            if ext.digest(view[low - start : high - start]) != int(span.digests[(low - span.start) // block]):
                bad.append((low, high, "bytes have changed since the file was written"))
        return bad

    def _report(self, span: _Span, start: int, stop: int, reason: str) -> None:
        if reason.startswith("cannot be read"):
            self._found.unreadable = True
        reader = self._reader
        samples: tuple[tuple[int, int], ...] = ()
        if span.region == "sample table":
            size = reader.table.dtype.itemsize
            samples = (((start - span.start) // size, min(-((span.start - stop) // size), reader.num_samples)),)
        elif span.region == "allocation table" and len(reader.allocations):
            first = (start - span.start) // ALLOCATION.itemsize
            last = (stop - 1 - span.start) // ALLOCATION.itemsize
            values = max(1, len(reader.allocations) // reader.num_samples)
            samples = ((first // values, min(last // values + 1, reader.num_samples)),)
        elif span.region == "pages":
            samples = self._stored_in(start, stop)
        page = start // reader.page_size if span.region in ("pages", "padding") else None
        self._found.add(Problem(region=span.region, message=reason, start=start, stop=stop, page=page, samples=samples))

    def _stored_in(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the samples that have bytes in [start, stop); our allocation table ascends."""
        pointers = self._reader.allocations["ptr"]
        # NumPy's searchsorted would first copy the column, which is as large as the samples are many.
        first = max(0, bisect.bisect_right(pointers, start) - 1)
        last = bisect.bisect_left(pointers, stop)
        entries = self._reader.allocations[first:last]
        ends = entries["ptr"] + entries["size"]
        owners = entries["sample_id"][ends > start]
        owners = owners[owners < self._reader.num_samples]
        return ((int(owners.min()), int(owners.max()) + 1),) if len(owners) else ()


def any_byte(data: bytes | bytearray) -> bool:
    """Return whether any byte differs from zero."""
    return data.count(0) != len(data)


def _read_at(fd: int, position: int, size: int) -> bytearray:
    """Read exactly ``size`` bytes; through a read and not the map, so that a failing disk is an error and no signal."""
    data = bytearray(size)
    view = memoryview(data)
    while len(view):
        got = os.preadv(fd, [view], position)
        if got == 0:
            raise OSError(f"the file ended at byte {position:,} while it was being read")
        view = view[got:]
        position += got
    return data
