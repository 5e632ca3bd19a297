"""What a conversion will take: bytes and seconds, from a few samples spread over the source.

Owns the choice of those samples, which is the same on every machine, and the comparison with the free space. It
writes nothing.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from converters.engine.pool import DeadWorkerError, Pool
from converters.report import Skipped, human_bytes
from converters.source import Source
from dataloading import ConvertError, Field

__all__ = ["PAGE_BYTES", "Estimate", "check_space", "measure"]

# Below this the disk is "clearly too small": images differ, so a few of them tell the total to some 10 %.
_CLEARLY = 0.8
_ALLOCATION_BYTES = 24
_TEXT_BYTES = 8192  # header and descriptors; the extension block's text
_WITH_CHECKSUMS = 1 + 8 / 65536
PAGE_BYTES = 8 << 20
"""Bytes of a page, unless an image needs more or --page-size says otherwise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """What samples that were tried tell about all of them.

    Parameters
    ----------
    num_samples, num_tried : int
        All, and those tried.
    stored_bytes : int
        Bytes that the values of those tried take in the pages.
    record_bytes : int
        Bytes a sample takes in the file's tables.
    allocation_bytes : int
        Those of them behind the pages, in the allocation table.
    page_bytes : int
        Bytes of a page.
    seconds : float
        Wall-clock time of trying them.
    kinds : Counter
        What became of their images.
    faults : tuple of Skipped
        Those that cannot be converted.
    """

    num_samples: int
    num_tried: int
    stored_bytes: int
    record_bytes: int
    allocation_bytes: int
    page_bytes: int
    seconds: float
    kinds: Counter[str]
    faults: tuple[Skipped, ...]

    @property
    def sample_bytes(self) -> float:
        """Bytes of a sample, its part of the tables included."""
        return self.stored_bytes / max(1, self.num_tried) + self.record_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of one file of all samples."""
        return self.file_bytes(self.num_samples)

    def file_bytes(self, num_samples: int) -> int:
        """Return the bytes of a file of so many samples: whole pages of tables and of samples, and a last table."""
        mean = self.stored_bytes / max(1, self.num_tried)
        # No sample crosses a page's border: of each page half a sample's room stays empty.
        wasted = min(0.5, mean / (2 * self.page_bytes))
        tables = (self.record_bytes - self.allocation_bytes) * num_samples
        values = mean * num_samples * (1 + wasted) * _WITH_CHECKSUMS
        return (
            self._in_pages(tables + _TEXT_BYTES)
            + self._in_pages(values + _TEXT_BYTES)
            + (self.allocation_bytes * num_samples)
        )

    def _in_pages(self, num_bytes: float) -> int:
        return math.ceil(num_bytes / self.page_bytes) * self.page_bytes

    @property
    def total_seconds(self) -> float:
        """Seconds for all samples, without the start of the workers."""
        return self.seconds * self.num_samples / max(1, self.num_tried)


def measure(
    source: Source, order: npt.NDArray[np.int64], pool: Pool, *, num_tried: int, page_size: int | None = None
) -> Estimate:
    """Convert samples spread evenly over ``order`` in memory.

    Parameters
    ----------
    source : Source
        Where the samples come from.
    order : int64[n]
        Their indices.
    pool : Pool
        Runs `converters.engine.worker.Work`.
    num_tried : int
        How many; fewer if there are fewer.
    page_size : int, optional
        Bytes of the file's pages; by default `PAGE_BYTES`.

    Raises
    ------
    DeadWorkerError
        If one of them ends a worker; its position counts in ``order``.
    """
    places = np.unique(np.linspace(0, len(order) - 1, min(num_tried, len(order))).astype(np.int64))
    tried = order[places]
    stored = 0
    kinds: Counter[str] = Counter()
    faults = []
    start = time.monotonic()
    jobs = ((int(index), source.task(int(index))) for index in tried)
    try:
        for index, outcome in zip(map(int, tried), pool.run(jobs), strict=True):
            if outcome.fault:
                faults.append(Skipped(index=index, name=source.name(index), reason=outcome.fault))
            stored += outcome.stored_bytes
            kinds.update(outcome.kinds)
    except DeadWorkerError as error:
        position = None if error.position is None else int(places[error.position])
        raise DeadWorkerError(position, error.how) from error
    return Estimate(
        num_samples=len(order),
        num_tried=len(tried),
        stored_bytes=stored,
        record_bytes=_record_bytes(source.fields) + _allocation_bytes(source.fields),
        allocation_bytes=_allocation_bytes(source.fields),
        page_bytes=page_size or PAGE_BYTES,
        seconds=time.monotonic() - start,
        kinds=kinds,
        faults=tuple(faults),
    )


def _record_bytes(fields: Mapping[str, Field]) -> int:
    return sum(field.record.itemsize for field in fields.values())


def _allocation_bytes(fields: Mapping[str, Field]) -> int:
    return sum(_ALLOCATION_BYTES for field in fields.values() if field.has_data)


def check_space(folder: str, needed_bytes: float) -> str:
    """Return a warning if the space in ``folder`` may be too little, else nothing.

    Raises
    ------
    ConvertError
        If it is clearly too little.
    """
    try:
        status = os.statvfs(folder)
    except OSError:
        return ""
    free = status.f_bavail * status.f_frsize
    words = f"about {human_bytes(needed_bytes)} will be written, and {folder} has {human_bytes(free)} free"
    if _CLEARLY * needed_bytes > free:
        raise ConvertError(
            f"{words}: make room, choose another disk or smaller images (--max-resolution), or pass --no-space-check"
        )
    return f"{words}, which may be too little" if needed_bytes > 0.9 * free else ""
