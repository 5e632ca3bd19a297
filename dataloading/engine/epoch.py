"""One pass over an epoch: an iterator, and the engines that feed it and its successor.

Knows when workers start, are handed on to the next epoch, and stop. Knows nothing of how a batch is made.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from dataloading.batch import Batch
from dataloading.cache.page_supply import Storage
from dataloading.engine.batch_job import BatchJob, Recipe
from dataloading.engine.workers import Engine
from dataloading.errors import UsageError
from dataloading.finalisers import Living
from dataloading.sampling.sampler import Sampler, ShardSampler
from dataloading.sampling.slicing import Ranges
from dataloading.stats import Clock

__all__ = ["Engines", "EpochIterator"]


class _ReadAhead(Protocol):
    """Asks the system for byte ranges of the file that later steps will need."""

    def __call__(self, ranges: Ranges) -> None: ...

    def close(self) -> None: ...


class Engines:
    """The engines of one loader: those in use, and one that has already begun the epoch after the last.

    An engine belongs to the iterator that uses it, or to this object while it waits, and ends when nobody has it.

    Parameters
    ----------
    sampler : Sampler
    recipe : Recipe
    num_workers, max_in_flight : int
        Of each engine.
    go_on : bool
        Go on with the next epoch when one has been received to its end.
    read_ahead : callable
        Makes what asks the system for byte ranges of the file that later steps will need.
    storage : Storage, optional
        Brings pages through a cache of our own instead.

    Notes
    -----
    Must not refer to the loader: it would never be dropped while its threads wait.
    """

    def __init__(
        self,
        sampler: Sampler,
        recipe: Recipe,
        *,
        num_workers: int,
        max_in_flight: int,
        persistent: bool,
        read_ahead: Callable[[], _ReadAhead],
        storage: Storage | None = None,
    ) -> None:
        # The engine that waits, and the epoch it has begun. The first attribute is dropped first: its threads are gone
        # when what they used is dropped.
        self._waiting: tuple[Engine[BatchJob], int] | None = None
        self.sampler = sampler
        # A foreign sampler may be told its epoch, or draw its numbers, only when the next iteration begins.
        self._persistent = persistent and isinstance(sampler, ShardSampler)
        self._num_workers = num_workers
        self._max_in_flight = max_in_flight
        self._source = _Source(sampler, recipe, read_ahead, storage, self._persistent)
        self._recipe = recipe
        self.replaces_failed = recipe.on_error == "replace"
        self._iterators: Living[EpochIterator] = Living()
        self._process = os.getpid()

    def take(self, epoch: int, consumed: int, iterator: EpochIterator) -> Engine[BatchJob]:
        """Take the engine that has already begun this epoch, or start one."""
        self._after_fork()
        self._iterators.add(iterator)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            engine, begun = waiting
            if (begun, 0) == (epoch, consumed) and not engine.is_stopped:
                return engine
            engine.stop()
        stopped = threading.Event()
        return Engine(
            self._source.jobs(epoch, consumed, stopped),
            num_workers=self._num_workers,
            max_in_flight=self._max_in_flight,
            on_stop=stopped.set,
            on_end=self._source.end,
        )

    def hand_on(self, engine: Engine[BatchJob], epoch: int) -> None:
        """Take back an engine whose epoch is over: it goes on with `epoch`, or stops."""
        if self._persistent and self._waiting is None:
            self._waiting = engine, epoch
        else:
            engine.stop()

    def drop_begun(self) -> None:
        """Stop the engine that has already begun the next epoch, if there is one: its order is not wanted any more."""
        self._after_fork()
        if self._waiting is not None:
            self._waiting[0].stop()
            self._waiting = None

    def stop_all(self) -> None:
        """Stop all of them, and wait for copies to the device. Iterations under way cannot go on."""
        self.drop_begun()
        for iterator in self._iterators:
            iterator.end("the loader was closed while this iteration was under way: begin another with iter(loader)")

    def outdate(self) -> None:
        """Have iterations under way not go on: the place in the run was set anew."""
        for iterator in self._iterators:
            iterator.end(
                "the loader's place was set by load_state_dict() after this iteration had begun: begin another with "
                "iter(loader)"
            )

    def _after_fork(self) -> None:
        """Forget the parent's threads in a forked child: they do not exist there, and must not be waited for."""
        if os.getpid() != self._process:
            self._iterators, self._waiting, self._process = Living(), None, os.getpid()
            self._recipe.clock.after_fork()


class _Source:
    """Makes the jobs of an engine; refers to nobody who owns one."""

    def __init__(
        self,
        sampler: Sampler,
        recipe: Recipe,
        read_ahead: Callable[[], _ReadAhead],
        storage: Storage | None,
        goes_on: bool,
    ) -> None:
        self._sampler = sampler
        self._recipe = recipe
        self._read_ahead = read_ahead
        self._storage = storage
        self._persistent = goes_on

    def jobs(self, epoch: int, consumed: int, stopped: threading.Event) -> Iterator[BatchJob]:
        """Give the jobs of this epoch from `consumed` on, then those of the epochs that follow."""
        supply = None if self._storage is None else self._storage.supply(stopped.is_set)
        with contextlib.closing(self._read_ahead()) as read_ahead:
            try:
                while True:
                    with self._recipe.clock.measure("sampler"):
                        order = self._sampler.order(epoch, consumed)
                    for number, job in enumerate(self._recipe.jobs(order, epoch, supply)):
                        if supply is None:
                            read_ahead(order.readahead(number))
                        yield job
                    if not self._persistent or self._sampler.slicing().num_steps == 0:
                        return
                    epoch, consumed = epoch + 1, 0
            finally:
                if supply is not None:
                    supply.close()

    def end(self) -> None:
        """Let go of what belongs to batches that nobody finishes any more; on a thread of ours."""
        if self._storage is not None:
            self._storage.cache.release_dropped()
        self._recipe.transfer.drain()


class EpochIterator(Iterator[Batch]):
    """One pass over the rest of an epoch. Dropping it stops its workers.

    Threads may share it: each batch goes to one of them. A forked child cannot go on with its parent's.

    Parameters
    ----------
    engines : Engines
    epoch, consumed : int
        Where to begin.
    deliver : callable
        Makes the caller's batch of a finished job and its number.
    clock : Clock

    Raises
    ------
    UsageError
        From `next`: the iteration cannot go on here; the message says why.
    """

    def __init__(
        self, engines: Engines, epoch: int, consumed: int, *, deliver: Callable[[BatchJob, int], Batch], clock: Clock
    ) -> None:
        self._engine: Engine[BatchJob] | None = None  # the first attribute, as there
        self._engines = engines
        self._epoch = epoch
        self._deliver = deliver
        self._clock = clock
        self._num_steps = engines.sampler.slicing(consumed).num_steps
        self._step = 0
        self._consumed = consumed
        self._failed = "replaced" if engines.replaces_failed else "skipped"
        self._handed_at: float | None = None
        self._handed_cpu: float | None = None
        self._cpu_share = 0.0  # of the caller's step
        self._process = os.getpid()
        self._turn = threading.RLock()  # for callers' threads among themselves; no thread of ours takes it
        self._is_inside = False
        self._why_ended: str | None = None
        self._engine = engines.take(epoch, consumed, self)

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
                self._engines.sampler.receive(self._epoch, consumed)
            return batch
        except StopIteration:
            raise
        except BaseException:
            self.close()
            raise

    def _next(self) -> tuple[Batch, int]:
        engine = self._engine
        if engine is None:
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
            self._engines.sampler.finish(self._epoch)
            self._engines.hand_on(engine, self._epoch + 1)
            self._engine = None
            raise StopIteration
        job = engine.take()
        if job is None or job.epoch != self._epoch:
            raise UsageError(self._why_ended or "the iteration was closed by another thread")
        taken_at = time.perf_counter()
        batch = self._deliver(job, self._step)
        self._step += 1
        # Asking for the time on a core is slow: one step in sixteen tells enough.
        self._handed_cpu = time.thread_time() if self._step % 16 == 2 else None
        self._handed_at = time.perf_counter()
        self._clock.note_batch(
            self._epoch,
            wait=taken_at - asked_at,
            callables=self._handed_at - taken_at,
            step=step,
            step_cpu=step_cpu,
            samples=len(job.indices),
            **{self._failed: len(job.errors)},
        )
        self._is_inside = False
        return batch, job.step.consumed

    def __len__(self) -> int:
        return self._num_steps - self._step

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("an iterator of a Loader cannot be pickled or copied: make another with iter(loader)")

    def close(self) -> None:
        """Stop the workers and drop what they have prefetched."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()

    def end(self, why: str) -> None:
        """Stop the workers; `next` says why there is nothing more, unless the epoch was over."""
        if self._engine is not None:
            self._why_ended = why
            self.close()
