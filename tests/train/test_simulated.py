"""The simulated device: its utilisation follows from the rates of loader and device, whatever the host does."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from train import step as step_module
from train.clock import COMMUNICATION, StepClock, StepTimes
from train.compare.runs import summarise_run
from train.loaders.base import TrainBatch
from train.step import SimulatedCompute

BATCH = 64
STEPS, WARMUP = 60, 10
LATE = 0.004  # a host wakes up this much late from each sleep
LOG_LINE = 0.008  # every tenth step


class Host:
    """A clock that only what a test does moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        clock = types.SimpleNamespace(perf_counter=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr("train.clock.time", clock)
        monkeypatch.setattr("train.step.time", clock)

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds + (LATE if seconds else 0.0)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def batch() -> TrainBatch:
    return TrainBatch(torch.zeros(BATCH, 3, 1, 1), torch.zeros(BATCH, dtype=torch.int64), BATCH, BATCH)


def working_inside(host: Host, rate: float) -> Iterator[TrainBatch]:
    """A loader without workers: `next` makes the batch."""
    while True:
        host.now += BATCH / rate
        yield batch()


def working_ahead(host: Host, rate: float, *, ahead: int = 4) -> Iterator[TrainBatch]:
    """A loader whose workers make batches one after the other, at most `ahead` before they are taken."""
    ready, taken = host.now, [host.now] * ahead
    while True:
        ready = max(ready, taken[-ahead]) + BATCH / rate
        host.now = max(host.now, ready)
        taken.append(host.now)
        yield batch()


def rate_alone(host: Host, batches: Iterator[TrainBatch]) -> float:
    """Measure the loader as `beton bench` does: batches are taken as fast as they come, the first ones not counted."""
    for _ in range(WARMUP):
        next(batches)
    began = host.now
    for _ in range(STEPS):
        next(batches)
    return STEPS * BATCH / (host.now - began)


def take_step(clock: StepClock, device: SimulatedCompute, batches: Iterator[TrainBatch], number: int = 0) -> StepTimes:
    clock.fetching()
    one = next(batches)
    clock.fetched()
    device.micro_batch(one, step=number, micro=0, last=True)
    device.update(step=number, lr=0.1, num_images=BATCH)
    return clock.step_done()


def utilisation(host: Host, batches: Iterator[TrainBatch], device_rate: float) -> float:
    """Train, and return the utilisation in percent as `beton compare` reports it."""
    clock = StepClock(torch.device("cpu"))
    device = SimulatedCompute(device_rate, clock)
    records: list[dict[str, Any]] = [
        {"event": "start", "device": "cpu", "options": {"accelerator": f"sim:{device_rate}"}}
    ]
    for number in range(STEPS):
        times = take_step(clock, device, batches, number)
        host.now += LOG_LINE if number % 10 == 9 else 0.001
        shares = {"start_s": times.start, "step_s": times.total, "wait_s": times.waited, "sleep_s": times.slept}
        records.append({"event": "step", "images": BATCH, "device_pct": None, **shares})
        assert times.waited + times.slept == pytest.approx(times.total) and times.parts[COMMUNICATION] < 1e-12
    run = summarise_run(records, loader="made-up", repeat=0, warmup=WARMUP)
    assert run.busy_source == "simulated" and run.busy_pct is not None
    return run.busy_pct


@pytest.mark.parametrize("loader", [working_inside, working_ahead])
@pytest.mark.parametrize("share", [0.25, 0.6, 0.95, 1.2, 1 / 0.6])
def test_utilisation_is_what_the_rates_say_within_3_points(loader: Any, share: float, host: Host) -> None:
    """`share`: rate of the loader, measured alone, by rate of the device."""
    alone = rate_alone(host, loader(host, 900.0))
    assert alone == pytest.approx(900.0)
    device_rate = alone / share
    measured = utilisation(host, loader(host, 900.0), device_rate)
    assert abs(measured - 100 * min(1.0, alone / device_rate)) <= 3.0
    if share > 1.5:
        assert measured >= 98.0


def test_a_host_that_is_late_by_more_than_a_batch_leaves_the_device_idle(host: Host) -> None:
    """A batch takes 64 ms; the host comes with the third one 100 ms after it has handed the second over."""
    clock = StepClock(torch.device("cpu"))
    device = SimulatedCompute(1000.0, clock)
    batches = working_inside(host, 1e9)
    for _ in range(2):
        take_step(clock, device, batches)
    began = host.now
    host.now = began + 0.1
    times = take_step(clock, device, batches)
    assert times.waited == pytest.approx(0.1 - 0.064 + LATE, abs=1e-6)
    assert times.total == pytest.approx(times.waited + 0.064)
    assert times.start == pytest.approx(0.128, abs=1e-6)


def test_devices_end_a_step_together(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank's device had its first batch later, and then waits 30 ms for its second."""
    others = iter([0.064, 0.094])
    slower: list[float] = []

    def all_reduce(value: torch.Tensor, op: Any) -> None:
        slower.append(value.item())
        host.now += 0.05 if len(slower) == 1 else 0.0  # the other rank comes
        value.fill_(max(value.item(), next(others)))

    monkeypatch.setattr(step_module.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(step_module.dist, "all_reduce", all_reduce)
    clock = StepClock(torch.device("cpu"))
    device = SimulatedCompute(1000.0, clock)
    batches = working_inside(host, 1e9)
    first, second = (take_step(clock, device, batches) for _ in range(2))
    assert slower == pytest.approx([0.064, 0.064])
    assert first.parts[COMMUNICATION] == pytest.approx(0.05) and first.total == pytest.approx(0.114)
    assert second.start == pytest.approx(0.114) and second.waited == 0.0
    assert second.parts[COMMUNICATION] == pytest.approx(0.03) and second.total == pytest.approx(0.094)
