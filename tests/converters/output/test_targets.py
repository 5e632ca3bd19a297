"""Files go to object stores whole, compared, and again after trouble; on this machine nothing is left of them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from converters import ImagePolicy, Options, convert
from converters.output.targets import Store, resolve_destination
from converters.output.uploads import UploadNote
from converters.python_dataset import DatasetSource
from dataloading import ConvertError, Manifest, UsageError
from dataloading.tools import Retry
from tests.converters.engine.test_resume import FIELDS, Blocks, die_at_write, in_a_child, save_in_turn
from tests.support.buckets import gcs_server, troubled
from tests.support.servers import S3Server
from tests.support.waiting import wait_for


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.output.targets.RETRY", Retry(first_wait_seconds=0.001))


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


@pytest.fixture
def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file of some megabytes be uploaded as one of many gigabytes is."""
    monkeypatch.setattr("converters.output.uploads._PART_BYTES", 5 << 20)  # the least that S3 takes


BAD = ["slow down", "error", "reset", "damage"]


@pytest.mark.parametrize("call", ["PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"])
def test_an_upload_goes_on_after_refusals_resets_and_damage_on_the_way(
    s3: S3Server, tmp_path: Path, call: str, request: pytest.FixtureRequest
) -> None:
    if call != "PutObject":
        request.getfixturevalue("in_small_parts")
    path = tmp_path / "o.beton"
    path.write_bytes(random.Random(1).randbytes(12 << 20))
    url = s3.url(f"flaky/{call}")
    with troubled(s3) as trouble:
        trouble.plan[call] = [*BAD[: 3 if call in {"CreateMultipartUpload", "CompleteMultipartUpload"} else 4]]
        Store(url).upload(str(path))
        assert not trouble.plan[call]
    assert s3.get(f"flaky/{call}") == path.read_bytes()
    assert s3.uploads() == []
    assert [each.name for each in tmp_path.iterdir()] == ["o.beton"]


def test_a_completion_whose_answer_is_lost_is_a_completion(s3: S3Server, tmp_path: Path, in_small_parts: None) -> None:
    path = tmp_path / "o.beton"
    path.write_bytes(random.Random(2).randbytes(12 << 20))
    with troubled(s3) as trouble:
        trouble.plan["CompleteMultipartUpload"] = ["lost"]
        Store(s3.url("lost/o.beton")).upload(str(path))
    assert s3.get("lost/o.beton") == path.read_bytes()


@pytest.mark.parametrize(
    ("call", "what", "words"),
    [
        ("UploadPart", "slow down", r"written \(part [123]\), 5 tries failed; the last: .*SlowDown"),
        ("UploadPart", "damage", r"written \(part [123]\), 5 tries failed; the last: .*BadDigest"),
        ("UploadPart", "denied", r"written \(part [123]\): .*AccessDenied"),
        ("CompleteMultipartUpload", "error", r"completed, 5 tries failed; the last: .*InternalError"),
        ("PutObject", "expired", r"cannot be written: .*ExpiredToken"),
    ],
)
def test_after_the_last_try_nothing_is_in_the_store_and_the_file_is_kept_for_resume(
    s3: S3Server, tmp_path: Path, whole: bytes, call: str, what: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("converters.output.uploads._PART_BYTES", 64 << 20 if call == "PutObject" else 5 << 20)
    key = f"down/{call}-{what}.beton".replace(" ", "-")
    with troubled(s3) as trouble:
        trouble.plan[call] = [what] * 100
        with pytest.raises(ConvertError, match=words):
            write(s3.url(key), tmp_path)
    assert key not in s3.keys()  # noqa: SIM118
    assert s3.uploads() == []
    assert len(kept(tmp_path)) == 1
    with pytest.raises(UsageError, match=r"converted but was not uploaded.*--resume uploads it"):
        write(s3.url(key), tmp_path)
    assert write(s3.url(key), tmp_path, resume=True).num_resumed == 60
    assert s3.get(key) == whole
    assert kept(tmp_path) == []


@pytest.mark.parametrize("parts", [False, True])
def test_a_store_that_keeps_other_bytes_is_found_out_and_they_are_removed(
    s3: S3Server, tmp_path: Path, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("converters.output.uploads._PART_BYTES", 5 << 20 if parts else 64 << 20)
    with troubled(s3) as trouble:
        trouble.plan["UploadPart" if parts else "PutObject"] = ["keep damage"]
        with pytest.raises(ConvertError, match=r"does not hold what was uploaded .* was removed"):
            write(s3.url(f"spoiled/{parts}"), tmp_path)
    assert f"spoiled/{parts}" not in s3.keys()  # noqa: SIM118
    write(s3.url(f"spoiled/{parts}"), tmp_path, resume=True)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_parts_of_an_upload_that_is_cut_off_are_removed_at_once_or_by_the_next_run_and_no_others(
    s3: S3Server, tmp_path: Path, whole: bytes, in_small_parts: None, how: signal.Signals
) -> None:
    key = f"cut/{how.name}.beton"
    stranger = s3.client.create_multipart_upload(Bucket=s3.bucket, Key=key)
    with troubled(s3) as trouble:
        trouble.plan["UploadPart"] = ["", "wait"]

        def act() -> None:
            with contextlib.suppress(KeyboardInterrupt):
                write(s3.url(key), tmp_path)

        child = os.fork()
        if child == 0:
            try:
                act()
            finally:
                os._exit(0)
        wait_for(lambda: trouble.calls.count("UploadPart") >= 2)
        time.sleep(0.3)
        os.kill(child, how)
        if how == signal.SIGINT:
            time.sleep(0.3)
        trouble.released.set()
        os.waitpid(child, 0)
    if how == signal.SIGKILL:
        wait_for(lambda: s3.uploads().count(key) == 2)
    else:
        assert s3.uploads() == [key], "the stranger's alone is left"
    assert key not in s3.keys()  # noqa: SIM118
    write(s3.url(key), tmp_path, resume=True)
    assert s3.get(key) == whole
    assert s3.uploads() == [key]
    assert kept(tmp_path) == []
    s3.client.abort_multipart_upload(Bucket=s3.bucket, Key=key, UploadId=stranger["UploadId"])


def test_a_second_process_does_not_take_the_parts_of_one_that_is_uploading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("converters.output.uploads._WAIT_SECONDS", 0.1)
    noted = UploadNote(str(tmp_path / "o.beton"))
    with noted.held() as left:
        assert left is None
        noted.save({"bucket": "b", "key": "k", "upload_id": "u"})
        with pytest.raises(ConvertError, match="another process is uploading"), noted.held():
            pass
    assert not noted.is_there()


def test_a_bucket_that_is_not_there_is_told_before_any_work(s3: S3Server, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"s3://no-such-bucket/o.beton: there is no bucket 'no-such-bucket'"):
        write("s3://no-such-bucket/o.beton", tmp_path)


def test_stores_that_are_only_read_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="https:// can be read, not written"):
        write("https://host/o.beton", tmp_path)
    with pytest.raises(UsageError, match="hf upload"):
        write("hf://datasets/me/set/o.beton", tmp_path)


def test_a_file_on_google_storage_has_the_bytes_of_a_local_one(tmp_path: Path, whole: bytes) -> None:
    with gcs_server() as store:
        report = write(store.url("plain/o.beton"), tmp_path)
        assert (report.num_samples, report.num_bytes) == (60, len(whole))
        assert store.get("plain/o.beton") == whole
        assert kept(tmp_path) == []
        with pytest.raises(UsageError, match="--overwrite"):
            write(store.url("plain/o.beton"), tmp_path)
        assert write(store.url("plain/o.beton"), tmp_path, resume=True).num_resumed == 60
        write(store.url("set/o.beton"), tmp_path, num_shards=3)
        manifest = Manifest.from_text(store.get("set/o.beton.json").decode(), "set")
        assert [shard.num_samples for shard in manifest.shards] == [20, 20, 20]


def test_other_kinds_of_url(tmp_path: Path, whole: bytes) -> None:
    write("memory://folder/o.beton", tmp_path)
    assert Store("memory://folder/o.beton").read(0, len(whole)) == whole
    write(f"file://{tmp_path}/o.beton", tmp_path)
    assert (tmp_path / "o.beton").read_bytes() == whole
    with pytest.raises(UsageError, match=r"nonsense://x cannot be written: .*nonsense"):
        write("nonsense://x", tmp_path)


def test_the_local_file_of_a_url_is_the_same_each_time_and_private(tmp_path: Path) -> None:
    options = Options(temp_dir=str(tmp_path))
    first, second = (resolve_destination(f"s3://{bucket}/o.beton", options) for bucket in "ab")
    assert first.local != second.local
    assert first == resolve_destination("s3://a/o.beton", options)
    assert Path(first.folder).stat().st_mode & 0o077 == 0
