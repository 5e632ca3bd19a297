"""One pass over an epoch: the caller's iterator, and the engines that feed it and the one after it.

Knows when workers start, go on with the next epoch, and stop. Knows nothing of how a batch is made.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from dataloading.batch import Batch
from dataloading.cache import PageSource, Prefetch
from dataloading.dataset.read_ahead import ReadAhead
from dataloading.engine.batch_job import BatchJob
from dataloading.engine.plan import Plan
from dataloading.engine.workers import Engine
from dataloading.errors import SampleError, UsageError
from dataloading.finalisers import Living
from dataloading.sampling.sampler import Sampler, ShardSampler
from dataloading.sampling.slicing import EpochOrder, Step
from dataloading.stats import Clock

__all__ = ["Engines", "EpochIterator", "Jobs", "Running"]

# Workers begin a batch as soon as its job is made: the system is asked for later ones by then.
_STEPS_AHEAD = 2

# How each epoch is made that an engine has begun. `setdefault` decides it once, whichever thread asks first.
Plans = dict[int, Plan]


class Jobs:
    """The jobs of one loader, epoch after epoch.

    Parameters
    ----------
    sampler : Sampler
    plan : Plan
    storage : PageSource, optional
        Brings pages through a cache of our own. Without it the system is asked to read ahead.
    persistent : bool
        Go on with the next epoch when one has been received to its end.

    Attributes
    ----------
    plan : Plan
        How epochs are made that have not begun yet.
    clock : Clock
    errors : list of SampleError
        Samples that were skipped or replaced in the batches received so far.

    Notes
    -----
    Workers refer to this object: it must not refer to anything that owns them.
    """

    def __init__(self, sampler: Sampler, plan: Plan, *, storage: PageSource | None, persistent: bool) -> None:
        self.sampler = sampler
        self.plan = plan
        self.clock = Clock(plan.compile_seconds)
        self.errors: list[SampleError] = []
        # A sampler of the user's may be told its epoch, or draw its numbers, only when the next iteration begins.
        self.persistent = persistent and isinstance(sampler, ShardSampler)
        self._storage = storage

    def begin(self, epoch: int, consumed: int, plans: Plans, stopped: threading.Event) -> Iterator[BatchJob]:
        """Make the jobs of this epoch from `consumed` on, then those of the epochs that follow."""
        with contextlib.ExitStack() as stack:
            read_ahead = ReadAhead(self.plan.files, self.clock)
            prefetch = None
            if self._storage is not None:
                prefetch = stack.enter_context(contextlib.closing(self._storage.prefetch(stopped.is_set)))
            while True:
                plan = plans.setdefault(epoch, self.plan)
                with self.clock.measure("sampler"):
                    order = self.sampler.order(epoch, consumed)
                if prefetch is None:
                    yield from self._jobs_of_files(plan, order, epoch, read_ahead)
                else:
                    yield from self._jobs_of_cache(plan, order, epoch, prefetch)
                if not self.persistent or self.sampler.slicing().num_steps == 0:
                    return
                del plans[epoch]
                epoch, consumed = epoch + 1, 0

    def _jobs_of_files(self, plan: Plan, order: EpochOrder, epoch: int, read_ahead: ReadAhead) -> Iterator[BatchJob]:
        readers = plan.files.readers
        steps: deque[Step] = deque()
        for number in range(len(order)):
            # One file per batch, in turn: it costs a microsecond, and on some network storage much more.
            readers[number % len(readers)].check_size()
            for later in range(number + len(steps), min(number + 1 + _STEPS_AHEAD, len(order))):
                with self.clock.measure("sampler"):
                    steps.append(order.step(later))
                read_ahead.ranges(order.readahead(later))
                read_ahead.samples(steps[-1].indices, plan.stored_fields)
            yield BatchJob(plan, self.clock, steps.popleft(), epoch)

    def _jobs_of_cache(self, plan: Plan, order: EpochOrder, epoch: int, prefetch: Prefetch) -> Iterator[BatchJob]:
        steps = prefetch.steps(order)
        while True:
            with self.clock.measure("view"):  # waiting for pages included
                step, pins = next(steps, (None, None))
            if step is None:
                return
            yield BatchJob(plan, self.clock, step, epoch, pins)

    def release(self) -> None:
        """Release what belongs to batches that nobody will finish; runs on a thread of ours."""
        if self._storage is not None:
            self._storage.release_dropped()
        self.plan.transfer.drain()


class Running(NamedTuple):
    """An engine, and how it makes the epochs it has begun."""

    engine: Engine[BatchJob]
    plans: Plans


class Engines:
    """The engines of one run: those in use, and one that has already begun the epoch after the last.

    A loader and those that `Loader.with_transforms` made of it share them. An engine belongs to the iterator that uses
    it, or to this object while it waits, and ends when neither has it. This object must not refer to a loader, which
    would never be dropped while its threads wait.
    """

    def __init__(self, jobs: Jobs, *, num_workers: int, max_in_flight: int) -> None:
        # The engine that waits, and the epoch it has begun. The first attribute is dropped first: its threads are gone
        # when what they used is dropped.
        self._waiting: tuple[Running, int] | None = None
        self.jobs = jobs
        self._num_workers = num_workers
        self._max_in_flight = max_in_flight
        self._iterators: Living[EpochIterator] = Living()
        self._process = os.getpid()

    def take(self, plan: Plan, epoch: int, consumed: int, iterator: EpochIterator) -> Running:
        """Take the engine that has already begun this epoch with this plan, or start one."""
        self._after_fork()
        self.jobs.plan = plan
        self._iterators.add(iterator)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            running, begun = waiting
            fits = (begun, 0) == (epoch, consumed) and running.plans.setdefault(begun, plan) is plan
            if fits and not running.engine.is_stopped:
                return running
            running.engine.stop()
        return self._start(plan, epoch, consumed)

    def _start(self, plan: Plan, epoch: int, consumed: int) -> Running:
        stopped = threading.Event()
        plans = {epoch: plan}
        engine = Engine(
            self.jobs.begin(epoch, consumed, plans, stopped),
            num_workers=self._num_workers,
            max_in_flight=self._max_in_flight,
            on_stop=stopped.set,
            on_end=self.jobs.release,
        )
        return Running(engine, plans)

    def hand_on(self, running: Running, epoch: int) -> None:
        """Take back an engine whose epoch is over: it goes on with `epoch`, or stops."""
        if self.jobs.persistent and self._waiting is None:
            self._waiting = running, epoch
        else:
            running.engine.stop()

    def change(self, plan: Plan) -> None:
        """Make the epochs that have not begun with this plan; iterations under way keep theirs.

        If workers have begun the next epoch with another plan, they restart it at once.
        """
        self._after_fork()
        self.jobs.plan = plan
        if self._waiting is not None:
            running, epoch = self._waiting
            if running.plans.setdefault(epoch, plan) is not plan:
                self.drop_begun()
                self._waiting = self._start(plan, epoch, 0), epoch

    def drop_begun(self) -> None:
        """Stop the engine that has already begun the next epoch, if there is one: its order is no longer wanted."""
        self._after_fork()
        if self._waiting is not None:
            self._waiting[0].engine.stop()
            self._waiting = None

    def stop_all(self) -> None:
        """Stop all of them, and wait for copies to the device. Iterations under way cannot go on."""
        self.drop_begun()
        self._end_iterators("the loader was closed while this iteration was under way")

    def outdate(self) -> None:
        """End iterations under way: the position in the run was changed."""
        self._end_iterators("the loader's place was set by load_state_dict() after this iteration had begun")

    def _end_iterators(self, why: str) -> None:
        for iterator in self._iterators:
            iterator.end(f"{why}: begin another with iter(loader)")

    def _after_fork(self) -> None:
        """Forget the parent's threads in a forked child: they do not exist there, and must not be waited for."""
        if os.getpid() != self._process:
            self._iterators, self._waiting, self._process = Living(), None, os.getpid()
            self.jobs.clock.after_fork()


class EpochIterator(Iterator[Batch]):
    """One pass over the rest of an epoch. Dropping it stops its workers.

    Threads may share it: each batch goes to one of them. A forked child cannot go on with its parent's.

    `next` raises UsageError if the iteration cannot go on here; the message says why.
    """

    def __init__(self, engines: Engines, plan: Plan, epoch: int, consumed: int) -> None:
        self._running: Running | None = None  # the first attribute, as there
        self._engines = engines
        self._sampler = engines.jobs.sampler
        self._clock = engines.jobs.clock
        self._epoch = epoch
        self._consumed = consumed
        self._num_steps = self._sampler.slicing(consumed).num_steps
        self._step = 0
        self._failed = "replaced" if plan.on_error == "replace" else "skipped"
        self._handed_at: float | None = None
        self._handed_cpu: float | None = None
        self._cpu_share = 0.0  # of the caller's step
        self._process = os.getpid()
        self._turn = threading.RLock()  # for callers' threads among themselves; no thread of ours takes it
        self._is_inside = False
        self._why_ended: str | None = None
        self._running = engines.take(plan, epoch, consumed, self)

    def __next__(self) -> Batch:
        if os.getpid() != self._process:
            raise UsageError(
                f"this iteration was begun in process {self._process}, whose workers do not exist in this one "
                f"({os.getpid()}), which was forked from it: begin another here with iter(loader)"
            )
        try:
            with self._turn:
                batch, consumed = self._next()
            if consumed >= self._consumed:  # another thread may have been faster
                self._consumed = consumed
                # Last of all: a batch that Ctrl-C keeps from the caller does not count as received.
                self._sampler.receive(self._epoch, consumed)
            return batch
        except StopIteration:
            raise
        except BaseException:
            self.close()
            raise

    def _next(self) -> tuple[Batch, int]:
        running = self._running
        if running is None:
            if self._why_ended is not None:
                raise UsageError(self._why_ended)
            raise StopIteration
        if self._is_inside:
            raise UsageError(
                "next() was called by something that next() of the same iterator is waiting for, such as one of its "
                "transforms"
            )
        self._is_inside = True  # and stays so where something is raised: then the iteration is over
        asked_at = time.perf_counter()
        step = 0.0 if self._handed_at is None else asked_at - self._handed_at
        if self._handed_cpu is not None and step > 0:
            self._cpu_share = min(max((time.thread_time() - self._handed_cpu) / step, 0.0), 1.0)
        step_cpu = self._cpu_share * step
        if self._step == self._num_steps:
            self._clock.note_batch(self._epoch, step=step, step_cpu=step_cpu)
            self._sampler.finish(self._epoch)
            self._engines.hand_on(running, self._epoch + 1)
            self._running = None
            raise StopIteration
        job = running.engine.take()
        if job is None or job.epoch != self._epoch:
            raise UsageError(self._why_ended or "the iteration was closed by another thread")
        taken_at = time.perf_counter()
        self._engines.jobs.errors.extend(job.errors)
        batch = job.deliver(self._step)
        self._step += 1
        # Asking for CPU time is slow: one step in sixteen tells enough.
        self._handed_cpu = time.thread_time() if self._step % 16 == 2 else None
        self._handed_at = time.perf_counter()
        self._clock.note_batch(
            self._epoch,
            wait=taken_at - asked_at,
            callables=self._handed_at - taken_at,
            step=step,
            step_cpu=step_cpu,
            samples=len(batch.indices),
            **{self._failed: len(job.errors)},
        )
        self._is_inside = False
        return batch, job.consumed

    def __len__(self) -> int:
        return self._num_steps - self._step

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("an iterator of a Loader cannot be pickled or copied: make another with iter(loader)")

    def close(self) -> None:
        """Stop the workers and drop what they have prefetched."""
        running, self._running = self._running, None
        if running is not None:
            running.engine.stop()

    def end(self, why: str) -> None:
        """Stop the workers; `next` says why there is nothing more, unless the epoch was over."""
        if self._running is not None:
            self._why_ended = why
            self.close()
