"""`beton info` and `beton verify` tell what is in a file, ours or FFCV's, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from converters import ImageFolder, ImagePolicy, Options, convert
from converters.tools.info import info
from converters.tools.summary import histogram, summary
from converters.tools.verify import verify
from dataloading import EncodedImage, ImageField, IntField, Reader, Writer
from tests.converters.making import class_folders, encoded, photo


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """12 photos of 3 classes, half of them raw or so."""
    root = class_folders(tmp_path / "src", {"ant": 5, "bee": 3, "cat": 4}, size=(60, 40))
    policy = ImagePolicy(mode="mix", mix_fraction=0.5, seed=1)
    convert(ImageFolder(root), tmp_path / "o.beton", policy=policy, options=Options())
    return tmp_path / "o.beton"


def run(command: Any, *words: object) -> Any:
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


def test_summary_counts_what_is_there(file: Path) -> None:
    done = run(info, file, "--json")
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert (facts["num_samples"], facts["num_bytes"]) == (12, file.stat().st_size)
    image = facts["fields"]["image"]
    assert image["num_jpeg"] + image["num_raw"] == 12
    assert min(image["num_jpeg"], image["num_raw"]) > 0
    assert image["min_size"] == image["max_size"] == [60, 40]
    assert image["largest_bytes"] == 60 * 40 * 3
    assert facts["fields"]["label"] == {"kind": "IntField", "min": 0, "max": 2}
    assert facts["classes"] == [
        {"name": "ant", "label": 0, "count": 5},
        {"name": "bee", "label": 1, "count": 3},
        {"name": "cat", "label": 2, "count": 4},
    ]
    assert facts["provenance"]["images"]["mode"] == "mix"


def test_text_names_classes_and_sizes(file: Path) -> None:
    text = run(info, file).stdout
    for words in ("samples", "60x40 pixels", "3, with 3 to 5 samples: ant (5), bee (3), cat (4)", "longest side"):
        assert words in text


def test_sample_is_shown_and_written_as_a_picture(file: Path, tmp_path: Path) -> None:
    raw = ImagePolicy(mode="raw")
    root = tmp_path / "src"
    convert(ImageFolder(root), file, policy=raw, options=Options(overwrite=True))
    done = run(info, file, "--sample", 7, "--out", tmp_path / "x.png", "--json")
    assert json.loads(done.stdout) == {
        "sample": 7,
        "image": {"kind": "raw", "width": 60, "height": 40, "bytes": 7200},
        "label": 1,
        "class": "bee",
        "written": str(tmp_path / "x.png"),
    }
    expected = np.asarray(Image.open(root / "bee" / "02.jpg"))
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "x.png")), expected)


def test_contact_sheet_shows_the_pictures_in_order(file: Path, tmp_path: Path) -> None:
    assert run(info, file, "--grid", "2x3", "--out", tmp_path / "sheet.png").exit_code == 0
    sheet = np.asarray(Image.open(tmp_path / "sheet.png")).astype(int)
    assert sheet.shape == (2 * 184 + 6, 3 * 166 + 6, 3)
    # Samples 0, 2, 4, 6, 8, 11 spread over the file; pictures of 60x40 are not enlarged and lie centred in their cell.
    names = ["ant/00", "ant/02", "ant/04", "bee/01", "cat/00", "cat/03"]
    for place, name in enumerate(names):
        left, top = 6 + place % 3 * 166 + 50, 6 + place // 3 * 184 + 60
        shown = sheet[top : top + 40, left : left + 60]
        assert np.abs(shown - np.asarray(Image.open(tmp_path / "src" / f"{name}.jpg")).astype(int)).mean() < 1


def test_damaged_picture_leaves_a_note_on_the_sheet(tmp_path: Path) -> None:
    data = encoded(photo(60, 40), "JPEG")
    with Writer(tmp_path / "o.beton", {"image": ImageField()}, num_samples=2) as writer:
        writer.append({"image": EncodedImage(0, 60, 40, data)})
        writer.append({"image": EncodedImage(0, 60, 40, data[: len(data) // 2])})
    done = run(info, tmp_path / "o.beton", "--grid", "1x2", "--out", tmp_path / "sheet.png")
    assert done.exit_code == 0
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert (sheet[:, 172:] == [200, 30, 30]).all(axis=2).sum() > 100
    assert (sheet[:, :172] == [200, 30, 30]).all(axis=2).sum() == 0
    broken = run(verify, tmp_path / "o.beton")
    assert broken.exit_code == 1
    assert "touches sample 1" in broken.stdout
    assert "1 of 2 samples" in broken.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sample", "12"], "samples 0 to 11"),
        (["--sample", "-1"], "samples 0 to 11"),
        (["--grid", "5"], "not a grid"),
        (["--grid", "2x2"], "--grid needs --out"),
        (["--out", "x.png"], "--out needs"),
        (["--sample", "1", "--grid", "2x2", "--out", "x.png"], "not both"),
        (["--sample", "1", "--out", "x.nonsense"], "cannot write"),
    ],
)
def test_wrong_requests_are_usage_errors(file: Path, words: list[str], message: str) -> None:
    done = run(info, file, *words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_histogram_has_round_edges_and_loses_nobody() -> None:
    rng = np.random.default_rng(0)
    for top in (1, 2, 37, 500, 65535):
        sides = np.bincount(rng.integers(1, top + 1, 1000), minlength=1 << 16)
        edges, counts = histogram(sides)
        assert sum(counts) == 1000
        assert len(counts) <= 13
        assert edges == sorted(edges)
    assert histogram(np.zeros(1 << 16, np.int64)) == ([], [])


def test_file_without_classes_or_images_is_told_too(tmp_path: Path) -> None:
    with Writer(tmp_path / "o.beton", {"a": IntField(), "b": IntField()}, num_samples=2) as writer:
        writer.append({"a": 1, "b": -5})
        writer.append({"a": 2, "b": 5})
    with Reader(tmp_path / "o.beton") as reader:
        facts = summary(reader)
    assert facts["classes"] is None
    assert facts["fields"]["b"] == {"kind": "IntField", "min": -5, "max": 5}
    assert run(info, tmp_path / "o.beton").exit_code == 0


def test_a_file_without_extension_as_ffcv_writes_it_is_understood_and_verified(file: Path, tmp_path: Path) -> None:
    data = bytearray(file.read_bytes())
    # Our extension hangs on a locator at the end of the first field's arguments; without it the file is plain FFCV.
    data[24 + 1041 - 64 : 24 + 1041] = bytes(64)
    path = tmp_path / "f.beton"
    path.write_bytes(data)
    facts = json.loads(run(info, path, "--json").stdout)
    assert (facts["num_samples"], facts["writer"], facts["classes"]) == (12, None, None)
    assert facts["fields"]["image"]["max_size"] == [60, 40]
    assert "FFCV" in run(info, path).stdout
    assert run(info, path, "--grid", "3x3", "--out", tmp_path / "s.png").exit_code == 0
    assert run(verify, path).exit_code == 0
    with Reader(path) as reader:
        index = int(np.flatnonzero(reader.column("image")["mode"] == 0)[0])
        pointer, size = (int(numbers[0]) for numbers in reader.locate("image", [index]))
    data[pointer + size // 2 : pointer + size] = bytes(size - size // 2)
    path.write_bytes(data)
    done = run(verify, path, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["samples"] == [index]


def test_verify_finds_a_flipped_bit_and_says_whom_it_touches(file: Path) -> None:
    assert run(verify, file).exit_code == 0
    with Reader(file) as reader:
        pointer = int(reader.locate("image", [9])[0][0])
    data = bytearray(file.read_bytes())
    data[pointer + 5] ^= 4
    file.write_bytes(data)
    for extra in ([], ["--checksums-only"]):
        done = run(verify, file, "--json", *extra)
        assert done.exit_code == 1
        facts = json.loads(done.stdout)
        assert not facts["ok"]
        assert 9 in facts["samples"]
    text = run(verify, file)
    assert "problem" in text.stdout
    assert "is damaged" in text.stderr


def test_verify_of_something_else_is_an_error_not_a_crash(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"no beton at all", bytes(5000))):
        path = tmp_path / f"{number}.beton"
        path.write_bytes(data)
        done = run(verify, path)
        assert done.exit_code == 1
        assert "cannot be read" in done.stderr
