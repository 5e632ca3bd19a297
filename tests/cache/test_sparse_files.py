"""Loader over each kind of store: Google's and S3 with what goes wrong there, the hub of Hugging Face."""

from __future__ import annotations

import functools
import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dataloading import Loader, Manifest, Reader, Shard, StorageError, UsageError
from dataloading.cache import open_cached
from dataloading.dataset.remote import addresses
from dataloading.dataset.remote.byte_sources import RemoteSource
from dataloading.dataset.remote.clients import StoreClient
from dataloading.retry import Retry
from tests.cache.test_remote import PAGE, QUICK, batches, small, write
from tests.support.buckets import GCSServer, troubled
from tests.support.hub import hub_server
from tests.support.servers import HTTPServer, S3Server, http_range_server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for milliseconds where users wait for seconds."""
    monkeypatch.setattr(open_cached, "Retry", QUICK)
    monkeypatch.setattr(addresses, "Retry", QUICK)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("set")
    return [write(folder / f"train-0000{k}-of-00002.beton", 40, seed=k) for k in range(2)]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of many more pages than are kept."""
    return write(tmp_path_factory.mktemp("long") / "train.beton", 200)


def manifest_of(paths: list[Path]) -> bytes:
    shards = []
    for path in paths:
        with Reader(path) as reader:
            shards.append(Shard.of(reader, path.name))
    return Manifest(shards=tuple(shards)).to_text().encode()


# ---- Google's storage


def test_files_patterns_and_manifests_on_google_storage(gcs: GCSServer, paths: list[Path], tmp_path: Path) -> None:
    expected = batches(small(paths, shuffle="global"))
    urls = [gcs.put(f"data/{path.name}", path) for path in paths]
    manifest = gcs.put("data/train.beton.json", manifest_of(paths))
    for given in (urls, gcs.url("data/train-*.beton"), manifest):
        loader = small(given, cache_dir=tmp_path / "c", shuffle="global")
        assert batches(loader) == expected
        assert loader.dataset.paths == tuple(urls)
        loader.close()
    assert batches(small(urls[0], shuffle="pages", window_pages=2)) == batches(
        small(paths[0], shuffle="pages", window_pages=2)
    )
    with pytest.raises(StorageError, match=r"none\.beton: asking for its size: .*check the address"):
        small(gcs.url("data/none.beton"))
    with pytest.raises(UsageError, match="no object matches"):
        small(gcs.url("data/none-*.beton"))


def test_an_object_replaced_or_removed_on_google_storage_is_noticed(gcs: GCSServer, long: Path, tmp_path: Path) -> None:
    url = gcs.put("changing/train.beton", long)
    loader = small(url, cache_dir=tmp_path / "c", cache_bytes=3 * PAGE, batch_size=4, shuffle="none")
    iterator = iter(loader)
    next(iterator)
    gcs.put("changing/train.beton", write(tmp_path / "other.beton", 200, seed=7))
    with pytest.raises(StorageError, match="has changed while it was being read"):
        list(iterator)
    loader.close()
    loader = small(url, cache_dir=tmp_path / "c", cache_bytes=3 * PAGE, batch_size=4, shuffle="none")
    iterator = iter(loader)
    next(iterator)
    gcs.remove("changing/train.beton")
    with pytest.raises(StorageError, match=r"train\.beton: bytes .*check the address"):
        list(iterator)


def test_google_storage_that_cannot_be_reached_is_told_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"gs://b/a\.beton: .* in 4 tries; the last one: .*onnect.* 127\.0\.0\.1:9"):
        small("gs://b/a.beton")
    assert time.monotonic() - started < 60, "tries of the package multiply with ours"


def test_file_systems_of_the_callers_own_keep_their_tries(gcs: GCSServer) -> None:
    import fsspec

    own = fsspec.filesystem("gs")
    ours = StoreClient(gcs.url("a"), shared=True).filesystem
    assert ours is StoreClient(gcs.url("b"), shared=True).filesystem
    assert ours is not own
    assert "_request" in vars(ours)
    assert "_request" not in vars(own)


# ---- Hugging Face's hub


@pytest.fixture
def hub(tmp_path: Path, paths: list[Path]) -> Iterator[HTTPServer]:
    data = tmp_path / "hub" / "datasets" / "me" / "set" / "data"
    data.mkdir(parents=True)
    for path in paths:
        (data / path.name).write_bytes(path.read_bytes())
    (data / "train.beton.json").write_bytes(manifest_of(paths))
    with hub_server(tmp_path / "hub") as server:
        yield server


def test_files_patterns_and_manifests_on_the_hub(hub: HTTPServer, paths: list[Path], tmp_path: Path) -> None:
    expected = batches(small(paths, shuffle="global"))
    urls = [f"hf://datasets/me/set/data/{path.name}" for path in paths]
    for given in (urls, "hf://datasets/me/set/data/train-*.beton", "hf://datasets/me/set/data/train.beton.json"):
        loader = small(given, cache_dir=tmp_path / "c", shuffle="global")
        assert batches(loader) == expected
        assert loader.dataset.paths == tuple(urls)
        loader.close()
    size = sum(path.stat().st_size for path in paths)
    assert hub.fetched_bytes() < 1.1 * size, "more was read than asked for"
    with pytest.raises(StorageError, match=r"none\.beton: asking for its size: .*check the address"):
        small("hf://datasets/me/set/data/none.beton")
    with pytest.raises(StorageError, match=r"asking for its size: 404 .*check the address"):
        small("hf://datasets/me/none/a.beton")


def test_a_hub_that_fails_refuses_or_changes_a_file(
    hub: HTTPServer, paths: list[Path], long: Path, tmp_path: Path
) -> None:
    url, local = f"hf://datasets/me/set/data/{paths[0].name}", next((tmp_path / "hub").rglob(paths[0].name))
    hub.faults.only_above_bytes = 1000
    hub.faults.fail_first, hub.faults.cut_first, hub.faults.corrupt_first = 2, 1, 1
    assert batches(small(url)) == batches(small(paths[0]))
    loader = small(url, shuffle="global")
    hub.faults.refuse_after = 1
    with pytest.raises(StorageError, match=r"train-00000.*: bytes .*403 .*credentials"):
        batches(loader)
    hub.faults.refuse_after = -1
    local.write_bytes(long.read_bytes())
    loader = small(url, batch_size=4, cache_bytes=3 * PAGE, os_cache=False)
    iterator = iter(loader)
    next(iterator)
    write(local, 200, seed=8)
    with pytest.raises(StorageError, match="has changed while it was being read"):
        list(iterator)
    hub.faults.down = True
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"asking for its size: .* in 4 tries; the last one: .*isconnected"):
        small(url)
    assert time.monotonic() - started < 60, "tries of the package multiply with ours"


# ---- S3


def test_s3_that_slows_down_fails_and_breaks_off_only_takes_longer(
    s3: S3Server, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One request may meet all five: more tries than that.
    monkeypatch.setattr(open_cached, "Retry", functools.partial(QUICK, num_tries=6))
    url = s3.put("slow/train.beton", paths[0])
    with troubled(s3) as trouble:
        trouble.plan["GetObject"] = ["slow down", "error", "reset", "slow down", "reset"]
        trouble.plan["HeadObject"] = ["error", "reset"]
        assert batches(small(url, shuffle="global")) == batches(small(paths[0], shuffle="global"))
        assert not trouble.plan["GetObject"]
        assert not trouble.plan["HeadObject"]


@pytest.mark.parametrize("answer", ["expired", "denied"])
def test_credentials_that_expire_in_an_epoch_are_told_at_once(s3: S3Server, paths: list[Path], answer: str) -> None:
    url = s3.put("expiring/train.beton", paths[0])
    with troubled(s3) as trouble:
        loader = small(url, batch_size=4)
        trouble.plan["GetObject"] = ["", *[answer] * 50]
        before = len(trouble.calls)
        with pytest.raises(StorageError, match=r"train\.beton: bytes .*PermissionError .*credentials"):
            batches(loader)
        assert len(trouble.calls) - before < 12, "it was asked again, which is of no use"


@pytest.mark.parametrize("seed", [7, None])
def test_an_object_replaced_or_removed_on_s3_in_an_epoch_is_noticed(
    s3: S3Server, long: Path, tmp_path: Path, seed: int | None
) -> None:
    url = s3.put("changing/train.beton", long)
    loader = small(url, cache_dir=tmp_path / "c", cache_bytes=3 * PAGE, batch_size=4, num_workers=1)
    iterator = iter(loader)
    first = next(iterator)
    assert first.indices.tolist() == [0, 1, 2, 3]
    if seed is None:
        s3.client.delete_object(Bucket=s3.bucket, Key="changing/train.beton")
        expected = r"train\.beton: bytes .*404 .*check the address"
    else:
        s3.put("changing/train.beton", write(tmp_path / "other.beton", 200, seed=seed))
        expected = "has changed while it was being read"
    with pytest.raises(StorageError, match=expected):
        list(iterator)


def test_options_of_a_store_come_from_the_users_configuration(
    s3: S3Server, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.config import conf

    url = s3.put("configured/train.beton", paths[0])
    s3.client.put_object_acl(Bucket=s3.bucket, Key="configured/train.beton", ACL="public-read")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    configured = {"endpoint_url": s3.endpoint_url, "anon": True, "config_kwargs": {"user_agent_extra": "mine"}}
    monkeypatch.setitem(conf, "s3", configured)
    client = StoreClient(url)
    assert client.filesystem.anon
    assert client.filesystem.endpoint_url == s3.endpoint_url
    assert client.filesystem.config_kwargs["user_agent_extra"] == "mine"
    assert client.filesystem.config_kwargs["retries"] == {"max_attempts": 1}
    assert len(small(url).dataset) == 40


def test_what_is_configured_for_web_servers_goes_to_them_and_not_to_the_hub(
    hub: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.config import conf

    secret = {"Authorization": "Bearer secret"}
    monkeypatch.setitem(conf, "https", {"headers": secret, "client_kwargs": {"headers": secret}})
    web = StoreClient("https://host/a.beton").filesystem
    assert (web.kwargs["headers"], web.client_kwargs["headers"]) == (secret, secret)
    assert web.client_kwargs["timeout"].sock_read == 30
    hub.seen_headers.clear()
    assert StoreClient("hf://datasets/me/set/data/train.beton.json").read(0, 10)
    assert hub.seen_headers
    assert "secret" not in "".join(hub.seen_headers)


# ---- HTTP


@pytest.fixture
def web(tmp_path: Path, paths: list[Path], long: Path) -> Iterator[HTTPServer]:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "train.beton").write_bytes(paths[0].read_bytes())
    (tmp_path / "www" / "long.beton").write_bytes(long.read_bytes())
    with http_range_server(tmp_path / "www") as server:
        yield server


def test_answers_compressed_on_the_way_are_unpacked_or_refused_and_never_taken_as_they_are(
    web: HTTPServer, paths: list[Path]
) -> None:
    web.faults.gzipped = True
    assert batches(small(f"{web.url}/train.beton")) == batches(small(paths[0]))


def test_a_proxy_that_ignores_ranges_is_refused_before_the_file_comes(web: HTTPServer, paths: list[Path]) -> None:
    web.faults.ranges, web.faults.ranges_promised = False, True
    with pytest.raises(StorageError, match=r"train\.beton: the server ignores ranges"):
        small(f"{web.url}/train.beton")
    source = RemoteSource(f"{web.url}/train.beton", Retry(num_tries=2))
    with pytest.raises(StorageError, match="the server ignores ranges"):
        source.fill(4096, np.empty(100, np.uint8))


def test_a_signature_that_expires_in_an_epoch_is_told_at_once(web: HTTPServer) -> None:
    loader = small(f"{web.url}/long.beton", batch_size=4)
    web.faults.refuse_after = 1
    before = len(web.requests)
    with pytest.raises(StorageError, match=r"long\.beton: bytes .*403 .*credentials"):
        batches(loader)
    starts = [request.start for request in web.requests[before:]]
    assert len(starts) < 8
    assert len(set(starts)) == len(starts), "a refusal is final: no page is asked for twice"


@pytest.mark.parametrize("change", ["shorter", "removed"])
def test_a_file_cut_or_removed_on_the_server_in_an_epoch_is_noticed(
    web: HTTPServer, tmp_path: Path, change: str
) -> None:
    loader = small(f"{web.url}/long.beton", batch_size=4, os_cache=False, cache_bytes=3 * PAGE, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    path = tmp_path / "www" / "long.beton"
    if change == "removed":
        path.unlink()
        expected = r"long\.beton: bytes .*(404|FileNotFound)"
    else:
        path.write_bytes(path.read_bytes()[: 2 * PAGE])
        expected = "has changed while it was being read"
    with pytest.raises(StorageError, match=expected):
        list(iterator)


def test_a_loader_that_a_store_has_failed_is_not_kept_by_its_error(web: HTTPServer) -> None:
    loader = small(f"{web.url}/long.beton", batch_size=4)
    web.faults.refuse_after = 1
    with pytest.raises(StorageError, match="403"):
        batches(loader)
    watched = weakref.ref(loader)
    del loader
    gc.collect()
    assert watched() is None


def test_a_host_without_a_name_is_told_within_seconds_with_address_and_tries() -> None:
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"http://no-such-host\.invalid/a\.beton: asking for its size: .* 4 tries"):
        Loader("http://no-such-host.invalid/a.beton", batch_size=4)
    assert time.monotonic() - started < 60
