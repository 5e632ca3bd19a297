"""Numbers of each step, gathered without making the device wait.

Owns the buffer of steps whose losses are still on the device, the one reduction that brings them home every
``--log-steps`` steps, and their records and lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .clock import DeviceMonitor, StepTimes
from .distributed import World, sum_over_ranks
from .metrics import RunLog


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimiser step, as this rank saw it.

    Parameters
    ----------
    step, epoch : int
        Which one, counted from 0.
    lr : float
        Learning rate.
    num_images : int
        Images of all ranks.
    loss_sum : torch.Tensor
        Sum of this rank's losses, float64 scalar, still on the device.
    times : StepTimes
        Where the time went.
    """

    step: int
    epoch: int
    lr: float
    num_images: int
    loss_sum: torch.Tensor
    times: StepTimes


class StepLog:
    """Collects steps and writes them in groups.

    Parameters
    ----------
    log : RunLog
        Where to.
    world : World
        How many ranks to add up.
    device : torch.device
        Where the losses are.
    flops_per_image : float
        Of forward and backward; 0 leaves the utilisation out.
    peak_flops : float
        Of one device, per second.
    has_loss : bool
        False for a simulated device.
    """

    def __init__(
        self,
        log: RunLog,
        *,
        world: World,
        device: torch.device,
        flops_per_image: float,
        peak_flops: float,
        has_loss: bool,
    ) -> None:
        self._log = log
        self._world = world
        self._device = device
        self._flops_per_image = flops_per_image
        self._peak_flops = peak_flops
        self._has_loss = has_loss
        self._pending: list[Step] = []
        self._monitor = DeviceMonitor(device if world.is_main else torch.device("cpu"))
        self.monitor_problem = self._monitor.problem
        self.start_epoch(total_steps=0)

    def start_epoch(self, *, total_steps: int) -> None:
        """Begin the sums of an epoch; `total_steps` of the run is for the lines' "12/100"."""
        self._total_steps = total_steps
        self.epoch_images = 0
        self._epoch_waited = 0.0
        self._epoch_total = 0.0

    @property
    def epoch_wait_pct(self) -> float:
        """Share of this epoch's step time spent waiting for data, percent."""
        return 100.0 * self._epoch_waited / max(self._epoch_total, 1e-9)

    def add(self, step: Step) -> None:
        """Take in one step; costs the device nothing."""
        self._pending.append(step)

    def flush(self) -> None:
        """Bring the numbers of the last steps home, add up the ranks, write; every rank calls it."""
        if not self._pending:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        rows = []
        for item in self._pending:
            item.times.resolve()
            times = torch.tensor([item.times.waited, item.times.total, item.times.slept], dtype=torch.float64)
            rows.append(torch.cat([item.loss_sum.reshape(1), times.to(self._device)]))
        sums = sum_over_ranks(torch.stack(rows)).tolist()
        busy = self._monitor.take_percent()
        records = [self._record(item, row, busy) for item, row in zip(self._pending, sums, strict=True)]
        for record in records:
            self._log.record("step", **record)
            self.epoch_images += record["images"]
            self._epoch_waited += record["wait_s"]
            self._epoch_total += record["step_s"]
        self._say(records)
        self._pending.clear()

    def _record(self, item: Step, sums: list[float], busy: float | None) -> dict[str, Any]:
        waited, total, slept = (value / self._world.world_size for value in sums[1:])
        rate = item.num_images / max(total, 1e-9)
        record: dict[str, Any] = {
            "step": item.step,
            "epoch": item.epoch,
            "lr": item.lr,
            "loss": sums[0] / max(1, item.num_images) if self._has_loss else None,
            "images": item.num_images,
            "start_s": item.times.start,
            "step_s": total,
            "wait_s": waited,
            "sleep_s": slept,
            "images_per_s": rate,
            "wait_pct": 100.0 * waited / max(total, 1e-9),
            "device_pct": busy,
        }
        if self._flops_per_image and self._peak_flops:
            peak = self._peak_flops * self._world.world_size
            record["mfu_pct"] = 100.0 * rate * self._flops_per_image / peak
        return record

    def _say(self, records: list[dict[str, Any]]) -> None:
        seconds = max(sum(record["step_s"] for record in records), 1e-9)
        rate = sum(record["images"] for record in records) / seconds
        waited = 100.0 * sum(record["wait_s"] for record in records) / seconds
        last = records[-1]
        loss = "" if last["loss"] is None else f"  loss {last['loss']:.4f}  lr {last['lr']:.4g}"
        mfu = f"  mfu {last['mfu_pct']:.1f} %" if "mfu_pct" in last else ""
        self._log.say(
            f"epoch {last['epoch']} step {last['step'] + 1}/{self._total_steps}{loss}"
            f"  {rate:.0f} images/s  data wait {waited:.1f} %{mfu}"
        )

    def close(self) -> None:
        """End the monitor's thread."""
        self._monitor.close()
