"""Where a step's time goes, and what the hardware does meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dataloading import UsageError
from train.clock import COMMUNICATION, PARTS, DeviceMonitor, StepClock
from train.devices import peak_flops
from train.host import HostMeter
from train.meters import describe_reading, waits_noted, watch_communication
from train.metrics import RunLog
from train.profile import amdahl
from train.steplog import find_straggler
from train.trackers import tracker_names

from .conftest import only, train_here


class Hours:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("train.clock.time", types.SimpleNamespace(perf_counter=lambda: self.now))

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def test_marks_divide_a_step_into_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Hours(monkeypatch)
    clock = StepClock(torch.device("cpu"))
    seen: list[tuple[str, float, float]] = []
    clock.on_part = lambda *part: seen.append(part)
    clock.fetching()
    hours.pass_(2.0)
    clock.fetched()
    for seconds, part in ((1.0, "normalise and mix"), (3.0, "forward")):
        hours.pass_(seconds)
        clock.mark(part)
    hours.pass_(4.0)
    clock.gradients_ready()
    hours.pass_(5.0)
    clock.mark("backward")
    hours.pass_(0.5)
    clock.mark(None)
    hours.pass_(0.25)
    clock.mark("optimiser")
    times = clock.step_done()
    assert times.waited == 2.0 and times.total == 15.75
    expected = {"normalise and mix": 1.0, "forward": 3.0, "backward": 4.0, COMMUNICATION: 5.0, "optimiser": 0.25}
    assert times.parts == expected and tuple(times.parts) == PARTS
    assert seen[0] == ("data wait", 100.0, 102.0) and seen[-1] == ("optimiser", 115.5, 115.75)


def test_without_other_ranks_all_of_backward_is_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Hours(monkeypatch)
    clock = StepClock(torch.device("cpu"))
    clock.fetching()
    clock.fetched()
    hours.pass_(4.0)
    clock.mark("backward")
    assert clock.step_done().parts == {**dict.fromkeys(PARTS, 0.0), "backward": 4.0}


def test_waits_for_other_ranks_are_taken_out_of_the_part_they_fall_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharded networks communicate inside forward and backward; other threads' waits do not count."""
    hours = Hours(monkeypatch)
    monkeypatch.setattr("train.meters.time", types.SimpleNamespace(perf_counter=lambda: hours.now))

    class Work:
        def wait(self, seconds: float) -> str:
            hours.pass_(seconds)
            return "done"

    monkeypatch.setattr(dist, "Work", Work)
    real = Work.wait
    clock = StepClock(torch.device("cpu"))
    ranges: list[tuple[str, float, float]] = []
    clock.on_part = lambda *part: ranges.append(part)
    clock.fetching()
    clock.fetched()
    with waits_noted(clock):
        hours.pass_(1.0)
        assert Work().wait(0.5) == "done"
        clock.mark("forward")
        hours.pass_(3.0)
        Work().wait(0.25)
        other = threading.Thread(target=lambda: Work().wait(4.0))
        other.start()
        other.join()
    assert Work.wait is real
    Work().wait(8.0)
    clock.mark("backward")
    expected = {"forward": 1.0, "backward": 15.0, COMMUNICATION: 0.75}
    assert clock.step_done().parts == {**dict.fromkeys(PARTS, 0.0), **expected}
    assert ranges[1] == (COMMUNICATION, 101.0, 101.5)


def test_what_is_not_known_of_communication_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, beton: Path, tmp_path: Path
) -> None:
    clock = StepClock(torch.device("cpu"))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    waits, reason = watch_communication(torch.nn.Linear(2, 2), clock, cuda=True)
    assert waits is nullcontext and "--profile" in reason
    monkeypatch.undo()
    monkeypatch.setattr("train.trainer.watch_communication", lambda *_, **__: (nullcontext, "not here"))
    records = train_here(tmp_path, data=str(beton), epochs=1)
    assert only(records, "start")[0]["communication"] == "not here"
    names = [name for name in PARTS if name != COMMUNICATION]
    assert all(list(step["parts_s"]) == names for step in only(records, "step"))
    assert list(only(records, "epoch")[0]["parts_pct"]) == names


def test_a_straggler_is_clearly_slower_than_the_median_rank() -> None:
    assert find_straggler([0.010, 0.010, 0.031, 0.010]) == {"rank": 2, "own_s": 0.031, "median_s": 0.010}
    assert find_straggler([0.0001, 0.0009]) is None  # less than a millisecond
    assert find_straggler([1.0]) is None


def test_a_run_logs_parts_percentiles_and_meters(beton: Path, tmp_path: Path) -> None:
    records = train_here(tmp_path, data=str(beton), loader="beton", num_workers=1, epochs=1, log_steps=3)
    for step in only(records, "step"):
        assert list(step["parts_s"]) == list(PARTS)
        assert step["parts_s"]["forward"] > 0 and step["parts_s"]["backward"] > 0
        assert step["parts_s"][COMMUNICATION] == 0
        assert sum(step["parts_s"].values()) + step["wait_s"] <= step["step_s"] * 1.001
    (epoch,) = only(records, "epoch")
    rates = sorted(step["images_per_s"] for step in only(records, "step"))
    assert epoch["images_per_s_p99"] == rates[0] and epoch["images_per_s_p50"] in rates
    assert epoch["straggler"] is None
    meters = only(records, "meters")
    assert [record["step"] for record in meters] == [2, 5, 6]
    assert meters[0]["rss_bytes"] > 1 << 20 and meters[0]["pss_bytes"] > 1 << 20
    assert meters[0]["gpu_pct"] is None
    hops = [record["hops_s"] for record in meters]
    assert set(hops[0]) == {"sampler", "view", "decode", "transform", "transfer"}
    assert sum(each["decode"] for each in hops) > 0


def test_the_host_meter_reads_a_process_and_its_children(tmp_path: Path) -> None:
    """A child holds 64 MiB and has read a file; the meter of this process sees both."""
    (tmp_path / "data").write_bytes(bytes(1 << 20))
    code = (
        f"held = b'x' * (64 << 20); open({str(tmp_path / 'data')!r}, 'rb').read(); print('ready', flush=True); input()"
    )
    meter = HostMeter(os.getpid())
    before = meter.take()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        use = meter.take()
        child.communicate("\n")
    assert use.rss_bytes - before.rss_bytes > 40 << 20
    assert use.cpu_pct >= 0 and use.pss_bytes is None  # read every half minute
    assert before.pss_bytes is not None and 0 < before.pss_bytes <= before.rss_bytes
    if use.cache_hit_pct is not None:
        assert 0 <= use.cache_hit_pct <= 100


def test_readings_are_put_into_words_without_what_is_unknown() -> None:
    words = describe_reading({"gpu_pct": 93.0, "sm_pct": None, "disk_bytes_per_s": 3.5 * 2**20, "hops_s": {}})
    assert words == "GPU 93 %, disk 3.5 MiB/s"


class FakeNvml(types.ModuleType):
    """NVML of a device whose multiprocessors have been busy for 41 % since the reading before."""

    NVMLError = RuntimeError
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.sampled: list[Any] = []

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, identifier: bytes) -> str:
        return identifier.decode()

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> types.SimpleNamespace:
        assert handle == "GPU-1234"
        return types.SimpleNamespace(gpu=87)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(used=5 << 30)

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> list[int]:
        return []

    def nvmlGpmSampleGet(self, handle: str, sample: list[int]) -> None:
        self.sampled.append(sample)

    def c_nvmlGpmMetricsGet_t(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(metrics=[types.SimpleNamespace(value=0.0)])

    def nvmlGpmMetricsGet(self, wanted: types.SimpleNamespace) -> None:
        assert (wanted.metrics[0].metricId, wanted.numMetrics) == (2, 1)
        assert wanted.sample1 is self.sampled[-2] and wanted.sample2 is self.sampled[-1]
        wanted.metrics[0].value = 41.0


def test_the_device_monitor_reads_utilisation_memory_and_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="1234"))
    monitor = DeviceMonitor(torch.device("cuda", 0))
    try:
        assert monitor.problem == ""
        for _ in range(2):
            use = monitor.take()
            while use.gpu_pct is None:  # its thread samples ten times a second
                use = monitor.take()
            assert (use.gpu_pct, use.sm_pct, use.gpu_memory_bytes) == (87.0, 41.0, 5 << 30)
    finally:
        monitor.close()


def test_a_device_without_monitor_says_why() -> None:
    monitor = DeviceMonitor(torch.device("cpu"))
    assert monitor.problem == "not a CUDA device" and monitor.take().gpu_pct is None


# ---------------------------------------------------------------------- profile, trackers, peaks


def test_amdahl_says_what_free_data_and_free_communication_would_give() -> None:
    parts = {"data wait": 0.010, "forward": 0.015, "backward": 0.020, COMMUNICATION: 0.005}
    first, second = amdahl(parts, data="data wait", communication=COMMUNICATION)
    assert first.startswith("a step takes 50.0 ms: data wait 10.0 ms (20 %), forward 15.0 ms (30 %)")
    assert second == (
        "with free data 40.0 ms (1.25x), with free communication 45.0 ms (1.11x), with both 35.0 ms (1.43x)"
    )


def test_profile_writes_one_time_axis_for_operators_and_hops(beton: Path, tmp_path: Path) -> None:
    """Three steps are left out, ten are in the trace: each operator of a forward lies within a forward range."""
    records = train_here(
        tmp_path, data=str(beton), loader="beton", num_workers=1, steps=14, profile=True, checkpoints=False
    )
    (record,) = only(records, "profile")
    assert record["step"] == 13 and "with free data" in record["lines"][1]
    assert set(record["parts_s"]) >= {"data wait", "forward", "backward", "optimiser"}
    events = json.loads(Path(record["path"]).read_text())["traceEvents"]
    ours = [event for event in events if event.get("cat") == "beton"]
    assert {"decode", "transform"} <= {event["name"] for event in ours}
    forward = [(event["ts"], event["ts"] + event["dur"]) for event in ours if event["name"] == "forward"]
    assert len(forward) == 10
    operators = [event["ts"] for event in events if event.get("name") == "aten::conv2d"]
    assert len(operators) >= 10
    for start in operators:
        assert any(begin <= start <= end for begin, end in forward)


def test_figures_of_records_go_to_the_trackers() -> None:
    class Remembering:
        def __init__(self) -> None:
            self.found: dict[int, dict[str, float]] = {}

        def log(self, values: Mapping[str, float], step: int) -> None:
            self.found.setdefault(step, {}).update(values)

        def close(self) -> None: ...

    tracker = Remembering()
    log = RunLog(None, active=True)
    log.trackers = [tracker]
    log.record("start", step=0, world_size=2)
    log.record("step", step=7, loss=None, images_per_s=10, parts_s={"forward": 0.5}, finished=True)
    assert tracker.found == {7: {"step/images_per_s": 10.0, "step/parts_s/forward": 0.5}}


def test_a_tracker_that_is_not_there_is_refused(beton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="--track wandb needs wandb"):
        train_here(tmp_path, data=str(beton), track="wandb", epochs=1)
    with pytest.raises(UsageError, match="expected names of tensorboard, wandb"):
        tracker_names("tensorbord")


def test_peaks_are_those_of_the_device_or_say_why_not() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3", "bf16") == (989e12, "")
    assert peak_flops("NVIDIA H100 PCIe", "fp16") == (756e12, "")
    assert peak_flops("Tesla V100-SXM2-16GB", "fp16") == (125e12, "")
    assert peak_flops("Tesla V100-PCIE-32GB", "fp16") == (112e12, "")
    assert peak_flops("NVIDIA H200 NVL", "bf16") == (835e12, "") and peak_flops("NVIDIA H200", "bf16") == (989e12, "")
    for name in ("Tesla V100-SXM2-16GB", "Tesla V100-PCIE-32GB", "Tesla T4"):
        assert "bfloat16" in peak_flops(name, "bf16")[1]
    for name in ("NVIDIA A10G", "NVIDIA GeForce RTX 4090 Laptop GPU", "x86_64"):
        assert peak_flops(name, "bf16") == (0.0, f"no peak is known for {name}; pass --peak-tflops")
    assert peak_flops("NVIDIA A100-SXM4-80GB", "none")[0] == 0.0
