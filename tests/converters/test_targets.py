"""Files go to object stores whole, compared, and again after trouble; on this machine nothing is left of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from converters import ImagePolicy, Options, convert
from converters.dataset import DatasetSource
from converters.targets import NUM_TRIES, Store, place_of
from dataloading import ConvertError, Manifest, UsageError
from tests.support.servers import S3Server, s3_server

from .test_resume import FIELDS, Blocks, die_at_write, in_a_child, save_in_turn


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.targets._FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "o.beton"
    convert(DatasetSource(Blocks(), FIELDS), path, policy=ImagePolicy(), options=Options())
    return path.read_bytes()


def write(url: str, temp_dir: Path, dataset: Any = None, **options: Any) -> Any:
    options = {"checkpoint_seconds": 1e-9, "temp_dir": str(temp_dir), **options}
    source = DatasetSource(dataset or Blocks(), FIELDS)
    return convert(source, url, policy=ImagePolicy(), options=Options(**options))


def kept(temp_dir: Path) -> list[str]:
    return [entry.name for entry in temp_dir.rglob("*") if entry.is_file()]


def test_a_file_on_s3_has_the_bytes_of_a_local_one_and_is_replaced_only_when_asked(
    s3: S3Server, tmp_path: Path, whole: bytes
) -> None:
    url = s3.url("plain/o.beton")
    report = write(url, tmp_path)
    assert (report.path, report.num_samples, report.num_bytes) == (url, 60, len(whole))
    assert s3.get("plain/o.beton") == whole
    assert kept(tmp_path) == []
    with pytest.raises(UsageError, match="--overwrite"):
        write(url, tmp_path)
    assert write(url, tmp_path, resume=True).num_resumed == 60
    with pytest.raises(UsageError, match="seed was 0, is 1 now"):
        write(url, tmp_path, resume=True, seed=1)
    write(url, tmp_path, seed=1, overwrite=True)
    assert s3.get("plain/o.beton") != whole
    assert s3.uploads() == []


def test_shards_on_s3_are_a_set_and_those_that_are_there_are_not_made_again(s3: S3Server, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    write(str(local / "o.beton"), tmp_path, num_shards=3)
    for index in (1, 0):
        assert not write(s3.url("set/o.beton"), tmp_path / "temp", num_shards=3, shard_index=index).is_whole
    report = write(s3.url("set/o.beton"), tmp_path / "temp", num_shards=3, resume=True)
    assert (report.num_samples, report.num_resumed) == (60, 40)
    for path in local.iterdir():
        assert s3.get(f"set/{path.name}") == path.read_bytes()
    manifest = Manifest.from_text(s3.get("set/o.beton.json"), "set")
    assert manifest == Manifest.load(local / "o.beton.json")
    assert kept(tmp_path / "temp") == []


def test_killed_while_converting_it_resumes_and_uploads(s3: S3Server, tmp_path: Path, whole: bytes) -> None:
    url = s3.url("killed/o.beton")

    def act() -> None:
        save_in_turn()
        die_at_write(40, 0.5)
        write(url, tmp_path)

    assert in_a_child(act) < 0
    assert "killed/o.beton" not in s3.keys()  # noqa: SIM118
    with pytest.raises(UsageError, match="interrupted conversion"):
        write(url, tmp_path)
    assert write(url, tmp_path, resume=True).num_resumed > 0
    assert s3.get("killed/o.beton") == whole
    assert kept(tmp_path) == []


def test_an_upload_is_tried_again_and_after_the_last_try_the_file_is_kept_for_resume(
    s3: S3Server, tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    real = s3fs.S3FileSystem._put_file
    tries, failures = [], NUM_TRIES - 1

    async def flaky(self: Any, *args: Any, **options: Any) -> Any:
        tries.append(1)
        if len(tries) <= failures:
            raise ConnectionError("reset by peer")
        return await real(self, *args, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_put_file", flaky)
    s3fs.S3FileSystem.clear_instance_cache()
    write(s3.url("flaky/o.beton"), tmp_path)
    assert s3.get("flaky/o.beton") == whole
    tries.clear()
    failures = NUM_TRIES
    url = s3.url("down/o.beton")
    with pytest.raises(ConvertError, match=f"{NUM_TRIES} tries failed; the last: ConnectionError: reset by peer"):
        write(url, tmp_path)
    assert len(kept(tmp_path)) == 1
    with pytest.raises(UsageError, match=r"converted but was not uploaded.*--resume uploads it"):
        write(url, tmp_path)
    assert write(url, tmp_path, resume=True).num_resumed == 60
    assert s3.get("down/o.beton") == whole
    assert kept(tmp_path) == []


def test_a_store_that_keeps_other_bytes_is_found_out(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    real = s3fs.S3FileSystem._put_file

    async def spoiling(self: Any, path: str, key: str, **options: Any) -> Any:
        data = bytearray(Path(path).read_bytes())
        data[-1] ^= 1
        spoiled = tmp_path / "spoiled"
        spoiled.write_bytes(data)
        return await real(self, str(spoiled), key, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_put_file", spoiling)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(ConvertError, match="does not hold what was uploaded"):
        write(s3.url("spoiled/o.beton"), tmp_path / "temp")


def test_a_bucket_that_is_not_there_is_told(s3: S3Server, tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"s3://no-such-bucket/o.beton cannot be written"):
        write("s3://no-such-bucket/o.beton", tmp_path)


def test_other_kinds_of_url(tmp_path: Path, whole: bytes) -> None:
    write("memory://folder/o.beton", tmp_path)
    assert Store("memory://folder/o.beton").read(0, len(whole)) == whole
    write(f"file://{tmp_path}/o.beton", tmp_path)
    assert (tmp_path / "o.beton").read_bytes() == whole
    with pytest.raises(UsageError, match=r"nonsense://x cannot be written: .*nonsense"):
        write("nonsense://x", tmp_path)


def test_the_local_file_of_a_url_is_the_same_each_time_and_private(tmp_path: Path) -> None:
    options = Options(temp_dir=str(tmp_path))
    first, second = (place_of(f"s3://{bucket}/o.beton", options) for bucket in "ab")
    assert first.local != second.local
    assert first == place_of("s3://a/o.beton", options)
    assert Path(first.folder).stat().st_mode & 0o077 == 0
