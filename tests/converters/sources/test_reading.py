"""Files and URLs read alike; what may pass is tried again, what stays is told with URL, tries and answer."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import pytest

from converters.source import SampleFault
from converters.sources.listing import expand, list_folder, walk
from converters.sources.reading import (
    RETRY,
    Ranges,
    child,
    exists,
    identity,
    is_folder,
    name_of,
    normalised,
    open_stream,
    read_file,
)
from dataloading import ConvertError, UsageError
from tests.support.servers import http_range_server, s3_server


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_file_url_is_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a b%.txt"
    path.write_bytes(b"x")
    assert normalised(f"file://{tmp_path}/a%20b%25.txt") == str(path)
    assert read_file(normalised(path.as_uri())) == b"x"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/a/b c", "b c"),
        ("s3://bucket/a/b.tar", "b.tar"),
        ("https://host/a/b%20c.tar?token=1", "b c.tar"),
        ("memory://x", "x"),
    ],
)
def test_the_name_of_a_path_is_its_last_part(path: str, name: str) -> None:
    assert name_of(path) == name


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    start = time.monotonic()
    with pytest.raises(SampleFault, match="not a regular file"):
        read_file(str(tmp_path / "pipe"))
    assert time.monotonic() - start < 60


def test_a_range_of_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"0123456789")
    known = identity(str(path))
    ranges = Ranges()
    assert ranges.read(str(path), 2, 3, known) == b"234"
    assert pickle.loads(pickle.dumps(ranges)).read(str(path), 0, 1, known) == b"0"
    with pytest.raises(SampleFault, match="ends 2 bytes before"):
        ranges.read(str(path), 8, 4, known)
    path.write_bytes(b"9876543210")
    os.utime(path, ns=(0, known.mtime_ns + 1))
    with pytest.raises(SampleFault, match="changed since the conversion began"):
        Ranges().read(str(path), 2, 3, known)
    path.unlink()
    with pytest.raises(SampleFault, match="No such file"):
        Ranges().read(str(path), 2, 3, known)


def test_many_files_do_not_stay_open(tmp_path: Path) -> None:
    before = num_open_files()
    ranges = Ranges()
    for number in range(200):
        path = tmp_path / str(number)
        path.write_bytes(b"x")
        assert ranges.read(str(path), 0, 1, identity(str(path))) == b"x"
    assert num_open_files() - before <= 64
    del ranges
    assert num_open_files() == before


def test_a_store_in_memory_is_read_as_files_are(memory) -> None:
    url = memory("memory://set/a/1.jpg", b"0123456789")
    memory("memory://set/a/b/2.jpg", b"x")
    assert read_file(url) == b"0123456789"
    assert Ranges().read(url, 2, 3, identity(url)) == b"234"
    with open_stream(url) as file:
        assert (file.seek(-3, os.SEEK_END), file.read(), file.read(), file.seek(1), file.read(2)) == (
            7, b"789", b"", 1, b"12"
        )  # fmt: skip
    assert list_folder("memory://set/a") == (["b"], ["1.jpg"])
    assert sorted(walk("memory://set", "a")) == [("a", ["1.jpg"]), ("a/b", ["2.jpg"])]
    assert exists(url) and is_folder("memory://set/a") and not exists("memory://set/none")


def test_what_is_not_there_is_not_tried_again(memory, no_pauses: list[float]) -> None:
    with pytest.raises(SampleFault, match=r"memory://none/x cannot be read: it does not exist"):
        read_file("memory://none/x")
    with pytest.raises(ConvertError, match=r"memory://none cannot be read: it does not exist"):
        list_folder("memory://none")
    assert no_pauses == []


def test_an_unknown_store_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"quux://a/b cannot be opened by fsspec .*: Protocol not known: quux"):
        read_file("quux://a/b")


def test_http_faults_pass_by_with_the_third_try(tmp_path: Path, no_pauses: list[float]) -> None:
    (tmp_path / "a b.bin").write_bytes(bytes(range(256)) * 100)
    with http_range_server(tmp_path) as server:
        url = child(server.url, "a b.bin")
        server.faults.fail_first = RETRY.num_tries - 1
        assert read_file(url) == bytes(range(256)) * 100
        assert 0.5 <= no_pauses[0] <= 1.0 <= no_pauses[1] <= 2.0
        known = identity(url)
        server.faults.cut_first = 1
        assert Ranges().read(url, 256, 512, known) == bytes(range(256)) * 2
        server.faults.fail_first = RETRY.num_tries
        with pytest.raises(
            SampleFault, match=rf"a%20b.bin cannot be read, {RETRY.num_tries} tries failed; the last: .*503"
        ):
            read_file(url)


def test_a_server_without_ranges_is_refused_and_not_believed(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    with http_range_server(tmp_path) as server:
        url = child(server.url, "a.bin")
        known = identity(url)
        server.faults.ranges = False
        with pytest.raises(SampleFault, match="the server ignores ranges and sends the whole file"):
            Ranges().read(url, 2, 3, known)


def test_a_dead_server_is_an_error_after_a_few_seconds(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"x")
    with http_range_server(tmp_path) as server:
        url = child(server.url, "a.bin")
    start = time.monotonic()
    with pytest.raises(SampleFault, match=rf"{RETRY.num_tries} tries failed; the last: .*onnect"):
        read_file(url)
    assert time.monotonic() - start < 60


def test_a_real_s3_server_is_listed_and_read(tmp_path: Path) -> None:
    with s3_server() as store:
        store.put("set/cat/a ü.jpg", b"0123456789")
        store.put("set/dog/b.jpg", b"x")
        root = store.url("set")
        assert list_folder(root) == (["cat", "dog"], [])
        url = child(root, "cat/a ü.jpg")
        assert read_file(url) == b"0123456789"
        assert Ranges().read(url, 8, 2, identity(url)) == b"89"
        with open_stream(url) as file:
            assert file.read() == b"0123456789"
        assert expand([f"{root}/*/*.jpg"], ()) == [url, f"{root}/dog/b.jpg"]
        with pytest.raises(SampleFault, match="does not exist"):
            read_file(f"{root}/none.jpg")
        with pytest.raises(ConvertError, match="cannot be read"):
            list_folder("s3://no-such-bucket/x")


def test_patterns_spread_to_sorted_files(tmp_path: Path) -> None:
    for name in ("s-000.tar", "s-001.tar", "s-010.tar", "other.txt", "odd[1].tar", "a{b}.tar"):
        (tmp_path / name).write_bytes(b"")
    root = str(tmp_path)
    assert expand([f"{root}/s-{{000..001}}.tar"], (".tar",)) == [f"{root}/s-000.tar", f"{root}/s-001.tar"]
    assert expand([f"{root}/s-0{{10,00}}.tar"], (".tar",)) == [f"{root}/s-010.tar", f"{root}/s-000.tar"]
    assert expand([f"{root}/s-*.tar"], ()) == [f"{root}/s-{number}.tar" for number in ("000", "001", "010")]
    assert expand([f"{root}/odd[1].tar"], ()) == [f"{root}/odd[1].tar"]
    assert expand([f"{root}/a{{b}}.tar"], ()) == [f"{root}/a{{b}}.tar"]
    assert [Path(path).name for path in expand([root], (".tar",))] == [
        "a{b}.tar", "odd[1].tar", "s-000.tar", "s-001.tar", "s-010.tar",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (["none-*.tar"], "nothing matches"),
        (["none.tar"], "does not exist"),
        (["s-{000..002}.tar"], "s-002.tar does not exist"),
        (["s-{003..001}.tar"], "runs backwards"),
        (["s-000.tar", "s-*.tar"], "named twice"),
        (["empty"], "no files that end in .tar"),
    ],
)
def test_patterns_that_stand_for_nothing_are_refused(tmp_path: Path, patterns: list[str], words: str) -> None:
    for name in ("s-000.tar", "s-001.tar"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=words):
        expand([f"{tmp_path}/{pattern}" for pattern in patterns], (".tar",))
