"""Tar files give what unpacking them would: links, several archives in one file, compression; what is left is named."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from converters.sources.imagenet import ImageNetTrain
from converters.sources.tar_index import Unused, members
from converters.sources.webdataset import WebDataset, parse_map
from dataloading import ConvertError, UsageError

from .making import jpeg, samples, tar_bytes, tar_of

Entry = tuple[str, bytes | str, bytes | str]


def archive(*entries: tuple[Any, ...]) -> bytes:
    """A tar file of (name, bytes), (name, "hard" or "symbolic", target), (name, type)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, *what in entries:
            info = tarfile.TarInfo(name)
            if isinstance(what[0], str):
                info.type = {"hard": tarfile.LNKTYPE, "symbolic": tarfile.SYMTYPE}[what[0]]
                info.linkname = what[1]
                tar.addfile(info)
            elif len(what[0]) == 1 and what[0] in b"34567V":
                info.type = what[0]
                tar.addfile(info)
            else:
                info.size = len(what[0])
                tar.addfile(info, io.BytesIO(what[0]))
    return buffer.getvalue()


def contents(data: bytes, unused: Unused | None = None) -> list[tuple[str, bytes]]:
    file = io.BytesIO(data)
    return [(each.name, data[each.start : each.start + each.size]) for each in members(file, "a.tar", unused=unused)]


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("d/2", "hard", "d/1"),
        ("d/2", "hard", "./d/1"),
        ("d/2", "symbolic", "1"),
        ("e/2", "symbolic", "../d/1"),
        ("e/2", "symbolic", "./../d//./1"),
        ("2", "symbolic", "d/1"),
        ("e/2", "symbolic", "/d/1"),
        ("./e/2", "symbolic", "../d/1"),
    ],
)
@pytest.mark.parametrize("is_later", [False, True])
def test_a_link_is_the_file_it_leads_to(name: str, kind: str, target: str, is_later: bool) -> None:
    link, file = (name, kind, target), ("d/1", b"ONE!")
    entries = [link, file] if is_later else [file, link]
    assert sorted(contents(archive(*entries))) == sorted([("d/1", b"ONE!"), (name, b"ONE!")])


def test_chains_of_links_and_links_through_linked_folders_are_followed() -> None:
    data = archive(
        ("c", "symbolic", "b"), ("b", "hard", "a"), ("a", b"A!"), ("deep/er/x", b"X!"),
        ("short", "symbolic", "deep/er"), ("y", "symbolic", "short/x"), ("z", "symbolic", "short/../up"),
        ("deep/up", b"UP"),
    )  # fmt: skip
    assert contents(data) == [
        ("c", b"A!"), ("b", b"A!"), ("a", b"A!"), ("deep/er/x", b"X!"), ("short/x", b"X!"), ("y", b"X!"), ("z", b"UP"),
        ("deep/up", b"UP"),
    ]  # fmt: skip


def test_a_link_means_the_file_of_its_own_archive() -> None:
    one = archive(("a", b"old"), ("a", b"new"), ("b", "hard", "a"), ("s", "symbolic", "a"))
    two = archive(("a", b"two"), ("b", "hard", "a"), ("s", "symbolic", "a"))
    # Unpacking one leaves "new" under a; a hard link is made when it is met.
    assert contents(one + two) == [
        ("a", b"old"), ("a", b"new"), ("b", b"new"), ("s", b"new"), ("a", b"two"), ("b", b"two"), ("s", b"two"),
    ]  # fmt: skip
    between = archive(("a", b"old"), ("b", "hard", "a"), ("s", "symbolic", "a"), ("a", b"new"))
    assert contents(between) == [("a", b"old"), ("b", b"old"), ("s", b"new"), ("a", b"new")]


@pytest.mark.parametrize(
    "entries",
    [
        [("a", "symbolic", "a")],
        [("a", "symbolic", "b"), ("b", "symbolic", "a")],
        [("a", "hard", "b"), ("b", "hard", "a")],
        [("d/x", b"X!"), ("d/up", "symbolic", "..")],
        [("d/x", b"X!"), ("d/self", "symbolic", ".")],
        [("d/x", b"X!"), ("e/y", b"Y!"), ("d/e", "symbolic", "../e"), ("e/d", "symbolic", "../d")],
    ],
)
def test_links_in_a_circle_are_an_error_that_names_one(entries: list[Any]) -> None:
    with pytest.raises(ConvertError, match=r"a\.tar: the link.*(lead to one another|leads to a folder above itself)"):
        contents(archive(*entries))


def test_what_is_no_file_or_leads_out_of_the_archive_is_counted_and_named() -> None:
    unused = Unused()
    data = archive(
        ("a", b"A!"), ("d", b"5"), ("dev/null", b"3"), ("dev/sda", b"4"), ("pipe", b"6"), ("label", b"V"),
        ("out", "symbolic", "../a"), ("gone", "hard", "b"), ("abs", "symbolic", "/etc/passwd"),
        ("empty", "symbolic", "d"),
    )  # fmt: skip
    assert contents(data, unused) == [("a", b"A!")]
    assert unused.as_dict() == {
        "device nodes": 2, "pipes": 1, "entries of the unknown type 'V'": 1, "links out of the archive": 3,
    }  # fmt: skip
    assert "out -> ../a, gone -> b, abs -> /etc/passwd" in str(unused)


def test_many_members_of_a_kind_are_counted_and_three_named() -> None:
    unused = Unused()
    for number in range(1200):
        unused.add(".txt files", f"{number}.txt")
    assert str(unused) == "1,200 members are not used: .txt files: 1,200 (0.txt, 1.txt, 2.txt, ...)"


@pytest.mark.parametrize("padding", [0, 512, 3 << 20])
def test_archives_that_follow_one_another_are_all_read(padding: int) -> None:
    data = archive(("a", b"A!")) + bytes(padding) + archive(("b", b"B!")) + archive(("c", b"C!"))
    assert contents(data) == [("a", b"A!"), ("b", b"B!"), ("c", b"C!")]


def test_other_data_behind_the_end_mark_is_an_error_with_the_place() -> None:
    whole = archive(("a", b"A!"))
    with pytest.raises(ConvertError, match=r"a\.tar has 600 bytes behind its end mark.*truncate -s 10240 FILE"):
        contents(whole + b"x" * 600)
    damaged = bytearray(whole + archive(("b", b"B!"), ("c", b"C!")))
    damaged[len(whole) + 3] ^= 1
    with pytest.raises(ConvertError, match="behind its end mark that are no tar file, from byte 10240"):
        contents(bytes(damaged))
    damaged[len(whole) + 3] ^= 1
    damaged[len(whole) + 1024] ^= 1
    with pytest.raises(ConvertError, match="no member's header at byte 11264"):
        contents(bytes(damaged))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_of_members_and_links_are_whole(form: int) -> None:
    long = "/".join(["n" * 90, "ü中" * 40, "x"])
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        info = tarfile.TarInfo(long)
        info.size = 2
        tar.addfile(info, io.BytesIO(b"L!"))
        link = tarfile.TarInfo(long + "2")
        link.type, link.linkname = tarfile.LNKTYPE, long
        tar.addfile(link)
    assert contents(buffer.getvalue()) == [(long, b"L!"), (long + "2", b"L!")]


SHARD = [entry for n in range(4) for entry in ((f"{n}.jpg", jpeg(n)), (f"{n}.cls", str(n).encode()))]


def zst(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def zst_with_a_frame_to_skip(data: bytes) -> bytes:
    return b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zst(data)


PACKERS = {
    "tar.gz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress, "tar.zst": zst,
    "tzst": zst_with_a_frame_to_skip,
}  # fmt: skip


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_shards_give_the_samples_of_plain_ones(tmp_path: Path, ending: str) -> None:
    for number in range(2):
        whole = tar_bytes(SHARD[4 * number : 4 * number + 4])
        # In two streams, as pigz, pzstd and cat make them, with zeros behind.
        parts = PACKERS[ending](whole[:700]) + PACKERS[ending](whole[700:]) + bytes(4)
        (tmp_path / f"s-{number}.{ending}").write_bytes(parts)
    plain = WebDataset([str(tar_of(tmp_path / "p.tar", SHARD))])
    (tmp_path / "p.tar").rename(tmp_path / "p")
    packed = WebDataset([str(tmp_path)])
    assert samples(packed) == [{"image": jpeg(n), "label": n} for n in range(4)]
    # The file whose size and time a resume compares is the packed one.
    assert packed.task(3)[1] == str(tmp_path / f"s-1.{ending}")
    assert len(plain) == 4


@pytest.mark.parametrize("ending", PACKERS)
def test_a_compressed_shard_that_is_cut_or_damaged_is_an_error(tmp_path: Path, ending: str) -> None:
    whole = PACKERS[ending](tar_bytes(SHARD))
    path = tmp_path / f"a.{ending}"
    for data in (whole[: len(whole) // 2], whole[:-3], whole[:100] + bytes(200) + whole[300:]):
        path.write_bytes(data)
        with pytest.raises(
            ConvertError, match=rf"a\.{ending} (cannot be unpacked, it is damaged|is damaged|cannot be)"
        ):
            WebDataset([str(path)])


def test_without_the_library_for_zstandard_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar.zst").write_bytes(zst(tar_bytes(SHARD)))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UsageError, match=r'pip install "beton\[zstd\]", or uncompress it first'):
        WebDataset([str(tmp_path / "a.tar.zst")])
    (tmp_path / "b.tar").write_bytes(b"\x04\x22\x4d\x18" + bytes(600))
    with pytest.raises(UsageError, match=r"b\.tar is compressed; .*uncompress it first"):
        WebDataset([str(tmp_path / "b.tar")])


def test_no_room_for_what_is_unpacked_is_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        path = "/proc/self/fd/0"
        file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - closed below

    monkeypatch.setattr("converters.sources.tar_index.LocalCopy", lambda *_: Full)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar_bytes(SHARD)))
    with pytest.raises(ConvertError, match=r"a\.tar\.gz cannot be unpacked to .*No space left.*set TMPDIR"):
        WebDataset([str(tmp_path / "a.tar.gz")])
    Full.file.close()


def imagenet_folder(folder: Path) -> Path:
    for name, data in {
        "n01/a-b/1.JPEG": 1, "n01/a/2.JPEG": 2, "n01/3.JPEG": 3, "n01-b/z.JPEG": 6, "n02/x.JPEG": 4,
        "n02/sub/y.JPEG": 5,
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(jpeg(data))
    (folder / "n02" / "hard.JPEG").hardlink_to(folder / "n02" / "x.JPEG")
    (folder / "n02" / "soft.JPEG").symlink_to("x.JPEG")
    (folder / "n02" / "again").symlink_to("sub")
    return folder


def test_a_folder_its_tars_and_their_compressed_forms_give_the_same_samples(tmp_path: Path) -> None:
    folder = imagenet_folder(tmp_path / "raw")
    forms = [tmp_path / name for name in ("tars", "packed", "train.tar", "nested.tar", "all.tar.gz")]
    forms[0].mkdir()
    forms[1].mkdir()
    inner = {}
    for name in ("n02", "n01", "n01-b"):
        with tarfile.open(forms[0] / f"{name}.tar", "w") as tar:
            tar.add(folder / name, ".")
        inner[name] = (forms[0] / f"{name}.tar").read_bytes()
        (forms[1] / f"{name}.tgz").write_bytes(gzip.compress(inner[name]))
    tar_of(forms[2], [(f"{name}.tar", data) for name, data in inner.items()])
    tar_of(
        forms[3],
        [
            ("n02.tar.xz", lzma.compress(inner["n02"])),
            ("n01.tar", inner["n01"]),
            ("n01-b.tgz", gzip.compress(inner["n01-b"])),
        ],
    )
    forms[4].write_bytes(gzip.compress(forms[2].read_bytes()))
    (folder / "n01" / ".cache").mkdir()
    (folder / "n01" / ".cache" / "3.JPEG").write_bytes(jpeg(9))
    (folder / "n01" / "._3.JPEG").write_bytes(b"x")
    raw = ImageNetTrain(str(folder))
    expected = samples(raw)
    assert raw.unused.as_dict() == {"hidden files": 2}
    assert len(expected) == 9
    for form in forms:
        source = ImageNetTrain(str(form))
        assert samples(source) == expected, form
        assert source.class_names == ["n01", "n01-b", "n02"]
        assert not source.unused


def test_what_imagenets_tars_hold_besides_images_is_counted(tmp_path: Path) -> None:
    entries = [
        ("a.JPEG", jpeg(1)),
        ("a.JPEG", jpeg(2)),
        ("._a.JPEG", b"x"),
        (".cache/b.JPEG", b"x"),
        ("list.txt", b"x"),
    ]
    path = tar_of(tmp_path / "train.tar", [("n01.tar", tar_bytes(entries)), ("readme", b"x"), ("._n01.tar", b"x")])
    source = ImageNetTrain(str(path))
    assert samples(source) == [{"image": jpeg(2), "label": 0}]  # the later one is what unpacking leaves
    assert source.unused.as_dict() == {
        "files without an ending": 1, "hidden files": 3, "replaced by a later member of the same name": 1,
        ".txt files": 1,
    }  # fmt: skip


def test_what_no_field_of_a_shard_takes_is_counted_by_its_ending(tmp_path: Path) -> None:
    path = tar_of(
        tmp_path / "a.tar",
        [
            ("__meta__", b"{}"), ("README", b"x"), (".DS_Store", b"x"), ("._0.jpg", b"x"), ("0.jpg", jpeg(0)),
            ("0.png", b"P"), ("0.cls", b"0"), ("0.json", b"{}"), ("1.jpg", jpeg(1)), ("1.cls", b"1"), ("1.json", b"{}"),
        ],
    )  # fmt: skip
    source = WebDataset([str(path)])
    assert len(source) == 2
    assert source.unused.as_dict() == {
        "of WebDataset's own": 1, "files without an ending": 1, "hidden files": 2, ".png files": 1, ".json files": 2,
    }  # fmt: skip
    assert ".json files: 2 (0.json, 1.json)" in str(source.unused)
    assert ".json files" not in WebDataset([str(path)], mapping=parse_map(["image=jpg", "m=json"])).unused.as_dict()
