"""Collects and logs the figures of each step without synchronising the device.

Losses stay on the device until one reduction copies them to the host, every ``--log-steps`` steps; then the steps are
written to the log.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch

from dataloading import BetonError

from .clock import DeviceMonitor, StepTimes
from .distributed import World, gather_objects, sum_over_ranks
from .metrics import RunLog

_SHOWN = 16


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimiser step of this rank.

    Parameters
    ----------
    step, epoch : int
        Counted from 0.
    lr : float
        Learning rate.
    num_images : int
        Images of all ranks.
    loss_sum : torch.Tensor
        Sum of this rank's losses, a float64 scalar on the device.
    times : StepTimes
        The times of the step.
    indices : list of numpy.ndarray
        This rank's samples, per micro-batch; empty if the loader does not report them.
    """

    step: int
    epoch: int
    lr: float
    num_images: int
    loss_sum: torch.Tensor
    times: StepTimes
    indices: list[np.ndarray] = field(default_factory=list)


@dataclass
class StepLog:
    """Collects steps and writes them to the log in groups.

    Parameters
    ----------
    log : RunLog
        Destination.
    world, device
        The ranks to reduce over, and the device of the losses.
    flops_per_image : float
        Of forward and backward; with 0 the utilisation is not logged.
    peak_flops : float
        Of one device, per second.
    has_loss : bool
        False for a simulated device.
    """

    log: RunLog
    _: KW_ONLY
    world: World
    device: torch.device
    flops_per_image: float
    peak_flops: float
    has_loss: bool

    def __post_init__(self) -> None:
        self._pending: list[StepRecord] = []
        self._monitor = DeviceMonitor(self.device if self.world.is_main else torch.device("cpu"))
        self.monitor_problem = self._monitor.problem
        self.start_epoch(total_steps=0)

    def start_epoch(self, *, total_steps: int) -> None:
        """Begin the sums of an epoch; lines show the step and `total_steps` of the run, as in "12/100"."""
        self._total_steps = total_steps
        self.epoch_images = 0
        self._epoch_waited = 0.0
        self._epoch_total = 0.0

    @property
    def epoch_wait_pct(self) -> float:
        """Share of this epoch's step time spent waiting for data, percent."""
        return 100.0 * self._epoch_waited / max(self._epoch_total, 1e-9)

    def add(self, step: StepRecord) -> None:
        """Add one step, without synchronising the device."""
        self._pending.append(step)

    def flush(self) -> None:
        """Copy the figures of the last steps to the host, reduce them over ranks and write them; every rank calls it.

        Raises
        ------
        BetonError
            On all ranks, if a loss is NaN or infinite; the message names the step and its samples.
        """
        if not self._pending:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        rows = []
        for item in self._pending:
            item.times.resolve()
            times = torch.tensor([item.times.waited, item.times.total, item.times.slept], dtype=torch.float64)
            rows.append(torch.cat([item.loss_sum.reshape(1), times.to(self.device)]))
        sums = sum_over_ranks(torch.stack(rows)).tolist()
        busy = self._monitor.take_percent()
        broken = next((number for number, row in enumerate(sums) if not math.isfinite(row[0])), None)
        if broken is not None:
            # All ranks have the same sum, so all of them raise.
            self._fail(self._pending[broken], float(rows[broken][0]), sums[broken][0])
        records = [self._record(item, row, busy) for item, row in zip(self._pending, sums, strict=True)]
        for record in records:
            self.log.record("step", **record)
            self.epoch_images += record["images"]
            self._epoch_waited += record["wait_s"]
            self._epoch_total += record["step_s"]
        self._say(records)
        self._pending.clear()

    def _fail(self, step: StepRecord, own_loss: float, loss: float) -> NoReturn:
        own = np.concatenate([*step.indices, np.empty(0, np.int64)]).tolist() if not math.isfinite(own_loss) else None
        ranks = [
            f"rank {rank}: {', '.join(map(str, indices[:_SHOWN]))}{', ...' if len(indices) > _SHOWN else ''}"
            for rank, indices in enumerate(gather_objects(own))
            if indices
        ]
        self.log.record("failed", step=step.step, epoch=step.epoch, loss=str(loss), samples=ranks)
        samples = f" It came from these samples: {'; '.join(ranks)}." if ranks else ""
        raise BetonError(
            f"the loss of step {step.step + 1} (epoch {step.epoch}) is {loss}: training stops, and no checkpoint from "
            f"this step on was saved.{samples} Lower --lr, lengthen --warmup-epochs, set --clip-norm, use --amp bf16 "
            f"instead of fp16, or look at the images"
        )

    def _record(self, item: StepRecord, sums: list[float], busy: float | None) -> dict[str, Any]:
        waited, total, slept = (value / self.world.world_size for value in sums[1:])
        rate = item.num_images / max(total, 1e-9)
        record: dict[str, Any] = {
            "step": item.step,
            "epoch": item.epoch,
            "lr": item.lr,
            "loss": sums[0] / max(1, item.num_images) if self.has_loss else None,
            "images": item.num_images,
            "start_s": item.times.start,
            "step_s": total,
            "wait_s": waited,
            "sleep_s": slept,
            "images_per_s": rate,
            "wait_pct": 100.0 * waited / max(total, 1e-9),
            "device_pct": busy,
        }
        if self.flops_per_image and self.peak_flops:
            peak = self.peak_flops * self.world.world_size
            record["mfu_pct"] = 100.0 * rate * self.flops_per_image / peak
        return record

    def _say(self, records: list[dict[str, Any]]) -> None:
        seconds = max(sum(record["step_s"] for record in records), 1e-9)
        rate = sum(record["images"] for record in records) / seconds
        waited = 100.0 * sum(record["wait_s"] for record in records) / seconds
        last = records[-1]
        loss = "" if last["loss"] is None else f"  loss {last['loss']:.4f}  lr {last['lr']:.4g}"
        mfu = f"  mfu {last['mfu_pct']:.1f} %" if "mfu_pct" in last else ""
        self.log.say(
            f"epoch {last['epoch']} step {last['step'] + 1}/{self._total_steps}{loss}"
            f"  {rate:.0f} images/s  data wait {waited:.1f} %{mfu}"
        )

    def close(self) -> None:
        """End the monitor's thread."""
        self._monitor.close()
