"""Worker processes that apply a function to a stream of tasks, results in the order of the tasks.

Manages processes, pipes and back-pressure. Each worker has one pipe, and a ring of shared memory for large arrays.
There is no shared queue or lock, so a killed worker leaves nothing locked, and the parent sees its pipe close
immediately. Tasks go out in chunks of up to 100 ms of work, and results come back several at a time; a counter in
shared memory tells which task a worker was on when it died. Memory is bounded: few chunks are in flight, none is sent
while too many results wait, and beyond that the parent reads only from the worker whose result is due. If the parent
dies, the workers exit. Workers are spawned: they inherit no threads, CUDA contexts or locks.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import multiprocessing as mp
import os
import pickle
import queue
import selectors
import signal
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing import connection, resource_tracker
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from converters.engine.shared_bytes import SharedBytes
from dataloading import UsageError, WorkerError

__all__ = ["DeadWorkerError", "Pool", "run_ordered"]

# A worker that holds fewer tasks than this, or than so many chunks, gets more, so that it never waits for the parent.
_AHEAD = 4
_CHUNKS_AHEAD = 2
# Upper bounds of a chunk: the time its tasks take, the bytes they return, and their number; where the work takes many
# tasks at a time, it may be larger.
_CHUNK_SECONDS = 0.1
_CHUNK_BYTES = 1 << 20
_CHUNK_TASKS = 64
_CHUNK_TASKS_AT_ONCE = 1024
# How long the calling process works alone to measure the time per task, and the time that workers must save to be
# started: each needs a core for about half a second before its first result, and gets a copy of the dataset.
_TRIAL_SECONDS = 0.05
_WORTH_SECONDS = 1.0
# How often the length of a chunk is adjusted.
_MEASURED_SECONDS = 0.1
# A worker sends its results when they reach this many bytes or this age, or when its tasks are done.
_SENT_BYTES = 1 << 16
_SENT_SECONDS = 0.005
# Arrays of at least this many bytes are sent outside the pickle.
_BESIDE_BYTES = 1 << 13
# Length of a message's pickle, and the number of arrays outside it; the length of each follows, and its position in the
# ring of shared memory, or that it is in the message.
_FRAME = struct.Struct("<QQ")
_BESIDE = struct.Struct("<Qq")
_IN_MESSAGE = -1
# A worker inherits this: NumPy would start threads that nobody uses, which compete with the workers for a while.
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# Bytes that the parent reads at a time, and buffers that one call of writev takes.
_INBOX_BYTES = 1 << 17
_PARTS_AT_ONCE = 512
# Limits of unfinished tasks and waiting results, in tasks or chunks per worker and in bytes; then no task goes out.
_WINDOW_PER_WORKER = 16
_CHUNKS_PER_WORKER = 4
HELD_BYTES = 256 << 20


class DeadWorkerError(WorkerError):
    """A worker process died.

    Parameters
    ----------
    position : int or None
        Position in the stream of the task it was working on; None while it was starting.
    how : str
        How it ended, for messages.
    """

    def __init__(self, position: int | None, how: str) -> None:
        self.position = position
        self.how = how
        super().__init__(f"a worker process {how}")


def run_ordered(work: Callable[[Any], Any], tasks: Iterable[Any], *, num_workers: int) -> Generator[Any, None, None]:
    """Yield ``work(task)`` for each task, in order; see `Pool` and `Pool.run`."""
    with Pool(work, num_workers=num_workers) as pool:
        yield from pool.run(tasks)


def _check_working_folder() -> None:
    """Refuse a working folder that a new process, which gets its path, could not enter."""
    try:
        os.stat(os.getcwd())
    except OSError as error:
        raise UsageError(
            f"worker processes cannot be started in the working folder ({error.strerror or error}): go to another one, "
            "such as one with a shorter path, or do without them (--num-workers 0, num_workers=0)"
        ) from error


def _sendable(work: Callable[[Any], Any]) -> list[Any]:
    """Return the messages that make ``work`` in a worker: their number, a pickle, and the arrays that it leaves out."""
    if mp.parent_process() is not None and getattr(mp.current_process(), "_inheriting", False):
        raise UsageError(
            "a conversion was started while a worker process was importing your script; "
            "put the call under `if __name__ == '__main__':`"
        )
    try:
        text = io.BytesIO()
        beside: list[pickle.PickleBuffer] = []
        ForkingPickler(text, 5, True, beside.append).dump(work)
        return [b"%d" % (1 + len(beside)), text.getbuffer(), *(buffer.raw() for buffer in beside)]
    except Exception as error:  # pickling runs the user's code, which may raise any exception
        raise UsageError(
            f"the dataset cannot be sent to worker processes: {error}. Define its class at the top level of a module "
            "and open files when a sample is asked for, or pass num_workers=0"
        ) from error


class _Worker:
    """The parent's handle of one process."""

    def __init__(self, number: int, code: list[Any]) -> None:
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe(duplex=True)
        self._num_begun = context.RawValue(ctypes.c_uint64, 0)
        self._num_received = 0
        self.shared = SharedBytes.create()
        self.process = context.Process(
            target=_serve, args=(theirs, self._num_begun, self.shared), name=f"beton-worker-{number}", daemon=True
        )
        self.process.start()
        theirs.close()  # now only the worker holds that end, so the pipe closes when it dies
        self.inbox = _Inbox(self.pipe.fileno(), self.shared)
        self.started = False
        self.positions: deque[int] = deque()
        with contextlib.suppress(OSError):  # the parent detects a dead worker while waiting for it
            for message in code:
                self.pipe.send_bytes(message)

    def give(self, first: int, tasks: list[Any]) -> None:
        self.positions.extend(range(first, first + len(tasks)))
        with contextlib.suppress(OSError):
            self.pipe.send(tasks)

    def received(self, count: int) -> int:
        """Return the position of the first of ``count`` tasks whose result has arrived."""
        self._num_received += count
        first = self.positions[0]
        for _ in range(count):
            self.positions.popleft()
        return first

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
        position = None
        if self.started and self.positions:
            # Some tasks may be done although their results have not arrived.
            ahead = self._num_begun.value - self._num_received - 1
            position = self.positions[min(max(ahead, 0), len(self.positions) - 1)]
        return DeadWorkerError(position, f"(pid {self.process.pid}) {how}")


class _Pace:
    """Computes the number of tasks per chunk from the time and bytes of recent results."""

    def __init__(self, num_workers: int, most_tasks: int) -> None:
        self.chunk = 1
        self._num_workers = num_workers
        self._most_tasks = most_tasks
        self._since = time.monotonic()
        self._count = self._bytes = 0

    def count(self, num_tasks: int, size: int) -> None:
        self._count += num_tasks
        self._bytes += size
        now = time.monotonic()
        if now - self._since < _MEASURED_SECONDS:
            return
        in_time = _CHUNK_SECONDS * self._count / (now - self._since) / self._num_workers
        in_bytes = _CHUNK_BYTES * self._count / self._bytes
        self.chunk = max(1, int(min(in_time, in_bytes, self._most_tasks)))
        self._since, self._count, self._bytes = now, 0, 0


class Pool:
    """Worker processes for one function and several streams of tasks, one stream after another.

    Parameters
    ----------
    work : callable
        Runs in the workers; must be picklable unless ``num_workers`` is 0. It should return its failures: an
        exception it raises ends the run as a `DeadWorkerError`. If it has a method ``many(tasks)``, that is called
        instead: it takes an iterator of tasks and yields ``(number of tasks, result)``, in order.
    num_workers : int
        Processes, started when there are tasks for them; 0 works in the calling process.
    starts_here : bool
        Whether the calling process does the first tasks, and all of them if starting workers would cost more time than
        they save.

    Attributes
    ----------
    num_started : int
        Workers that have been started so far.

    Raises
    ------
    UsageError
        If ``work`` cannot be sent to another process, or processes cannot be started in the working folder.
    """

    def __init__(self, work: Callable[[Any], Any], *, num_workers: int, starts_here: bool = False) -> None:
        if num_workers:
            _check_working_folder()
        self.num_workers = num_workers
        self.num_started = 0
        self._starts_here = starts_here
        self._work = work
        self._code = _sendable(work) if num_workers else []
        self._workers: list[_Worker] = []
        # Results that wait for their turn, by position of the first task, with their numbers of tasks and sizes.
        self._ready: dict[int, tuple[int, Any, int]] = {}
        self._held_bytes = 0
        self._selector: selectors.BaseSelector | None = None

    def run(self, tasks: Iterable[Any], *, count: int | None = None) -> Generator[Any, None, None]:
        """Yield ``work(task)`` for each task, in order; leaving the stream early stops the workers.

        Parameters
        ----------
        tasks : iterable
            Small picklable values (a path, an index); read lazily.
        count : int, optional
            Their number; without it the calling process does no tasks itself.

        Raises
        ------
        DeadWorkerError
            If a worker dies.
        """
        tasks = iter(tasks)
        if self.num_workers == 0:
            yield from (result for _, result in _applied(self._work, tasks))
            return
        try:
            if self._starts_here and not self._workers and count is not None:
                yield from self._results_here(tasks, count)
            yield from self._results(tasks)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _results_here(self, tasks: Iterator[Any], count: int) -> Iterator[Any]:
        """Yield results computed in this process until starting workers pays off, or for all tasks."""
        seconds, done, chunk = 0.0, 0, 1
        while group := list(itertools.islice(tasks, chunk)):
            before = time.monotonic()
            for num_tasks, result in _applied(self._work, iter(group)):
                seconds += time.monotonic() - before
                done += num_tasks
                yield result
                before = time.monotonic()
            saved = seconds / done * (count - done) * (1 - 1 / self.num_workers)
            if seconds >= _TRIAL_SECONDS and saved > _WORTH_SECONDS:
                return
            chunk = min(2 * chunk, _CHUNK_TASKS_AT_ONCE)

    def _results(self, tasks: Iterator[Any]) -> Iterator[Any]:
        given = wanted = 0
        pace = _Pace(self.num_workers, _CHUNK_TASKS_AT_ONCE if hasattr(self._work, "many") else _CHUNK_TASKS)
        # One task is read ahead, so that no worker is started without a task.
        following = list(itertools.islice(tasks, 1))
        while True:
            while following and (worker := self._hungry(given - wanted, pace.chunk)) is not None:
                group = following + list(itertools.islice(tasks, pace.chunk - 1))
                following = list(itertools.islice(tasks, 1))
                worker.give(given, group)
                given += len(group)
            if wanted == given:
                return
            while wanted not in self._ready:
                self._receive(wanted)
            num_tasks, result, size = self._ready.pop(wanted)
            self._held_bytes -= size
            wanted += num_tasks
            pace.count(num_tasks, size)
            yield result

    def _hungry(self, unfinished: int, chunk: int) -> _Worker | None:
        """Return the worker for the next tasks, a new one if all are busy and more are allowed, or None."""
        window = max(_WINDOW_PER_WORKER, _CHUNKS_PER_WORKER * chunk)
        if unfinished >= self.num_workers * window or self._held_bytes > HELD_BYTES:
            return None
        best = min(self._workers, key=lambda worker: len(worker.positions), default=None)
        if (best is None or best.positions) and len(self._workers) < self.num_workers:
            return self._start()
        return best if best is not None and len(best.positions) < max(_AHEAD, _CHUNKS_AHEAD * chunk) else None

    def _start(self) -> _Worker:
        if self._selector is None:
            self._selector = selectors.DefaultSelector()
        with _uninterrupted_start():
            worker = _Worker(len(self._workers), self._code)
            self._workers.append(worker)
            self.num_started += 1
        self._selector.register(worker.pipe, selectors.EVENT_READ, worker)
        # A grandchild could keep a dead worker's pipe open, so the process itself is watched as well.
        self._selector.register(worker.process.sentinel, selectors.EVENT_READ, worker)
        return worker

    def _receive(self, wanted: int) -> None:
        """Wait for results and store them; when too many wait, read only from the worker whose result is due."""
        assert self._selector is not None
        fired = [(key.fileobj, key.data) for key, _ in self._selector.select()]
        if self._held_bytes > HELD_BYTES:  # the others block on their full pipes
            due = next(each for each in self._workers if each.positions and each.positions[0] == wanted)
            fired = [(source, due) for source in connection.wait([due.pipe, due.process.sentinel])]
        pipes = [worker for source, worker in fired if isinstance(source, connection.Connection)]
        for worker in pipes:
            try:
                for (error_text, num_tasks, result), size in worker.inbox.receive():
                    self._take(worker, error_text, num_tasks, result, size)
            except (EOFError, OSError) as error:
                raise worker.death() from error
        if not pipes:
            raise fired[0][1].death()

    def _take(self, worker: _Worker, error_text: str | None, num_tasks: int, result: Any, size: int) -> None:
        if not worker.started:
            worker.started = True
            if error_text is not None:
                raise DeadWorkerError(None, f"cannot make use of the dataset: {error_text}")
            return
        position = worker.received(num_tasks)
        if error_text is not None:
            raise DeadWorkerError(position, f"could not go on: {error_text}")
        self._ready[position] = (num_tasks, result, size)
        self._held_bytes += size

    def close(self) -> None:
        """Stop the workers; another stream would start new ones."""
        # Workers can be killed at any time, since only the parent writes files.
        with _signals_deferred():
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                worker.process.join()
                # A signal's exception may have interrupted Python before it recorded the end of a process; then the
                # process is gone, but Python believes that it is running.
                with contextlib.suppress(ValueError):
                    worker.process.close()
                worker.pipe.close()
                if worker.shared is not None:
                    worker.shared.close()
            self._workers.clear()
        self._ready.clear()
        self._held_bytes = 0
        if self._selector is not None:
            self._selector.close()
            self._selector = None


@contextlib.contextmanager
def _uninterrupted_start() -> Iterator[None]:
    """Start a process with SIGINT and SIGTERM deferred, so that no handler sees it half started.

    Blocking the signals is not enough, since another thread (NumPy has some) may receive them. SIGINT is blocked so
    that the worker inherits that: Ctrl-C goes to the whole process group, and only the parent should act on it.
    """
    resource_tracker.ensure_running()  # else the first start would start it and unblock the signals
    with _signals_deferred():
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        chosen = _BLAS_THREADS in os.environ
        if not chosen:
            os.environ[_BLAS_THREADS] = "1"
        try:
            yield
        finally:
            if not chosen:
                del os.environ[_BLAS_THREADS]
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block."""
    arrived: list[int] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # handlers run in the main thread only
        for signum in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(signum) is not None:
                handlers[signum] = signal.signal(signum, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)


def _serve(pipe: connection.Connection, num_begun: Any, shared: SharedBytes | None) -> None:
    """Run in a worker: read tasks, send ``(error of the worker, number of tasks, result)``, until the parent is gone.

    The first message precedes all tasks and reports whether ``work`` could be unpickled.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    packer = _Packer(shared)
    with contextlib.suppress(EOFError, OSError):
        try:
            text, *beside = (bytearray(pipe.recv_bytes()) for _ in range(int(pipe.recv_bytes())))
            work = pickle.loads(text, buffers=beside)
        except Exception as error:  # unpickling imports and runs the user's code
            _send(pipe, packer.pack((f"{type(error).__name__}: {error}", 0, None))[0])
            return
        # From here on the parent attributes a crash to a task, not to the start.
        _send(pipe, packer.pack((None, 0, None))[0])
        for chunk in _chunks(pipe):
            parts: list[bytes | memoryview] = []
            size, oldest = 0, 0.0
            answers = _answers(work, pickle.loads(chunk), num_begun, packer)
            for answer, has_views in answers:
                now = time.monotonic()
                oldest = oldest if parts else now
                parts += answer
                size += sum(map(len, answer))
                # The next task may overwrite the arrays of this result.
                if has_views or size >= _SENT_BYTES or now - oldest >= _SENT_SECONDS:
                    _send(pipe, parts)
                    parts, size = [], 0
            _send(pipe, parts)


def _answers(
    work: Callable[[Any], Any], tasks: list[Any], num_begun: Any, packer: _Packer
) -> Iterator[tuple[list[bytes | memoryview], bool]]:
    """Yield the messages for a chunk of tasks, up to the first error of the worker."""

    def counted() -> Iterator[Any]:
        for task in tasks:
            num_begun.value += 1
            yield task

    try:
        for num_tasks, result in _applied(work, counted()):
            yield packer.pack((None, num_tasks, result))
    except Exception as error:  # a bug, or a result that cannot be pickled
        yield packer.pack((f"{type(error).__name__}: {error}", 1, None))


def _applied(work: Callable[[Any], Any], tasks: Iterator[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the results of tasks, each with its number of tasks."""
    many = getattr(work, "many", None)
    return ((1, work(task)) for task in tasks) if many is None else many(tasks)


def _chunks(pipe: connection.Connection) -> Iterator[bytes]:
    """Yield the parent's messages. A thread reads them, so that the parent's sends never block."""
    arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                arrived.put(pipe.recv_bytes())
        arrived.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (chunk := arrived.get()) is not None:
        yield chunk


class _Packer:
    """Builds messages: a pickle, and large arrays outside it, in shared memory or as they are."""

    def __init__(self, shared: SharedBytes | None) -> None:
        self._shared = shared
        self._text: list[bytes] = []
        self._beside: list[memoryview] = []
        self.write = self._text.append
        self._pickler = ForkingPickler(self, 5, True, self._take)

    def _take(self, buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _BESIDE_BYTES:
            return True  # stays in the pickle
        self._beside.append(view)
        return False

    def pack(self, value: object) -> tuple[list[bytes | memoryview], bool]:
        """Return the parts of a message, and whether some are the value's own memory."""
        self._text.clear()
        self._beside.clear()
        self._pickler.clear_memo()  # the same object may have new contents by now
        self._pickler.dump(value)
        head = [_FRAME.pack(sum(map(len, self._text)), len(self._beside))]
        views = []
        for view in self._beside:
            position = None if self._shared is None else self._shared.put(view)
            head.append(_BESIDE.pack(view.nbytes, _IN_MESSAGE if position is None else position))
            if position is None:
                views.append(view)
        self._beside.clear()  # keep no reference to the value
        return [b"".join(head), *self._text, *views], bool(views)


def _send(pipe: connection.Connection, parts: list[bytes | memoryview]) -> None:
    while parts:
        sent = os.writev(pipe.fileno(), parts[:_PARTS_AT_ONCE])
        whole = 0
        while whole < len(parts) and sent >= len(parts[whole]):
            sent -= len(parts[whole])
            whole += 1
        parts = parts[whole:]
        if parts:
            parts[0] = memoryview(parts[0])[sent:]


class _Inbox:
    """Reads all available bytes from a worker, and splits them into the messages of `_send`."""

    def __init__(self, descriptor: int, shared: SharedBytes | None) -> None:
        self._descriptor = descriptor
        self._shared = shared
        self._buffer = np.empty(_INBOX_BYTES, np.uint8).data  # not a bytearray, which would be filled with zeros first
        self._start = self._stop = 0

    def receive(self) -> Iterator[tuple[Any, int]]:
        """Wait for a message, and yield it and those after it, each with its size; EOFError if the pipe is closed."""
        if self._start or self._stop < len(self._buffer):
            self._read(1)
        message = self._next(wait=True)
        while message is not None:
            yield message
            message = self._next(wait=False)

    def _next(self, *, wait: bool) -> tuple[Any, int] | None:
        """Return a message; None if it is incomplete and ``wait`` is false."""
        if not self._has(_FRAME.size, wait=wait):
            return None
        text_bytes, count = _FRAME.unpack_from(self._buffer, self._start)
        head_bytes = _FRAME.size + _BESIDE.size * count
        if not self._has(head_bytes, wait=wait):
            return None
        arrays = list(_BESIDE.iter_unpack(self._buffer[self._start :][_FRAME.size : head_bytes]))
        num_bytes = head_bytes + text_bytes + sum(size for size, position in arrays if position == _IN_MESSAGE)
        if not self._has(num_bytes if not wait else head_bytes + text_bytes, wait=wait):
            return None
        text = self._start + head_bytes
        end = text + text_bytes
        # Large arrays are read directly into their own memory.
        beside = []
        position = end
        for size, place in arrays:
            if place != _IN_MESSAGE:
                assert self._shared is not None
                beside.append(self._shared.get(place, size))
                continue
            whole = np.empty(size, np.uint8).data
            here = min(size, self._stop - position)
            whole[:here] = self._buffer[position : position + here]
            position += here
            rest = whole[here:]
            while len(rest):
                rest = rest[self._read_into(rest) :]
            beside.append(whole.toreadonly())
        self._start = position
        all_bytes = head_bytes + text_bytes + sum(size for size, _ in arrays)
        return pickle.loads(self._buffer[text:end], buffers=beside), all_bytes

    def _has(self, size: int, *, wait: bool) -> bool:
        while self._stop - self._start < size:
            if not wait:
                return False
            self._read(size)
        return True

    def _read(self, wanted: int) -> None:
        """Read the available bytes into a buffer with room for ``wanted`` bytes of the next message."""
        if self._start == self._stop:
            self._start = self._stop = 0
        if self._stop == len(self._buffer) or len(self._buffer) - self._start < wanted:
            kept = self._buffer[self._start : self._stop]
            self._buffer = np.empty(max(_INBOX_BYTES, wanted, 2 * len(kept)), np.uint8).data
            self._buffer[: len(kept)] = kept
            self._start, self._stop = 0, len(kept)
        self._stop += self._read_into(self._buffer[self._stop :])

    def _read_into(self, view: memoryview) -> int:
        num_read = os.readv(self._descriptor, [view])
        if num_read == 0:
            raise EOFError
        return num_read


def _end_with_parent() -> None:
    """Exit when the parent is gone, even during a long task."""
    parent = mp.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
