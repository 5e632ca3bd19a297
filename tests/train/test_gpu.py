"""What only a GPU can show: batches arrive there, waiting is measured on the device, precision and resume hold."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from train.clock import StepClock

from .conftest import losses, only, train_here

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("loader", ["torch", "torch-fast", "beton"])
@pytest.mark.parametrize("amp", ["none", "bf16", "fp16"])
def test_every_loader_trains_on_the_device(loader: str, amp: str, beton: Path, tmp_path: Path) -> None:
    values = {"data": str(beton), "val": str(beton), "device": "cuda", "num_workers": 1, "loader": loader, "amp": amp}
    records = train_here(tmp_path, epochs=2, tail="pad", **values)
    assert all(math.isfinite(loss) for loss in losses(records))
    assert [record["num_images"] for record in only(records, "eval")] == [27, 27]
    for step in only(records, "step"):
        assert 0 <= step["wait_s"] <= step["step_s"]


def test_device_and_host_train_alike(beton: Path, tmp_path: Path) -> None:
    """TF32 off by default for matmul, on for convolutions: hence the tolerance."""
    values = {"data": str(beton), "epochs": 2, "loader": "beton", "num_workers": 1}
    host = losses(train_here(tmp_path / "host", device="cpu", **values))
    device = losses(train_here(tmp_path / "device", device="cuda", deterministic=True, **values))
    assert device == pytest.approx(host, rel=0.02)


def test_waiting_is_the_time_the_device_stood_still() -> None:
    """The host sleeps 30 ms between two kernels of unknown length: the gap is the sleep, not the kernel."""
    import time

    device = torch.device("cuda")
    clock = StepClock(device)
    matrix = torch.rand(2048, 2048, device=device)
    matrix @ matrix
    torch.cuda.synchronize()
    for _ in range(20):
        matrix @ matrix
    clock.fetching()
    torch.cuda.synchronize()
    time.sleep(0.03)
    clock.fetched()
    for _ in range(20):
        matrix @ matrix
    times = clock.step_done()
    torch.cuda.synchronize()
    times.total = 1.0
    times.resolve()
    assert 0.029 < times.waited < 0.2
