"""Finalisers run anywhere, and forks copy locks: neither may end in a hang."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dataloading import Loader
from dataloading.locks import Lock, from_caller, run_outside
from tests.support.files import write_labels

ROOT = Path(__file__).resolve().parents[2]

MANY = """
import gc, threading, time
from dataloading import Loader

class Holder:
    pass

gc.set_threshold(3, 2, 2)
before = threading.active_count()
for _ in range(10):
    loader = Loader("labels.beton", batch_size=4, num_workers=3, os_cache=False)
    for step in range(8):
        cycle = Holder()
        cycle.itself, cycle.batches = cycle, iter(loader)
        if step % 3:
            next(cycle.batches)
        if step % 4 == 0:
            cycle.loader = loader
    del loader, cycle
gc.collect()
deadline = time.monotonic() + 20
while threading.active_count() > before and time.monotonic() < deadline:
    time.sleep(0.01)
    gc.collect()
print(threading.active_count() - before, "threads more")
"""


def in_a_thread(work) -> bool:
    """Whether `work` ends within some seconds."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_work_is_done_at_once_by_a_thread_that_holds_no_lock():
    done = []
    from_caller()
    run_outside(lambda: done.append(threading.current_thread()))
    assert done == [threading.current_thread()]


@pytest.mark.parametrize("holds", ["a lock", "nothing, but is not a caller's"])
def test_work_of_a_thread_that_may_hold_others_up_is_done_by_another(holds):
    lock, done, end = Lock(), threading.Event(), threading.Event()

    def wait_for_the_lock() -> None:
        with lock:
            done.set()

    def finalise() -> None:
        if holds == "a lock":
            from_caller()
            with lock:
                run_outside(wait_for_the_lock)
                assert not done.is_set()
        else:
            run_outside(lambda: (end.wait(20), wait_for_the_lock()))
            assert not done.is_set()
            end.set()

    assert in_a_thread(finalise)
    assert done.wait(20)


def test_a_lock_that_is_not_got_is_not_counted():
    lock, done = Lock(), []
    from_caller()
    with lock:
        assert not lock.acquire(blocking=False)
        assert not lock.acquire(timeout=0.01)
    assert not lock.locked()
    run_outside(lambda: done.append(1))
    assert done == [1]


@pytest.mark.parametrize("held", ["engine", "cache", "clock"])
def test_an_iterator_that_is_collected_where_a_lock_is_held_stops_all_the_same(tmp_path, held):
    before = threading.active_count()
    loader = Loader(write_labels(tmp_path / "labels.beton", 100), batch_size=2, num_workers=2, os_cache=False)
    iterators = [iter(loader)]
    next(iterators[0])
    engine = next(iter(loader._engines._in_use))
    assert loader._storage is not None
    lock = {
        "engine": engine._lock,
        "cache": loader._storage.cache._roster._thread_lock,
        "clock": loader._clock._lock,
    }[held]

    def collect() -> None:
        with lock:  # as if the collector ran here
            iterators.clear()

    assert in_a_thread(collect)
    assert [len(batch["label"]) for batch in loader] == [2] * 50
    del loader, engine
    deadline = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_hundreds_of_iterators_in_cycles_are_collected_by_any_thread_and_leave_none_behind(tmp_path):
    write_labels(tmp_path / "labels.beton", 100)
    done = subprocess.run(
        [sys.executable, "-c", MANY],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "0 threads more\n", done.stderr


def test_a_lock_that_is_held_where_a_process_forks_is_open_in_the_child():
    lock, held, end = Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            end.wait()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    held.wait()
    gc.collect()
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(timeout=5) else 1)
    end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
