"""Worker processes that apply a function to a stream of tasks, results in the order of the tasks.

Owns processes, pipes and back-pressure; knows nothing of images. One pipe a worker and no shared queue or lock, so a
worker killed at any instant can leave nothing locked, and the end of its pipe tells the parent at once. Memory is
bounded: a fixed number of tasks is in flight, and no new ones are handed out while finished results wait in excess.
If the parent dies, each worker ends by itself. Workers are started fresh (spawn): nothing of the parent's threads,
CUDA contexts or locks is inherited.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing import connection, resource_tracker
from multiprocessing.reduction import ForkingPickler
from typing import Any

from dataloading import UsageError, WorkerError

__all__ = ["DeadWorkerError", "run_ordered"]

# Tasks a worker holds beside the one it works on, so that it never waits for the parent.
_AHEAD = 3
# Results that wait for an earlier one, in tasks per worker and in bytes; beyond either, no new tasks go out.
_WINDOW_PER_WORKER = 16
_HELD_BYTES = 256 << 20


class DeadWorkerError(WorkerError):
    """A worker process ended although nobody asked it to.

    Parameters
    ----------
    position : int or None
        Position in the stream of the task it was working on; None while it was starting.
    how : str
        How it ended, in words.
    """

    def __init__(self, position: int | None, how: str) -> None:
        self.position = position
        self.how = how
        super().__init__(f"a worker process {how}")


def run_ordered(work: Callable[[Any], Any], tasks: Iterable[Any], *, num_workers: int) -> Generator[Any, None, None]:
    """Yield ``work(task)`` for each task, in order.

    Parameters
    ----------
    work : callable
        Runs in the workers; must be picklable unless ``num_workers`` is 0. It should return its failures: an
        exception it raises ends the run as a `DeadWorkerError`.
    tasks : iterable
        Small picklable values (a path, an index); read lazily.
    num_workers : int
        Processes to start; 0 works in the calling process. More than there are tasks are never started.

    Yields
    ------
    object
        One result for each task.

    Raises
    ------
    UsageError
        If ``work`` cannot be sent to another process.
    DeadWorkerError
        If a worker ends early.
    """
    if num_workers == 0:
        yield from map(work, tasks)
        return
    if mp.parent_process() is not None and getattr(mp.current_process(), "_inheriting", False):
        raise UsageError(
            "a conversion was started while a worker process was importing your script; "
            "put the call under `if __name__ == '__main__':`"
        )
    try:
        code = bytes(ForkingPickler.dumps(work))
    except Exception as error:  # pickling runs the user's code, which may raise anything
        raise UsageError(
            f"the dataset cannot be sent to worker processes: {error}. Define its class at the top level of a module "
            "and open files when a sample is asked for, or pass num_workers=0"
        ) from error
    with contextlib.closing(_Workers(code, num_workers)) as workers:
        yield from workers.run(iter(tasks))


class _Worker:
    """The parent's handle of one process."""

    def __init__(self, number: int, code: bytes) -> None:
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe(duplex=True)
        self.process = context.Process(target=_serve, args=(theirs,), name=f"beton-worker-{number}", daemon=True)
        self.process.start()
        theirs.close()  # now only the worker holds that end, so its death ends the pipe
        self.started = False
        self.positions: deque[int] = deque()
        with contextlib.suppress(OSError):  # a worker that is dead already is noticed where it is waited for
            self.pipe.send_bytes(code)

    def give(self, position: int, task: object) -> None:
        self.positions.append(position)
        with contextlib.suppress(OSError):
            self.pipe.send(task)

    def death(self) -> DeadWorkerError:
        self.process.join(timeout=1)
        code = self.process.exitcode
        if code is None:
            how = "closed its pipe"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (by hand, or by the system because memory ran out)"
        else:
            how = f"ended with exit code {code}"
        at_work = self.started and self.positions
        return DeadWorkerError(self.positions[0] if at_work else None, f"(pid {self.process.pid}) {how}")


class _Workers:
    """All processes of one run, and the results that wait for their turn."""

    def __init__(self, code: bytes, limit: int) -> None:
        self._code = code
        self._limit = limit
        self._workers: list[_Worker] = []
        self._ready: dict[int, tuple[Any, int]] = {}
        self._held_bytes = 0

    def run(self, tasks: Iterator[Any]) -> Iterator[Any]:
        given = wanted = 0
        more = True
        while True:
            while more and self._may_give(given - wanted):
                try:
                    task = next(tasks)
                except StopIteration:
                    more = False
                    break
                self._idlest().give(given, task)
                given += 1
            if wanted == given:
                return
            while wanted not in self._ready:
                self._receive()
            result, size = self._ready.pop(wanted)
            self._held_bytes -= size
            wanted += 1
            yield result

    def _may_give(self, unfinished: int) -> bool:
        if unfinished >= self._limit * _WINDOW_PER_WORKER or self._held_bytes > _HELD_BYTES:
            return False
        return len(self._workers) < self._limit or any(len(worker.positions) <= _AHEAD for worker in self._workers)

    def _idlest(self) -> _Worker:
        best = min(self._workers, key=lambda worker: len(worker.positions), default=None)
        if best is None or (best.positions and len(self._workers) < self._limit):
            with _undisturbed_start():
                best = _Worker(len(self._workers), self._code)
                self._workers.append(best)
        return best

    def _receive(self) -> None:
        """Wait until something happens and take in what has arrived."""
        by_handle: dict[Any, _Worker] = {}
        for worker in self._workers:
            by_handle[worker.pipe] = worker
            # A grandchild could keep a dead worker's pipe open; the process itself tells as well.
            by_handle[worker.process.sentinel] = worker
        fired = connection.wait(list(by_handle))
        pipes = [handle for handle in fired if isinstance(handle, connection.Connection)]
        for pipe in pipes:
            worker = by_handle[pipe]
            try:
                message = worker.pipe.recv_bytes()
            except (EOFError, OSError) as error:
                raise worker.death() from error
            error_text, result = pickle.loads(message)
            if not worker.started:
                worker.started = True
                if error_text is not None:
                    raise DeadWorkerError(None, f"cannot make use of the dataset: {error_text}")
                continue
            position = worker.positions.popleft()
            if error_text is not None:
                raise DeadWorkerError(position, f"could not go on: {error_text}")
            self._ready[position] = (result, len(message))
            self._held_bytes += len(message)
        if not pipes:
            raise by_handle[fired[0]].death()

    def close(self) -> None:
        # Workers hold nothing worth finishing: they only read, and the parent alone writes.
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.process.close()
            worker.pipe.close()
        self._workers.clear()
        self._ready.clear()


@contextlib.contextmanager
def _undisturbed_start() -> Iterator[None]:
    """Start a process with SIGINT and SIGTERM put off, so that they find it whole or not at all.

    Blocking them is not enough, since another thread (NumPy has some) may receive them for the process; it is done
    so that the worker inherits SIGINT blocked: Ctrl-C goes to the whole group, and only the parent should act on it.
    """
    resource_tracker.ensure_running()  # else the first start would do it, and unblock the signals
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    arrived: list[int] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # nowhere else can a handler interrupt
        for signum in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(signum) is not None:
                handlers[signum] = signal.signal(signum, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number in arrived:
            signal.raise_signal(number)


def _serve(pipe: connection.Connection) -> None:
    """Work as a process: one task in, one ``(fault of the worker, result)`` out, until the parent is gone.

    The first answer comes before any task and tells whether ``work`` has arrived.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        try:
            work = pickle.loads(pipe.recv_bytes())
        except Exception as error:  # unpickling imports and runs the user's code
            pipe.send_bytes(ForkingPickler.dumps((f"{type(error).__name__}: {error}", None)))
            return
        # The parent then knows that later ends are a task's fault and not the start's.
        pipe.send_bytes(ForkingPickler.dumps((None, None)))
        while True:
            task = pipe.recv()
            try:
                answer = ForkingPickler.dumps((None, work(task)))
            except Exception as error:  # a bug, or a result that cannot be pickled; the parent must hear of it
                answer = ForkingPickler.dumps((f"{type(error).__name__}: {error}", None))
            pipe.send_bytes(answer)


def _end_with_parent() -> None:
    """Leave at once when the parent is gone, also in the middle of a long task."""
    parent = mp.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
