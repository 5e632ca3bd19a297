"""Finalisers run anywhere, and forks copy locks: neither may end in a hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import dataloading
from dataloading import Loader
from dataloading.finalisers import from_caller, run_outside
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


def run(code: str, folder: Path) -> tuple[str, str]:
    """What a program prints, and what it says on stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout, done.stderr


def as_ours(statement: str, **names: object) -> None:
    """Run a statement as code of the package does."""
    exec(compile(statement, str(Path(dataloading.__file__).with_name("some.py")), "exec"), names)


def in_a_thread(work) -> bool:
    """Whether `work` ends within some seconds."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_work_is_done_at_once_by_a_callers_thread():
    done = []

    def finalise() -> None:
        run_outside(lambda: done.append(threading.current_thread()))

    from_caller()
    finalise()
    assert done == [threading.current_thread()]


@pytest.mark.parametrize("caller", [True, False])
def test_work_that_may_wait_for_the_thread_that_finalises_is_done_by_another(caller):
    lock, done = threading.Lock(), threading.Event()

    def wait_for_the_lock() -> None:
        with lock:
            done.set()

    def finalise() -> None:
        run_outside(wait_for_the_lock)

    def work() -> None:
        with lock:
            if caller:
                from_caller()
                as_ours("finalise()", finalise=finalise)
            else:
                finalise()
            assert not done.is_set()

    assert in_a_thread(work)
    assert done.wait(20)


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
        from_caller()
        as_ours("with lock: iterators.clear()", lock=lock, iterators=iterators)  # as if the collector ran here

    assert in_a_thread(collect)
    assert [len(batch["label"]) for batch in loader] == [2] * 50
    del loader, engine
    deadline = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_hundreds_of_iterators_in_cycles_are_collected_by_any_thread_and_leave_none_behind(tmp_path):
    write_labels(tmp_path / "labels.beton", 100)
    assert run(MANY, tmp_path)[0] == "0 threads more\n"


def test_a_loader_of_a_process_that_forks_while_its_workers_hold_locks_works_in_the_child(tmp_path):
    loader = Loader(write_labels(tmp_path / "labels.beton", 100), batch_size=2, num_workers=2)
    next(iter(loader))
    with loader._clock._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if sum(len(batch["label"]) for batch in loader) == 100 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_script_that_ends_with_an_iterator_under_way_says_nothing(tmp_path):
    write_labels(tmp_path / "labels.beton", 100)
    code = "from dataloading import Loader; batches = iter(Loader('labels.beton', batch_size=2)); next(batches)"
    assert run(code, tmp_path) == ("", "")
