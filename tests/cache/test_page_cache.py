"""The page cache by itself: what it holds, what goes first, and what becomes of processes that die."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataloading import StorageError, UsageError
from dataloading.cache import sparse_files as stores
from dataloading.cache.memory_store import MemoryStore
from dataloading.cache.page_cache import CachedFile, PageCache, StoppedError
from dataloading.cache.sparse_files import FolderStore, num_units
from dataloading.dataset.remote.byte_sources import LocalSource
from tests.support.processes import CONTEXT
from tests.support.waiting import wait_for

UNIT = 1 << 16
NUM_UNITS = 24


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "data.bin"
    rng = np.random.default_rng(0)
    path.write_bytes(rng.integers(0, 256, (NUM_UNITS - 1) * UNIT + 12345, np.uint8).tobytes())
    return path


class Counting(LocalSource):
    """A local file that counts what is read of it, and waits or fails when told."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.read: list[int] = []
        self.before: Callable[[int], None] = lambda offset: None

    def fill(self, offset: int, out: Any) -> None:
        self.before(offset)
        super().fill(offset, out)
        self.read.append(offset // UNIT)


def in_memory(path: Path, name: str, num_held: int | None) -> PageCache:
    source = Counting(path)
    store = MemoryStore(name, num_units(source.num_bytes, UNIT), UNIT)
    return PageCache(store, [CachedFile(source, store.files[0])], cache_bytes=num_held and num_held * UNIT)


def in_folder(path: Path, folder: Path, num_held: int | None) -> PageCache:
    source = Counting(path)
    store = FolderStore(folder)
    page_file = store.add(source.path, source.identity, source.num_bytes, UNIT)
    return PageCache(store, [CachedFile(source, page_file)], cache_bytes=num_held and num_held * UNIT)


@pytest.fixture(params=["memory", "folder"])
def make(request: pytest.FixtureRequest, file: Path, tmp_path: Path) -> Iterator[Callable[[int | None], PageCache]]:
    """Makes caches of one name: they share what they hold."""
    name = uuid.uuid4().hex
    made: list[PageCache] = []

    def one(num_held: int | None = None) -> PageCache:
        made.append(
            in_memory(file, name, num_held) if request.param == "memory" else in_folder(file, tmp_path / "c", num_held)
        )
        return made[-1]

    yield one
    for cache in made:
        cache.close()


def units(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def there(cache: PageCache) -> list[int]:
    return [unit for unit in range(NUM_UNITS) if cache.are_present(units(unit))]


def wait_for_idle_threads() -> None:
    """Wait until all units were brought, or there was no room for them: then the threads that bring them end."""
    wait_for(lambda: not any(thread.name == "beton-fetch" for thread in threading.enumerate()))


# ---- what it holds


def test_acquired_bytes_are_those_of_the_file_whatever_was_evicted_before(make, file):
    cache = make(8)
    content = np.fromfile(file, np.uint8)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 2 * UNIT)), min_size=1, max_size=3))
    def check(ranges):
        starts = np.array([start for start, _ in ranges], np.uint64)
        sizes = np.array([min(size, len(content) - start) for start, size in ranges], np.uint64)
        wanted = cache.units_of(np.zeros(len(ranges), np.int64), starts, sizes)
        if len(wanted) > 8:
            return
        cache.acquire(wanted)
        data = cache.files[0].data
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            assert np.array_equal(data[start : start + size], content[start : start + size])
        assert cache.taken_bytes <= 8 * UNIT
        cache.release(wanted)

    check()


def test_the_memory_it_takes_is_bounded_and_given_back(file):
    source = Counting(file)
    store = MemoryStore(uuid.uuid4().hex, NUM_UNITS, UNIT)
    cache = PageCache(store, [CachedFile(source, store.files[0])], cache_bytes=5 * UNIT)
    for unit in range(NUM_UNITS):
        cache.acquire(units(unit))
        cache.release(units(unit))
        assert UNIT <= store.resident_bytes() <= 5 * UNIT
    cache.close()


def test_the_cached_bytes_cannot_be_written_to(make):
    with pytest.raises(ValueError, match="read-only"):
        make(4).files[0].data[0] = 1


def test_more_units_than_there_is_room_for_are_refused_with_both_numbers(make):
    with pytest.raises(UsageError, match=r"needs 5 parts .* holds 4: .*shuffle=\"pages\""):
        make(4).acquire(units(0, 1, 2, 3, 4))


def test_waiting_for_room_ends_when_nobody_waits_for_the_batch_any_more(make):
    cache = make(4)
    cache.acquire(units(0, 1, 2))
    with pytest.raises(StoppedError):
        cache.acquire(units(3, 4), lambda: True)
    cache.release(units(0, 1, 2))
    cache.acquire(units(3, 4))
    assert cache.are_present(units(3, 4))


def test_a_unit_is_brought_once_for_all_threads_that_ask_for_it(make):
    cache = make(None)
    source = cache.files[0].source
    source.before = lambda offset: time.sleep(0.02)
    threads = [threading.Thread(target=cache.acquire, args=(units(*range(k % 3, 12)),)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(source.read) == list(range(12))
    assert cache.fetched_bytes == 12 * UNIT


def test_a_failure_to_bring_is_raised_where_it_is_waited_for_and_can_be_got_over(make):
    cache = make(6)

    def fail(offset: int) -> None:
        raise StorageError(f"broken at {offset}")

    cache.files[0].source.before = fail
    for _ in range(5):
        with pytest.raises(StorageError, match=f"broken at {3 * UNIT}"):
            cache.acquire(units(3))
    assert cache.taken_bytes == 0
    cache.files[0].source.before = lambda offset: None
    cache.acquire(units(3))


# ---- what goes first


def test_what_nobody_needs_goes_before_what_was_announced(make):
    cache = make(4)
    for unit in (0, 1):
        cache.acquire(units(unit))
        cache.release(units(unit))
    cache.announce("later", units(2, 3))
    wait_for(lambda: there(cache) == [0, 1, 2, 3])
    cache.acquire(units(4))
    assert there(cache) == [1, 2, 3, 4]
    cache.release(units(4))
    cache.acquire(units(5))
    assert there(cache) == [2, 3, 4, 5]


def test_reading_ahead_evicts_nothing_that_is_needed_sooner(make):
    cache = make(4)
    first = cache.announce("order", units(0, 1, 2))
    cache.announce("order", units(3, 4, 5))
    wait_for(lambda: there(cache) == [0, 1, 2, 3])
    wait_for_idle_threads()
    assert there(cache) == [0, 1, 2, 3]
    assert sorted(cache.files[0].source.read) == [0, 1, 2, 3]
    cache.forget_until("order", first)
    wait_for(lambda: {3, 4, 5} <= set(there(cache)))
    assert cache.taken_bytes == 4 * UNIT


def test_somebody_who_waits_takes_the_room_of_what_is_needed_last(make):
    cache = make(3)
    for unit in (0, 1, 2):
        cache.announce("order", units(unit))
    wait_for(lambda: there(cache) == [0, 1, 2])
    cache.acquire(units(9))
    assert there(cache) == [0, 1, 9]


def test_what_one_process_needs_is_not_evicted_by_another_that_is_ahead(make):
    mine, other = make(4), make(4)
    mine.announce("slow", units(0, 1))
    wait_for(lambda: there(mine) == [0, 1])
    stamp = other.announce("fast", units(0, 1))
    other.forget_until("fast", stamp)
    other.announce("fast", units(4, 5, 6, 7))
    wait_for(lambda: len(there(mine)) == 4)
    assert {0, 1} <= set(there(mine))


def test_what_no_process_needs_any_more_goes_first_whoever_announced_it_last(make):
    slow, fast = make(4), make(4)
    slow_stamp = slow.announce("slow", units(0, 1))
    fast_stamp = fast.announce("fast", units(0, 1))
    slow.announce("slow", units(2))
    fast.announce("fast", units(3))
    wait_for(lambda: there(slow) == [0, 1, 2, 3])
    fast.forget_until("fast", fast_stamp)
    slow.forget_until("slow", slow_stamp)
    fast.acquire(units(4))
    assert there(slow) == [1, 2, 3, 4]
    slow.announce("slow", units(5))
    wait_for(lambda: there(slow) == [2, 3, 4, 5])


def test_announcements_of_closed_caches_and_of_owners_that_ended_keep_nothing(make):
    cache, closed = make(2), make(2)
    closed.announce("closed", units(0))
    cache.announce("ended", units(1))
    wait_for(lambda: there(cache) == [0, 1])
    closed.close()
    cache.forget("ended")
    cache.announce("order", units(2, 3))
    wait_for(lambda: there(cache) == [2, 3])


def test_nothing_pinned_is_evicted(make):
    cache, other = make(4), make(4)
    cache.acquire(units(0, 1, 2))
    for unit in range(3, NUM_UNITS):
        other.acquire(units(unit))
        assert cache.are_present(units(0, 1, 2))
        other.release(units(unit))


def test_what_was_planned_and_is_not_needed_any_more_is_not_brought(make):
    cache = make(2)
    cache.acquire(units(0, 1))
    stamp = cache.announce("order", units(5, 6))
    cache.forget_until("order", stamp)
    cache.release(units(0, 1))
    wait_for_idle_threads()
    assert there(cache) == [0, 1]
    assert sorted(cache.files[0].source.read) == [0, 1]


# ---- processes


def _read_all(file: Path, name: str, barrier: Any, results: Any) -> None:
    cache = in_memory(file, name, None)
    barrier.wait(120)
    content = np.fromfile(file, np.uint8)
    order = np.random.default_rng(os.getpid()).permutation(NUM_UNITS)
    for unit in order.tolist():
        cache.acquire(units(unit))
        part = slice(unit * UNIT, (unit + 1) * UNIT)
        assert np.array_equal(cache.files[0].data[part], content[part])
        cache.release(units(unit))
    barrier.wait(120)
    results.put((len(cache.files[0].source.read), cache.fetched_bytes))
    barrier.wait(120)
    cache.close()


def _hold(file: Path, place: Any, num_held: int, numbers: list[int], ready: Any, stuck: bool) -> None:
    cache = in_memory(file, place, num_held) if isinstance(place, str) else in_folder(file, place, num_held)
    if stuck:

        def wait(offset: int) -> None:
            ready.set()
            time.sleep(600)

        cache.files[0].source.before = wait
    cache.acquire(units(*numbers))
    ready.set()
    time.sleep(600)


def started(target: Callable[..., None], *args: Any) -> Any:
    process = CONTEXT.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)


def test_four_processes_read_every_unit_once_between_them(file):
    name, barrier, results = uuid.uuid4().hex, CONTEXT.Barrier(4), CONTEXT.Queue()
    processes = [started(_read_all, file, name, barrier, results) for _ in range(4)]
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sum(num for num, _ in found) == NUM_UNITS
    assert {num_bytes for _, num_bytes in found} == {file.stat().st_size}


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_a_unit_whose_loader_is_killed_is_brought_by_the_next_who_asks(file, tmp_path, where):
    place = uuid.uuid4().hex if where == "memory" else tmp_path / "c"
    ready = CONTEXT.Event()
    process = started(_hold, file, place, 8, [3], ready, True)
    assert ready.wait(120)
    cache = in_memory(file, place, 8) if where == "memory" else in_folder(file, place, 8)
    waiting = threading.Thread(target=cache.acquire, args=(units(2, 3),))
    waiting.start()
    wait_for(lambda: cache.are_present(units(2)))
    assert waiting.is_alive()
    kill(process)
    waiting.join(120)
    assert not waiting.is_alive()
    content = np.fromfile(file, np.uint8)
    assert np.array_equal(cache.files[0].data[3 * UNIT : 4 * UNIT], content[3 * UNIT : 4 * UNIT])
    cache.close()


def test_pins_of_a_killed_process_do_not_keep_room(file):
    name, ready = uuid.uuid4().hex, CONTEXT.Event()
    cache = in_memory(file, name, 4)
    process = started(_hold, file, name, 4, [0, 1, 2, 3], ready, False)
    assert ready.wait(120)
    with pytest.raises(StoppedError):
        cache.acquire(units(8), lambda: True)
    kill(process)
    cache.acquire(units(8, 9, 10))
    assert cache.taken_bytes <= 4 * UNIT
    cache.close()


def test_late_comers_find_the_cache_when_the_process_that_made_it_is_dead(file):
    name, ready = uuid.uuid4().hex, CONTEXT.Event()
    process = started(_hold, file, name, 8, [0, 1], ready, False)
    assert ready.wait(120)
    source = Counting(file)
    store = MemoryStore(name, NUM_UNITS, UNIT)
    second = PageCache(store, [CachedFile(source, store.files[0])], cache_bytes=8 * UNIT)
    assert second.are_present(units(0, 1))
    assert not store.hands_out
    kill(process)
    wait_for(lambda: store.hands_out)
    third = in_memory(file, name, 8)
    assert third.are_present(units(0, 1))
    assert third.fetched_bytes == 2 * UNIT
    second.close()
    third.close()


def test_a_forked_child_is_told_that_it_cannot_use_the_cache_and_keeps_nothing_of_it(make):
    cache = make(4)
    cache.acquire(units(0))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            cache.acquire(units(1))
        except UsageError as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cache.release(units(0))
    cache.acquire(units(1, 2, 3, 4))


def test_closed_caches_leave_no_threads_descriptors_or_maps(file, tmp_path):
    def count() -> tuple[int, int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        ours = sum("beton-" in line or ".pages" in line or ".table" in line for line in maps.splitlines())
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir())), ours

    wait_for_idle_threads()
    before = count()
    for k in range(20):
        cache = in_memory(file, uuid.uuid4().hex, 4) if k % 2 else in_folder(file, tmp_path / "c", 4)
        cache.announce("order", units(5, 6, 7))
        cache.acquire(units(0, 1))
        cache.close()
        del cache
    # Closing waits a second for a unit that is being read; threads of earlier tests may end meanwhile.
    wait_for(lambda: all(now <= then for now, then in zip(count(), before, strict=True)))


# ---- folders


def test_a_folder_gives_the_next_run_what_it_holds(file, tmp_path):
    first = in_folder(file, tmp_path / "c", None)
    first.acquire(units(0, 1, 2))
    first.close()
    second = in_folder(file, tmp_path / "c", None)
    second.acquire(units(0, 1, 2, 3))
    assert second.files[0].source.read == [3]
    second.close()


def test_pages_that_were_damaged_in_the_folder_are_brought_again(file, tmp_path):
    first = in_folder(file, tmp_path / "c", None)
    first.acquire(units(0, 1, 2))
    first.close()
    (pages,) = (tmp_path / "c").glob("*.pages")
    with pages.open("r+b") as opened:
        opened.seek(UNIT + 77)
        opened.write(b"damage")
    second = in_folder(file, tmp_path / "c", None)
    second.acquire(units(0, 1, 2))
    assert second.files[0].source.read == [1]
    assert np.array_equal(second.files[0].data[: 3 * UNIT], np.fromfile(file, np.uint8)[: 3 * UNIT])
    second.close()


def test_a_changed_file_is_not_mixed_with_pages_of_the_old_one_which_are_removed(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"a" * 2 * UNIT)
    first = in_folder(path, tmp_path / "c", None)
    first.acquire(units(0, 1))
    first.close()
    path.write_bytes(b"b" * 2 * UNIT)
    os.utime(path, ns=(1, 1))
    second = in_folder(path, tmp_path / "c", None)
    second.acquire(units(0))
    assert second.files[0].data[0] == ord("b")
    assert len(list((tmp_path / "c").glob("*.pages"))) == 1
    second.close()


def test_all_files_of_a_folder_share_its_room_and_the_unused_go_first(file, tmp_path):
    other_file = tmp_path / "other.bin"
    other_file.write_bytes(file.read_bytes())
    other = in_folder(other_file, tmp_path / "c", None)
    other.acquire(units(0, 1, 2, 3, 4, 5))
    other.close()
    cache = in_folder(file, tmp_path / "c", 4)
    cache.acquire(units(0, 1, 2))
    assert cache.taken_bytes == 4 * UNIT
    blocks = sum(each.stat().st_blocks for each in (tmp_path / "c").glob("*.pages")) * 512
    assert blocks <= 4 * UNIT + 16 * 4096
    cache.close()


def test_a_full_disk_evicts_what_is_not_needed_and_otherwise_says_so(file, tmp_path, monkeypatch):
    cache = in_folder(file, tmp_path / "c", None)
    cache.acquire(units(0))
    cache.release(units(0))
    written = stores.CacheFile.keep
    num_full = [1]

    def keep(self: Any, unit: int, arrived: Any) -> None:
        if num_full[0]:
            num_full[0] -= 1
            raise OSError(28, "No space left on device")
        written(self, unit, arrived)

    monkeypatch.setattr(stores.CacheFile, "keep", keep)
    cache.acquire(units(1))
    assert there(cache) == [1]

    def never(self: Any, unit: int, arrived: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores.CacheFile, "keep", never)
    with pytest.raises(StorageError, match="No space left on device; free space"):
        cache.acquire(units(2))
    cache.close()


def test_a_folder_on_a_network_file_system_is_refused(tmp_path, monkeypatch):
    kinds = {line.partition(" - ")[2].split()[0] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    monkeypatch.setattr(stores, "_NETWORK_FILE_SYSTEMS", tuple(kinds))
    with pytest.raises(UsageError, match="network file system"):
        FolderStore(tmp_path / "c")


def test_a_file_that_was_cut_short_is_an_error_and_not_zeros(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"a" * 3 * UNIT)
    cache = in_memory(path, uuid.uuid4().hex, None)
    os.truncate(path, UNIT + 5)
    with pytest.raises(StorageError, match=f"ends at byte {UNIT + 5}"):
        cache.acquire(units(1))
    cache.close()
