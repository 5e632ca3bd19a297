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

from .clock import COMMUNICATION, PARTS, StepTimes
from .distributed import World, gather_objects, sum_over_ranks
from .meters import Meters, describe_reading
from .metrics import RunLog
from .summaries import percentile

_SHOWN = 16
_SLOWER = 1.2  # than the median rank, and by a millisecond


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
    meters : Meters
        Read when the steps are written.
    separates_communication : bool
        Whether the clock knows how long a step waited for other ranks.
    """

    log: RunLog
    _: KW_ONLY
    world: World
    device: torch.device
    flops_per_image: float
    peak_flops: float
    has_loss: bool
    meters: Meters
    separates_communication: bool

    def __post_init__(self) -> None:
        self._pending: list[StepRecord] = []
        self._reading: dict[str, Any] = {}
        self._parts = [name for name in PARTS if name != COMMUNICATION or self.separates_communication]
        self.start_epoch(total_steps=0)

    def start_epoch(self, *, total_steps: int) -> None:
        """Begin the sums of an epoch; lines show the step and `total_steps` of the run, as in "12/100"."""
        self._total_steps = total_steps
        self.epoch_images = 0
        self._epoch_waited = 0.0
        self._epoch_total = 0.0
        self._epoch_parts = dict.fromkeys(self._parts, 0.0)
        self._epoch_steps: list[tuple[float, float]] = []
        self._epoch_own = [0.0] * self.world.world_size

    @property
    def epoch_wait_pct(self) -> float:
        """Share of this epoch's step time spent waiting for data, percent."""
        return 100.0 * self._epoch_waited / max(self._epoch_total, 1e-9)

    @property
    def epoch_seconds(self) -> float:
        """Sum of this epoch's step times."""
        return self._epoch_total

    def epoch_figures(self) -> dict[str, Any]:
        """Return what describes the epoch's steps: rates, percentiles, and the share of each part in percent."""
        seconds = sorted(step for step, _ in self._epoch_steps)
        rates = sorted((rate for _, rate in self._epoch_steps), reverse=True)
        total = max(self._epoch_total, 1e-9)
        return {
            "wait_pct": self.epoch_wait_pct,
            "step_p50_s": percentile(seconds, 50),
            "step_p99_s": percentile(seconds, 99),
            "images_per_s_p50": percentile(rates, 50),
            "images_per_s_p99": percentile(rates, 99),  # 99 % of the steps are faster
            "parts_pct": {name: 100.0 * value / total for name, value in self._epoch_parts.items()},
            "straggler": find_straggler([own / max(1, len(seconds)) for own in self._epoch_own]),
        }

    def epoch_lines(self) -> list[str]:
        """Return the epoch's figures for people."""
        figures = self.epoch_figures()
        parts = {"data wait": figures["wait_pct"], **figures["parts_pct"]}
        shares = ", ".join(f"{name} {share:.0f} %" for name, share in parts.items() if share >= 0.5)
        lines = [
            f"  images/s p50 {figures['images_per_s_p50']:.0f}, p99 {figures['images_per_s_p99']:.0f}; a step: {shares}"
        ]
        if self._reading:
            lines.append(f"  rank 0: {describe_reading(self._reading)}")
        slow = figures["straggler"]
        if slow is not None:
            lines.append(
                f"  rank {slow['rank']} holds the others up: {1e3 * slow['own_s']:.1f} ms of its own per step, the "
                f"median rank {1e3 * slow['median_s']:.1f} ms"
            )
        return lines

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
            figures = [item.times.waited, item.times.total, item.times.slept, *item.times.parts.values()]
            times = torch.tensor(figures, dtype=torch.float64)
            rows.append(torch.cat([item.loss_sum.reshape(1), times.to(self.device)]))
        own = torch.zeros(self.world.world_size, dtype=torch.float64, device=self.device)
        own[self.world.rank] = math.fsum(self._own_seconds(item.times) for item in self._pending)
        flat = sum_over_ranks(torch.cat([*rows, own]))
        sums = flat[: -len(own)].view(len(rows), -1).tolist()
        readings = self.meters.take()
        broken = next((number for number, row in enumerate(sums) if not math.isfinite(row[0])), None)
        if broken is not None:
            # All ranks have the same sum, so all of them raise.
            self._fail(self._pending[broken], float(rows[broken][0]), sums[broken][0])
        busy = readings.get("gpu_pct")
        records = [self._record(item, row, busy) for item, row in zip(self._pending, sums, strict=True)]
        for record in records:
            self.log.record("step", **record)
            self.epoch_images += record["images"]
            self._epoch_waited += record["wait_s"]
            self._epoch_total += record["step_s"]
            self._epoch_steps.append((record["step_s"], record["images_per_s"]))
            for name, seconds in record["parts_s"].items():
                self._epoch_parts[name] += seconds
        own_seconds = flat[-len(own) :].tolist()
        self._epoch_own = [sum(pair) for pair in zip(self._epoch_own, own_seconds, strict=True)]
        self._reading |= {name: value for name, value in readings.items() if value is not None}
        straggler = find_straggler([seconds / len(records) for seconds in own_seconds])
        self.log.record("meters", step=records[-1]["step"], **readings, straggler=straggler)
        self._say(records)
        self._pending.clear()

    def _own_seconds(self, times: StepTimes) -> float:
        """Return what a rank spends before it waits for others: all, or what certainly comes before."""
        if self.separates_communication:
            return times.total - times.parts[COMMUNICATION]
        return times.waited + times.parts["normalise and mix"]

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
        waited, total, slept, *parts = (value / self.world.world_size for value in sums[1:])
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
            "parts_s": {name: value for name, value in zip(PARTS, parts, strict=True) if name in self._parts},
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
        self.meters.close()


def find_straggler(own_seconds: list[float]) -> dict[str, float] | None:
    """Return the rank that clearly takes longer than the others before each meets them, or None.

    Parameters
    ----------
    own_seconds : list of float
        Mean seconds per step of each rank, without its wait for other ranks.

    Examples
    --------
    >>> find_straggler([0.10, 0.11, 0.15, 0.10])
    {'rank': 2, 'own_s': 0.15, 'median_s': 0.1}
    >>> find_straggler([0.10, 0.11]) is None
    True
    """
    slowest = max(own_seconds)
    median = percentile(sorted(own_seconds), 50)
    if slowest < max(_SLOWER * median, median + 1e-3):
        return None
    return {"rank": own_seconds.index(slowest), "own_s": slowest, "median_s": median}
