"""The Loader with pages of its own instead of the system's: the same batches, within a bound, read once a node."""

from __future__ import annotations

import gc
import os
import signal
import threading
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloading import BytesField, ImageField, IntField, JSONField, Loader, NDArrayField, UsageError, Writer
from dataloading import transforms as T
from dataloading.format import Reader
from tests.support.files import photo_like, raw, write_images, write_labels
from tests.support.huge import make_huge_file
from tests.support.page_cache import cached_pages, drop_from_cache
from tests.support.processes import CONTEXT
from tests.support.waiting import wait_for

PAGE = 1 << 21
TRANSFORMS = {"image": [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]}


@pytest.fixture(scope="module")
def big_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 raw images on about twenty pages of 2 MiB."""
    path = tmp_path_factory.mktemp("big") / "big.beton"
    rng = np.random.default_rng(0)
    with Writer(path, {"image": ImageField(), "label": IntField()}, num_samples=300, page_size=PAGE) as writer:
        for label in range(300):
            height, width = rng.integers(180, 240, 2).tolist()
            writer.append({"image": raw(photo_like(rng, height, width)), "label": label})
    return path


def batches(loader: Loader, num: int = 10**9) -> list[tuple[list[int], list[bytes]]]:
    found = []
    for batch in loader:
        found.append((batch.indices.tolist(), [value.contiguous().numpy().tobytes() for value in batch]))
        if len(found) == num:
            break
    return found


def small(path: Path, **options: Any) -> Loader:
    return Loader(path, **{"batch_size": 16, "transforms": TRANSFORMS, "num_workers": 2, "seed": 5, **options})


ORDERS = [
    {"shuffle": "none"},
    {"shuffle": "global"},
    {"shuffle": "global", "permutation": "cipher", "num_repeats": 2},
    {"shuffle": "pages", "window_pages": 3},
    {"shuffle": "pages", "window_pages": 3, "indices": range(0, 300, 3)},
    {"weights": np.arange(300.0)},
]
STORES = [{"os_cache": False}, {"os_cache": False, "cache_bytes": 40 * PAGE}, {"cache_dir": "folder"}]


def page_memory() -> dict[str, int]:
    """Bytes of memory that the pages of each of this process's caches take, by the number of the file in memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [number for number, line in enumerate(lines) if "memfd:beton-pages" in line]
    taken = [next(line for line in lines[start:] if line.startswith("Rss:")) for start in starts]
    return {lines[start].split()[4]: int(rss.split()[1]) << 10 for start, rss in zip(starts, taken, strict=True)}


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("store", STORES, ids=str)
def test_batches_are_the_same_bytes_as_from_the_systems_cache(big_file, tmp_path, order, store):
    if "cache_dir" in store:
        store = {"cache_dir": tmp_path / "c", "cache_bytes": 22 * PAGE}
    plain, cached = small(big_file, **order), small(big_file, **order, **store)
    for _ in range(2):
        assert batches(cached) == batches(plain)
    cache = cached.stats().cache
    # A page that is being fetched counts as taken, and as fetched when it is there.
    assert cache is not None and cache.fetched_bytes > 0 and cache.taken_bytes > 0
    assert cache.max_bytes is not None and cache.taken_bytes <= cache.max_bytes
    assert "page cache of this machine: " in str(cached.stats()) and plain.stats().cache is None


def test_a_tight_bound_gives_the_same_bytes(big_file):
    options = {"shuffle": "pages", "window_pages": 2, "batch_size": 8}
    others = page_memory()  # of earlier tests
    cached = small(big_file, **options, os_cache=False, cache_bytes=5 * PAGE, prefetch_batches=2)
    plain = batches(small(big_file, **options))
    peak = 0
    found = []
    for batch in cached:
        found.append((batch.indices.tolist(), [value.contiguous().numpy().tobytes() for value in batch]))
        peak = max(peak, sum(taken for file, taken in page_memory().items() if file not in others))
    assert found == plain
    assert PAGE <= peak <= 5 * PAGE


def test_every_kind_of_stored_bytes_comes_through_the_cache(tmp_path):
    path = tmp_path / "kinds.beton"
    fields = {
        "image": ImageField(),
        "label": IntField(),
        "data": BytesField(),
        "text": JSONField(),
        "array": NDArrayField("float32", (3, 5)),
    }
    rng = np.random.default_rng(0)
    with Writer(path, fields, num_samples=40, page_size=PAGE) as writer:
        for k in range(40):
            values = {"image": raw(photo_like(rng, 40, 50)), "label": k, "data": b"x" * k, "text": {"k": [k]}}
            writer.append({**values, "array": rng.random((3, 5), np.float32)})
    options: dict[str, Any] = {"transforms": {"image": [T.CenterCrop(24)]}, "shuffle": "global"}
    for mine, theirs in zip(small(path, os_cache=False, **options), small(path, **options), strict=True):
        assert mine["data"] == theirs["data"] and mine["text"] == theirs["text"]
        assert np.array_equal(mine["array"].numpy(), theirs["array"].numpy())
        assert np.array_equal(mine["image"].numpy(), theirs["image"].numpy())


def test_files_without_stored_bytes_and_several_files_work_too(tmp_path, labels_file):
    assert batches(Loader(labels_file, batch_size=7, os_cache=False)) == batches(Loader(labels_file, batch_size=7))
    paths = [tmp_path / f"{name}.beton" for name in "abc"]
    for seed, path in enumerate(paths):
        write_images(path, 20, seed=seed)
    for store in ({"os_cache": False}, {"cache_dir": tmp_path / "c"}):
        assert batches(small(tmp_path / "*.beton", shuffle="global", **store)) == batches(
            small(paths, shuffle="global")  # type: ignore[arg-type]
        )


def test_damaged_samples_are_skipped_as_ever(tmp_path):
    path = tmp_path / "damaged.beton"
    write_images(path, 50)
    start = int(Reader(path).locate("image", [13])[0][0])
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"not a JPEG" * 4)
    options: dict[str, Any] = {"on_error": "skip", "shuffle": "none"}
    cached, plain = small(path, os_cache=False, **options), small(path, **options)
    assert batches(cached) == batches(plain)
    assert [error.sample for error in cached.errors] == [13]
    with pytest.raises(Exception, match="sample 13"):
        batches(small(path, os_cache=False))


def test_several_iterators_resume_and_derived_loaders_share_one_cache(big_file):
    cached, plain = small(big_file, shuffle="global", os_cache=False), small(big_file, shuffle="global")
    assert batches(cached, 4) == batches(plain, 4)
    state = cached.state_dict()
    resumed = small(big_file, shuffle="global", os_cache=False)
    resumed.load_state_dict(state)
    plain.load_state_dict(state)
    rest = batches(plain)
    assert len(rest) == len(plain) - 4
    assert batches(resumed) == rest
    one, two = iter(cached), iter(cached)
    pairs = list(zip(one, two, strict=True))
    expected = [indices for indices, _ in batches(plain)]
    assert [mine.indices.tolist() for mine, _ in pairs] == expected
    assert [theirs.indices.tolist() for _, theirs in pairs] == expected
    known = page_memory().keys()
    derived = cached.filter(lambda label: label % 2 == 0)
    assert all(index % 2 == 0 for indices, _ in batches(derived) for index in indices)
    assert known and page_memory().keys() <= known, "a derived loader has no cache of its own"


def test_a_bound_too_small_for_a_batch_is_an_error_that_names_the_way_out(big_file):
    loader = small(big_file, shuffle="global", os_cache=False, cache_bytes=4 << 18, batch_size=64)
    with pytest.raises(UsageError, match=r"cache_bytes to at least .*shuffle=\"pages\""):
        batches(loader)


def test_options_that_contradict_each_other_are_refused(labels_file):
    with pytest.raises(UsageError, match="os_cache=False or cache_dir="):
        Loader(labels_file, batch_size=4, cache_bytes=1 << 20)
    with pytest.raises(UsageError, match="cache_bytes"):
        Loader(labels_file, batch_size=4, os_cache=False, cache_bytes=0)


def test_a_hundred_abandoned_iterators_leave_no_threads_descriptors_pins_or_plans(big_file):
    order = {"shuffle": "pages", "window_pages": 2, "batch_size": 8, "prefetch_batches": 2}
    loader = small(big_file, **order, os_cache=False, cache_bytes=5 * PAGE)

    def count() -> tuple[int, int]:
        gc.collect()
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    batches(loader, 1)
    loader.close()
    wait_for(lambda: not any(thread.name == "beton-fetch" for thread in threading.enumerate()))
    before = count()
    for _ in range(100):
        next(iter(loader))
    loader.close()
    # Threads of earlier tests may end meanwhile.
    wait_for(lambda: all(now <= then for now, then in zip(count(), before, strict=True)))
    loader.set_epoch(0)
    assert batches(loader) == batches(small(big_file, **order))  # a page still pinned would have no room in the cache


def test_dropping_the_loader_gives_the_memory_back(big_file):
    def resident() -> int:
        gc.collect()
        lines = Path("/proc/self/smaps").read_text().splitlines()
        return sum("beton-pages" in line for line in lines)

    loader = small(big_file, os_cache=False)
    batches(loader)
    with_loader = resident()
    del loader
    wait_for(lambda: resident() < with_loader)  # closing does not wait for a page that is being read ahead


def test_the_files_pages_do_not_enter_the_systems_cache(tmp_path):
    path = tmp_path / "cold.beton"
    rng = np.random.default_rng(1)
    with Writer(path, {"image": ImageField(), "label": IntField()}, num_samples=100, page_size=PAGE) as writer:
        for label in range(100):
            writer.append({"image": raw(photo_like(rng, 200, 200)), "label": label})
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_pages(path).mean() > 0.2:
        pytest.skip("the file system keeps every page in the system's cache (tmpfs)")
    loader = small(path, shuffle="pages", os_cache=False)
    opened = cached_pages(path).mean()  # the system has read ahead of the tables
    batches(loader)
    assert cached_pages(path).mean() < opened + 0.1
    batches(small(path, shuffle="pages"))
    assert cached_pages(path).mean() > 0.8


def test_tables_of_any_size_are_read_ahead(tmp_path):
    path = tmp_path / "train.beton"
    make_huge_file(path, 1_000_000, filled=False)
    drop_from_cache(path)
    loader = Loader(path, batch_size=4, os_cache=False, fields=["label"], num_workers=1)
    tables = loader._files.readers[0].tables
    assert max(stop - start for start, stop in tables) > 20 << 20  # more than the system reads for one request
    for start, stop in tables:
        wait_for(lambda pages=slice(start // PAGESIZE, stop // PAGESIZE): cached_pages(path)[pages].all(), 20)


# ---- ranks


def _rank(
    path: Path, rank: int, world: int, per_node: int, job: str, store: dict[str, Any], barrier: Any, results: Any
) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank % per_node), LOCAL_WORLD_SIZE=str(per_node),
        GROUP_RANK=str(rank // per_node), TORCHELASTIC_RUN_ID=job,
    )  # fmt: skip
    loader = small(
        path, shuffle="pages", window_pages=3, num_workers=1, batch_size=4, persistent_workers=False, **store
    )
    barrier.wait(120)
    seen = []
    resident = 0
    for batch in loader:
        assert (batch["label"].numpy() == batch.indices).all()
        seen += batch.indices.tolist()
        cache = loader.stats().cache
        assert cache is not None and cache.max_bytes == store["cache_bytes"]
        resident = max(resident, cache.taken_bytes)
        barrier.wait(120)  # training keeps ranks in step
    results.put((rank // per_node, seen, cache.fetched_bytes, resident))
    barrier.wait(120)


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_two_nodes_of_two_ranks_read_half_of_the_file_each_within_their_bound(big_file, tmp_path, kind):
    """Nine pages hold three windows: the ranks are less than a window apart, so no page need be read twice."""
    results, barrier = CONTEXT.Queue(), CONTEXT.Barrier(4)
    processes = []
    for rank in range(4):
        store = {"os_cache": False, "cache_bytes": 9 * PAGE}
        if kind == "folder":
            store = {"cache_dir": tmp_path / f"node{rank // 2}", "cache_bytes": 9 * PAGE}
        processes.append(
            CONTEXT.Process(
                target=_rank, args=(big_file, rank, 4, 2, str(tmp_path), store, barrier, results), daemon=True
            )
        )
        processes[-1].start()
    found = [results.get(timeout=240) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(index for _, seen, *_ in found for index in seen) == list(range(300))
    pointers, _ = Reader(big_file).locate("image", list(range(300)))
    for node in (0, 1):
        pages = {int(pointers[index]) // PAGE for each, seen, *_ in found if each == node for index in seen}
        fetched = {num_bytes for each, _, num_bytes, _ in found if each == node}
        assert max(fetched) == len(pages) * PAGE <= (0.5 + 0.1) * big_file.stat().st_size, f"node {node}"
    assert all(PAGE <= resident <= 9 * PAGE for *_, resident in found)


def _endless(path: Path, ready: Any, done: Path) -> None:
    loader = small(path, shuffle="pages", window_pages=3, os_cache=False, cache_bytes=8 * PAGE, num_workers=1)
    for epoch in range(1000):
        for batch in loader:
            assert (batch["label"].numpy() == batch.indices).all()
        if epoch == 1:
            ready.set()
        if done.exists():  # not an event: a process that is killed may hold its lock
            return


def test_ranks_go_on_when_one_of_them_is_killed(big_file, tmp_path):
    ready, done = [CONTEXT.Event() for _ in range(3)], tmp_path / "done"
    processes = [CONTEXT.Process(target=_endless, args=(big_file, each, done), daemon=True) for each in ready]
    for process in processes:
        process.start()
    for each in ready:
        assert each.wait(120)
    for victim in processes[:2]:
        os.kill(victim.pid, signal.SIGKILL)
        victim.join(60)
    # One that joins later still finds the cache, and both get to the end of more epochs.
    joined = CONTEXT.Event()
    processes.append(CONTEXT.Process(target=_endless, args=(big_file, joined, done), daemon=True))
    processes[-1].start()
    assert joined.wait(120)
    done.touch()
    for process in processes[2:]:
        process.join(60)
        assert process.exitcode == 0


def test_labels_alone_need_no_page(tmp_path):
    path = write_labels(tmp_path / "labels.beton", 10)
    assert len(batches(Loader(path, batch_size=3, cache_dir=tmp_path / "c"))) == 4
