"""Threads that finish jobs in order, and buffers that come back when nobody refers to them any more.

An `Engine` knows nothing of samples or pixels. It takes jobs from a source and lets N threads run the groups of each,
across the borders of jobs, so that no thread idles at a job's end::

    source --> job 0 | job 1 | job 2 ...     made one at a time, at most `max_in_flight` unfinished or not taken
                 |
           groups 0 1 2 3 | 0 1 2 3 |        any thread runs the next group
                 |
    take() <-- job 0, job 1, ...             in order, finished by the thread that ran the last group

Whatever a thread raises is kept with its job and raised again from `take`.

Ctrl-C may raise in the caller's thread between any two instructions. So that thread holds no lock and changes nothing
the workers need: it takes from one queue and puts into another, both written in C. A thread of ours starts and stops
the workers (`dataloading.keeper`).

Threads, not processes: groups run compiled code that releases the GIL.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dataloading._native import this_thread_is_own
from dataloading.finalisers import Note
from dataloading.keeper import Kept, wait_for_threads

__all__ = ["Engine", "Job", "Ring"]

# How often `take` checks whether anything can still come.
_CHECK_SECONDS = 1.0


class Job(Protocol):
    """A unit of ordered work, cut into groups that any thread may run at any time."""

    @property
    def num_groups(self) -> int:
        """Groups to run, at least 1."""
        ...

    def run_group(self, group: int) -> None:
        """Run one group; called once for each, concurrently."""
        ...

    def finish(self) -> None:
        """Complete the job; called once, by the thread that ran the last group."""
        ...


J = TypeVar("J", bound=Job)


class _Entry(Generic[J]):
    """A job in flight, or without a job the end of the source."""

    __slots__ = ("done", "error", "groups", "job", "left")

    def __init__(self, job: J | None, error: BaseException | None) -> None:
        self.job = job
        self.error = error
        self.done = job is None
        # Several threads take from both: advancing the iterator of a range is one step.
        num_groups = 0 if job is None else job.num_groups
        self.groups = iter(range(num_groups))
        self.left = iter(range(num_groups - 1, -1, -1))


class Engine(Generic[J]):
    """Run the jobs of `source` on threads and hand them out in order. Dropping it ends the threads.

    Parameters
    ----------
    source : iterator of jobs
        Advanced by one worker at a time, only as far as `max_in_flight` allows.
    num_workers : int
        Threads, at least 1.
    max_in_flight : int
        Jobs that may be started but not yet taken, at least 1.
    on_stop : callable, optional
        Called when stopping begins: ends what the source may be waiting for.
    on_end : callable, optional
        Called when the threads have ended and the source is closed. Both run on a thread of ours.

    Notes
    -----
    Threads are daemons, so that an interpreter that exits with an engine open does not wait for it.
    """

    def __init__(
        self,
        source: Iterator[J],
        *,
        num_workers: int,
        max_in_flight: int,
        on_stop: Callable[[], object] | None = None,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self._crew = _Crew(source, num_workers, max_in_flight, on_stop, on_end)
        self.is_stopped = False  # or about to be
        self._kept = Kept(self._crew.begin, self._crew.end)

    def take(self) -> J | None:
        """Wait for the next job in order; None once the source has ended, or the engine was stopped.

        Raises
        ------
        BaseException
            What a thread raised while making or running this job.
        """
        crew = self._crew
        while True:
            try:
                entry = crew.ready.get(True, _CHECK_SECONDS)
            except Empty:
                if crew.over and crew.ready.empty():
                    return None
                continue
            if entry is None:
                return None
            crew.tasks.put(_ROOM)
            if entry.error is not None:
                raise entry.error
            return entry.job

    def stop(self) -> None:
        """End the threads after the group each is running, and drop all jobs. May be called twice."""
        self.is_stopped = True
        self._kept.end()


class _Signal:
    """What is put among the tasks instead of a group to run."""


# A job was taken; perhaps another can be made; the thread ends, and passes this on.
_ROOM, _LOOK, _END = _Signal(), _Signal(), _Signal()


class _Crew(Generic[J]):
    """The threads of an engine, and what they share. Refers to nobody who owns the engine."""

    def __init__(
        self,
        source: Iterator[J],
        num_workers: int,
        max_in_flight: int,
        on_stop: Callable[[], object] | None,
        on_end: Callable[[], object] | None,
    ) -> None:
        self._source = source
        self._on_stop = on_stop
        self._on_end = on_end
        self._num_workers = num_workers
        self.tasks: SimpleQueue[_Entry[J] | _Signal] = SimpleQueue()  # an entry once for each of its groups
        self.ready: SimpleQueue[_Entry[J] | None] = SimpleQueue()
        self.stopped = False
        self.over = False  # nothing more will be put into `ready`
        self._lock = threading.Lock()  # never taken in a caller's thread
        self._entries: deque[_Entry[J]] = deque()
        self._making = False  # one thread is advancing the source
        self._exhausted = False
        self._num_rooms = max_in_flight  # for jobs that may be made
        self._num_queued = 0  # groups that no thread has taken
        self._threads: list[threading.Thread] = []
        self._left: SimpleQueue[None] = SimpleQueue()

    # ---- on the keeper's thread

    def begin(self) -> None:
        self.tasks.put(_LOOK)
        try:
            for k in range(self._num_workers):
                thread = threading.Thread(target=self._run, name=f"beton-{k}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:  # no more threads: nobody would ever stop those that have begun
            self.end(None)
            raise

    def end(self, _begun: None) -> None:
        self.stopped = True
        if self._on_stop is not None:
            self._on_stop()
        self.tasks.put(_END)
        for _ in self._threads:
            self._left.get()
        wait_for_threads(self._threads)
        # A thread that is freed runs Python code of `threading`, which an interrupt must not find in a caller's thread.
        self._threads.clear()
        self._entries.clear()
        self.over = True
        _empty(self.tasks)
        _empty(self.ready)
        close = getattr(self._source, "close", None)
        if close is not None:
            close()
        if self._on_end is not None:
            self._on_end()
        self.ready.put(None)

    # ---- on the workers' threads

    def _run(self) -> None:
        this_thread_is_own()
        try:
            while not self.stopped:
                task = self.tasks.get()
                if task is _END:
                    break
                if isinstance(task, _Signal):
                    self._make(is_room=task is _ROOM)
                elif not self.stopped:
                    self._run_group(task)
                del task  # a thread that waits keeps no batch
        finally:
            self.tasks.put(_END)
            self._left.put(None)

    def _make(self, *, is_room: bool) -> None:
        """Make the next job if there is room, but not before all groups are taken.

        Making one may wait for what only the jobs before it release, on this machine or in another process.
        """
        with self._lock:
            self._num_rooms += is_room
            if self._making or self._exhausted or not self._num_rooms or self._num_queued:
                return
            self._making = True
            self._num_rooms -= 1
        job: J | None = None
        error: BaseException | None = None
        try:
            job = next(self._source, None)
        except BaseException as caught:  # it is raised again in the caller's thread
            error = caught
        entry = _Entry(job, error)
        with self._lock:
            self._making, self._exhausted = False, job is None
            self._entries.append(entry)
            self._num_queued += 0 if job is None else job.num_groups
        if job is None:
            self._hand_out()
            self.tasks.put(_END)
            return
        for _ in range(job.num_groups):
            self.tasks.put(entry)

    def _run_group(self, entry: _Entry[J]) -> None:
        job = entry.job
        assert job is not None
        with self._lock:
            self._num_queued -= 1
            may_make = not (self._num_queued or self._making or self._exhausted) and self._num_rooms > 0
        if may_make:
            self.tasks.put(_LOOK)  # for whoever is free first
        group = next(entry.groups)
        if entry.error is None:  # a failed job's remaining groups are not run
            try:
                job.run_group(group)
            except BaseException as caught:  # it is raised again in the caller's thread
                entry.error = entry.error or caught
        if next(entry.left):
            return
        if entry.error is None:
            try:
                job.finish()
            except BaseException as caught:  # it is raised again in the caller's thread
                entry.error = caught
        entry.done = True
        self._hand_out()

    def _hand_out(self) -> None:
        with self._lock:
            while self._entries and self._entries[0].done:
                entry = self._entries.popleft()
                if entry.job is not None or entry.error is not None:
                    self.ready.put(entry)
                if entry.job is None:
                    self.ready.put(None)
                    self.over = True


def _empty(queue: SimpleQueue[Any]) -> None:
    with contextlib.suppress(Empty):
        while True:
            queue.get_nowait()


class Ring:
    """Buffers of one size, each lent until the last array or tensor over it is gone.

    A lent buffer is a new array. Whatever is made from it (views, tensors, slices of tensors) keeps it alive; when all
    have been dropped, its memory returns here. So a user who keeps batches makes the ring grow by these batches, and
    never sees their bytes change.

    Parameters
    ----------
    num_bytes : int
        Size of each buffer.
    capacity : int
        Free buffers to keep; what comes back beyond that is given to the allocator. `keep` changes it.
    allocate : callable, optional
        ``allocate(num_bytes)`` returns a uint8 array; the default is page-aligned ordinary memory.
    """

    def __init__(
        self, num_bytes: int, capacity: int = 1, allocate: Callable[[int], npt.NDArray[np.uint8]] | None = None
    ) -> None:
        self.num_bytes = num_bytes
        self._allocate = allocate or _aligned
        # Notes of loans that are over, with their memory. One more than fits drops the oldest.
        self._free: deque[Note] = deque(maxlen=capacity)

    def keep(self, capacity: int) -> None:
        """Keep so many free buffers; before the first is lent."""
        self._free = deque(self._free, maxlen=capacity)

    def lend(self) -> npt.NDArray[np.uint8]:
        """Lend one buffer, uint8 of shape (num_bytes,), contents undefined."""
        try:
            memory = self._free.pop().attached  # the one used last is the one the cache knows
        except IndexError:
            memory = self._allocate(self.num_bytes)
        loan = _Loan()
        loan.__array_interface__ = memory.__array_interface__
        # Of a loan in a cycle of garbage the note goes too, and the memory with it.
        loan.note = Note(loan, self._free.append, memory)
        return np.asarray(loan)

    @property
    def num_free(self) -> int:
        """Buffers that nobody uses now."""
        return len(self._free)


class _Loan:
    """Owns a buffer for as long as an array is based on this object."""

    __slots__ = ("__array_interface__", "__weakref__", "note")
    __array_interface__: dict[str, Any]
    note: Note


def _aligned(num_bytes: int, alignment: int = 4096) -> npt.NDArray[np.uint8]:
    block = np.empty(num_bytes + alignment, np.uint8)
    start = -block.ctypes.data % alignment
    return block[start : start + num_bytes]
