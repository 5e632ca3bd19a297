"""Seconds per hop, and what they say in words: a clock, a snapshot, a verdict.

Knows the names of the hops and nothing of what they do.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dataloading.words import counted

__all__ = ["HOPS", "Clock", "LoaderStats"]

HOPS = ("sampler", "view", "decode", "transform", "transfer")
"""The five hops from file to device, in order; the names used in docs, statistics and benchmarks."""


class Clock:
    """Adds up seconds and counts from any thread.

    Adding takes a lock for well under a microsecond, a few times a group of samples.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys((*HOPS, "wait"), 0.0)
        self._counts = dict.fromkeys(("samples", "batches", "skipped", "replaced", "bytes_read"), 0)
        self._consumer_seconds = 0.0
        self._notes: deque[tuple[float, float, int, int, int]] = deque()

    def after_fork(self) -> None:
        """Let go of the lock in a forked child, where whoever held it does not exist."""
        self._lock = threading.Lock()

    def add(self, hop: str, seconds: float) -> None:
        """Add `seconds` of one thread's time to `hop`, or to "wait": the caller's time in wait for a batch."""
        with self._lock:
            self._seconds[hop] += seconds
            self._fold()

    def count(self, **increments: int) -> None:
        """Add to the counts named."""
        with self._lock:
            for name, increment in increments.items():
                self._counts[name] += increment

    def note_batch(
        self, wait_seconds: float, consumer_seconds: float, *, samples: int, skipped: int = 0, replaced: int = 0
    ) -> None:
        """Note a batch in the caller's thread, which takes no lock: what it waited, and worked on the one before."""
        self._notes.append((wait_seconds, consumer_seconds, samples, skipped, replaced))

    def _fold(self) -> None:
        while self._notes:
            wait, consumer, samples, skipped, replaced = self._notes.popleft()
            self._seconds["wait"] += wait
            self._consumer_seconds += consumer
            counts = {"samples": samples, "batches": int(samples > 0), "skipped": skipped, "replaced": replaced}
            for name, count in counts.items():
                self._counts[name] += count

    @contextmanager
    def measure(self, hop: str) -> Iterator[None]:
        """Add the time the block takes to `hop`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(hop, time.perf_counter() - start)

    def snapshot(self, num_workers: int) -> LoaderStats:
        """Freeze the sums so far."""
        with self._lock:
            self._fold()
            seconds = dict(self._seconds)
            wait = seconds.pop("wait")
            return LoaderStats(
                num_workers=num_workers,
                num_samples=self._counts["samples"],
                num_batches=self._counts["batches"],
                num_skipped=self._counts["skipped"],
                num_replaced=self._counts["replaced"],
                num_bytes_read=self._counts["bytes_read"],
                data_wait_seconds=wait,
                consumer_seconds=self._consumer_seconds,
                hop_seconds=seconds,
            )


@dataclass(frozen=True, kw_only=True)
class LoaderStats:
    """What a loader has done so far; ``print`` it for a table and a verdict.

    Parameters
    ----------
    num_workers : int
        Threads.
    num_samples, num_batches : int
        Delivered to the caller.
    num_skipped, num_replaced : int
        Samples that failed, by what `on_error` made of them.
    num_bytes_read : int
        Stored bytes of the samples that were decoded. Advice: over the wall time, compare with the disk's rate.
    data_wait_seconds : float
        Time the caller waited for data. Advice: this is what more workers or a faster pipeline can win back.
    consumer_seconds : float
        Time the caller spent on batches.
    hop_seconds : dict of str to float
        Seconds of worker time in each hop, summed over threads. Advice: start with the largest.
    """

    num_workers: int
    num_samples: int
    num_batches: int
    num_skipped: int
    num_replaced: int
    num_bytes_read: int
    data_wait_seconds: float
    consumer_seconds: float
    hop_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def data_wait_fraction(self) -> float:
        """Share of the caller's time spent in wait for data, 0..1."""
        total = self.data_wait_seconds + self.consumer_seconds
        return self.data_wait_seconds / total if total > 0 else 0.0

    @property
    def images_per_second(self) -> float:
        """Samples delivered by the seconds the caller waited or worked."""
        total = self.data_wait_seconds + self.consumer_seconds
        return self.num_samples / total if total > 0 else 0.0

    @property
    def verdict(self) -> str:
        """One sentence: is it the loader, and if so which hop."""
        if self.num_batches == 0:
            return "No batch has been delivered yet."
        share = self.data_wait_fraction
        if share < 0.02:
            return f"The consumer is the limit: it waited for data {share:.1%} of the time."
        busy = sum(self.hop_seconds.values())
        if busy <= 0:
            return f"The consumer waited for data {share:.1%} of the time."
        hop = max(self.hop_seconds, key=lambda name: self.hop_seconds[name])
        used = busy / (self.num_workers * max(self.data_wait_seconds + self.consumer_seconds, 1e-9))
        advice = {
            "sampler": "the order is being computed",
            "view": "storage is slow to answer: use a faster disk or let the page cache warm up",
            "decode": "add workers, store smaller images (--max-resolution) or raw ones",
            "transform": "add workers, or move pixel work to the device",
            "transfer": "batches leave faster than the bus takes them: send uint8 and normalise on the device",
        }[hop]
        if used < 0.6 and hop != "transfer":
            advice = "the workers idle as well: other processes may hold the cores, or prefetch_batches is too small"
        return (
            f"The loader is the limit: the consumer waited {share:.1%} of the time. "
            f"Most worker time goes to {hop} ({self.hop_seconds[hop] / busy:.0%}): {advice}."
        )

    def __str__(self) -> str:
        per = max(self.num_samples, 1)
        lines = [
            f"{counted(self.num_samples, 'sample')} in {counted(self.num_batches, 'batch')}, "
            f"{self.images_per_second:.0f} images/s, {counted(self.num_workers, 'worker')}, "
            f"data wait {self.data_wait_fraction:.1%}",
        ]
        lines += [f"  {hop:<10}{self.hop_seconds.get(hop, 0.0) / per * 1e3:8.3f} ms a sample" for hop in HOPS]
        if self.num_skipped or self.num_replaced:
            lines.append(f"  {self.num_skipped} skipped, {self.num_replaced} replaced: see loader.errors")
        lines.append(self.verdict)
        return "\n".join(lines)
