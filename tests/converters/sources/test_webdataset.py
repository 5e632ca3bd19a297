"""Tar shards are grouped, mapped and decoded as WebDataset does it; damage and gaps are named."""

from __future__ import annotations

import gc
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from converters.fields import parse_fields
from converters.source import SampleFault
from converters.sources.tar_index import members
from converters.sources.webdataset import WebDataset, parse_map
from dataloading import BytesField, ConvertError, ImageField, IntField, JSONField, NDArrayField, UsageError
from tests.support.servers import http_range_server

from .making import jpeg, samples, tar_bytes, tar_of


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def shard(path: Path, first: int, count: int) -> Path:
    entries: list[tuple[str, bytes]] = []
    for number in range(first, first + count):
        key = f"dir.with.dots/s{number:04}"
        entries += [
            (f"{key}.cls", str(number % 3).encode()),
            (f"{key}.JPG", jpeg(number)),
            (f"{key}.json", json.dumps({"n": number}).encode()),
            (f"{key}.txt", f"photo {number} ü".encode()),
            (f"{key}.npy", npy(np.full((2, 2), number, np.int16))),
        ]
    return tar_of(path, entries)


def test_samples_are_those_of_the_webdataset_library(tmp_path: Path) -> None:
    import webdataset

    for number in range(3):
        shard(tmp_path / f"a-{number:03}.tar", number * 4, 4)
    source = WebDataset(
        [f"{tmp_path}/a-{{000..002}}.tar"], mapping=parse_map(["image=png,jpg", "label=cls", "meta=json", "text=txt"])
    )
    theirs = webdataset.WebDataset(
        f"{tmp_path}/a-{{000..002}}.tar", shardshuffle=False, empty_check=False, nodesplitter=None
    )
    expected = [
        {
            "image": each["jpg"],
            "label": int(each["cls"]),
            "meta": json.loads(each["json"]),
            "text": each["txt"].decode(),
        }
        for each in theirs
    ]
    del theirs
    gc.collect()  # its open files, here and not in another test
    assert samples(source) == expected
    assert [type(field) for field in source.fields.values()][:3] == [ImageField, IntField, JSONField]
    assert source.name(5) == "a-001.tar: dir.with.dots/s0005"
    assert source.provenance == {
        "source": "webdataset", "source_name": "a-000.tar", "source_shards": 3, "source_samples": 12,
    }  # fmt: skip


def test_arrays_take_dtype_and_shape_of_the_first_or_as_declared(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", 0, 3)
    source = WebDataset([str(path)], mapping={"pose": ["npy"]})
    assert source.fields == {"pose": NDArrayField("int16", (2, 2))}
    np.testing.assert_array_equal(samples(source)[2]["pose"], np.full((2, 2), 2, np.int16))
    declared = WebDataset([str(path)], mapping={"pose": ["npy"]}, specs=parse_fields(["pose=array:int32:2x2"]))
    with pytest.raises(SampleFault, match=r"field 'pose': expected array int32 of shape .* its dtype is int16"):
        samples(declared)


def test_a_fields_kind_can_be_declared(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", 0, 1)
    source = WebDataset([str(path)], mapping=parse_map(["raw=json"]), specs=parse_fields(["raw=bytes"]))
    assert samples(source) == [{"raw": b'{"n": 0}'}]
    assert isinstance(source.fields["raw"], BytesField)


def test_the_first_ending_that_is_present_wins(tmp_path: Path) -> None:
    path = tar_of(
        tmp_path / "a.tar", [("1.png", b"P"), ("1.jpg", b"J"), ("2.png", b"P"), ("3.seg.png", b"S"), ("3.jpg", b"J")]
    )
    source = WebDataset([str(path)], mapping=parse_map(["image=jpg,png"]))
    assert [each["image"] for each in samples(source)] == [b"J", b"P", b"J"]
    assert samples(WebDataset([str(path)], mapping=parse_map(["image=seg.png,png"])))[2]["image"] == b"S"


def test_a_missing_file_is_a_fault_of_its_sample(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar", [("1.jpg", b"J"), ("1.cls", b"0"), ("2.cls", b"1"), ("2.txt", b"t")])
    source = WebDataset([str(path)])
    assert len(source) == 2
    assert source.load(source.task(0)) == {"image": b"J", "label": 0}
    with pytest.raises(SampleFault, match=r"field 'image': it has no \.jpg or \.jpeg.*, only \.cls, \.txt"):
        source.load(source.task(1))


def labelled(path: Path, *labels: bytes | None) -> str:
    entries = []
    for number, label in enumerate(labels):
        entries += [(f"{number}.jpg", b"J")] + ([] if label is None else [(f"{number}.cls", label)])
    return str(tar_of(path, entries))


def test_labels_that_are_words_become_classes(tmp_path: Path) -> None:
    paths = [labelled(tmp_path / "a.tar", b"dog\n", " ümü".encode()), labelled(tmp_path / "b.tar", b"cat", b"dog", b"")]
    source = WebDataset(paths)
    assert (source.class_names, source.has_words) == (["cat", "dog", "ümü"], True)
    load = source.load
    assert [load(source.task(index))["label"] for index in range(4)] == [1, 2, 0, 1]
    with pytest.raises(SampleFault, match="its label is ''"):
        load(source.task(4))
    given = WebDataset(paths, class_names=["dog", "cat"])
    assert given.load(given.task(2))["label"] == 1
    with pytest.raises(SampleFault, match="its label 'ümü' is not one of the 2 classes"):
        given.load(given.task(1))
    texts = WebDataset(paths, specs=parse_fields(["label=text"]))
    assert texts.load(texts.task(2))["label"] == "cat"


def test_labels_that_are_words_and_numbers_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="labels are numbers and names: '1' and 'cat'"):
        WebDataset([labelled(tmp_path / "a.tar", b"1", b"cat")])
    numbers = WebDataset([labelled(tmp_path / "a.tar", b"1", b"0")], class_names=["a", "b"])
    assert (samples(numbers)[0]["label"], numbers.class_names, numbers.has_words) == (1, ["a", "b"], False)


def test_words_in_shards_behind_urls_become_classes_and_numbers_are_read_once(tmp_path: Path, memory: Any) -> None:
    words = memory("memory://set/w.tar", Path(labelled(tmp_path / "a.tar", b"dog", b"cat")).read_bytes())
    assert [sample["label"] for sample in samples(WebDataset([words]))] == [1, 0]
    mixed = memory("memory://set/n.tar", Path(labelled(tmp_path / "a.tar", b"1", b"cat")).read_bytes())
    source = WebDataset([mixed])
    with pytest.raises(SampleFault, match="field 'label': expected int, got str 'cat'"):
        samples(source)


@pytest.mark.parametrize(("key", "value", "label"), [("label", "-1", -1), ("cls", "7", 7), (".cls", " 3", 3)])
def test_a_missing_file_can_be_filled_in(tmp_path: Path, key: str, value: str, label: int) -> None:
    path = labelled(tmp_path / "a.tar", b"0", None, b"2")
    with pytest.raises(
        SampleFault, match=r"it has no \.cls, only \.jpg; --fill label=VALUE gives such samples a value"
    ):
        samples(WebDataset([path]))
    source = WebDataset([path], fill={key: value})
    assert [sample["label"] for sample in samples(source)] == [0, label, 2]
    assert source.num_filled == {"label": 1}
    assert source.provenance["source_fill"] == {"label": value}


def test_a_word_that_is_filled_in_is_a_class_too(tmp_path: Path) -> None:
    path = labelled(tmp_path / "a.tar", b"dog", None)
    source = WebDataset([path], fill={"label": "a cat"})
    assert source.class_names == ["a cat", "dog"]
    assert [sample["label"] for sample in samples(source)] == [1, 0]


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        ({"image": "x"}, "--fill image: an image cannot be typed; --on-error placeholder"),
        ({"other": "1"}, "--fill other: the map has no such field; it has image, label"),
        ({"label": "cat"}, "labels are numbers and names"),
        ({"label": "1.5"}, "a label is '1.5', expected whole numbers or names"),
    ],
)
def test_what_cannot_be_filled_in_is_refused(tmp_path: Path, fill: dict[str, str], words: str) -> None:
    with pytest.raises((UsageError, ConvertError), match=words):
        WebDataset([labelled(tmp_path / "a.tar", b"0", None)], fill=fill)


def test_directories_count_and_hidden_and_own_members_do_not(tmp_path: Path) -> None:
    long = "n" * 200 + "/" + "ü中" * 60
    path = tar_of(
        tmp_path / "a.tar",
        [
            ("__meta__", b"{}"), ("README", b"x"), ("a/.hidden.jpg", b"x"), ("a/1.jpg", b"A"), ("b/1.jpg", b"B"),
            (f"{long}.jpg", b"L"),
        ],
    )  # fmt: skip
    source = WebDataset([str(path)], mapping={"image": ["jpg"]})
    assert [source.name(index) for index in range(3)] == [f"a.tar: {key}" for key in ("a/1", "b/1", long)]
    assert [each["image"] for each in samples(source)] == [b"A", b"B", b"L"]


def test_a_file_twice_in_one_sample_is_an_error(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar", [("1.jpg", b"A"), ("1.JPG", b"B")])
    with pytest.raises(ConvertError, match=r"a.tar holds 1.jpg twice"):
        WebDataset([str(path)])


def test_an_empty_tar_has_no_samples(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no samples; expected members such as"):
        WebDataset([str(tar_of(tmp_path / "a.tar", []))])
    (tmp_path / "b.tar").write_bytes(b"")
    with pytest.raises(ConvertError, match=r"b\.tar cannot be read as a tar file: empty"):
        WebDataset([str(tmp_path / "b.tar")])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_239))
def test_a_shard_cut_anywhere_is_an_error_or_whole(tmp_path: Path, place: int) -> None:
    whole = tar_bytes([(f"{number}.jpg", bytes([number]) * 700) for number in range(4)])
    assert len(whole) == 10_240
    file = io.BytesIO(whole[:place])
    try:
        found = list(members(file, "a.tar"))
    except ConvertError as error:
        assert "a.tar" in str(error)
    else:
        # Only what follows the last member may be missing.
        assert len(found) == 4
        assert place >= found[-1].start + 700


@pytest.mark.parametrize("num_members", [1, 2, 4])
def test_a_shard_cut_between_two_members_is_an_error_and_never_fewer_samples(num_members: int) -> None:
    whole = tar_bytes([(f"{number}.jpg", bytes([number]) * 700) for number in range(4)])
    cut = whole[: num_members * (512 + 1024)]
    with pytest.raises(ConvertError, match=r"a\.tar has no end mark .* may be cut short"):
        list(members(io.BytesIO(cut), "a.tar"))
    assert len(list(members(io.BytesIO(cut + bytes(1024)), "a.tar"))) == num_members


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 4 * (512 + 1024) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_in_a_header_is_an_error_and_never_fewer_samples(tmp_path: Path, place: int, bit: int) -> None:
    data = bytearray(tar_bytes([(f"{number}.jpg", bytes(700)) for number in range(4)]))
    in_header = place % (512 + 1024) < 512
    data[place] ^= 1 << bit
    try:
        found = list(members(io.BytesIO(bytes(data)), "a.tar"))
    except ConvertError:
        assert in_header
    else:
        assert len(found) == 4


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    hole = tmp_path / "1.jpg"
    with hole.open("wb") as file:
        file.truncate(1 << 20)
        file.write(b"x")
    subprocess.run(["tar", "-S", "-C", str(tmp_path), "-cf", str(path), "1.jpg"], check=True, timeout=60)
    with pytest.raises(ConvertError, match="sparse file"):
        WebDataset([str(path)])


@pytest.mark.parametrize("words", [["image"], ["=jpg"], ["image="], ["image=jpg", "image=png"]])
def test_words_that_map_nothing_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match=r"maps nothing|mapped twice"):
        parse_map(words)


def test_a_map_of_mixed_kinds_needs_a_declaration(tmp_path: Path) -> None:
    path = str(shard(tmp_path / "a.tar", 0, 1))
    with pytest.raises(UsageError, match=r"mixes int and text; --field label=KIND"):
        WebDataset([path], mapping=parse_map(["label=cls,txt"]))
    with pytest.raises(UsageError, match=r"--field other: the map has no such field; it has image, label"):
        WebDataset([path], specs=parse_fields(["other=int"]))


def test_shards_behind_urls_are_read_by_ranges(tmp_path: Path, memory: Any) -> None:
    path = shard(tmp_path / "a.tar", 0, 3)
    mapping = parse_map(["image=jpg", "label=cls", "pose=npy"])
    here = samples(WebDataset([str(path)], mapping=mapping))
    memory("memory://set/a.tar", path.read_bytes())
    there = samples(WebDataset(["memory://set/a.tar"], mapping=mapping))
    with http_range_server(tmp_path) as server:
        served = samples(WebDataset([f"{server.url}/a.tar"], mapping=mapping))
    for other in (there, served):
        for ours, theirs in zip(here, other, strict=True):
            np.testing.assert_array_equal(ours["pose"], theirs["pose"])
            assert (ours["image"], ours["label"]) == (theirs["image"], theirs["label"])
