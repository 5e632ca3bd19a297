"""The page of a comparison: what it says, what it needs, and what a browser makes of it."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from tests.support.browser import page_in_browser, screenshot
from train.compare import svg
from train.compare.checks import check_data
from train.compare.report import write_reports
from train.compare.runs import Comparison, summarise_loaders
from train.loaders.base import LoaderSpec, TrainBatch
from train.seen import SeenData

from .test_compare import comparison, runs_of


def page_of(result: Comparison, folder: Path) -> Path:
    return next(path for path in write_reports(result, str(folder)) if path.suffix == ".html")


def test_a_page_needs_nothing_from_elsewhere_and_shows_every_loader(tmp_path: Path) -> None:
    text = page_of(comparison("real", 0.0), tmp_path).read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=|@import|url\(|fetch\(", text)
    assert re.findall(r'<tr data-loader="([^"]+)"', text) == ["torch", "torch-fast", "beton"]
    assert "beton delivered 4.17x the images/s of torch" in text
    assert "prefers-color-scheme: dark" in text
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(drawing)  # well-formed


def test_every_chart_of_a_simulation_says_so_and_a_real_one_does_not(tmp_path: Path) -> None:
    real = page_of(comparison("real", 0.0), tmp_path / "real").read_text(encoding="utf-8")
    assert "simulated" not in re.sub(r"<style>.*?</style>", "", real, flags=re.DOTALL).lower()
    result = replace(comparison("sim:200", 200.0), accelerator="sim:a100-resnet50")
    text = page_of(result, tmp_path / "simulated").read_text(encoding="utf-8")
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert all("simulated device</span>" in words for words in headings if "How this was measured" not in words)
    assert "SIMULATED DEVICE: " in text.partition("</title>")[0]
    assert "https://github.com/NVIDIA/DeepLearningExamples" in text  # who published the rate


def test_gpu_hours_and_cost_follow_from_rate_and_price(tmp_path: Path) -> None:
    """1,281,167 images at 395/s on two devices: 1.802 GPU-hours, at $3 an hour $5.41."""
    result = comparison("real", 0.0)
    loaders = summarise_loaders(result.runs, ["torch", "torch-fast", "beton"], nproc=2)
    assert loaders[2].imagenet_gpu_hours == pytest.approx(1_281_167 / 395 * 2 / 3600)
    result = replace(result, loaders=loaders, price_per_gpu_hour=3.0)
    text = unescape(page_of(result, tmp_path).read_text(encoding="utf-8"))
    assert "$5.41" in text and "1.80 GPU-h" in text and "$3.00" in text


def test_utilisation_by_rates_is_the_rate_over_that_of_the_devices() -> None:
    runs = runs_of({"torch": [100.0, 90.0], "beton": [390.0, 400.0]}, "sim:200")
    base, ours = summarise_loaders(runs, ["torch", "beton"], nproc=2, device_rate=200.0)
    assert base.busy_by_rates_pct == pytest.approx(100 * 95 / 400)
    assert ours.busy_by_rates_pct == pytest.approx(100 * 395 / 400)


def test_parts_of_a_step_add_up_to_it() -> None:
    (run,) = runs_of({"beton": [100.0]}, "sim:200")
    assert run.parts_s["waiting for data"] == pytest.approx(0.02)
    assert run.parts_s["simulated device"] == pytest.approx(0.054)
    assert sum(run.parts_s.values()) == pytest.approx(0.08)


# ---------------------------------------------------------------------- the same data


def seen(labels: list[int], mean: float, std: float = 20.0) -> dict[str, object]:
    return {"num_images": sum(labels), "labels": labels, "mean": [mean] * 3, "std": [std] * 3}


def test_loaders_of_the_same_data_pass_and_others_are_told_apart() -> None:
    checks = check_data(
        {
            "torch": [seen([250, 260, 490], 120.0)],
            "beton": [seen([120, 130, 250], 121.0), seen([130, 120, 250], 119.0)],
            "sorted": [seen([500, 500, 0], 120.0)],
            "darker": [seen([250, 250, 500], 105.0)],
        },
        [500, 500, 1000],
    )
    problems = {check.loader: check.problem for check in checks}
    assert problems["torch"] == problems["beton"] == ""
    assert checks[1].labels == [250, 250, 500] and checks[1].mean == [120.0] * 3
    assert "label frequencies" in problems["sorted"]
    assert problems["darker"].startswith("mean colour differs by 15.0 levels")


def test_a_label_that_the_data_lacks_is_a_difference() -> None:
    (check,) = check_data({"torch": [seen([10, 10, 1], 120.0)]}, [50, 50, 0])
    assert check.chance == 0.0 and check.problem


@pytest.mark.parametrize("normalised", [False, True])
def test_seen_data_counts_the_rows_that_count(normalised: bool) -> None:
    spec = LoaderSpec(path="", training=True, batch_size=3, num_workers=0, seed=0, image_size=32)
    images = torch.tensor([51.0, 153.0, 255.0]).view(3, 1, 1, 1).expand(3, 3, 32, 32)
    if normalised:
        mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (spec.mean, spec.std))
        images = (images / 255 - mean) / std
    else:
        images = images.to(torch.uint8)
    data = SeenData(4, spec, normalised=normalised)
    data.add(TrainBatch(images, torch.tensor([3, 1, 0]), 2, 2))
    result = data.result()
    assert result["num_images"] == 2 and result["labels"] == [0, 1, 0, 1]
    assert result["mean"] == pytest.approx([102.0] * 3, abs=1e-3)
    assert result["std"] == pytest.approx([51.0] * 3, abs=1e-3)


# ---------------------------------------------------------------------- drawings


def test_axes_have_round_numbers_up_to_the_largest_value() -> None:
    assert svg.ticks(0.0037) == pytest.approx([0.0, 0.001, 0.002, 0.003])
    assert svg.ticks(2600.0) == [0.0, 1000.0, 2000.0]
    assert svg.ticks(100.0) == [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]


def test_names_are_escaped_in_drawings() -> None:
    bar = svg.Bar(name="<b>&", value=1.0, low=1.0, high=1.0, words="1")
    root = ElementTree.fromstring(svg.bars([bar], unit="x", label='"quoted"'))
    assert "<b>&" in [node.text for node in root.iter()]


# ---------------------------------------------------------------------- in a browser


@pytest.mark.browser
def test_the_page_sorts_without_a_network(tmp_path: Path) -> None:
    """The address says by what: the script that sorts is the one a click on a heading runs."""
    page = page_of(comparison("sim:200", 200.0), tmp_path)
    tree = page_in_browser(page, tmp_path / "home", fragment="#sort=images_per_s,down", words=("--dump-dom",))
    assert re.findall(r'<tr data-loader="([^"]+)"', tree) == ["beton", "torch-fast", "torch"]
    assert re.search(r'data-key="images_per_s" aria-sort="descending"', tree)


@pytest.mark.browser
def test_the_page_is_light_or_dark_as_its_reader_wants(tmp_path: Path) -> None:
    page = page_of(comparison("sim:200", 200.0), tmp_path)
    for dark in (False, True):
        image = screenshot(page, tmp_path / "home", tmp_path / f"{dark}.png", dark=dark)
        corner = image.getpixel((3, image.height - 3))
        assert isinstance(corner, tuple)
        assert (max(corner) < 60) if dark else (min(corner) > 230)
        colours = image.getcolors(1 << 24)
        assert colours is not None and len(colours) > 200  # text and charts, not an empty page
