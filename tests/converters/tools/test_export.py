"""What is exported converts back to equal pixels and labels, with stored bytes kept on the way out."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from converters.commands.imagefolder import imagefolder
from converters.commands.webdataset import webdataset
from converters.tools.commands import export as command
from converters.tools.diff import compare
from converters.tools.export import export
from converters.tools.pictures import decode_stored
from dataloading import ConvertError, EncodedImage, Reader, UsageError
from tests.converters.tools.making import FIELDS, run, run_json, sample, strange_files, write_file
from tests.support.foreign import flip

LABELS = [2, 0, 1, 2, 2, 0, 1]
NAMES = ["ant", "bee", "cat"]


def image(path: Path, index: int, name: str = "image") -> EncodedImage:
    with Reader(path) as reader:
        value = reader.value(name, index)
        assert isinstance(value, EncodedImage)
        return EncodedImage(value.mode, value.width, value.height, bytes(value.data), value.channels, value.dtype)


def files_of(folder: Path) -> Mapping[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_imagefolder_keeps_jpegs_and_writes_raw_pixels_as_png(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", LABELS, class_names=NAMES)
    facts = run_json(command, source, tmp_path / "out", "-q")
    assert (facts["num_samples"], facts["num_classes"], facts["left_out"]) == (7, 3, ["mask", "depth"])
    for index, label in enumerate(LABELS):
        stored = image(source, index)
        ending = "png" if index % 2 else "jpg"
        path = tmp_path / "out" / NAMES[label] / f"{index:08}.{ending}"
        if ending == "jpg":
            assert path.read_bytes() == stored.data
        else:
            np.testing.assert_array_equal(np.asarray(Image.open(path)), decode_stored(stored))
    with open(tmp_path / "out" / "samples.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows][:2] == ["cat/00000000.jpg", "ant/00000001.png"]
    for index, row in enumerate(rows):
        values = sample(index, LABELS[index])
        assert int(row["label"]) == values["label"] and row["text"] == values["text"]
        assert float(row["weight"]) == values["weight"] or index == 0
        assert json.loads(row["meta"]) == values["meta"]
        assert json.loads(row["box"]) == values["box"].tolist() and json.loads(row["boxes"]) == values["boxes"].tolist()


@pytest.mark.parametrize(
    "names",
    [NAMES, ["zebra", "ant", "mule"], None, ["a/b", ".hidden", "100%"], ["x", "\N{SNOWMAN}", "y y"]],
    ids=["sorted", "unsorted", "none", "awkward", "unicode"],
)
def test_imagefolder_converts_back_to_the_same_labels_and_pixels(names: list[str] | None, tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", LABELS, class_names=names, names=("image", "label"))
    export(source, tmp_path / "out")
    done = run(imagefolder, tmp_path / "out", tmp_path / "b.beton", "--mode", "raw", "--num-workers", 0, "-q")
    assert done.exit_code == 0, done.stderr
    # The order is by class now; content pairs them, and labels must agree as numbers.
    with Reader(tmp_path / "b.beton") as reader:
        back = {decode_stored(reader.value("image", i)).tobytes(): int(reader.column("label")[i]) for i in range(7)}  # type: ignore[arg-type]
    for index, label in enumerate(LABELS):
        assert back[decode_stored(image(source, index)).tobytes()] == label


def test_classes_without_samples_keep_their_number(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", [0, 4, 4], names=("image", "label"))
    report = export(source, tmp_path / "out")
    assert report.num_classes == 5
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0", "1", "2", "3", "4", "samples.csv"]
    done = run(imagefolder, tmp_path / "out", tmp_path / "b.beton", "--allow-empty", "--num-workers", 0, "-q")
    assert done.exit_code == 0, done.stderr
    with Reader(tmp_path / "b.beton") as reader:
        assert reader.column("label").tolist() == [0, 4, 4]


def test_webdataset_holds_every_field_and_converts_back(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", LABELS, class_names=NAMES)
    facts = run_json(command, source, tmp_path / "out", "--format", "webdataset", "-q")
    assert facts["num_shards"] == 1 and facts["left_out"] == []
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == NAMES
    with tarfile.open(tmp_path / "out" / "a-000000.tar") as tar:
        found = {}
        for member in tar.getmembers():
            assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, "")
            file = tar.extractfile(member)
            assert file is not None
            found[member.name] = file.read()
    for index, label in enumerate(LABELS):
        key, values = f"{index:08}", sample(index, label)
        if index % 2 == 0:
            assert found[f"{key}.jpg"] == image(source, index).data
        assert found[f"{key}.cls"] == str(label).encode()
        assert found[f"{key}.blob.bin"] == values["blob"]
        np.testing.assert_array_equal(np.load(io.BytesIO(found[f"{key}.box.npy"])), values["box"])
        np.testing.assert_array_equal(np.load(io.BytesIO(found[f"{key}.boxes.npy"])), values["boxes"])
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(found[f"{key}.mask.png"]))), values["mask"])
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(found[f"{key}.depth.png"]))), values["depth"])
        plain = json.loads(found[f"{key}.json"])
        assert plain["meta"] == values["meta"] and plain["text"] == values["text"]
    done = run(
        webdataset, tmp_path / "out", tmp_path / "b.beton", "--map", "image=jpg,png", "--map", "label=cls",
        "--mode", "raw", "--num-workers", 0, "-q",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    report = compare(source, tmp_path / "b.beton")
    assert report.num_pairs == 7 and report.num_differing == 0 and not report.only_first


def test_shards_end_before_their_limit_and_samples_stay_whole(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", [0] * 3000, names=("image", "label"))
    report = export(source, tmp_path / "out", format="webdataset", shard_bytes=1 << 20)
    shards = sorted((tmp_path / "out").glob("*.tar"))
    assert len(shards) == report.num_shards > 3 and shards[-1].name == f"a-{len(shards) - 1:06}.tar"
    keys: list[str] = []
    for shard in shards:
        assert shard.stat().st_size <= 1 << 20
        with tarfile.open(shard) as tar:
            names = tar.getnames()
        own = list(dict.fromkeys(name.partition(".")[0] for name in names))
        assert len(names) == 2 * len(own)
        keys += own
    assert keys == [f"{index:08}" for index in range(3000)]


@pytest.mark.parametrize("how", ["imagefolder", "webdataset"])
def test_equal_files_give_equal_exports(how: Any, tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", LABELS, class_names=NAMES)
    for name in ("x", "y"):
        export(source, tmp_path / name, format=how)
    assert files_of(tmp_path / "x") == files_of(tmp_path / "y") != {}


def test_an_export_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", LABELS, class_names=NAMES)
    with Reader(source) as reader:
        position = int(reader.locate("image", [3])[0][0]) + 9
    flip(source, position, 1)
    with pytest.raises(ConvertError, match="is damaged"):
        export(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.beton"]
    flip(source, position, 1)
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="out exists"):
        export(source, tmp_path / "out")
    assert not strange_files(tmp_path)


def test_what_a_format_has_no_place_for_is_said(tmp_path: Path) -> None:
    bare = write_file(tmp_path / "a.beton", [0, 1], names=("label", "box"))
    with pytest.raises(UsageError, match="has no images"):
        export(bare, tmp_path / "out")
    source = write_file(tmp_path / "b.beton", [0, 1], names=("image", "box"))
    with pytest.raises(UsageError, match="no label field"):
        export(source, tmp_path / "out")
    assert export(source, tmp_path / "out", format="webdataset").num_classes is None
    negative = write_file(tmp_path / "c.beton", [0, -1], names=("image", "label"))
    with pytest.raises(UsageError, match="labels from -1 to 0"):
        export(negative, tmp_path / "other")
    with pytest.raises(UsageError, match="no image field 'label'"):
        export(negative, tmp_path / "other", field="label")
    assert list(FIELDS) and not strange_files(tmp_path)
