"""Results come in the order of the tasks, from any number of workers; a dead worker is noticed; nobody lingers."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.engine.pool import DeadWorkerError, Pool, run_ordered
from dataloading import UsageError


def square(task: int) -> tuple[int, int]:
    time.sleep((task % 3) * 0.002)  # so that workers finish out of order
    return task * task, os.getpid()


def of_many_sizes(task: int) -> tuple[int, bytes, list[np.ndarray]]:
    rng = np.random.default_rng(task)
    text = bytes(int(rng.choice([0, 10, 5000, 130_000, 300_000])))
    # About the sizes from which on arrays travel by themselves, and those of the buffers in between.
    sizes = rng.choice([0, 1, 8191, 8192, 131_071, 131_073, 262_144, 1_000_001], int(rng.integers(4)))
    return task, text, [rng.integers(0, 256, int(size), dtype=np.uint8) for size in sizes]


def large(task: int) -> bytes:
    return bytes([task]) * (1 << 20)


def arrays(task: int) -> dict[str, Any]:
    return {
        "small": np.arange(task),
        "large": np.full(task * 100_003, task, np.uint8),
        "rows": np.arange(task * 3000).reshape(3, -1),
        "text": b"bytes",
    }


def dying_with_much_to_say(task: int) -> Any:
    return _dying_after(1000, task)


def dying_in_the_middle_of_an_array(task: int) -> Any:
    return _dying_after(100_000, task)


def _dying_after(num_bytes: int, task: int) -> Any:
    if task == 5:
        write = os.write

        def killed(descriptor: int, parts: Any) -> int:
            write(descriptor, b"".join(parts)[:num_bytes])
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        os.writev = killed  # type: ignore[assignment]
        return np.ones(1 << 24, np.uint8)  # too large for the shared memory
    return task


class Reusing:
    """Returns one array, filled anew each time, as a dataset with a buffer does."""

    def __init__(self, size: int) -> None:
        self._array = np.zeros(size, np.uint8)

    def __call__(self, task: int) -> np.ndarray:
        self._array[:] = task % 251
        return self._array


def deadly_late(task: int) -> int:
    if task == 7000:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def echoing(task: bytes) -> bytes:
    return task


def slow_once(task: int) -> bytes:
    if task == 4000:
        time.sleep(1)
    return bytes(20_000)


def deadly(task: int) -> int:
    if task == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def leaving(task: int) -> int:
    os._exit(7)


def blas_threads(task: int) -> str | None:
    return os.environ.get("OPENBLAS_NUM_THREADS")


def failing(task: int) -> int:
    raise ValueError("a fault of the worker itself")


class Unsendable:
    def __call__(self, task: int) -> int:
        return task

    def __reduce__(self) -> Any:
        raise TypeError("holds an open file")


class Unarriving:
    def __call__(self, task: int) -> int:
        return task

    def __reduce__(self) -> Any:
        return _cannot_be_made, ()


def _cannot_be_made() -> None:
    if os.getpid() != _OWNER:
        raise LookupError("no such class here")


_OWNER = int(os.environ.setdefault("BETON_TEST_OWNER", str(os.getpid())))


def children() -> set[int]:
    """The processes that this one has started, without Python's own resource tracker."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in found if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_results_come_in_order(num_workers: int) -> None:
    before = children()
    results = list(run_ordered(square, range(101), num_workers=num_workers))
    assert [value for value, _ in results] == [task * task for task in range(101)]
    workers = {pid for _, pid in results}
    assert workers == {os.getpid()} if num_workers == 0 else len(workers) == num_workers
    assert children() == before


@pytest.mark.parametrize("num_tasks", [0, 1, 3])
def test_no_more_workers_than_tasks(num_tasks: int) -> None:
    results = list(run_ordered(square, range(num_tasks), num_workers=16))
    assert [value for value, _ in results] == [task * task for task in range(num_tasks)]
    assert len({pid for _, pid in results}) <= num_tasks


def test_tasks_are_taken_only_as_far_ahead_as_results_are_taken() -> None:
    taken = 0

    def tasks() -> Any:
        nonlocal taken
        for task in range(10_000):
            taken += 1
            yield task

    with contextlib.closing(run_ordered(square, tasks(), num_workers=2)) as results:
        next(results)
        assert taken <= 40


def test_large_results_pass() -> None:
    results = list(run_ordered(large, range(20), num_workers=2))
    assert [result[0] for result in results] == list(range(20))
    assert {len(result) for result in results} == {1 << 20}


def test_arrays_of_any_size_come_whole() -> None:
    for task, result in enumerate(run_ordered(arrays, range(30), num_workers=2)):
        expected = arrays(task)
        assert result.keys() == expected.keys()
        assert result["text"] == b"bytes"
        for name in ("small", "large", "rows"):
            assert result[name].dtype == expected[name].dtype
            np.testing.assert_array_equal(result[name], expected[name])


@pytest.mark.parametrize("num_workers", [1, 3])
def test_messages_of_any_size_in_any_sequence_are_taken_apart(num_workers: int) -> None:
    for task, result in enumerate(run_ordered(of_many_sizes, range(150), num_workers=num_workers)):
        number, text, found = of_many_sizes(task)
        assert result[:2] == (number, text)
        assert len(result[2]) == len(found)
        for one, other in zip(result[2], found, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("work", [dying_with_much_to_say, dying_in_the_middle_of_an_array])
def test_a_worker_that_dies_while_it_sends_a_result_is_named_with_its_task(work: Callable[[int], Any]) -> None:
    results = run_ordered(work, range(100), num_workers=1)
    with pytest.raises(DeadWorkerError, match="SIGKILL") as caught:
        for _ in results:
            pass
    assert caught.value.position == 5


def test_a_pool_serves_several_streams_with_the_same_workers() -> None:
    before = children()
    with Pool(square, num_workers=2) as pool:
        first = list(pool.run(range(30)))
        second = list(pool.run(range(7)))
        assert [value for value, _ in second] == [task * task for task in range(7)]
        assert {pid for _, pid in second} <= {pid for _, pid in first}
        stream = pool.run(range(1000))
        next(stream)
        stream.close()
        assert children() == before
        assert [value for value, _ in pool.run(range(3))] == [0, 1, 4]
    assert children() == before


def test_a_killed_worker_is_named_with_its_task_instead_of_waited_for() -> None:
    before = children()
    with pytest.raises(DeadWorkerError, match="SIGKILL") as caught:
        list(run_ordered(deadly, range(1000), num_workers=2))
    assert caught.value.position == 5
    assert children() == before


def test_a_worker_that_leaves_is_told_with_its_exit_code() -> None:
    with pytest.raises(DeadWorkerError, match="exit code 7"):
        list(run_ordered(leaving, range(3), num_workers=1))


def test_a_fault_of_the_work_itself_is_told() -> None:
    with pytest.raises(DeadWorkerError, match="ValueError: a fault of the worker itself"):
        list(run_ordered(failing, range(3), num_workers=1))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_worker_that_dies_in_the_middle_of_a_chunk_is_named_with_its_task(num_workers: int) -> None:
    with pytest.raises(DeadWorkerError, match="SIGKILL") as caught:
        list(run_ordered(deadly_late, range(20_000), num_workers=num_workers))
    assert caught.value.position == 7000


def test_quick_tasks_go_out_in_chunks_that_grow() -> None:
    taken, ahead = 0, []

    def tasks() -> Iterator[bytes]:
        nonlocal taken
        for taken in range(1, 20_001):
            yield b"%d" % taken

    for number, result in enumerate(run_ordered(echoing, tasks(), num_workers=1), start=1):
        assert result == b"%d" % number
        ahead.append(taken - number)
    # One by one at first; then as many as four chunks are on their way, of 64 tasks at most.
    assert ahead[0] <= 16
    assert 64 < max(ahead) <= 5 * 64


@pytest.mark.parametrize("size", [10, 20_000, 100_000])
def test_an_array_that_the_next_task_fills_anew_was_sent_before(size: int) -> None:
    for task, array in enumerate(run_ordered(Reusing(size), range(600), num_workers=1)):
        assert array.shape == (size,)
        assert (array == task % 251).all()


def test_large_tasks_and_large_results_do_not_wait_for_each_other() -> None:
    tasks = [b"small"] * 3000 + [bytes(300_000)] * 100
    assert list(run_ordered(echoing, tasks, num_workers=2)) == tasks


def test_results_in_excess_stay_with_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.engine.pool.HELD_BYTES", 50_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in run_ordered(slow_once, range(4500), num_workers=2)) == 4500
        # Beyond the limit is only what has been read at once; without one, 400 results of 20,000 bytes would wait.
        assert tracemalloc.get_traced_memory()[1] < 1_500_000
    finally:
        tracemalloc.stop()


def test_workers_start_no_threads_of_blas_unless_the_user_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert [*run_ordered(blas_threads, range(2), num_workers=2)] == ["1", "1"]
    assert "OPENBLAS_NUM_THREADS" not in os.environ
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert [*run_ordered(blas_threads, range(2), num_workers=2)] == ["3", "3"]


def test_leaving_early_ends_the_workers() -> None:
    before = children()
    results = run_ordered(square, range(10_000), num_workers=2)
    next(results)
    assert len(children() - before) == 2
    results.close()
    assert children() == before


def test_work_that_cannot_be_sent_is_a_usage_error_that_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"holds an open file.*num_workers=0"):
        list(run_ordered(Unsendable(), range(3), num_workers=1))
    assert list(run_ordered(Unsendable(), range(3), num_workers=0)) == [0, 1, 2]


def test_work_that_does_not_arrive_is_told() -> None:
    with pytest.raises(
        DeadWorkerError, match="cannot make use of the dataset: LookupError: no such class here"
    ) as caught:
        list(run_ordered(Unarriving(), range(3), num_workers=1))
    assert caught.value.position is None


def test_a_working_folder_that_no_process_could_enter_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(30):  # longer than any path the system takes, reached by short steps
        Path("d" * 200).mkdir()
        os.chdir("d" * 200)
    with pytest.raises(UsageError, match=r"working folder \(File name too long\).*--num-workers 0"):
        Pool(square, num_workers=1)
    assert [result for result, _ in run_ordered(square, range(3), num_workers=0)] == [0, 1, 4]
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="No such file"):
        Pool(square, num_workers=1)


def test_a_worker_whose_end_was_noticed_elsewhere_does_not_keep_a_pool_from_closing() -> None:
    """As when a signal's exception comes between a process's end and Python's note of it."""
    before = children()
    pool = Pool(abs, num_workers=2)
    stream = pool.run(range(100))
    next(stream)
    for pid in children() - before:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    pool.close()
    assert list(pool.run(range(3))) == [0, 1, 2]
    pool.close()
    assert children() == before


def test_a_signal_while_a_pool_closes_comes_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(143)

    def interrupted(process: BaseProcess, timeout: float | None = None) -> None:
        signal.raise_signal(signal.SIGTERM)
        join(process, timeout)

    children_before, handler_before = children(), signal.signal(signal.SIGTERM, leave)
    join = BaseProcess.join
    try:
        pool = Pool(abs, num_workers=2)
        stream = pool.run(range(100))
        next(stream)
        pids = children() - children_before
        monkeypatch.setattr(BaseProcess, "join", interrupted)
        with pytest.raises(SystemExit):
            pool.close()
        assert signal.getsignal(signal.SIGTERM) is leave
        for pid in pids:
            with pytest.raises(ChildProcessError):
                os.waitpid(pid, 0)
    finally:
        signal.signal(signal.SIGTERM, handler_before)
