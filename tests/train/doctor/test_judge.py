"""The rules, on staged measurements: the right cause in each situation, with margins of ten times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from train.doctor.findings import NOTE, PROBLEM, problems
from train.doctor.judge import judge
from train.doctor.measurements import DiskRates, FileFacts, Machine, Measurements, Setup, Work

GB = 10**9
# A well set-up run: 16 workers on 16 cores make (3 + 1) ms / 16 = 0.25 ms an image, 4,000 images/s, from memory.
FINE = Measurements(
    file=FileFacts(path="train.beton", num_samples=1_000_000, num_bytes=100 * GB, image_bytes=100_000.0),
    disk=DiskRates(cached_share=1.0, sequential_bytes_per_second=2e9, random_reads_per_second=10_000.0),
    work=Work(decode_seconds=0.003, transform_seconds=0.001, output_bytes=600_000.0),
    machine=Machine(cores=16, memory_bytes=400 * GB),
    setup=Setup(num_workers=16),
    device_rate=3_000.0,
    transfer_bytes_per_second=20e9,
)


def staged(**parts: object) -> Measurements:
    """FINE with other values: ``machine__quota=1`` changes a part's field."""
    changed: dict[str, dict[str, object]] = {}
    whole = {name: value for name, value in parts.items() if "__" not in name}
    for name, value in parts.items():
        if "__" in name:
            part, _, field = name.partition("__")
            changed.setdefault(part, {})[field] = value
    inner = {part: replace(getattr(FINE, part), **values) for part, values in changed.items()}
    return replace(FINE, **inner, **whole)  # type: ignore[arg-type]


SITUATIONS = {
    "slow disk": ("storage", staged(disk=DiskRates(
        cached_share=0.0, sequential_bytes_per_second=5e6, random_reads_per_second=40.0))),
    "slow disk, and the file is larger than memory": ("storage", staged(
        machine__memory_bytes=GB, disk=DiskRates(
            cached_share=0.0, sequential_bytes_per_second=5e6, random_reads_per_second=40.0))),
    "too few workers": ("workers", staged(setup__num_workers=1)),
    "too few workers, on two cores": ("workers", staged(
        setup__num_workers=1, machine__cores=2, device_rate=None)),
    "a CPU quota of one core": ("cpu-quota", staged(machine__quota=1.0)),
    "a slow transform": ("transform", staged(work__transform_seconds=0.1)),
    "a slow transform, and one worker of two": ("transform", staged(
        work__transform_seconds=0.1, setup__num_workers=1, machine__cores=2)),
    "a slow transform in Python": ("transform", staged(
        work__transform_seconds=0.01, work__serial_seconds=0.01)),
    "a slow device": ("device", staged(device_rate=100.0)),
    "a slow device, and everything else is bad as well": ("device", staged(
        device_rate=1.0, setup__num_workers=1, machine__quota=1.0, work__transform_seconds=0.1)),
    "a cold cache": ("cold-cache", staged(disk=DiskRates(
        cached_share=0.0, sequential_bytes_per_second=2e9, random_reads_per_second=500.0))),
    "random reads of a file that does not fit": ("random-reads", staged(
        machine__memory_bytes=GB, disk=DiskRates(
            cached_share=0.0, sequential_bytes_per_second=2e9, random_reads_per_second=500.0))),
    "slow decoding for this device": ("decode", staged(device_rate=40_000.0, work__transform_seconds=0.0001)),
    "a slow link": ("copy", staged(transfer_bytes_per_second=1e8)),
    "a callable in the caller's thread": ("callables", staged(work__callable_seconds=0.01)),
}  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_right_cause_is_named_first(situation: str) -> None:
    cause, measured = SITUATIONS[situation]
    diagnosis = judge(measured)
    assert diagnosis.cause == cause
    if cause == "device":
        assert not problems(diagnosis.findings)
    else:
        assert diagnosis.findings[0].name == cause
        assert diagnosis.findings[0].level == PROBLEM
        assert diagnosis.findings[0].what in diagnosis.verdict


def test_the_arithmetic_of_a_fine_run() -> None:
    diagnosis = judge(FINE)
    assert diagnosis.cause == "device"
    assert diagnosis.findings == []
    assert diagnosis.rates["workers"] == pytest.approx(4_000)
    assert diagnosis.rates["loader"] == pytest.approx(4_000)
    assert diagnosis.rates["copy to the device"] == pytest.approx(20e9 / 600_000)
    assert diagnosis.rates["device"] == diagnosis.rates["run"] == pytest.approx(3_000)
    assert "workers: (3 ms decode + 1 ms transform) / 16 workers = 0.25 ms an image (4,000 images/s)" in (
        diagnosis.arithmetic
    )


def test_a_cold_file_is_read_ahead_at_random_or_in_order() -> None:
    disk = DiskRates(cached_share=0.5, sequential_bytes_per_second=1e8, random_reads_per_second=1_000.0)
    # Half of the images take 1 ms of the disk, at the same time as the work of 0.25 ms.
    assert judge(staged(disk=disk)).rates["loader, first epoch"] == pytest.approx(1 / 0.0005)
    assert judge(staged(disk=disk)).rates["loader"] == pytest.approx(4_000)
    faster = replace(disk, sequential_bytes_per_second=1.25e8)  # 0.8 ms for 100 kB
    assert judge(staged(disk=faster, setup__shuffle="pages")).rates["loader, first epoch"] == pytest.approx(1 / 0.0004)
    fast = replace(disk, random_reads_per_second=10_000.0)
    assert judge(staged(disk=fast)).rates["loader, first epoch"] == pytest.approx(4_000)


def test_what_does_not_fit_into_memory_is_read_in_every_epoch() -> None:
    disk = DiskRates(cached_share=1.0, sequential_bytes_per_second=1e9, random_reads_per_second=500.0)
    rates = judge(staged(disk=disk, machine__memory_bytes=75 * GB)).rates
    assert rates["loader"] == rates["disk"] == pytest.approx(500 / 0.25)


def test_processes_of_one_machine_share_its_cores_and_its_disk() -> None:
    disk = DiskRates(cached_share=0.0, sequential_bytes_per_second=1e9, random_reads_per_second=8_000.0)
    rates = judge(staged(disk=disk, setup__num_processes=8, setup__num_workers=2)).rates
    assert rates["workers"] == pytest.approx(500)
    assert rates["disk, first epoch"] == pytest.approx(1_000)


def test_the_advice_for_workers_is_the_number_of_cores_of_a_process() -> None:
    [finding, *_] = judge(staged(setup__num_workers=1, setup__num_processes=4)).findings
    assert finding.expected == "num_workers=4"
    assert finding.gain == pytest.approx(4)


def test_callables_run_on_the_device_whose_rate_is_given() -> None:
    measured = staged(work__callable_seconds=0.01, transfer_bytes_per_second=None)
    assert judge(measured).cause == "device"
    [finding, *_] = judge(replace(measured, device_rate=None)).findings
    assert (finding.name, finding.level) == ("callables", NOTE)


def test_without_a_known_device_the_natural_limit_is_no_problem() -> None:
    diagnosis = judge(staged(device_rate=None, transfer_bytes_per_second=None))
    assert diagnosis.cause == "decode"
    assert {finding.level for finding in diagnosis.findings} == {NOTE}


def test_a_small_cold_file_is_no_problem() -> None:
    small = staged(
        device_rate=None,
        file__num_bytes=10**8,
        disk=DiskRates(cached_share=0.0, sequential_bytes_per_second=2e9, random_reads_per_second=500.0),
    )
    assert not problems(judge(small).findings)


def test_little_headroom_and_a_busy_machine_are_mentioned() -> None:
    assert [finding.name for finding in judge(staged(device_rate=3_900.0)).findings] == ["headroom"]
    crowded = judge(staged(loader_rate=400.0, device_rate=100.0))
    assert [(finding.name, finding.level) for finding in crowded.findings] == [("contention", NOTE)]
    assert crowded.cause == "device"


def test_a_loader_that_is_slower_than_its_parts_and_than_the_device_is_the_cause() -> None:
    diagnosis = judge(staged(loader_rate=300.0, machine__busy_cores=15.0))
    assert diagnosis.cause == "contention"
    assert diagnosis.verdict.endswith(
        "other processes use the cores. The run gets 300 images/s per process, which keeps the device busy 10% of the "
        "time."
    )
    assert diagnosis.findings[0].gain == pytest.approx(10)


def test_the_advice_for_floats_on_a_slow_link_is_to_normalise_on_the_device() -> None:
    [finding] = judge(staged(transfer_bytes_per_second=1e8)).findings
    assert 'place="device"' in finding.advice


@pytest.mark.parametrize(
    ("part", "advice"), [({"file__shorter_side": 500.0}, "--max-resolution 448"), ({"file__raw_share": 1.0}, "smaller")]
)
def test_the_advice_for_decoding_depends_on_what_is_stored(part: dict[str, float], advice: str) -> None:
    [finding, *_] = judge(staged(device_rate=40_000.0, work__transform_seconds=0.0001, **part)).findings
    assert finding.name == "decode"
    assert advice in finding.advice
    assert "give each process 124 cores (now 16)" in finding.advice
