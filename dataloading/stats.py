"""Seconds per hop, and which of them limits the training: a clock, a snapshot, a verdict.

Knows the names of the hops and nothing of what they do.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dataloading.messages import counted

__all__ = ["HOPS", "CacheStats", "Clock", "EpochStats", "LoaderStats"]

HOPS = ("sampler", "view", "decode", "transform", "transfer")
"""The five hops from file to device, in order; the names used in docs, statistics and benchmarks."""

_MAX_EPOCHS = 1000  # of which figures are kept
_MAX_NOTES = 256  # not summed yet
# Per epoch: samples, batches, skipped, replaced; seconds of data wait, of callables, of the caller's step.
_NO_FIGURES: tuple[float, ...] = (0.0,) * 7


class Clock:
    """Sums seconds and counts from any thread.

    Workers take a lock for less than a microsecond, once per group of samples. Callers' threads take none: they queue
    their values, which the next holder of the lock adds.

    Parameters
    ----------
    compile_seconds : float
        Spent on compiling transforms before.
    """

    def __init__(self, compile_seconds: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._compile_seconds = compile_seconds
        self._received: deque[tuple[int, tuple[float, ...], float]] = deque()
        self._called: deque[tuple[str, float]] = deque()
        self._has_begun = False
        self._clear()

    def _clear(self) -> None:
        self._hops = dict.fromkeys(HOPS, 0.0)
        self._bytes_read = self._bytes_read_ahead = self._page_faults = 0
        self._busy = self._cpu = self._step_cpu = 0.0
        self._first_batch = self._first_step = 0.0
        self._callables: dict[str, float] = {}
        self._epochs: dict[int, tuple[float, ...]] = {}  # figures of each
        self._older = _NO_FIGURES  # of older epochs, as one sum

    observer: Callable[[str, float, float], None] | None = None
    """Called with each piece of work: hop, start and end (`time.perf_counter`), in the thread that did it."""

    def _observe(self, *work: tuple[str, float]) -> None:
        """Report work that ends now, hop by hop."""
        observer = self.observer
        if observer is not None:
            start = time.perf_counter() - sum(seconds for _, seconds in work)
            for hop, seconds in work:
                observer(hop, start, start + seconds)
                start += seconds

    def after_fork(self) -> None:
        """Replace the lock in a forked child, where the thread that may hold it does not exist."""
        self._lock = threading.Lock()

    def note_compiling(self, seconds: float) -> None:
        """Add time spent on compiling other transforms."""
        self._compile_seconds += seconds

    # ---- workers

    def add(self, hop: str, seconds: float) -> None:
        """Add `seconds` of one worker's time to `hop`."""
        self._observe((hop, seconds))
        with self._lock:
            self._hops[hop] += seconds
            if len(self._received) > _MAX_NOTES:
                self._fold()

    def add_group(self, decode: float, transform: float, *, cpu: float = 0.0, page_faults: int = 0) -> None:
        """Add one worker's time for a group of samples: in both hops, its CPU time, and its page faults."""
        self._observe(("decode", decode), ("transform", transform))
        with self._lock:
            self._hops["decode"] += decode
            self._hops["transform"] += transform
            self._busy += decode + transform
            self._cpu += cpu
            self._page_faults += page_faults

    @property
    def num_page_faults(self) -> int:
        """How often workers have touched bytes of a file that were not in memory."""
        return self._page_faults

    def count_bytes_read_ahead(self, num_bytes: int) -> None:
        """Add what the system reads from storage because it was asked to."""
        with self._lock:
            self._bytes_read_ahead += num_bytes

    def count_bytes(self, num_bytes: int) -> None:
        """Add the size of stored bytes that are about to be read."""
        with self._lock:
            self._bytes_read += num_bytes

    def measure(self, hop: str) -> _Measured:
        """Add the time the block takes to `hop`."""
        return _Measured(self, hop)

    # ---- callers' threads

    def note_batch(
        self,
        epoch: int,
        *,
        wait: float = 0.0,
        callables: float = 0.0,
        step: float = 0.0,
        step_cpu: float = 0.0,
        samples: int = 0,
        skipped: int = 0,
        replaced: int = 0,
    ) -> None:
        """Record a batch: seconds of waiting for it, of callables on it, and of the caller's previous step."""
        self._received.append((epoch, (samples, samples > 0, skipped, replaced, wait, callables, step), step_cpu))

    def note_call(self, name: str, seconds: float) -> None:
        """Record the time of one callable on a batch."""
        self._called.append((name, seconds))

    # ---- sums

    def snapshot(
        self, num_workers: int, *, num_cores: int = 0, cache: CacheStats | None = None, reset: bool = False
    ) -> LoaderStats:
        """Return the sums so far; `reset` starts new ones."""
        with self._lock:
            self._fold()
            total = EpochStats.of(-1, _sum(self._older, *self._epochs.values()))
            stats = LoaderStats(
                num_workers=num_workers,
                num_samples=total.num_samples,
                num_batches=total.num_batches,
                num_skipped=total.num_skipped,
                num_replaced=total.num_replaced,
                num_bytes_read=self._bytes_read,
                data_wait_seconds=total.data_wait_seconds,
                consumer_seconds=total.consumer_seconds,
                hop_seconds=dict(self._hops),
                num_cores=num_cores,
                cache=cache,
                callable_seconds=dict(self._callables),
                compile_seconds=self._compile_seconds,
                first_batch_seconds=self._first_batch,
                first_step_seconds=self._first_step,
                worker_busy_seconds=self._busy,
                worker_cpu_seconds=self._cpu,
                consumer_cpu_seconds=self._step_cpu,
                num_page_faults=self._page_faults,
                num_bytes_read_ahead=self._bytes_read_ahead,
                epochs=tuple(EpochStats.of(epoch, sums) for epoch, sums in self._epochs.items()),
            )
            if reset:
                self._clear()
            return stats

    def _fold(self) -> None:
        while self._called:
            name, seconds = self._called.popleft()
            self._callables[name] = self._callables.get(name, 0.0) + seconds
        while self._received:
            self._fold_batch(*self._received.popleft())

    def _fold_batch(self, epoch: int, figures: tuple[float, ...], step_cpu: float) -> None:
        samples, _, _, _, wait, callables, step = figures
        if samples and not self._has_begun:
            self._has_begun = True
            self._first_batch = wait + callables
        elif step and self._first_batch and not self._first_step:
            self._first_step = step
        self._step_cpu += step_cpu
        self._epochs[epoch] = _sum(self._epochs.get(epoch, _NO_FIGURES), figures)
        if len(self._epochs) > _MAX_EPOCHS:
            self._older = _sum(self._older, self._epochs.pop(next(iter(self._epochs))))


class _Measured:
    """A block whose time is added; a fifth of what a generator's context manager takes."""

    __slots__ = ("_clock", "_hop", "_start")

    def __init__(self, clock: Clock, hop: str) -> None:
        self._clock = clock
        self._hop = hop

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._clock.add(self._hop, time.perf_counter() - self._start)


def _sum(*figures: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(map(sum, zip(*figures, strict=True)))


@dataclass(frozen=True, kw_only=True)
class EpochStats:
    """What one rank received in one epoch.

    Parameters
    ----------
    epoch : int
    num_samples, num_batches : int
        Delivered to the caller.
    num_skipped, num_replaced : int
        Failed samples that `on_error` skipped or replaced.
    data_wait_seconds, callable_seconds, consumer_seconds : float
        The caller's time: waiting for data, in its callables on finished batches, and in its own step.
    """

    epoch: int
    num_samples: int = 0
    num_batches: int = 0
    num_skipped: int = 0
    num_replaced: int = 0
    data_wait_seconds: float = 0.0
    callable_seconds: float = 0.0
    consumer_seconds: float = 0.0

    @classmethod
    def of(cls, epoch: int, figures: tuple[float, ...]) -> EpochStats:
        """Make it of the clock's figures."""
        *counts, wait, called, step = figures
        samples, batches, skipped, replaced = map(int, counts)
        return cls(
            epoch=epoch,
            num_samples=samples,
            num_batches=batches,
            num_skipped=skipped,
            num_replaced=replaced,
            data_wait_seconds=wait,
            callable_seconds=called,
            consumer_seconds=step,
        )

    @property
    def seconds(self) -> float:
        """The caller's time."""
        return self.data_wait_seconds + self.callable_seconds + self.consumer_seconds

    @property
    def images_per_second(self) -> float:
        """Samples of this rank per second of the caller's time."""
        return self.num_samples / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        share = self.data_wait_seconds / self.seconds if self.seconds > 0 else 0.0
        return (
            f"epoch {self.epoch}: {counted(self.num_samples, 'sample')} in {self.seconds:.1f} s, "
            f"{self.images_per_second:.0f} images/s per rank, data wait {share:.1%}"
        )


@dataclass(frozen=True, kw_only=True)
class CacheStats:
    """The page cache that all ranks of this machine share (``os_cache=False``, ``cache_dir=``, files in a store).

    Parameters
    ----------
    fetched_bytes : int
        Bytes of pages that all ranks have read from storage since the cache was made, in a `cache_dir` by all runs.
        More than the dataset's size: the cache does not hold it, and pages are read again in later epochs.
    taken_bytes : int
        Size of all pages in the cache now, in a `cache_dir` of all datasets.
    max_bytes : int or None
        Its limit, `cache_bytes`; None: unlimited.
    """

    fetched_bytes: int
    taken_bytes: int
    max_bytes: int | None

    def __str__(self) -> str:
        limit = "without a limit" if self.max_bytes is None else f"of at most {self.max_bytes / 2**20:,.0f}"
        return (
            f"page cache of this machine: {self.taken_bytes / 2**20:,.0f} MiB {limit}, "
            f"{self.fetched_bytes / 2**20:,.0f} MiB fetched"
        )


# Below this share of the caller's time, waiting is not a bottleneck.
_NOTICEABLE = 0.05
_READ_BYTES = 1 << 17  # of one read, about: what the system reads for a page fault by default

_ADVICE = {
    "sampler": "the order is being computed, by one worker at a time",
    "view": "storage is slow to answer: use a faster disk or network, or let the cache warm up",
    "decode": "store smaller images (beton convert --max-resolution) or raw ones",
    "transform": "move pixel work to the device",
    "transfer": "batches leave faster than the bus takes them: send uint8 and normalise on the device",
}


@dataclass(frozen=True, kw_only=True)
class LoaderStats:
    """Statistics of a loader on this rank; ``print`` shows a table and a verdict.

    Parameters
    ----------
    num_workers : int
        Threads.
    num_samples, num_batches : int
        Delivered to the caller.
    num_skipped, num_replaced : int
        Failed samples that `on_error` skipped or replaced.
    num_bytes_read : int
        Stored bytes of the samples that were decoded. Divide by the wall time to compare with the disk's rate.
    data_wait_seconds : float
        Time the caller waited for data: what more workers or a faster pipeline can save.
    consumer_seconds : float
        Time the caller spent on batches: its own step.
    hop_seconds : dict of str to float
        Seconds of worker time in each hop, summed over threads. Start with the largest.
    num_cores : int
        Cores that this rank may use; 0: not known.
    callable_seconds : dict of str to float
        Time of each torch module or callable on finished batches. They run in the caller's thread, inside ``next()``.
    compile_seconds : float
        Spent on compiling transforms when the loader was made.
    first_batch_seconds, first_step_seconds : float
        Wait for the very first batch, callables included, and the caller's step on it. Both are in the sums above, but
        not in shares: they include what is compiled or filled only once.
    worker_busy_seconds, worker_cpu_seconds : float
        Time of workers in decode and transform, and their CPU time: the difference is waiting for storage, the GIL or a
        core.
    consumer_cpu_seconds : float
        CPU time of the caller's step.
    num_page_faults : int
        How often a worker touched bytes of the file that were neither in memory nor on their way there.
    num_bytes_read_ahead : int
        What the system read from storage because the Loader asked for it ahead of the workers.
    epochs : tuple of EpochStats
        The caller's time by epoch.
    cache : CacheStats or None
        The machine's page cache; None if it is the operating system's.
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
    num_cores: int = 0
    callable_seconds: dict[str, float] = field(default_factory=dict)
    compile_seconds: float = 0.0
    first_batch_seconds: float = 0.0
    first_step_seconds: float = 0.0
    worker_busy_seconds: float = 0.0
    worker_cpu_seconds: float = 0.0
    consumer_cpu_seconds: float = 0.0
    num_page_faults: int = 0
    num_bytes_read_ahead: int = 0
    epochs: tuple[EpochStats, ...] = ()
    cache: CacheStats | None = None

    @property
    def data_wait_fraction(self) -> float:
        """Share of the caller's time spent waiting for data, 0..1; the first batch and step do not count."""
        wait, called, step = self._steady
        total = wait + called + step
        return wait / total if total > 0 else 0.0

    @property
    def images_per_second(self) -> float:
        """Samples of this rank per second of the caller's time."""
        total = self.data_wait_seconds + sum(self.callable_seconds.values()) + self.consumer_seconds
        return self.num_samples / total if total > 0 else 0.0

    @property
    def _steady(self) -> tuple[float, float, float]:
        """Seconds of waiting, of callables and of the caller's step, without the first of each."""
        called = sum(self.callable_seconds.values())
        whole = self.data_wait_seconds, called, self.consumer_seconds
        if self.num_batches < 2:
            return whole
        # The callables' share of the first batch is unknown: assume their mean.
        first_called = min(called / self.num_batches, self.first_batch_seconds)
        wait = max(self.data_wait_seconds - (self.first_batch_seconds - first_called), 0.0)
        return wait, called - first_called, max(self.consumer_seconds - self.first_step_seconds, 0.0)

    @property
    def verdict(self) -> str:
        """What limits the training: the loader (and which hop), callables on the batch, or the caller's step."""
        if self.num_batches == 0:
            return "No batch has been delivered yet."
        wait, called, step = self._steady
        total = wait + called + step
        if total <= 0:
            return f"Only one batch so far, after {self.first_batch_seconds:.2f} s."
        shares = wait / total, called / total, step / total
        if shares[1] >= _NOTICEABLE and called >= max(wait, step):
            text = self._callables_are_the_limit(shares)
        elif shares[0] < _NOTICEABLE:
            text = f"The consumer is the limit: it waited for data {shares[0]:.1%} of the time."
            if shares[1] >= _NOTICEABLE:
                text += f" {self._share_of_callables(shares[1])}"
        else:
            text = self._loader_is_the_limit(wait, total)
        failed = self.num_skipped + self.num_replaced
        if failed > 0.01 * self.num_samples:
            done = "skipped" if self.num_skipped else "replaced"
            text += f" {counted(failed, 'sample')} failed and were {done}: see loader.errors."
        once = self.compile_seconds + self.first_batch_seconds
        if once > total:
            text += (
                f" Starting took longer than all that ({self.compile_seconds:.1f} s to compile, "
                f"{self.first_batch_seconds:.1f} s to the first batch): measure a longer run."
            )
        return text

    def _share_of_callables(self, share: float) -> str:
        name = max(self.callable_seconds, key=lambda each: self.callable_seconds[each])
        part = "" if len(self.callable_seconds) == 1 else ", most of it"
        return f"Callables on finished batches take {share:.1%}{part} in {name}."

    def _callables_are_the_limit(self, shares: tuple[float, float, float]) -> str:
        name = max(self.callable_seconds, key=lambda each: self.callable_seconds[each])
        return (
            f"The callable {name} is the limit: callables on finished batches take {shares[1]:.1%} of the caller's "
            f"time (data wait {shares[0]:.1%}). They run in the calling thread, inside next(), where workers do not "
            f"help: use transforms of dataloading.transforms, which workers run, or do the work on the device."
        )

    def _loader_is_the_limit(self, wait: float, total: float) -> str:
        head = f"The loader is the limit: the consumer waited {wait / total:.1%} of the time. "
        hops = self.hop_seconds
        busy = sum(hops.values())
        if busy <= 0:
            return head.rstrip()
        # One worker at a time opens the next batch, so the caller waits for the whole time of this hop.
        for hop in ("sampler", "view"):
            if hops.get(hop, 0.0) >= 0.5 * wait and hops[hop] == max(hops.get("sampler", 0.0), hops.get("view", 0.0)):
                return f"{head}Most of that goes to {hop} ({hops[hop]:.1f} s): {_ADVICE[hop]}."
        hop = max(hops, key=lambda name: hops[name])
        text = f"{head}Most worker time goes to {hop} ({hops[hop] / busy:.0%})"
        return f"{text}: {self._advice(hop, busy / (self.num_workers * total), total)}."

    def _advice(self, hop: str, used: float, total: float) -> str:
        kept_waiting = 1 - self.worker_cpu_seconds / self.worker_busy_seconds if self.worker_busy_seconds > 0 else 0.0
        if hop in ("decode", "transform") and kept_waiting > 0.4:
            if self.num_page_faults + self.num_bytes_read_ahead / _READ_BYTES > max(4, self.num_batches / 2):
                return f"but workers wait for the disk {kept_waiting:.0%} of it: {_ADVICE['view']}"
            used_cores = (self.worker_cpu_seconds + self.consumer_cpu_seconds) / total
            python = self.consumer_cpu_seconds > 0.7 * self.consumer_seconds > 0.1 * total
            if python and used_cores < 0.75 * min(self.num_workers + 1, self.num_cores or self.num_workers):
                return (
                    f"but workers wait {kept_waiting:.0%} of it for the GIL, which Python code of the caller's step "
                    f"holds: do that work in compiled code that releases it, or in another process"
                )
            if used >= 0.6:
                return (
                    f"but workers wait {kept_waiting:.0%} of it for a core: other threads or processes hold the cores "
                    f"(torch.set_num_threads, other jobs)"
                )
        if used < 0.6 and hop != "transfer":
            return "the workers idle as well: other processes may hold the cores, or prefetch_batches is too small"
        if hop not in ("decode", "transform"):
            return _ADVICE[hop]
        if self.num_cores and self.num_workers >= self.num_cores:
            return f"all of this rank's {counted(self.num_cores, 'core')} have a worker; {_ADVICE[hop]}"
        more = f" (up to {self.num_cores}, this rank's cores)" if self.num_cores else ""
        return f"add workers{more}, or {_ADVICE[hop]}"

    def __str__(self) -> str:
        per = max(self.num_samples, 1)
        lines = [
            f"{counted(self.num_samples, 'sample')} in {counted(self.num_batches, 'batch')}, "
            f"{self.images_per_second:.0f} images/s per rank, {counted(self.num_workers, 'worker')}, "
            f"data wait {self.data_wait_fraction:.1%}",
        ]
        lines += [f"  {hop:<10}{self.hop_seconds.get(hop, 0.0) / per * 1e3:8.3f} ms per sample" for hop in HOPS]
        lines += [
            f"  {name}: {seconds / per * 1e3:.3f} ms per sample, in the calling thread"
            for name, seconds in self.callable_seconds.items()
        ]
        lines.append(f"  your step {self.consumer_seconds / per * 1e3:8.3f} ms per sample")
        lines.append(
            f"  once: {self.compile_seconds:.2f} s to compile, {self.first_batch_seconds:.2f} s to the first batch, "
            f"{self.first_step_seconds:.2f} s for your first step"
        )
        if self.cache is not None:
            lines.append(f"  {self.cache}")
        if len(self.epochs) > 1:
            lines += [f"  {each}" for each in self.epochs[-5:]]
        if self.num_skipped or self.num_replaced:
            lines.append(f"  {self.num_skipped} skipped, {self.num_replaced} replaced: see loader.errors")
        lines.append(self.verdict)
        return "\n".join(lines)
