"""One pass over an epoch: an iterator, and the engines that feed it and its successor.

Knows when workers start, are handed on to the next epoch, and stop. Knows nothing of how a batch is made.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator

from dataloading.assembly import BatchJob, Recipe
from dataloading.batch import Batch
from dataloading.finalisers import from_caller, run_outside
from dataloading.sampler import ForeignSampler, ShardSampler
from dataloading.slicing import Ranges
from dataloading.stats import Clock
from dataloading.supply import Storage
from dataloading.workers import Engine

__all__ = ["Engines", "EpochIterator"]


class Engines:
    """The engines of one loader: those in use, and one that has already begun the epoch after the last.

    Parameters
    ----------
    cursor : ShardSampler or ForeignSampler
    recipe : Recipe
    num_workers, max_in_flight : int
        Of each engine.
    go_on : bool
        Go on with the next epoch when one has been received to its end.
    read_ahead : callable
        Asks the system for byte ranges of the file that later steps will need.
    storage : Storage, optional
        Brings pages through a cache of our own instead.

    Notes
    -----
    Must not refer to the loader: it would never be dropped while its threads wait.
    """

    def __init__(
        self,
        cursor: ShardSampler | ForeignSampler,
        recipe: Recipe,
        *,
        num_workers: int,
        max_in_flight: int,
        go_on: bool,
        read_ahead: Callable[[Ranges], None],
        storage: Storage | None = None,
    ) -> None:
        self.cursor = cursor
        # A foreign sampler may be told its epoch, or draw its numbers, only when the next iteration begins.
        self._goes_on = go_on and isinstance(cursor, ShardSampler)
        self._recipe = recipe
        self._read_ahead = read_ahead
        self._storage = storage
        self._num_workers = num_workers
        self._max_in_flight = max_in_flight
        self._in_use: set[Engine[BatchJob]] = set()
        self._waiting: tuple[Engine[BatchJob], int] | None = None  # and the epoch it has begun
        self._process = os.getpid()

    def take(self, epoch: int, consumed: int) -> Engine[BatchJob]:
        """Take the engine that has already begun this epoch, or start one."""
        from_caller()
        if os.getpid() != self._process:
            # Forked: the parent's threads do not exist here, and their locks must not be waited for.
            self._in_use, self._waiting, self._process = set(), None, os.getpid()
            self._recipe.clock.after_fork()
        if self._waiting is not None:
            engine, begun = self._waiting
            self._waiting = None
            if (begun, 0) == (epoch, consumed):
                self._in_use.add(engine)
                return engine
            self._end(engine)
        stopped = threading.Event()
        engine = Engine(
            self._jobs(epoch, consumed, stopped),
            num_workers=self._num_workers,
            max_in_flight=self._max_in_flight,
            on_stop=stopped.set,
        )
        self._in_use.add(engine)
        return engine

    def hand_on(self, engine: Engine[BatchJob], epoch: int) -> None:
        """Take back an engine whose epoch is over: it goes on with `epoch`, or stops."""
        if self._goes_on and self._waiting is None:
            self._in_use.discard(engine)
            self._waiting = engine, epoch
        else:
            self.stop(engine)

    def stop(self, engine: Engine[BatchJob]) -> None:
        """Stop one engine and drop what it has prefetched; nothing if that has been done."""
        if engine in self._in_use:
            self._end(engine)
            self._in_use.discard(engine)  # only now: what Ctrl-C cuts short is done by the next one who stops it

    def end_with(self, owner: object) -> None:
        """Stop all of them when `owner` is dropped, or the interpreter exits and its threads are not yet torn down."""
        weakref.finalize(owner, run_outside, self.stop_all)

    def drop_begun(self) -> None:
        """Stop the engine that has already begun the next epoch, if there is one: its order is not wanted any more."""
        if self._waiting is not None:
            self._end(self._waiting[0])
            self._waiting = None

    def stop_all(self) -> None:
        """Stop all of them, and wait for copies to the device."""
        self.drop_begun()
        for engine in list(self._in_use):
            self.stop(engine)
        self._recipe.transfer.drain()

    def _end(self, engine: Engine[BatchJob]) -> None:
        if os.getpid() != self._process:
            return  # forked: there is nothing of it here
        engine.stop()
        if self._storage is not None:
            self._storage.cache.release_dropped()  # the pins of batches that nobody finishes any more

    def _jobs(self, epoch: int, consumed: int, stopped: threading.Event) -> Iterator[BatchJob]:
        """Give the jobs of this epoch from `consumed` on, then those of the epochs that follow."""
        supply = None if self._storage is None else self._storage.supply(stopped.is_set)
        try:
            while True:
                with self._recipe.clock.measure("sampler"):
                    order = self.cursor.order(epoch, consumed)
                for number, job in enumerate(self._recipe.jobs(order, epoch, supply)):
                    if supply is None:
                        self._read_ahead(order.readahead(number))
                    yield job
                if not self._goes_on or self.cursor.slicing().num_steps == 0:
                    return
                epoch, consumed = epoch + 1, 0
        finally:
            if supply is not None:
                supply.close()


class EpochIterator(Iterator[Batch]):
    """One pass over the rest of an epoch. Dropping it stops its workers.

    Parameters
    ----------
    engines : Engines
    epoch, consumed : int
        Where to begin.
    deliver : callable
        Makes the caller's batch of a finished job and its number.
    clock : Clock
    """

    def __init__(
        self, engines: Engines, epoch: int, consumed: int, *, deliver: Callable[[BatchJob, int], Batch], clock: Clock
    ) -> None:
        self._engine: Engine[BatchJob] | None = None
        self._engines = engines
        self._epoch = epoch
        self._deliver = deliver
        self._clock = clock
        self._num_steps = engines.cursor.slicing(consumed).num_steps
        self._step = 0
        self._handed_at: float | None = None
        self._engine = engines.take(epoch, consumed)

    def __next__(self) -> Batch:
        if self._engine is None:
            raise StopIteration
        asked_at = time.perf_counter()
        if self._handed_at is not None:
            self._clock.add_consumer(asked_at - self._handed_at)
            self._handed_at = None
        if self._step == self._num_steps:
            engine, self._engine = self._engine, None
            self._engines.cursor.finish(self._epoch)
            self._engines.hand_on(engine, self._epoch + 1)
            raise StopIteration
        try:
            job = self._engine.take()
            assert job is not None and job.epoch == self._epoch, "the order ended before its steps were counted out"
            batch = self._deliver(job, self._step)
        except BaseException:
            self.close()
            raise
        self._engines.cursor.receive(self._epoch, job.step.consumed)
        self._step += 1
        self._handed_at = time.perf_counter()
        self._clock.add("wait", self._handed_at - asked_at)
        return batch

    def __len__(self) -> int:
        return self._num_steps - self._step

    def close(self) -> None:
        """Stop the workers and drop what they have prefetched."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            self._engines.stop(engine)

    def __del__(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            run_outside(functools.partial(self._engines.stop, engine))
