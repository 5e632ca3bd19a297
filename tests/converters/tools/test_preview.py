"""`beton preview` draws what a recipe makes of a file's images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from converters.tools.preview import grid, preview
from dataloading import (
    ImageField,
    IntField,
    MaskField,
    RasterField,
    Reader,
    UsageError,
    VarArrayField,
    Writer,
)
from dataloading import transforms as T
from dataloading.cli import beton
from tests.support.files import raw
from tests.support.loading import MEAN, STD

SIDE, GAP, CAPTION = 40, 4, 14
RED, BLUE, GRAY = (200, 10, 10), (10, 10, 200), (128, 128, 128)


def plain(colour: tuple[int, int, int]) -> np.ndarray:
    return np.full((SIDE, SIDE, 3), colour, np.uint8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Six images, red and blue in turn, of two classes."""
    path = tmp_path / "o.beton"
    with Writer(
        path, {"picture": ImageField(), "label": IntField()}, num_samples=6, class_names=["red", "blue"]
    ) as writer:
        for number in range(6):
            writer.append({"picture": raw(plain((RED, BLUE)[number % 2])), "label": number % 2})
    return path


def run(*words: object) -> Any:
    return CliRunner().invoke(beton, ["preview", *(str(word) for word in words)])


def pixel(picture: Image.Image, row: int, draw: int, x: int = 20, y: int = 20, *, width: int = SIDE) -> tuple[int, ...]:
    """A pixel of one tile."""
    left = GAP + draw * (width + GAP)
    top = GAP + row * (SIDE + CAPTION + GAP) + CAPTION
    found: tuple[int, ...] = picture.getpixel((left + x, top + y))  # type: ignore[assignment]
    return found


def test_rows_are_samples_spread_over_the_file_and_columns_are_draws(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "grid.png"
    done = run(file, "--recipe", "imagenet_train", "--rows", 2, "--draws", 3, "--size", SIDE, "--out", out)
    assert (done.exit_code, done.output) == (0, f"wrote {out}\n")
    picture = Image.open(out)
    assert picture.size == (3 * (SIDE + GAP) + GAP, 2 * (SIDE + CAPTION + GAP) + GAP)
    for draw in range(3):  # what Normalize did is undone
        assert pixel(picture, 0, draw) == RED
        assert pixel(picture, 1, draw) == BLUE


def test_a_draw_is_an_epoch_and_the_seed_chooses_it(file: Path) -> None:
    recipe = {"picture": [T.CenterCrop(SIDE), T.RandomInvert(0.5)]}
    with Reader(file) as reader:
        one = grid(reader, recipe, rows=1, draws=16, size=SIDE, seed=1)
        again = grid(reader, recipe, rows=1, draws=16, size=SIDE, seed=1)
        other = grid(reader, recipe, rows=1, draws=16, size=SIDE, seed=2)
    assert {pixel(one, 0, draw) for draw in range(16)} == {RED, (55, 245, 245)}
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    "steps",
    [
        [T.Normalize(MEAN, STD)],
        [T.Normalize(MEAN, STD, dtype="float16")],
        [T.ToDtype("float32", scale=True)],
        [T.ToDtype("float32")],
        [T.ToDtype("bfloat16", scale=True)],
    ],
)
def test_what_normalises_is_undone(file: Path, steps: list[Any]) -> None:
    with Reader(file) as reader:
        picture = grid(reader, {"picture": [T.CenterCrop(SIDE), *steps]}, rows=1, draws=1, size=SIDE)
    assert np.abs(np.subtract(pixel(picture, 0, 0), RED)).max() <= 1


def test_a_recipe_is_read_from_yaml(file: Path, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("picture: [CenterCrop: 40, RandomInvert: 1.0]")
    done = run(file, "--recipe", tmp_path / "r.yaml", "--out", tmp_path / "o.png", "--rows", 1, "--size", SIDE)
    assert done.exit_code == 0
    assert pixel(Image.open(tmp_path / "o.png"), 0, 0) == (55, 245, 245)


def test_masks_boxes_and_points_are_drawn_over_the_image(tmp_path: Path) -> None:
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[:10] = 1
    fields = {
        "image": ImageField(),
        "mask": MaskField(),
        "boxes": VarArrayField("float32", (None, 4), coordinates="xywh"),
        "points": VarArrayField("float32", (None, 2), coordinates="points"),
    }
    with Writer(tmp_path / "o.beton", fields, num_samples=1) as writer:
        boxes, points = np.array([[5, 20, 10, 15]], np.float32), np.array([[30, 30]], np.float32)
        writer.append({"image": raw(plain(GRAY)), "mask": mask, "boxes": boxes, "points": points})
    with Reader(tmp_path / "o.beton") as reader:
        picture = grid(reader, {"image": [T.CenterCrop(SIDE)]}, rows=1, draws=1, size=SIDE)
    assert pixel(picture, 0, 0, 20, 5) == (128, 64, 64)  # half of it class 1's dark red
    assert [pixel(picture, 0, 0, x, y) for x, y in ((5, 25), (14, 25), (10, 20), (10, 34))] == [(255, 60, 60)] * 4
    assert pixel(picture, 0, 0, 28, 30) == (60, 255, 60)
    assert pixel(picture, 0, 0, 10, 27) == GRAY


def test_gray_and_deep_images_are_shown(tmp_path: Path) -> None:
    with Writer(tmp_path / "o.beton", {"image": RasterField(1)}, num_samples=1) as writer:
        writer.append({"image": np.full((SIDE, SIDE, 1), 77, np.uint8)})
    with Reader(tmp_path / "o.beton") as reader:
        assert pixel(grid(reader, {}, rows=1, draws=1, size=SIDE), 0, 0) == (77, 77, 77)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recipe", "deti"], "no recipe is called 'deti', and no YAML file either. Did you mean 'deit'"),
        (["--recipe", "r.yaml"], "cannot read the recipe r.yaml"),
        (["--recipe", "deit", "--field", "image"], "has no image field 'image'; its fields are ['picture', 'label']"),
        (["--recipe", "imagenet_eval", "--out", "x.xyz"], "cannot write x.xyz: unknown file extension"),
        (["--recipe", "imagenet_eval", "--draws", "100", "--size", "400"], "the picture would be"),
    ],
)
def test_faults_are_told_in_a_line(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    command = CliRunner().invoke(preview, [str(file), "--out", "o.png", *words])
    assert message in command.output + str(command.exception)
    assert command.exit_code == 2 or isinstance(command.exception, UsageError)
    assert not (tmp_path / "o.png").exists()
