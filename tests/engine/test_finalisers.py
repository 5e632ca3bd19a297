"""Finalisers run anywhere, and forks copy locks: neither may end in a hang."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dataloading import Loader
from dataloading.finalisers import Living, Note
from dataloading.keeper import Kept
from tests.support.files import write_labels
from tests.support.waiting import Threads

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
deadline = time.monotonic() + 100
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


def in_a_thread(work) -> bool:
    """Whether `work` ends within two minutes."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(120)
    return not thread.is_alive()


class Thing:
    pass


@pytest.fixture
def locks(monkeypatch):
    """The locks that the library makes, in a list that grows."""
    made = []
    make = threading.Lock

    def recording():
        lock = make()
        if sys._getframe(1).f_globals["__name__"].startswith("dataloading."):
            made.append(lock)
        return lock

    monkeypatch.setattr(threading, "Lock", recording)
    return made


@pytest.mark.parametrize("how", ["dropped", "ended"])
def test_a_kept_value_is_begun_and_ended_once_by_a_thread_of_its_own(how):
    threads, ended = [], []
    kept = Kept(lambda: threads.append(threading.get_ident()) or "value", ended.append)
    assert kept.value == "value"
    if how == "ended":
        kept.end()
    del kept
    assert ended == ["value"]
    assert threads[0] != threading.get_ident()


def test_what_begin_raises_is_raised_to_the_caller_and_nothing_is_ended():
    ended = []
    with pytest.raises(ZeroDivisionError):
        Kept(lambda: 1 // 0, ended.append)
    assert ended == []


def test_a_kept_value_that_is_part_of_a_cycle_is_ended_by_the_garbage_collector():
    ended = []
    thing = Thing()
    thing.itself, thing.kept = thing, Kept(lambda: "value", ended.append)
    del thing
    assert ended == []
    gc.collect()
    assert ended == ["value"]


def test_whoever_drops_a_value_does_not_wait_for_ever_for_its_end():
    persistent = threading.Event()
    kept = Kept(lambda: None, lambda _: persistent.wait(250))
    started = time.monotonic()
    del kept
    assert 1 < time.monotonic() - started < 120
    persistent.set()


def test_ctrl_c_ends_the_wait_for_a_dropped_value(monkeypatch):
    monkeypatch.setattr("dataloading.keeper._DROPPED_SECONDS", 200.0)
    persistent = threading.Event()
    kept = Kept(lambda: None, lambda _: persistent.wait(250))
    threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        del kept
        time.sleep(0)
    assert time.monotonic() - started < 100
    persistent.set()


def test_a_thread_of_ours_does_not_wait_for_what_it_drops(monkeypatch):
    """It may be the very thread that the end waits for."""
    monkeypatch.setattr("dataloading.keeper._DROPPED_SECONDS", 200.0)
    ended = threading.Event()
    kept = [Kept(lambda: None, lambda _: ended.wait(250))]
    waited = []

    def drop() -> None:
        started = time.monotonic()
        kept.clear()
        waited.append(time.monotonic() - started)

    Kept(drop, lambda _: None)
    assert waited[0] < 100
    ended.set()


def test_notes_are_left_for_objects_that_are_gone_and_the_living_are_listed():
    notes, living = [], Living()
    one, two = Thing(), Thing()
    note = Note(one, notes.append, 7)
    living.add(one)
    living.add(two)
    del one
    assert notes == [note]
    assert note.attached == 7
    assert list(living) == [two]


def test_an_iterator_that_is_dropped_where_a_lock_is_held_stops_all_the_same(tmp_path, locks):
    threads = Threads()
    path = write_labels(tmp_path / "labels.beton", 100)
    for number in itertools.count():
        locks.clear()
        loader = Loader(path, batch_size=2, num_workers=2, os_cache=False)
        iterators = [iter(loader)]
        next(iterators[0])
        if number == len(locks):
            break
        lock = locks[number]

        def collect(lock=lock, iterators=iterators) -> None:
            with lock:
                iterators.clear()  # as if the collector ran here

        assert in_a_thread(collect)
        assert [len(batch["label"]) for batch in loader] == [2] * 50
    assert number >= 3  # the engine's, the cache's and the statistics' at least
    del loader, iterators
    threads.wait_for_new(0)


def test_hundreds_of_iterators_in_cycles_are_collected_by_any_thread_and_leave_none_behind(tmp_path):
    write_labels(tmp_path / "labels.beton", 100)
    assert run(MANY, tmp_path)[0] == "0 threads more\n"


def test_a_loader_of_a_process_that_forks_while_its_workers_hold_locks_works_in_the_child(tmp_path, locks):
    loader = Loader(write_labels(tmp_path / "labels.beton", 100), batch_size=2, num_workers=2)
    next(iter(loader))
    with contextlib.ExitStack() as held:
        for lock in locks:
            held.enter_context(lock)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if sum(len(batch["label"]) for batch in loader) == 100 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_script_that_ends_with_an_iterator_under_way_says_nothing(tmp_path):
    write_labels(tmp_path / "labels.beton", 100)
    code = "from dataloading import Loader; batches = iter(Loader('labels.beton', batch_size=2)); next(batches)"
    assert run(code, tmp_path) == ("", "")
