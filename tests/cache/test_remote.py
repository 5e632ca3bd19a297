"""Files in stores: over HTTP with ranges and over S3, with servers that fail, lie, stall and go away."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloading import ChecksumError, ImageField, IntField, Loader, Reader, StorageError, UsageError, Writer
from dataloading import transforms as T
from dataloading.cache import open_cached
from dataloading.dataset.remote import addresses
from dataloading.dataset.remote.byte_sources import RemoteSource
from dataloading.format import Manifest, Shard
from dataloading.retry import Retry
from tests.support.files import photo_like, raw
from tests.support.foreign import image_file, noise
from tests.support.processes import CONTEXT
from tests.support.servers import HTTPServer, http_range_server, s3_server
from tests.support.waiting import wait_for

PAGE = 1 << 21
TRANSFORMS = {"image": [T.RandomResizedCrop(16)]}
QUICK = functools.partial(Retry, num_tries=4, first_wait_seconds=0.01, max_wait_seconds=0.05, timeout_seconds=30.0)


def write(path: Path, num: int = 120, seed: int = 0) -> Path:
    """Raw images on some pages of 2 MiB."""
    rng = np.random.default_rng(seed)
    with Writer(
        path, {"image": ImageField(), "label": IntField()}, num_samples=num, page_size=PAGE, overwrite=True
    ) as writer:
        for label in range(num):
            writer.append({"image": raw(photo_like(rng, 180 + label % 50, 200)), "label": label})
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "www").mkdir()
    write(tmp_path / "www" / "train.beton")
    return tmp_path / "www"


@pytest.fixture
def server(folder: Path) -> Iterator[HTTPServer]:
    with http_range_server(folder) as running:
        yield running


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for milliseconds where users wait for seconds."""
    monkeypatch.setattr(open_cached, "Retry", QUICK)
    monkeypatch.setattr(addresses, "Retry", QUICK)


def batches(loader: Loader) -> list[tuple[list[int], list[bytes]]]:
    return [(b.indices.tolist(), [value.contiguous().numpy().tobytes() for value in b]) for b in loader]


def small(path: Any, **options: Any) -> Loader:
    return Loader(
        path, **{"batch_size": 16, "transforms": TRANSFORMS, "num_workers": 2, "persistent_workers": False, **options}
    )


@pytest.mark.parametrize("shuffle", ["none", "global", "pages"])
@pytest.mark.parametrize("kept", [True, False])
def test_batches_over_http_are_those_of_the_local_file(server, folder, tmp_path, shuffle, kept):
    options: dict[str, Any] = {"shuffle": shuffle, "window_pages": 2}
    remote = small(f"{server.url}/train.beton", cache_dir=tmp_path / "c" if kept else None, **options)
    assert batches(remote) == batches(small(folder / "train.beton", **options))
    pages = [r for r in server.requests if r.method == "GET" and r.num_bytes > 100]
    assert len({r.start for r in pages}) == len(pages), "a part was fetched twice"
    assert remote.dataset.fingerprint == small(folder / "train.beton").dataset.fingerprint


def test_a_later_run_fetches_no_page_again(server, folder, tmp_path):
    first = small(f"{server.url}/train.beton", cache_dir=tmp_path / "c", shuffle="global")
    expected = batches(first)
    first.close()
    del first
    before = server.fetched_bytes()
    assert batches(small(f"{server.url}/train.beton", cache_dir=tmp_path / "c", shuffle="global")) == expected
    assert server.fetched_bytes() - before < 1000


def test_cache_bytes_bounds_what_the_folder_takes(server, folder, tmp_path):
    options: dict[str, Any] = {"shuffle": "pages", "window_pages": 2}
    loader = small(f"{server.url}/train.beton", cache_dir=tmp_path / "c", cache_bytes=5 * PAGE, **options)
    assert batches(loader) == batches(small(folder / "train.beton", **options))
    taken = sum(each.stat().st_blocks for each in (tmp_path / "c").glob("*.pages")) * 512
    # Header and tables lie on two parts of their own, which are not counted.
    metadata = 16 * 4096  # of the file system, which counts it as the file's
    assert taken <= 7 * PAGE + metadata < (folder / "train.beton").stat().st_size


# ---- servers that misbehave


def test_answers_that_fail_break_off_or_are_damaged_are_asked_for_again(server, folder, monkeypatch):
    expected = batches(small(folder / "train.beton", shuffle="global"))
    # One request may meet all six: more tries than that.
    monkeypatch.setattr(open_cached, "Retry", functools.partial(QUICK, num_tries=7))
    remote = small(f"{server.url}/train.beton", shuffle="global")
    server.faults.only_above_bytes = 1000
    server.faults.fail_first, server.faults.cut_first, server.faults.corrupt_first = 2, 1, 3
    assert batches(remote) == expected
    faults = server.faults
    assert (faults.fail_first, faults.cut_first, faults.corrupt_first) == (0, 0, 0)


def test_damage_on_the_way_is_found_in_head_and_tables_as_well(server, folder):
    expected = batches(small(folder / "train.beton"))
    server.faults.only_above_bytes = 1000
    server.faults.corrupt_first = 3
    assert batches(small(f"{server.url}/train.beton")) == expected
    assert server.faults.corrupt_first == 0


def test_a_file_that_is_damaged_in_the_store_is_an_error_that_names_it(server, folder):
    path = folder / "train.beton"
    start = int(Reader(path).locate("image", [50])[0][0])
    with path.open("r+b") as file:
        file.seek(start + 9)
        file.write(b"damage")
    with pytest.raises(StorageError, match=r"train\.beton: bytes .*does not have its checksum"):
        batches(small(f"{server.url}/train.beton"))
    with path.open("r+b") as file:
        file.seek(Reader(path).header.table_start + 30)
        file.write(b"damage")
    with pytest.raises(ChecksumError, match=r"train\.beton: the block of a table"):
        small(f"{server.url}/train.beton")


def test_a_store_that_goes_away_is_an_error_in_bounded_time_with_address_tries_and_last_answer(server):
    url = f"{server.url}/train.beton"
    loader = small(url, shuffle="global")
    server.faults.down = True
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"train\.beton: bytes .* in 4 tries; the last one: .*isconnected"):
        batches(loader)
    with pytest.raises(StorageError, match=r"train\.beton: asking for its size: .* in 4 tries"):
        small(url)
    server.stop()
    with pytest.raises(StorageError, match=r"in 4 tries; the last one: .*onnect"):
        small(url)
    assert time.monotonic() - started < 60


def test_a_server_that_stalls_is_given_up_and_an_iterator_can_be_left_meanwhile(server):
    url = f"{server.url}/train.beton"
    loader = small(url, shuffle="global")
    source = RemoteSource(url, QUICK())
    source.retry = Retry(num_tries=2, first_wait_seconds=0.01, timeout_seconds=0.3)
    num_before = len(server.seen_headers)
    server.faults.go_on.clear()
    iterator = iter(loader)
    wait_for(lambda: len(server.seen_headers) > num_before)
    iterator.close()
    with pytest.raises(StorageError, match=r"in 2 tries; the last one: no answer within 0 s"):
        source.fill(0, np.empty(1000, np.uint8))
    server.faults.go_on.set()


def test_a_slow_server_only_takes_longer(server, folder):
    server.faults.delay_seconds = 0.1
    assert batches(small(f"{server.url}/train.beton")) == batches(small(folder / "train.beton"))


def test_a_server_without_ranges_is_refused_with_the_reason(server):
    server.faults.ranges = False
    with pytest.raises(StorageError, match="does not answer range requests: download the file"):
        small(f"{server.url}/train.beton")


def test_missing_objects_unknown_stores_and_plain_readers_say_so(server):
    with pytest.raises(StorageError, match=r"none\.beton: asking for its size: .*404"):
        small(f"{server.url}/none.beton")
    with pytest.raises(UsageError, match=r"nostore://a/b\.beton cannot be opened by fsspec .*: Protocol not known"):
        small("nostore://a/b.beton")
    from dataloading.dataset.open_files import open_files

    with pytest.raises(UsageError, match="which only Loader can read"):
        open_files(f"{server.url}/train.beton")


def test_an_object_that_changes_is_not_mixed_with_its_old_pages(server, folder, tmp_path):
    url = f"{server.url}/train.beton"
    loader = small(url, cache_dir=tmp_path / "c", shuffle="global")
    write(folder / "train.beton", 120, seed=9)
    with pytest.raises(StorageError, match="has changed while it was being read"):
        batches(loader)
    loader.close()
    del loader
    assert batches(small(url, cache_dir=tmp_path / "c")) == batches(small(folder / "train.beton"))


def test_a_foreign_file_without_checksums_is_watched_by_its_identity(server, folder):
    payloads = [(1, 100, 100, noise(k, 30000)) for k in range(30)]
    image_file(folder / "ffcv.beton", payloads)
    url = f"{server.url}/ffcv.beton"
    assert batches(small(url)) == batches(small(folder / "ffcv.beton"))
    remote = small(url, shuffle="global")
    os.utime(folder / "ffcv.beton", ns=(1, 1))
    with pytest.raises(StorageError, match="has changed while it was being read"):
        batches(remote)


# ---- runs that are killed


def _slowly(url: str, cache_dir: Path, some: Any) -> None:
    loader = small(url, cache_dir=cache_dir, shuffle="none", num_workers=1, batch_size=4)
    for number, _ in enumerate(loader):
        if number == 8:
            some.set()
            time.sleep(600)


def test_a_run_killed_in_the_middle_goes_on_without_fetching_what_has_arrived(server, folder, tmp_path):
    url, some = f"{server.url}/train.beton", CONTEXT.Event()
    server.faults.delay_seconds = 0.05
    process = CONTEXT.Process(target=_slowly, args=(url, tmp_path / "c", some), daemon=True)
    process.start()
    assert some.wait(120)
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    server.faults.delay_seconds = 0.0
    before = {r.start for r in server.requests if r.status == 206 and r.num_bytes > 100}
    assert len(before) >= 4
    num_requests = len(server.requests)
    loader = small(url, cache_dir=tmp_path / "c", shuffle="none")
    assert batches(loader) == batches(small(folder / "train.beton"))
    again = [r for r in server.requests[num_requests:] if r.num_bytes > 100 and r.start in before]
    # What was on its way when the run died had not arrived: at most one part a fetching thread.
    assert len(again) <= 4 < len(before) + 1


# ---- S3


def test_patterns_lists_and_manifests_on_s3(tmp_path):
    paths = [write(tmp_path / f"train-{k:05}-of-00002.beton", 40, seed=k) for k in range(2)]
    expected = batches(small(paths, shuffle="global"))
    with s3_server() as store:
        urls = [store.put(f"data/{path.name}", path) for path in paths]
        shards = []
        for path in paths:
            with Reader(path) as reader:
                shards.append(
                    Shard(name=path.name, num_samples=40, num_bytes=reader.num_bytes, fingerprint=reader.fingerprint)
                )
        manifest = store.put("data/train.beton.json", Manifest(shards=tuple(shards)).to_text().encode())
        for given in (urls, store.url("data/train-*.beton"), manifest):
            loader = small(given, cache_dir=tmp_path / "c", shuffle="global")
            assert batches(loader) == expected
            assert loader.dataset.paths == tuple(urls)
        with pytest.raises(UsageError, match="no object matches"):
            small(store.url("data/none-*.beton"))
        with pytest.raises(StorageError, match="check the address and the credentials"):
            small(store.url("data/none.beton"))
        store.put(f"data/{paths[1].name}", paths[0])
        with pytest.raises(ValueError, match="is not the shard that"):
            small(manifest)
