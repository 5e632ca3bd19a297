"""The engine and the ring, without any images: order, errors, backpressure, memory."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest
import torch

from dataloading.engine.workers import Engine, Ring
from tests.support.waiting import Threads, wait_for


class Sum:
    """A job that adds up its groups."""

    def __init__(self, number: int, num_groups: int = 3, fail: BaseException | None = None) -> None:
        self.number = number
        self.num_groups = num_groups
        self.fail = fail
        self.done: list[int] = []
        self.finished = 0

    def run_group(self, group: int) -> None:
        time.sleep(0.0005 * ((self.number + group) % 3))
        if self.fail is not None and group == 1:
            raise self.fail
        self.done.append(group)

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.parametrize("num_workers", [1, 2, 7])
def test_jobs_come_in_order_each_finished_once(num_workers):
    engine = Engine((Sum(k) for k in range(25)), num_workers=num_workers, max_in_flight=4)
    jobs = []
    while (job := engine.take()) is not None:
        jobs.append(job)
    engine.stop()
    assert [job.number for job in jobs] == list(range(25))
    assert all(sorted(job.done) == [0, 1, 2] and job.finished == 1 for job in jobs)


def test_no_more_jobs_are_made_than_may_be_in_flight():
    made = []

    def source():
        for number in range(50):
            made.append(Sum(number))
            yield made[-1]

    def numbers_when_all_are_done() -> list[int]:
        wait_for(lambda: all(len(job.done) == job.num_groups for job in made))
        time.sleep(0.05)  # time enough to make one too many
        return [job.number for job in made]

    engine = Engine(source(), num_workers=3, max_in_flight=4)
    wait_for(lambda: len(made) >= 4)
    assert numbers_when_all_are_done() == [0, 1, 2, 3]
    engine.take()
    wait_for(lambda: len(made) >= 5)
    assert numbers_when_all_are_done() == [0, 1, 2, 3, 4]
    engine.stop()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_no_job_is_made_while_groups_of_others_wait_for_a_thread(num_workers):
    """Making one may wait for what only they give back."""
    jobs: list[Sum] = []
    waiting = []

    def source():
        for number in range(40):
            waiting.append(sum(job.num_groups - len(job.begun) for job in jobs))
            jobs.append(Counted(number))
            yield jobs[-1]

    class Counted(Sum):
        def __init__(self, number: int) -> None:
            super().__init__(number, num_groups=5)
            self.begun: list[int] = []

        def run_group(self, group: int) -> None:
            self.begun.append(group)
            super().run_group(group)

    engine = Engine(source(), num_workers=num_workers, max_in_flight=4)
    time.sleep(0.05)
    for number in range(40):
        if number % 4 == 0:
            time.sleep(0.02)  # now several are taken at once
        assert engine.take().number == number
    engine.stop()
    # A thread that has taken a group may not have counted it yet.
    assert all(num < num_workers for num in waiting)


def test_an_error_in_a_group_is_raised_at_its_turn_and_the_next_jobs_go_on():
    fault = ValueError("boom")
    engine = Engine((Sum(k, fail=fault if k == 2 else None) for k in range(5)), num_workers=2, max_in_flight=3)
    assert [engine.take().number for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="boom") as caught:
        engine.take()
    assert caught.value is fault
    assert engine.take().number == 3
    engine.stop()


def test_an_error_in_the_source_is_raised_after_the_jobs_before_it():
    def source():
        yield Sum(0)
        raise OSError("gone")

    engine = Engine(source(), num_workers=2, max_in_flight=3)
    assert engine.take().number == 0
    with pytest.raises(OSError, match="gone"):
        engine.take()
    engine.stop()


def test_an_error_in_finish_is_raised():
    class Bad(Sum):
        def finish(self) -> None:
            raise RuntimeError("in finish")

    engine = Engine(iter([Bad(0)]), num_workers=2, max_in_flight=1)
    with pytest.raises(RuntimeError, match="in finish"):
        engine.take()
    engine.stop()


def test_stop_ends_all_threads_at_once_and_twice_is_fine():
    threads = Threads()
    engine = Engine((Sum(k) for k in range(10_000)), num_workers=5, max_in_flight=8)
    engine.take()
    engine.stop()
    engine.stop()
    assert threads.new() == set()


def test_threads_that_have_ended_are_freed_by_us_not_by_the_caller():
    # Freeing one runs Python code of `threading`: an interrupt that comes in there is lost.
    engine = Engine((Sum(k) for k in range(25)), num_workers=2, max_in_flight=4)
    assert engine.take() is not None
    threads = [weakref.ref(thread) for thread in threading.enumerate() if thread.name.startswith("beton-")]
    assert len(threads) >= 2
    engine.stop()
    wait_for(lambda: not any(thread() for thread in threads))
    assert engine.take() is None


def test_a_buffer_comes_back_only_when_nothing_refers_to_it():
    ring = Ring(64, capacity=2)
    array = ring.lend().view(np.int64)
    array[:] = range(8)
    tensor = torch.from_numpy(array)
    tail = tensor[5:]
    del array, tensor
    gc.collect()
    assert ring.num_free == 0
    other = ring.lend().view(np.int64)
    other[:] = -1
    assert tail.tolist() == [5, 6, 7]
    del other
    assert ring.num_free == 1
    del tail
    assert ring.num_free == 2


def test_a_ring_keeps_no_more_free_buffers_than_its_capacity():
    ring = Ring(64, capacity=1)
    lent = [ring.lend() for _ in range(5)]
    del lent
    assert ring.num_free == 1


def test_buffers_are_page_aligned():
    assert Ring(100, capacity=1).lend().ctypes.data % 4096 == 0


def test_an_engine_whose_start_is_cut_short_leaves_no_thread(monkeypatch):
    threads = Threads()
    started = []
    start = threading.Thread.start

    def cut_short(thread):
        if len(started) == 2:
            raise KeyboardInterrupt
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", cut_short)
    with pytest.raises(KeyboardInterrupt):
        Engine(iter([]), num_workers=3, max_in_flight=2)
    assert len(started) == 2
    assert threads.new() == set()
