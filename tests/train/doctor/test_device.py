"""The device: copies in all directions, and the images per second of training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from train.doctor.device import copy_rates, training_rate
from train.doctor.examine import examine
from train.doctor.facts import collect
from train.doctor.judge import judge
from train.doctor.measurements import Setup


def test_training_is_timed_on_any_device() -> None:
    rate = training_rate("tiny", torch.device("cpu"), batch_size=2, image_size=16, seconds=0.05)
    assert 0 < rate < 1e7


@pytest.mark.gpu
def test_copies_are_timed_in_all_directions() -> None:
    rates = copy_rates(torch.device("cuda"), seconds=0.1)
    assert set(rates) == {"host to device", "device to host", "on the device"}
    # From the slowest slot (PCIe 1.0 x1) to more than any memory has.
    assert all(1e8 < rate < 1e14 for rate in rates.values())


@pytest.mark.gpu
def test_training_is_timed_on_a_gpu() -> None:
    assert training_rate("resnet18", torch.device("cuda"), batch_size=8, image_size=64, seconds=0.2) > 1


@pytest.mark.gpu
def test_devices_and_their_links_are_listed() -> None:
    pytest.importorskip("pynvml")
    facts = collect({})
    assert facts.cuda_works
    assert len(facts.devices) >= torch.cuda.device_count()
    assert facts.devices[0].name


@pytest.mark.gpu
def test_a_run_on_a_gpu_is_examined(beton: Path) -> None:
    setup = Setup(num_workers=1, batch_size=4, image_size=32)
    measured = examine(str(beton), setup=setup, device=torch.device("cuda"), model="tiny", seconds=0.2)
    assert measured.transfer_bytes_per_second == measured.copy_rates["host to device"]
    assert measured.device_rate
    assert measured.device_source == "measured: tiny, bfloat16"
    assert {"copy to the device", "device"} <= set(judge(measured).rates)
