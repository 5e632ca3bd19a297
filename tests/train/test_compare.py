"""The comparison: arithmetic on made-up logs, reports that say what was simulated, and one real run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dataloading import BetonError, UsageError
from train.compare.report import comparison_table, headline, verdict, write_reports
from train.compare.runs import (
    CompareOptions,
    Comparison,
    RunResult,
    run_comparison,
    summarise_loaders,
    summarise_run,
)
from train.summaries import summarise

from .conftest import SMALL


def log(waits: list[float], works: list[float], accelerator: str = "real", device: str = "cpu") -> list[dict[str, Any]]:
    """Return the records of a run with 8 images a step; the device sleeps through the work when simulated."""
    records: list[dict[str, Any]] = [{"event": "start", "device": device, "options": {"accelerator": accelerator}}]
    start = 1.5
    for step, (wait, work) in enumerate(zip(waits, works, strict=True)):
        records.append(
            {
                "event": "step",
                "step": step,
                "images": 8,
                "start_s": start,
                "step_s": wait + work,
                "wait_s": wait,
                "sleep_s": work * 0.9 if accelerator != "real" else 0.0,
                "device_pct": 60.0 + step if device == "cuda:0" else None,
            }
        )
        start += wait + work
    return [*records, {"event": "done"}]


def test_rates_leave_out_the_warm_up_and_times_do_not() -> None:
    run = summarise_run(log([3.0, 0.1, 0.3], [1.0, 0.3, 0.1]), loader="torch", repeat=0, warmup=1)
    assert run.images_per_s == pytest.approx(16 / 0.8)
    assert run.wait_pct == pytest.approx(50.0)
    assert (run.busy_pct, run.busy_source) == (pytest.approx(50.0), "step")
    assert run.time_to_steps_s == pytest.approx(1.5 + 4.8)
    assert run.first_batch_s == pytest.approx(4.5)
    assert run.num_steps == 3 and run.wait_s == [3.0, 0.1, 0.3]


def test_busy_comes_from_the_device_that_ran() -> None:
    simulated = summarise_run(log([0.1] * 3, [0.4] * 3, "sim:20"), loader="torch", repeat=0, warmup=0)
    assert (simulated.busy_pct, simulated.busy_source) == (pytest.approx(72.0), "simulated")
    gpu = summarise_run(log([0.1] * 3, [0.4] * 3, device="cuda:0"), loader="torch", repeat=0, warmup=1)
    assert (gpu.busy_pct, gpu.busy_source) == (pytest.approx(61.5), "nvml")
    unwatched = [{**record, "device_pct": None} for record in log([0.1], [0.4], device="cuda:0")]
    assert summarise_run(unwatched, loader="torch", repeat=0, warmup=0).busy_pct is None


def test_a_log_without_steps_after_the_warm_up_is_an_error() -> None:
    with pytest.raises(BetonError, match="logged 2 steps; none is left after 2"):
        summarise_run(log([0.1] * 2, [0.1] * 2), loader="torch", repeat=0, warmup=2)


def test_spread_is_mean_and_sample_deviation() -> None:
    figure = summarise([2.0, 4.0, 9.0])
    assert (figure.mean, figure.low, figure.high) == (5.0, 2.0, 9.0)
    assert figure.std == pytest.approx(13**0.5)
    assert summarise([3.0]).std == 0.0


def runs_of(rates: dict[str, list[float]], accelerator: str = "real") -> list[RunResult]:
    """Return runs whose loaders deliver so many images/s in each repeat."""
    runs = []
    for loader, values in rates.items():
        for repeat, rate in enumerate(values):
            seconds = 8 / rate
            records = log([seconds / 4] * 9, [seconds * 3 / 4] * 9, accelerator)
            runs.append(summarise_run(records, loader=loader, repeat=repeat, warmup=2))
    return runs


def test_ratios_are_taken_within_a_repeat() -> None:
    """In the second repeat the machine was half as fast for both: the ratio does not notice."""
    runs = runs_of({"torch": [100.0, 50.0], "beton": [300.0, 150.0]})
    base, ours = summarise_loaders(list(reversed(runs)), ["torch", "beton"])
    assert base.ratio.values == pytest.approx([1.0, 1.0])
    assert ours.ratio.values == pytest.approx([3.0, 3.0]) and ours.ratio.std == pytest.approx(0.0)
    assert ours.images_per_s.values == pytest.approx([300.0, 150.0])


def comparison(accelerator: str, rate: float) -> Comparison:
    """Return a made-up comparison of three loaders."""
    loaders = ["torch", "torch-fast", "beton"]
    runs = runs_of({"torch": [100.0, 90.0], "torch-fast": [140.0, 150.0], "beton": [390.0, 400.0]}, accelerator)
    return Comparison(
        accelerator=accelerator,
        simulated_images_per_s=rate,
        nproc_per_node=2,
        repeats=2,
        warmup=2,
        num_steps=9,
        training={"model": "resnet18", "strategy": "ddp", "batch_size": 64, "image_size": 224, "data": "x.beton"},
        stock_data="",
        machine={"processor": "a CPU", "num_cores": 2, "torch": "2", "device": "cpu", "python": "3"},
        loaders=summarise_loaders(runs, loaders),
        runs=runs,
    )


@pytest.mark.parametrize(("accelerator", "rate"), [("real", 0.0), ("sim:200", 200.0)])
def test_reports_show_every_loader_and_say_simulated_only_when_it_was(
    accelerator: str, rate: float, tmp_path: Path
) -> None:
    result = comparison(accelerator, rate)
    table = comparison_table(result)
    for word in ("torch-fast", "beton", "95 ± 7", "395 ± 7", "4.17 ±", "25.0 ± 0.0"):
        assert word in table, table
    assert ("SIMULATED" in table) == ("SIMULATED" in headline(result)) == (rate > 0)
    assert "beton delivered 4.17x the images/s of torch" in verdict(result)
    json_path, png_path, _ = write_reports(result, str(tmp_path / "deep" / "out"))
    data = json.loads(json_path.read_text())
    assert data["simulated"] is (rate > 0) and data["accelerator"] == accelerator
    assert [loader["loader"] for loader in data["loaders"]] == ["torch", "torch-fast", "beton"]
    assert data["loaders"][2]["ratio"]["mean"] == pytest.approx((3.9 + 400 / 90) / 2)
    with Image.open(png_path) as image:
        assert image.size[0] > 1000 and len(image.convert("RGB").getcolors(1 << 20)) > 20


def test_the_picture_carries_the_words_of_the_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    drawn: list[list[str]] = []
    real = Figure.savefig

    def remember(self: Figure, *args: Any, **kwargs: Any) -> None:
        texts = [*self.texts, *(text for axes in self.axes for text in (axes.title, *axes.texts))]
        drawn.append([text.get_text() for text in texts if text is not None])
        real(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", remember)
    write_reports(comparison("real", 0.0), str(tmp_path))
    write_reports(comparison("sim:200", 200.0), str(tmp_path))
    assert not any("simulated" in text.lower() for text in drawn[0])
    assert "SIMULATED DEVICE" in drawn[1] and any("Simulated device busy" in text for text in drawn[1])


@pytest.mark.parametrize("rate", [185.0, 193.0, 197.5, 200.0, 400.0])
def test_the_numbers_above_bars_do_not_touch_the_dotted_line(
    rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest loader delivers 395 images/s to two devices that take more, as much, or less."""
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    real = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: (drawn.append(self), real(self, *args, **kw))[1])
    write_reports(comparison(f"sim:{rate:g}", rate), str(tmp_path))
    axes = drawn[0].axes[0]
    line = axes.transData.transform((0.0, 2 * rate))[1]
    numbers = [text for text in axes.texts if text.get_text().replace(".", "").isdigit()]
    assert [text.get_text() for text in numbers] == ["95.0", "145", "395"]
    for text in numbers:
        box = text.get_window_extent()
        assert not box.y0 - 1 < line < box.y1 + 1, text.get_text()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"loaders": ("torch", "grain")}, "expected different names"),
        ({"loaders": ()}, "expected different names"),
        ({"repeats": 0}, "--repeats"),
        ({"price_per_gpu_hour": -1.0}, "--price-per-gpu-hour"),
        ({"warmup": 50}, "leaves no step after --warmup 50"),
        ({"training": {"accelerator": "sim:0"}}, "sim:RATE"),
        ({"loaders": ("torch", "beton")}, "beton convert imagefolder"),
    ],
)
def test_an_impossible_comparison_is_refused_before_anything_runs(
    values: dict[str, Any], words: str, folder: Path, tmp_path: Path
) -> None:
    training = {"data": str(folder), **values.pop("training", {})}
    with pytest.raises(UsageError, match=words):
        CompareOptions(**{"loaders": ("torch",), "out": str(tmp_path), "training": training, **values})


def test_a_loader_that_is_not_installed_is_refused_or_runs_in_the_peers_environment(
    beton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.compare import runs as compare

    values = {"loaders": ("dali", "beton"), "out": str(tmp_path), "training": {"data": str(beton)}}
    monkeypatch.setattr(compare, "_is_installed", lambda module: module != "nvidia.dali")
    monkeypatch.setattr(compare, "find_peers_python", lambda: None)
    with pytest.raises(UsageError, match="dali is not installed; pip install nvidia-dali"):
        CompareOptions(**values)
    monkeypatch.setattr(compare, "find_peers_python", lambda: "/peers/python")
    options = CompareOptions(**values)
    assert (options.python("dali"), options.python("beton")) == ("/peers/python", sys.executable)


def test_stock_loaders_may_read_the_original_directory(folder: Path, beton: Path, tmp_path: Path) -> None:
    options = CompareOptions(
        loaders=("torch", "beton"), out=str(tmp_path), stock_data=str(folder), training={"data": str(beton)}
    )
    assert options.training_values("torch")["data"] == str(folder)
    assert options.training_values("beton")["data"] == str(beton)
    assert options.training_values("beton")["steps"] == 50


def test_two_loaders_run_in_fresh_processes(beton: Path, tmp_path: Path) -> None:
    """Real processes: each loader trains, every repeat is there, the order of a round rotates."""
    training = {name: value for name, value in SMALL.items() if name not in ("loader", "log_steps")}
    options = CompareOptions(
        loaders=("torch", "beton"),
        out=str(tmp_path),
        repeats=1,
        warmup=1,
        training={**training, "data": str(beton), "steps": 5, "accelerator": "sim:400"},
    )
    told: list[str] = []
    result = run_comparison(options, progress=told.append)
    assert [line.split(":")[0] for line in told] == ["[1/2] torch", "[2/2] beton"]
    assert result.simulated and result.num_steps == 5
    for loader in result.loaders:
        assert 0 < loader.images_per_s.mean <= 400
        assert loader.busy_source == "simulated"
    assert [check.loader for check in result.data_checks] == ["torch", "beton"]
    for check in result.data_checks:
        assert check.num_images == 20 and check.problem == ""
    assert not (tmp_path / "runs" / "beton-0" / "checkpoints").exists()


def test_a_run_that_fails_is_reported_with_its_last_words(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.compare import runs as compare

    code = "import sys; print('starting'); print('SomeError: the cause'); print('the end'); sys.exit(5)"
    real = compare.run_local_processes
    monkeypatch.setattr(compare, "run_local_processes", lambda _, *rest: real([sys.executable, "-c", code], *rest))
    options = CompareOptions(loaders=("torch",), out=str(tmp_path), repeats=1, training={"data": str(folder)})
    with pytest.raises(BetonError, match=r"(?s)loader torch ended with status 5.*output.txt.*SomeError.*the end"):
        run_comparison(options, progress=lambda text: None)
