"""`beton bench shuffle`: the table, the data and the picture say what `compare_windows` measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from dataloading import Reader, UsageError, compare_windows
from dataloading.cli import beton
from tests.support.huge import make_huge_file
from train.bench.cli import bench
from train.bench.shuffle_report import draw_windows, smallest_window


@pytest.fixture(scope="module")
def sorted_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 images (holes on the disk) of 100 classes one after another, about ten on a page."""
    path = make_huge_file(
        tmp_path_factory.mktemp("sorted") / "sorted.beton", 2000, image_bytes=200_000, page_size=1 << 21
    )
    with Reader(path) as reader:
        start = reader.header.table_start
        table = reader.table.copy()
        table[f"f{list(reader.fields).index('label')}"] = np.arange(2000) // 20
    with path.open("r+b") as file:
        file.seek(start)
        file.write(table.tobytes())
    return path


def run(*words: object):
    return CliRunner().invoke(bench, [str(word) for word in words])


def test_the_table_marks_the_smallest_window_that_is_good_enough(sorted_file):
    done = run("shuffle", sorted_file, "--batch-size", 16, "--windows", "4,32,64,128", "--num-batches", 100)
    assert done.exit_code == 0, done.output
    found = compare_windows(sorted_file, batch_size=16, windows=[4, 32, 64, 128], num_batches=100)
    best = smallest_window(found, 0.5)
    assert best is not None
    lines = done.stdout.splitlines()
    marked = [line for line in lines if "smallest within 0.5 classes" in line]
    assert [int(line.split()[0]) for line in marked] == [best.window_pages]
    for each in found:
        (line,) = [line for line in lines if line.startswith(f"{each.window_pages} ")]
        words = line.split()
        assert words[1] == f"{each.memory_bytes / 2**20:,.0f}"
        assert words[2:5] == [
            f"{value:.2f}"
            for value in (
                each.quality.mean_distinct_classes,
                each.quality.expected_distinct_classes,
                each.quality.missing_classes,
            )
        ]
    missing = [each.quality.missing_classes for each in found]
    assert missing == sorted(missing, reverse=True)


def test_the_data_holds_what_was_measured_and_asked_for(sorted_file):
    done = run("shuffle", sorted_file, "--json", "--batch-size", 16, "--num-nodes", 2, "--num-batches", 50, "--seed", 3)
    data = json.loads(done.stdout)
    found = compare_windows(sorted_file, batch_size=16, num_nodes=2, num_batches=50, seed=3)
    assert (data["batch_size"], data["num_nodes"], data["seed"], data["within"]) == (16, 2, 3, 0.5)
    assert [each["window_pages"] for each in data["windows"]] == [each.window_pages for each in found]
    assert [each["missing_classes"] for each in data["windows"]] == [each.quality.missing_classes for each in found]
    assert data["windows"][0]["memory_bytes"] == 2 * data["windows"][0]["window_bytes"] == 2 << 21
    assert data["windows"][-1]["memory_bytes"] == data["windows"][-1]["window_bytes"]  # the whole file
    best = smallest_window(found, 0.5)
    assert data["smallest_window_pages"] == (None if best is None else best.window_pages)


def test_the_picture_shows_every_window(sorted_file, tmp_path):
    target = tmp_path / "windows.png"
    done = run("shuffle", sorted_file, "--plot", target, "--num-batches", 20, "--within", 5)
    assert done.exit_code == 0, done.output
    assert f"wrote {target}" in done.stderr
    with Image.open(target) as image:
        assert image.size[0] > 600
    found = compare_windows(sorted_file, batch_size=256, num_batches=20)
    (axes,) = draw_windows(found, 5, title="t").axes
    windows, values = axes.lines[1].get_data()
    assert list(windows) == [each.window_pages for each in found]
    assert list(values) == [each.quality.mean_distinct_classes for each in found]


def test_files_without_labels_are_measured_by_distance(tmp_path):
    from dataloading import FloatField, Writer

    path = tmp_path / "floats.beton"
    with Writer(path, {"x": FloatField()}, num_samples=1_000_000) as writer:
        for _ in range(1_000_000 // 1000):
            for k in range(1000):
                writer.append({"x": float(k)})
    done = run("shuffle", path, "--num-batches", 20, "--plot", tmp_path / "p.svg")
    assert done.exit_code == 0, done.output
    assert "no labels" in done.stdout
    assert (tmp_path / "p.svg").exists()


def test_several_files_are_one_dataset(sorted_file, tmp_path):
    other = tmp_path / "other.beton"
    other.hardlink_to(sorted_file)
    link = tmp_path / "sorted.beton"
    link.hardlink_to(sorted_file)
    windows = {}
    for files in (tmp_path / "other.beton", tmp_path / "*.beton"):
        done = run("shuffle", files, "--json", "--num-batches", 5)
        assert done.exit_code == 0, done.output
        windows[files.name] = json.loads(done.stdout)["windows"][-1]["window_pages"]
    assert windows["*.beton"] == 2 * windows["other.beton"]


def test_no_window_is_good_enough_is_said(sorted_file):
    done = run("shuffle", sorted_file, "--windows", "1,2", "--num-batches", 20)
    assert "No window is within 0.5 classes" in done.stdout


def test_the_verb_is_one_word_of_bench_and_a_file_of_its_name_is_still_a_file(sorted_file, tmp_path, monkeypatch):
    through_beton = CliRunner().invoke(beton, ["bench", "shuffle", str(sorted_file), "--json", "--num-batches", "5"])
    assert through_beton.exit_code == 0, through_beton.output
    help_text = run("--help").stdout
    assert "Usage: bench [OPTIONS] FILE" in help_text
    assert "shuffle" in help_text.partition("Commands:")[2]
    assert "Usage: bench shuffle [OPTIONS] FILES..." in run("shuffle", "--help").stdout
    monkeypatch.chdir(tmp_path)
    Path("shuffle").write_bytes(b"no beton file")
    done = run("./shuffle")
    assert "shuffle" in str(done.exception)
    assert type(done.exception).__name__ == "FormatError"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--windows", "0"], "distinct numbers"),
        (["--windows", "2,2"], "distinct numbers"),
        (["--batch-size", "0"], "batch"),
    ],
)
def test_wrong_options_are_usage_errors(sorted_file, words, message):
    done = run("shuffle", sorted_file, *words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_pattern_without_a_file_is_a_usage_error(tmp_path):
    assert isinstance(run("shuffle", tmp_path / "*.beton").exception, UsageError)
    assert run("shuffle").exit_code == 2


def test_a_window_of_one_page_is_drawn_too(sorted_file):
    found = compare_windows(sorted_file, batch_size=4, windows=[200], num_batches=5)
    (axes,) = draw_windows(found, 100.0, title="one").axes
    assert [len(line.get_xdata()) for line in axes.lines[1:]] == [1, 1]
