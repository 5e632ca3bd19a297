"""Estimates the bytes and seconds of a conversion from a few samples spread over the source.

The samples are the same on every machine. It writes nothing.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections import Counter
from itertools import islice

import numpy as np

from converters.engine.converted import ConvertedSample
from converters.engine.plan import Conversion
from converters.engine.pool import DeadWorkerError, Pool
from converters.report import ReportedSample
from dataloading import ConvertError
from dataloading.cli import note
from dataloading.messages import human_bytes

__all__ = ["PAGE_BYTES", "Estimate", "check_space", "try_samples"]

# Below this the disk is "clearly too small": a sample of images predicts the total within about 10 %.
_CLEARLY = 0.8
_ALLOCATION_BYTES = 24
_TEXT_BYTES = 8192  # header and descriptors; the extension block's text
_WITH_CHECKSUMS = 1 + 8 / 65536
PAGE_BYTES = 8 << 20
"""Bytes of a page, unless an image needs more or --page-size says otherwise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """The result of the samples that were tried, scaled to all samples.

    Parameters
    ----------
    num_tried : int
    stored_bytes, seconds, images, faults
        Of those tried: bytes in the pages, time, how their images were stored, and those that cannot be converted.
    record_bytes, allocation_bytes : int
        Bytes of a sample in the sample table, and in the allocation table behind the pages.
    page_bytes : int
    """

    num_tried: int
    stored_bytes: int
    record_bytes: int
    allocation_bytes: int
    page_bytes: int
    seconds: float
    images: Counter[str]
    faults: list[ReportedSample]

    @property
    def sample_bytes(self) -> float:
        """Bytes per sample, including its part of the tables."""
        return self.stored_bytes / self.num_tried + self.record_bytes + self.allocation_bytes

    def file_bytes(self, num_samples: int) -> int:
        """Return the bytes of a file with ``num_samples``: whole pages of tables and samples, and a last table."""
        mean = self.stored_bytes / self.num_tried
        # No sample crosses a page border, so on average half a sample's space of each page stays empty.
        wasted = min(0.5, mean / (2 * self.page_bytes))
        values = mean * num_samples * (1 + wasted) * _WITH_CHECKSUMS
        num_pages = sum(
            math.ceil((size + _TEXT_BYTES) / self.page_bytes) for size in (self.record_bytes * num_samples, values)
        )
        return num_pages * self.page_bytes + self.allocation_bytes * num_samples


def try_samples(plan: Conversion, pool: Pool, *, num_tried: int) -> Estimate:
    """Convert up to ``num_tried`` samples, spread evenly over the order, in memory.

    Raises
    ------
    ConvertError
        If one of them crashes a worker.
    """
    source, count = plan.source, len(plan.order)
    tried = plan.order[np.unique(np.linspace(0, count - 1, min(num_tried, count)).astype(np.int64))]
    stored_bytes = 0
    images: Counter[str] = Counter()
    faults = []
    start = time.monotonic()
    try:
        indices = iter(tried.tolist())
        for sample in pool.run(((index, source.task(index)) for index in tried.tolist()), count=len(tried)):
            stored_bytes += sample.stored_bytes
            images.update(sample.kinds)
            *_, index = islice(indices, sample.num_samples)
            if isinstance(sample, ConvertedSample) and sample.fault:
                faults.append(ReportedSample(index=index, name=source.name(index), reason=sample.fault))
    except DeadWorkerError as error:
        raise plan.dead_worker(error, tried, plan.path) from error
    return Estimate(
        num_tried=len(tried),
        stored_bytes=stored_bytes,
        record_bytes=sum(field.record.itemsize for field in plan.fields.values()),
        allocation_bytes=sum(_ALLOCATION_BYTES for field in plan.fields.values() if field.has_data),
        page_bytes=plan.options.page_size or PAGE_BYTES,
        seconds=time.monotonic() - start,
        images=images,
        faults=faults,
    )


def check_space(folder: str, needed_bytes: float) -> None:
    """Warn if the space in ``folder`` may be too small.

    Raises
    ------
    ConvertError
        If it is clearly too small.
    """
    try:
        status = os.statvfs(folder)
    except OSError:
        return
    free = status.f_bavail * status.f_frsize
    words = f"about {human_bytes(needed_bytes)} will be written, and {folder} has {human_bytes(free)} free"
    if _CLEARLY * needed_bytes > free:
        raise ConvertError(
            f"{words}: make room, choose another disk or smaller images (--max-resolution), or pass --no-space-check"
        )
    if needed_bytes > 0.9 * free:
        note(f"{words}, which may be too little")
