"""The synthetic dataset: reproducible, photo-like in detail, learnable by shape and texture more than by colour."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from converters.demo.scenes import SceneClass, draw_scene
from converters.demo.synth import SynthOptions, make_dataset, synth
from dataloading import UsageError


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.jpg"))}


def test_the_folder_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    options = SynthOptions(num_classes=3, num_images=50, size=48, seed=5)
    folders = []
    for workers in (0, 1, 2):
        make_dataset(tmp_path / str(workers), options, num_workers=workers)
        folders.append(contents(tmp_path / str(workers)))
    assert len(folders[0]) == 50
    assert folders[0] == folders[1] == folders[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_classes_share_the_images_evenly_and_files_sort_by_index(tmp_path: Path) -> None:
    summary = make_dataset(tmp_path / "d", SynthOptions(num_classes=4, num_images=10, size=16))
    assert (summary.num_images, summary.num_classes) == (10, 4)
    found = [sorted(int(path.stem) for path in folder.iterdir()) for folder in sorted((tmp_path / "d").iterdir())]
    assert found == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert summary.total_bytes == sum(map(len, contents(tmp_path / "d").values()))


def test_skipping_continues_the_same_dataset(tmp_path: Path) -> None:
    def make(name: str, start: int, count: int) -> dict[str, bytes]:
        make_dataset(tmp_path / name, SynthOptions(num_classes=3, num_images=count, skip=start, size=32))
        return contents(tmp_path / name)

    whole = make("whole", 0, 12)
    assert make("first", 0, 7) | make("rest", 7, 5) == whole


def test_another_seed_makes_other_pictures_and_other_classes() -> None:
    assert SceneClass.of(0, 0) == SceneClass.of(0, 0)
    assert len({SceneClass.of(seed, label) for seed in range(3) for label in range(4)}) == 12


@pytest.mark.parametrize("size", [16, 97, 600])
def test_pictures_have_the_size_asked_for_and_various_shapes(size: int) -> None:
    """600 is larger than the random fields, which then repeat."""
    shapes = set()
    for index in range(6):
        image = draw_scene(SceneClass.of(1, index), np.random.default_rng(index), size)
        assert image.mode == "RGB" and max(image.size) == size and min(image.size) >= size // 3
        shapes.add(image.size)
    assert len(shapes) >= 3


def test_pictures_have_the_detail_and_spectrum_of_photographs(tmp_path: Path) -> None:
    """Photographs of 400 pixels have some 1.5 bits a pixel, and power that falls as frequency**-2 or steeper."""
    summary = make_dataset(tmp_path / "d", SynthOptions(num_classes=6, num_images=24, size=400))
    assert 1.1 < summary.bits_per_pixel < 1.9
    slopes = []
    for path in sorted((tmp_path / "d").rglob("*.jpg")):
        with Image.open(path) as image:
            assert image.format == "JPEG" and image.layer[1][1:3] == (1, 1)  # type: ignore[attr-defined]
            gray = np.asarray(image.convert("L"), dtype=float)[:224, :224]
        side = min(gray.shape)
        window = np.hanning(side)
        power = np.abs(np.fft.fft2((gray[:side, :side] - gray.mean()) * window * window[:, None])) ** 2
        frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side))
        bands = np.geomspace(0.02, 0.3, 8)
        means = [power[(frequency > low) & (frequency <= high)].mean() for low, high in itertools.pairwise(bands)]
        slopes.append(np.polyfit(np.log(np.sqrt(bands[1:] * bands[:-1])), np.log(means), 1)[0])
    assert -4.2 < np.median(slopes) < -1.8


def test_classes_can_be_told_apart_but_not_by_mean_colour() -> None:
    """A ridge regression on thumbnails beats chance clearly; on mean colours it stays far from right."""
    labels = np.arange(240) % 4
    thumbnails = np.stack(
        [
            np.asarray(draw_scene(SceneClass.of(0, 2 * label), np.random.default_rng([7, index]), 64).resize((12, 12)))
            for index, label in enumerate(labels.tolist())
        ]
    ).astype(float)

    def accuracy(features: np.ndarray, penalty: float) -> float:
        features = (features - features.mean(0)) / (features.std(0) + 1e-9)
        train, test = np.arange(240) < 160, np.arange(240) >= 160
        inputs = np.hstack([features, np.ones((240, 1))])
        targets = np.eye(4)[labels]
        gram = inputs[train].T @ inputs[train] + penalty * np.eye(inputs.shape[1])
        weights = np.linalg.solve(gram, inputs[train].T @ targets[train])
        return float((np.argmax(inputs[test] @ weights, 1) == labels[test]).mean())

    assert accuracy(thumbnails.reshape(240, -1), 300.0) > 0.36
    assert accuracy(thumbnails.mean((1, 2)), 1.0) < 0.7


@pytest.mark.parametrize(
    "values",
    [
        {"num_classes": 0},
        {"num_images": 0},
        {"num_images": 5, "num_classes": 6},
        {"size": 8},
        {"seed": -1},
        {"skip": -1},
    ],
)
def test_impossible_options_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        SynthOptions(**values)


def test_only_a_folder_of_this_command_is_ever_replaced(tmp_path: Path) -> None:
    options = SynthOptions(num_classes=1, num_images=1, size=16)
    make_dataset(tmp_path / "d", options)
    before = contents(tmp_path / "d")
    with pytest.raises(UsageError, match="overwrite"):
        make_dataset(tmp_path / "d", options)
    make_dataset(tmp_path / "d", SynthOptions(num_classes=1, num_images=1, size=16, seed=1), overwrite=True)
    assert contents(tmp_path / "d") != before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "holiday.jpg").write_bytes(b"precious")
    (tmp_path / "file").write_bytes(b"precious")
    for name in ("mine", "file"):
        with pytest.raises(UsageError):
            make_dataset(tmp_path / name, options, overwrite=True)
    assert (tmp_path / "mine" / "holiday.jpg").exists() and (tmp_path / "file").exists()
    (tmp_path / "empty").mkdir()
    make_dataset(tmp_path / "empty", options)


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(_count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_dataset(tmp_path / "d", SynthOptions(num_classes=1, num_images=40, size=16), progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_the_command_reports_on_stdout_and_shows_progress_on_stderr(tmp_path: Path) -> None:
    out = tmp_path / "d"
    arguments = [str(out), "--num-classes", "2", "--num-images", "6", "--size", "32", "--num-workers", "0"]
    result = CliRunner().invoke(synth, arguments)
    assert result.exit_code == 0 and result.stdout.startswith(f"{out}: 6 images in 2 classes"), result.output
    assert "6/6" in result.stderr and "6/6" not in result.stdout
    shutil.rmtree(out)
    result = CliRunner().invoke(synth, [*arguments, "--json", "--quiet"])
    assert json.loads(result.stdout)["num_images"] == 6 and result.stderr == ""
