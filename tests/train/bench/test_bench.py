"""The harness of `beton bench`: its arithmetic, its clock's rules, its reports, and a small run from end to end."""

from __future__ import annotations

import datetime
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dataloading import UsageError
from dataloading import transforms as T
from dataloading.testing import KernelCeiling
from tests.support.files import write_images
from train import machine
from train.bench import report
from train.bench import timing as process
from train.bench.cli import bench
from train.bench.harness import LoaderProcess, LoaderProcessError, Result, measure, search_workers
from train.bench.spec import BenchSpec
from train.loaders import make_measured_loader
from train.summaries import compare, interleave, summarise
from train.tables import markdown_table

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "photos.beton"
    write_images(path, 24, sizes=(40, 90))
    return path


def spec_for(path, tmp_path, loader="beton", **options):
    return BenchSpec(loader=loader, path=str(path), work_dir=str(tmp_path), **{"batch_size": 4, **options})


# ---- arithmetic


def test_a_summary_holds_median_and_extremes():
    summary = summarise([5.0, 1.0, 9.0, 3.0])
    assert (summary.median, summary.low, summary.high, summary.count) == (4.0, 1.0, 9.0, 4)
    assert summary.spread == 2.0


def test_a_summary_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no values"):
        summarise([])


def test_the_ratio_is_of_medians_and_its_spread_is_of_rounds_that_ran_side_by_side():
    # The machine slowed down threefold from round to round: each pair still says 2.
    ratio = compare([60.0, 20.0, 6.0], [30.0, 10.0, 3.0])
    assert (ratio.of_medians, ratio.low, ratio.high) == (2.0, 2.0, 2.0)
    ratio = compare([10.0, 20.0, 30.0], [10.0, 5.0, 10.0])
    assert (ratio.of_medians, ratio.low, ratio.high) == (2.0, 1.0, 4.0)


def test_a_ratio_to_nothing_is_refused():
    for rates, baseline in (([], [1.0]), ([1.0], []), ([1.0], [0.0])):
        with pytest.raises(ValueError, match="baseline"):
            compare(rates, baseline)


def test_rounds_go_through_all_loaders_before_the_next_round():
    order = list(interleave(["a", "b", "c"], 2))
    assert order == [(0, "a"), (0, "b"), (0, "c"), (1, "a"), (1, "b"), (1, "c")]


# ---- the clock's rules


class Clock:
    """Time that only moves when a batch is made."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(process.time, "perf_counter", lambda: self.now)


class Source:
    """Batches of 4 rows that take 2 s each, but for those that were ready before."""

    def __init__(self, clock, num_ready=0, epoch=100):
        self.clock, self.num_ready, self.epoch, self.made = clock, num_ready, epoch, 0

    def image_batches(self):
        for _ in range(self.epoch):
            if self.made >= self.num_ready:
                self.clock.now += 2.0
            self.made += 1
            yield np.zeros((4, 3, 2, 2))


def test_batches_that_were_ready_beforehand_are_not_counted(monkeypatch):
    """Three batches lie ready: counted, the rate would look higher than 2 images/s."""
    clock = Clock(monkeypatch)
    stream = process.Stream(Source(clock, num_ready=3))
    images, seconds = process.time_round(stream, num_skipped=3, seconds=10.0, burst=1, batch_size=4)
    assert images / seconds == 2.0
    assert seconds == 10.0


@pytest.mark.parametrize("burst", [1, 2, 3, 4])
def test_a_round_ends_with_a_whole_burst(monkeypatch, burst):
    clock = Clock(monkeypatch)
    stream = process.Stream(Source(clock))
    images, seconds = process.time_round(stream, num_skipped=0, seconds=5.0, burst=burst, batch_size=4)
    assert images % (4 * burst) == 0
    assert images / seconds == 2.0
    assert 5.0 <= seconds < 5.0 + 2.0 * burst


def test_a_stream_goes_on_across_epochs_and_tells_gaps_from_other_intervals(monkeypatch):
    clock = Clock(monkeypatch)
    stream = process.Stream(Source(clock, epoch=3))
    for _ in range(7):
        stream.next()
    assert stream.gaps == [2.0, 2.0]
    assert stream.intervals == [2.0] * 4


def test_the_rest_of_an_epoch_ends_with_it(monkeypatch):
    clock = Clock(monkeypatch)
    source = Source(clock, epoch=6)
    stream = process.Stream(source)
    stream.next()
    images, seconds = process.time_rest_of_epoch(stream, num_skipped=1)
    # Six batches: the first was taken, one skipped, one starts the clock.
    assert (images, seconds, source.made) == (3 * 4, 6.0, 6)


def test_a_loader_without_batches_is_an_error_and_not_an_endless_loop(monkeypatch):
    stream = process.Stream(Source(Clock(monkeypatch), epoch=0))
    with pytest.raises(RuntimeError, match="no batch"):
        stream.next()


def test_a_batch_of_another_size_is_an_error(monkeypatch):
    stream = process.Stream(Source(Clock(monkeypatch)))
    with pytest.raises(RuntimeError, match="4 rows, expected 5"):
        process.time_round(stream, num_skipped=0, seconds=1.0, burst=1, batch_size=5)


# ---- specs


@pytest.mark.parametrize("wrong", [{"pipeline": "trian"}, {"batch_size": 0}, {"num_workers": 0}, {"epoch_images": 0}])
def test_a_spec_that_cannot_work_is_refused(tmp_path, wrong):
    with pytest.raises(UsageError):
        spec_for("x.beton", tmp_path, **wrong)


def test_a_small_file_is_repeated_to_a_long_epoch(tmp_path):
    spec = spec_for("x.beton", tmp_path, epoch_images=100).loader_spec()
    assert [spec.repeats(size) for size in (1, 30, 99, 100, 1000)] == [100, 4, 2, 1, 1]


def test_a_spec_survives_json(tmp_path):
    spec = spec_for("x.beton", tmp_path, pipeline="eval", label="me")
    assert BenchSpec(**json.loads(json.dumps(spec.as_dict()))) == spec


# ---- loaders


@pytest.mark.parametrize("pipeline", ["train", "train-normalized", "eval"])
@pytest.mark.parametrize("loader", ["beton", "torch", "torch-fast", "synthetic"])
def test_every_loader_gives_the_batches_the_pipeline_promises(photos, tmp_path, loader, pipeline):
    spec = spec_for(photos, tmp_path, loader, pipeline=pipeline, num_workers=1, image_size=32, resize_size=40)
    measured = make_measured_loader(loader, spec.loader_spec())
    batch = next(iter(measured.image_batches()))
    assert tuple(batch.shape) == (4, 3, 32, 32)
    assert str(batch.dtype) == ("torch.float32" if pipeline == "train-normalized" else "torch.uint8")
    measured.close()


def test_loaders_do_the_same_work(photos, tmp_path):
    """In the evaluation pipeline nothing is random: all loaders' pixels agree but for the filters' rounding."""
    means = {}
    for loader in ("beton", "torch", "torch-fast"):
        spec = spec_for(photos, tmp_path, loader, pipeline="eval", num_workers=1, image_size=32, resize_size=40)
        measured = make_measured_loader(loader, spec.loader_spec())
        means[loader] = next(iter(measured.image_batches())).float().mean(dim=(2, 3)).numpy()
        measured.close()
    for loader, mean in means.items():
        np.testing.assert_allclose(mean, means["torch"], atol=2.0, err_msg=loader)


@pytest.mark.ffcv
@pytest.mark.slow
def test_ffcv_gives_the_batches_the_pipeline_promises(photos, tmp_path):
    """In a process of its own, as ffcv changes its process's settings."""
    child = LoaderProcess(spec_for(photos, tmp_path, "ffcv", num_workers=1, epoch_images=100))
    try:
        seen = child.start()["seen"]
        assert (seen["shape"], seen["dtype"]) == ([4, 3, 224, 224], "uint8")
    finally:
        child.close()


def test_an_unknown_loader_is_refused_with_the_names_there_are(tmp_path):
    with pytest.raises(UsageError, match="torch-fast"):
        make_measured_loader("tirch", spec_for("x.beton", tmp_path).loader_spec())


def test_a_copy_in_another_format_is_made_once_for_each_file(photos, tmp_path):
    from train.loaders.copies import image_folder, prepared_copy

    spec = spec_for(photos, tmp_path)
    folder = image_folder(spec.loader_spec())
    assert len(list(folder.rglob("*.jpg"))) == 24
    calls = []
    assert prepared_copy(spec.loader_spec(), "folder", lambda *arguments: calls.append(arguments)) == folder
    assert not calls
    other = tmp_path / "other" / photos.name
    other.parent.mkdir()
    write_images(other, 3)
    assert image_folder(spec_for(other, tmp_path).loader_spec()) != folder


def test_a_copy_that_was_interrupted_is_made_again(photos, tmp_path):
    from train.loaders.copies import prepared_copy

    def fail(_source, folder):
        (folder / "half").write_text("x")
        raise OSError("disk full")

    spec = spec_for(photos, tmp_path)
    with pytest.raises(OSError, match="disk full"):
        prepared_copy(spec.loader_spec(), "thing", fail)
    done = prepared_copy(spec.loader_spec(), "thing", lambda _source, folder: (folder / "whole").write_text("x"))
    assert [entry.name for entry in done.iterdir()] == ["whole"]


# ---- kernels without the Loader


@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_ceiling_makes_as_many_images_as_asked_over_several_epochs(photos, num_workers):
    steps = [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.Normalize(0.5, 0.25)]
    ceiling = KernelCeiling(photos, transforms=steps, num_workers=num_workers, group_size=5)
    times = ceiling.run(61)
    assert times.num_samples == 61
    assert 0 < times.decode_seconds <= num_workers * times.seconds
    assert times.images_per_second == 61 / times.seconds


def test_the_ceiling_does_not_pass_over_an_image_it_cannot_decode(tmp_path):
    path = tmp_path / "broken.beton"
    write_images(path, 4)
    data = bytearray(path.read_bytes())
    places = [match.start() for match in re.finditer(b"\xff\xd8\xff", bytes(data))]
    assert len(places) == 4
    data[places[2] : places[2] + 2] = b"\0\0"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="sample 2 of"):
        KernelCeiling(path, transforms=[T.Resize((16, 16))], num_workers=2).run(4)


def test_the_ceiling_refuses_a_field_that_is_not_there(photos):
    with pytest.raises(UsageError, match="no image field"):
        KernelCeiling(photos, transforms=[T.Resize((16, 16))], num_workers=1, field="mask")


# ---- machine


@pytest.mark.parametrize(
    ("cpu", "slug"),
    [
        ("AMD EPYC 7B13 64-Core Processor", "epyc-2core"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "xeon-2core"),
        ("Neoverse-N1", "neoverse-2core"),
        ("", "cpu-2core"),
    ],
)
def test_the_name_of_a_machine_fits_into_a_file_name(cpu, slug):
    assert machine.hardware_slug({"cpu": cpu, "cores": 2}) == slug


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processor_time_and_memory_are_those_of_the_whole_group():
    code = (
        "import subprocess, sys, time\n"
        "inner = 'import time; x = bytearray(40 << 20); t = time.process_time()\\n"
        "while time.process_time() - t < 0.3: pass\\nprint(flush=True); time.sleep(60)'\n"
        "child = subprocess.Popen([sys.executable, '-c', inner], stdout=subprocess.PIPE); child.stdout.readline()\n"
        "print(flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        parent.stdout.readline()
        assert machine.cpu_of_group(parent.pid) >= 0.25
        assert machine.memory_of_group(parent.pid).own_bytes >= 40 << 20
    finally:
        machine.os.killpg(parent.pid, 9)
        parent.wait()
        parent.stdout.close()


# ---- processes


@pytest.mark.skipif(importlib.util.find_spec("streaming") is not None, reason="needs a peer that is not installed")
def test_what_is_not_installed_is_reported_and_the_others_go_on(photos, tmp_path):
    specs = [spec_for(photos, tmp_path, "mosaicml-streaming"), spec_for(photos, tmp_path, "synthetic")]
    lines = []
    missing, measured = measure(specs, num_rounds=2, seconds=0.05, progress=lines.append)
    assert missing.status.startswith("not installed: ")
    assert missing.rates == []
    assert any("not installed" in line for line in lines)
    assert measured.status == "ok"
    assert len(measured.rates) == 2


def test_a_loader_that_fails_is_reported_with_its_words(tmp_path):
    missing = tmp_path / "nothing.beton"
    [result] = measure([spec_for(missing, tmp_path)], num_rounds=1, seconds=0.05)
    assert result.status.startswith("failed: ")
    assert "nothing.beton" in result.status


def test_a_process_that_dies_is_noticed(photos, tmp_path):
    child = LoaderProcess(spec_for(photos, tmp_path, "synthetic"))
    child.start()
    machine.os.killpg(child.pid, 9)
    with pytest.raises(LoaderProcessError, match="ended"):
        child.round(0.05)
    child.close()


def test_the_best_number_of_workers_is_the_fastest_one(photos, tmp_path, monkeypatch):
    rates = {1: 10.0, 2: 30.0, 3: 20.0}

    def fake(specs, **_options):
        return [Result(spec=spec, rates=[rates[spec.num_workers]]) for spec in specs]

    monkeypatch.setattr("train.bench.harness.measure", fake)
    assert search_workers(spec_for(photos, tmp_path), [1, 2, 3], seconds=1.0) == (2, rates)


# ---- reports


def make_results(tmp_path):
    fast = Result(spec=spec_for("x.beton", tmp_path), rates=[400.0, 440.0, 360.0])
    fast.rounds = [{"cpu_seconds_per_image": 0.002, "own_bytes": 3 << 20, "other_cores": 0.5}] * 3
    fast.start = {"versions": {"torch": "9.9", "spdl": "0.8"}}
    slow = Result(spec=spec_for("x.beton", tmp_path, "torch"), rates=[100.0, 110.0, 90.0])
    slow.start = {"versions": {"torch": "8.8"}}
    gone = Result(spec=spec_for("x.beton", tmp_path, "dali"), status="not installed: no module")
    return [fast, slow, gone]


def test_rows_show_every_loader_with_its_ratio_to_the_baseline(tmp_path):
    rows = report.rate_rows(make_results(tmp_path), "torch")
    assert rows[0] == ["beton", "400", "360-440", "4.00 (4.00-4.00)", "2.00", "3", ""]
    assert rows[1] == ["torch", "100", "90-110", "1.00", "", "", ""]
    assert rows[2] == ["dali", "-", "", "", "", "", "not installed: no module"]


def test_a_busy_neighbour_is_mentioned(tmp_path):
    results = make_results(tmp_path)
    assert "0.50 cores" in report.noise(results)
    for entry in results[0].rounds:
        entry["other_cores"] = 0.01
    assert report.noise(results) is None


def test_a_report_states_machine_versions_command_and_figures(tmp_path):
    results = make_results(tmp_path)
    paths = report.write_report(
        tmp_path / "out",
        "jpeg500",
        title="A | B",
        command="beton bench x",
        sections=[markdown_table(report.RATE_HEAD, report.rate_rows(results, "torch"))],
        data=report.results_as_data(results),
        results=results,
        figure=report.bars(results, title="A", baseline="torch"),
    )
    stem = report.result_stem("jpeg500", machine.hardware(), datetime.date.today())
    assert [path.name for path in paths] == [f"{stem}.md", f"{stem}.json", f"{stem}.png"]
    text = paths[0].read_text()
    for part in ("beton bench x", "cores", "spdl 0.8", "| beton | 400 |", "not installed", f"({stem}.png)", "Noise"):
        assert part in text, part
    data = json.loads(paths[1].read_text())
    assert data["data"][0]["images_per_second"] == [400.0, 440.0, 360.0]
    assert data["data"][2]["status"] == "not installed: no module"
    assert paths[2].read_bytes().startswith(b"\x89PNG")


def test_two_environments_versions_are_both_stated(tmp_path):
    results = make_results(tmp_path)
    [path, _] = report.write_report(
        tmp_path, "t", title="t", command="c", sections=[], data=[], results=results, versions={"torch": "9.9"}
    )
    assert "torch 9.9" in path.read_text()
    assert "torch 8.8 for torch" in path.read_text()


def test_markdown_cells_cannot_break_the_table():
    table = markdown_table(["a", "b"], [["x|y", "1\n2"]])
    assert table.splitlines()[-1] == "| x\\|y | 1 2 |"


# ---- the command


def run_bench(*words):
    return CliRunner().invoke(bench, [str(word) for word in words])


def test_bench_measures_and_explains_a_small_file(photos, tmp_path):
    done = run_bench(
        photos, "--loaders", "beton,kernels,torch,synthetic", "--rounds", 2, "--seconds", 0.1, "--batch-size", 8,
        "--num-workers", 1, "--baseline", "torch", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    out = done.stdout
    for part in (
        "24 samples",
        "images/s",
        "x baseline",
        "decode",
        "of what its kernels reach",
        "The loader is the limit",
    ):
        assert part in out, out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line[:1].isalpha()}
    assert {"beton", "kernels", "torch", "synthetic"} <= set(rows)
    assert rows["torch"][3] == "1.00"
    assert "round 2/2" in done.stderr
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".json", ".md", ".png"]


def test_bench_sweeps_over_numbers_of_workers_and_prints_json(photos):
    done = run_bench(
        photos, "--loaders", "beton", "--workers", "1,2", "--rounds", 1, "--seconds", 0.1, "--batch-size", 8, "--json",
        "--quiet",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert [entry["label"] for entry in data["results"]] == ["beton, 1", "beton, 2"]
    assert [entry["spec"]["num_workers"] for entry in data["results"]] == [1, 2]
    assert all(entry["images_per_second"][0] > 0 for entry in data["results"])
    assert set(data["results"][0]["report"]["hop_seconds"]) == {"sampler", "view", "decode", "transform", "transfer"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--loaders", "tirch"], "Did you mean 'torch'"),
        (["--loaders", "torch,torch"], "twice"),
        (["--workers", "1,0"], "at least 1"),
        (["--workers", "1,one"], "such as 1,2,4"),
    ],
)
def test_bench_says_what_is_wrong_with_its_words(photos, words, expected):
    done = run_bench(photos, *words)
    assert done.exit_code == 2
    assert expected in done.output


def test_bench_refuses_a_baseline_that_is_not_measured_and_a_file_that_is_none(photos, tmp_path):
    assert isinstance(run_bench(photos, "--baseline", "ffcv").exception, UsageError)
    other = tmp_path / "x.beton"
    other.write_bytes(b"not a file of ours" * 10)
    assert "version" in str(run_bench(other).exception)


def test_reports_name_files_but_not_where_they_lay():
    from train.bench.report import names_only

    payload = {"spec": {"path": "/some/folder/train.beton", "batch": 3}, "runs": [("/a/b", 1.5)], "note": "x/y"}
    assert names_only(payload) == {"spec": {"path": "train.beton", "batch": 3}, "runs": [["b", 1.5]], "note": "x/y"}
