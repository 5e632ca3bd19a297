"""`beton info` and `beton verify` take several files and shard manifests as one dataset."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from converters.tools.info import info
from converters.tools.verify import verify
from dataloading import Reader, UsageError
from tests.converters.tools.making import run, run_json, write_file, write_set
from tests.support.foreign import flip

NAMES = ["x", "y", "z"]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [
        write_file(tmp_path / "a.beton", [0, 1, 1], class_names=NAMES),
        write_file(tmp_path / "b.beton", [2, 1], first=3, class_names=NAMES),
    ]


@pytest.fixture
def manifest(files: list[Path], tmp_path: Path) -> Path:
    return write_set(tmp_path / "set.beton.json", files)


def test_info_adds_files_up(files: list[Path], manifest: Path) -> None:
    whole = run_json(info, *files)
    assert whole == run_json(info, manifest)
    assert (whole["num_samples"], whole["num_bytes"]) == (5, sum(path.stat().st_size for path in files))
    assert [each["count"] for each in whole["classes"]] == [1, 3, 1]
    assert whole["fields"]["label"]["max"] == 2 and "path" not in whole
    single = [run_json(info, path)["fields"]["image"] for path in files]
    for key in ("num_jpeg", "num_raw", "stored_bytes"):
        assert whole["fields"]["image"][key] == sum(each[key] for each in single)
    assert whole["fields"]["image"]["max_size"] == np.max([each["max_size"] for each in single], axis=0).tolist()
    text = run(info, *files).stdout
    assert f"2: {files[0]} to {files[1]}" in text and "1 uint16 channel" in text and "int16 (any, 4)" in text


def test_samples_are_counted_through(files: list[Path], tmp_path: Path) -> None:
    done = run_json(info, *files, "--sample", 4, "--out", tmp_path / "x.png")
    assert (done["file"], done["sample_in_file"], done["label"], done["class"]) == (str(files[1]), 1, 1, "y")
    direct = run_json(info, files[1], "--sample", 1, "--out", tmp_path / "y.png")
    assert direct["meta"] == done["meta"]
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "y.png").read_bytes()
    late = run(info, *files, "--sample", 5)
    assert late.exit_code == 2 and "2 files has samples 0 to 4" in late.stderr
    assert run(info, *files, "--grid", "1x5", "--out", tmp_path / "sheet.png").exit_code == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size[0] == 5 * 166 + 6


@pytest.mark.parametrize("field", ["image", "mask", "depth"])
def test_every_kind_of_image_can_be_looked_at(field: str, files: list[Path], tmp_path: Path) -> None:
    assert run(info, files[0], "--sample", 1, "--field", field, "--out", tmp_path / "x.png").exit_code == 0
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.mode == "RGB" and len(picture.getcolors(1 << 16) or []) > 1
    assert run(info, files[0], "--grid", "1x2", "--field", field, "--out", tmp_path / "s.png").exit_code == 0


def test_files_that_are_not_one_dataset_are_refused(files: list[Path], tmp_path: Path) -> None:
    other = write_file(tmp_path / "o.beton", [0], class_names=["p"])
    unnamed = write_file(tmp_path / "u.beton", [0])
    with pytest.raises(UsageError, match=r"u\.beton records no class names, .* has 3 names.*look at them one by one"):
        run(info, unnamed, *files)
    with pytest.raises(UsageError, match="name different classes"):
        run(info, files[0], other)
    bare = write_file(tmp_path / "p.beton", [0], names=("label",), class_names=NAMES)
    with pytest.raises(UsageError, match="different fields"):
        run(info, files[0], bare)


@pytest.mark.parametrize("labels", [[0, 1, 1, 2], [number % 60 for number in range(200)], [5] * 3])
def test_a_histogram_is_a_picture_and_equal_files_give_equal_ones(labels: list[int], tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.beton", labels)
    for name in ("x.png", "y.png"):
        done = run(info, path, "--histogram", tmp_path / name)
        assert done.exit_code == 0 and f"wrote {tmp_path / name}" in done.stdout
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "y.png").read_bytes()
    pixels = np.asarray(Image.open(tmp_path / "x.png").convert("RGB"))
    assert pixels.shape[1] > 1000 and (pixels == [59, 117, 175]).all(axis=2).sum() > 5000, "bars are drawn"


def test_a_histogram_needs_images_and_a_kind_of_picture(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.beton", [0], names=("label",))
    with pytest.raises(UsageError, match="has no images"):
        run(info, path, "--histogram", tmp_path / "x.png")
    path = write_file(tmp_path / "b.beton", [0])
    with pytest.raises(UsageError, match="cannot write"):
        run(info, path, "--histogram", tmp_path / "x.nonsense")
    assert run(info, path, "--histogram", "x.png", "--sample", 0).exit_code == 2


def test_verify_sums_up_and_fails_if_one_file_does(files: list[Path], manifest: Path) -> None:
    done = run(verify, *files, "--workers", 1)
    assert done.exit_code == 0 and "2 files, 5 samples: none damaged" in done.stdout
    with Reader(files[1]) as reader:
        flip(files[1], int(reader.locate("box", [1])[0][0]), 5)
    for words in (files, [manifest]):
        done = run(verify, *words)
        assert done.exit_code == 1 and "2 files, 5 samples: 1 damaged" in done.stdout
        assert f"{files[1]} is damaged" in done.stderr and f"{files[0]} is damaged" not in done.stderr
        facts = json.loads(run(verify, *words, "--json").stdout)
        assert not facts["ok"] and [each["ok"] for each in facts["files"]] == [True, False]
        assert 1 in facts["files"][1]["samples"]
