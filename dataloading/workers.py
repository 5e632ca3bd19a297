"""Threads that finish jobs in order, and buffers that come back when nobody looks at them any more.

An `Engine` knows nothing of samples or pixels. It takes jobs from a source, cuts each into groups of
items, and lets N threads run groups across the borders of jobs, so that no thread idles at a job's tail::

    source --> job 0 | job 1 | job 2 ...     made one at a time, at most `max_in_flight` unfinished or unread
                 |
           groups 0 1 2 3 | 0 1 2 3 |        any thread takes the next group
                 |
    take() <-- job 0, job 1, ...             in order, the last thread of a job has finished it

Errors travel: whatever a thread raises is kept in its job and raised again from `take`.

Threads, not processes: groups run compiled code that has let go of the interpreter lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Engine", "Job", "Ring"]


class Job(Protocol):
    """A unit of ordered work, cut into groups that any thread may run at any time."""

    @property
    def num_groups(self) -> int:
        """Groups to run, at least 1."""
        ...

    def run_group(self, group: int, worker: int) -> None:
        """Do one group on thread `worker`; called once for each group, concurrently."""
        ...

    def finish(self) -> None:
        """Complete the job; called once, by the thread that ran the last group."""
        ...


J = TypeVar("J", bound=Job)


class _Entry(Generic[J]):
    """A job in flight."""

    __slots__ = ("done", "error", "job", "next_group", "num_running", "num_unfinished")

    def __init__(self, job: J) -> None:
        self.job = job
        self.next_group = 0
        self.num_unfinished = job.num_groups
        self.num_running = 0
        self.done = False
        self.error: BaseException | None = None


class Engine(Generic[J]):
    """Run the jobs of `source` on threads and hand them out in order.

    Parameters
    ----------
    source : iterator of jobs
        Advanced by one worker at a time, only as far as `max_in_flight` allows.
    num_workers : int
        Threads, at least 1.
    max_in_flight : int
        Jobs that may be started but not yet taken, at least 1.
    name : str
        Prefix of the threads' names.
    on_stop : callable, optional
        Called when `stop` begins: ends what the source may be waiting for.

    Notes
    -----
    Threads are daemons, so that an interpreter that exits with an engine open does not wait for it;
    `stop` waits for them and is what owners call.
    """

    def __init__(
        self,
        source: Iterator[J],
        *,
        num_workers: int,
        max_in_flight: int,
        name: str = "beton",
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        self._source = source
        self._on_stop = on_stop
        self._max_in_flight = max_in_flight
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # something to do, or the end
        self._done = threading.Condition(self._lock)  # the head of the queue may be complete
        self._entries: deque[_Entry[J]] = deque()
        self._making = False  # one thread is advancing the source
        self._exhausted = False
        self._source_error: BaseException | None = None
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, args=(k,), name=f"{name}-{k}", daemon=True) for k in range(num_workers)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # Ctrl-C, or no more threads: nobody would ever stop those that have begun
            self.stop()
            raise

    def take(self) -> J | None:
        """Wait for the next job in order; None once the source has ended.

        Raises
        ------
        BaseException
            What a thread raised while making or running this job.
        """
        with self._done:
            while True:
                if self._entries:
                    if self._entries[0].done:
                        entry = self._entries.popleft()
                        self._work.notify()
                        if entry.error is not None:
                            raise entry.error
                        return entry.job
                elif self._source_error is not None:
                    raise self._source_error
                elif self._exhausted or self._stopped:
                    return None
                self._done.wait()

    @property
    def num_ready(self) -> int:
        """Finished jobs that wait to be taken, for statistics."""
        with self._lock:
            return sum(entry.done for entry in self._entries)

    def stop(self) -> None:
        """End the threads after the group each is running, and drop all jobs. May be called twice."""
        if self._on_stop is not None:
            self._on_stop()
        with self._lock:
            self._stopped = True
            self._work.notify_all()
            self._done.notify_all()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()
        self._entries.clear()
        close = getattr(self._source, "close", None)
        if close is not None:
            with contextlib.suppress(ValueError):  # a generator that is running belongs to the thread in it
                close()

    def _run(self, worker: int) -> None:
        while True:
            with self._work:
                entry = self._claim()
                if entry is None:
                    return
                group = entry.next_group
                entry.next_group += 1
                entry.num_running += 1
            error: BaseException | None = None
            try:
                entry.job.run_group(group, worker)
            except BaseException as caught:  # it is raised again in the caller's thread
                error = caught
            self._settle(entry, error)

    def _claim(self) -> _Entry[J] | None:
        """Find an entry with a group left, making the next job if need be. Holds the lock, may let go of it."""
        while not self._stopped:
            for entry in self._entries:
                if entry.error is None and entry.next_group < entry.job.num_groups:
                    return entry
            if self._exhausted and not self._making:
                return None
            if self._making or self._exhausted or len(self._entries) >= self._max_in_flight:
                self._work.wait()
                continue
            self._making = True
            self._lock.release()
            job: J | None = None
            error: BaseException | None = None
            try:
                job = next(self._source, None)
            except BaseException as caught:  # it is raised again in the caller's thread
                error = caught
            finally:
                self._lock.acquire()
                self._making = False
            if job is not None:
                self._entries.append(_Entry(job))
            else:
                self._exhausted = True
                self._source_error = error
                self._done.notify_all()
            self._work.notify_all()
        return None

    def _settle(self, entry: _Entry[J], error: BaseException | None) -> None:
        with self._lock:
            entry.num_running -= 1
            entry.num_unfinished -= 1
            if error is not None and entry.error is None:
                entry.error = error
            # A failed job's remaining groups are never claimed: it is complete once nobody is inside it.
            complete = entry.num_running == 0 if entry.error else entry.num_unfinished == 0
        if not complete:
            return
        if entry.error is None:
            try:
                entry.job.finish()
            except BaseException as caught:  # it is raised again in the caller's thread
                entry.error = caught
        with self._lock:
            entry.done = True
            self._done.notify_all()


class Ring:
    """Buffers of one size, each lent until the last array or tensor over it is gone.

    A lent buffer is a fresh array; whatever is made from it (views, tensors, slices of tensors) keeps it
    alive, and its memory returns here by itself when they have all been dropped. A user who keeps
    batches therefore makes the ring grow by just these batches, and never sees their bytes change.

    Parameters
    ----------
    num_bytes : int
        Size of each buffer.
    capacity : int
        Free buffers to keep; what comes back beyond that is given to the allocator.
    allocate : callable, optional
        ``allocate(num_bytes)`` returns a uint8 array; the default is page-aligned ordinary memory.
    """

    def __init__(
        self, num_bytes: int, capacity: int, allocate: Callable[[int], npt.NDArray[np.uint8]] | None = None
    ) -> None:
        self.num_bytes = num_bytes
        self._capacity = capacity
        self._allocate = allocate or _aligned
        self._free: deque[npt.NDArray[np.uint8]] = deque()

    def lend(self) -> npt.NDArray[np.uint8]:
        """Lend one buffer, uint8 of shape (num_bytes,), contents undefined."""
        try:
            memory = self._free.pop()  # the one used last is the one the cache knows
        except IndexError:
            memory = self._allocate(self.num_bytes)
        return np.asarray(_Loan(memory, self))

    def _return(self, memory: npt.NDArray[np.uint8]) -> None:
        # Called from whatever thread drops the last reference, perhaps inside a lock: only atomic deque operations.
        if len(self._free) < self._capacity:
            self._free.append(memory)

    @property
    def num_free(self) -> int:
        """Buffers that nobody uses now."""
        return len(self._free)


class _Loan:
    """Owns a buffer for as long as an array is based on this object."""

    __slots__ = ("__array_interface__", "_memory", "_ring")

    def __init__(self, memory: npt.NDArray[np.uint8], ring: Ring) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory
        self._ring = ring

    def __del__(self) -> None:
        self._ring._return(self._memory)


def _aligned(num_bytes: int, alignment: int = 4096) -> npt.NDArray[np.uint8]:
    block = np.empty(num_bytes + alignment, np.uint8)
    start = -block.ctypes.data % alignment
    return block[start : start + num_bytes]
