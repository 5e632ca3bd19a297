"""The training loop: epochs and steps, logging, validation, checkpoints, signals.

Owns the order of things. What a step does is in ``work``, where batches come from in ``loaders``, what a checkpoint
is in ``checkpoint``; each can be read without the others.
"""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dataloading import UsageError

from .checkpoint import (
    Progress,
    choose_checkpoint,
    load_checkpoint,
    random_state,
    save_checkpoint,
    set_random_state,
)
from .clock import DeviceMonitor, StepClock, StepTimes
from .distributed import StopVote, World, detect_world, pick_device, process_group, sum_over_ranks
from .loaders import LoaderSpec, TrainBatch, TrainingLoader, make_loader, open_source
from .loaders.base import Normaliser
from .metrics import RunLog
from .model import MovingAverage, Replica, build_model, count_flops, parameter_groups
from .options import TrainOptions
from .schedule import Schedule
from .work import NetworkWork, Work, make_simulated

STOPPED = 128 + signal.SIGTERM


@dataclass
class _Pending:
    """A step whose numbers are still on the device."""

    step: int
    epoch: int
    lr: float
    num_images: int
    loss_sum: torch.Tensor
    times: StepTimes


class Trainer:
    """One process of a training run.

    Parameters
    ----------
    options : TrainOptions
        Everything the run was told.
    world : World
        Place of this process; the process group is open.
    device : torch.device
        This process's device.

    Raises
    ------
    UsageError
        The data gives no step, or the options do not fit it.
    """

    def __init__(self, options: TrainOptions, world: World, device: torch.device) -> None:
        self._options = options
        self._world = world
        self._device = device
        self._born = time.perf_counter()
        self.clock = StepClock(device)
        self._vote = StopVote()
        self._stop_asked = False
        self._pending: list[_Pending] = []
        self._loader, self._val_loader, self._classes, self._num_val = self._make_loaders()
        data, optim = options.data, options.optim
        self._micro_batches = len(self._loader)
        if self._micro_batches == 0:
            raise UsageError(
                f"an epoch of {data.data} gives no batch of {data.batch_size} images on {world.world_size} processes; "
                "lower --batch-size or pass --no-drop-last"
            )
        self._steps_per_epoch = -(-self._micro_batches // optim.accum)
        self._total_steps = optim.steps or optim.epochs * self._steps_per_epoch
        scale = data.batch_size * world.world_size * optim.accum / 256 if optim.scale_lr else 1.0
        self.schedule = Schedule(
            peak=optim.lr * scale,
            warmup_steps=round(optim.warmup_epochs * self._steps_per_epoch),
            total_steps=self._total_steps,
        )
        self._output = Path(options.run.output) if options.run.output else None
        self._progress = Progress()
        self._flops_per_image = 0.0
        self._network: NetworkWork | None = None
        simulated = make_simulated(options, self.clock)
        self._work: Work = simulated if simulated is not None else self._make_network()
        resumed = self._resume() if self._network is not None else False
        log_path = self._output / "log.jsonl" if self._output is not None else None
        if log_path is not None and world.is_main and not resumed:
            log_path.unlink(missing_ok=True)
        self.log = RunLog(log_path, active=world.is_main)

    # ------------------------------------------------------------------ making the parts

    def _make_loaders(self) -> tuple[TrainingLoader, TrainingLoader | None, list[str], int]:
        data, run = self._options.data, self._options.run
        source = open_source(data.data)
        workers = data.num_workers
        if workers < 0:
            workers = max(1, len(os.sched_getaffinity(0)) // self._world.local_world_size)
        train_indices, val_indices = split_indices(len(source), data.val_fraction, run.seed)
        common: dict[str, Any] = {
            "num_workers": workers,
            "prefetch": data.prefetch,
            "seed": run.seed,
            "rank": self._world.rank,
            "world_size": self._world.world_size,
            "device": self._device,
            "image_size": data.image_size,
            "resize_size": data.resize_size,
        }
        self._train_spec = LoaderSpec(
            path=data.data,
            training=True,
            indices=train_indices,
            batch_size=data.batch_size,
            drop_last=data.drop_last,
            **common,
        )
        loader = make_loader(data.loader, self._train_spec)
        val_loader, num_val = None, 0
        if data.val or val_indices is not None:
            val_path = data.val or data.data
            val_source = open_source(val_path)
            if len(val_source.classes) > len(source.classes):
                raise UsageError(
                    f"{val_path} has {len(val_source.classes)} classes, {data.data} has {len(source.classes)}"
                )
            num_val = len(val_source) if val_indices is None else len(val_indices)
            val_loader = make_loader(
                data.loader,
                LoaderSpec(
                    path=val_path,
                    training=False,
                    indices=val_indices,
                    batch_size=data.val_batch_size or data.batch_size,
                    **common,
                ),
            )
        return loader, val_loader, source.classes, num_val

    def _make_network(self) -> NetworkWork:
        options = self._options
        num_classes = options.model.num_classes or len(self._classes)
        if num_classes < len(self._classes):
            raise UsageError(
                f"--num-classes {num_classes} is less than the {len(self._classes)} classes of {options.data.data}"
            )
        torch.manual_seed(options.run.seed)
        model = build_model(options.model.model, num_classes)
        if options.run.peak_tflops:
            self._flops_per_image = 3.0 * count_flops(model, options.data.image_size)
        self._replica = Replica(model, options.model, self._device)
        self._optimizer = torch.optim.SGD(
            parameter_groups(
                self._replica.module,
                weight_decay=options.optim.weight_decay,
                decay_norms=options.optim.norm_weight_decay,
            ),
            lr=self.schedule(0),
            momentum=options.optim.momentum,
            nesterov=options.optim.nesterov,
        )
        self._ema = MovingAverage(self._replica.module, options.optim.ema) if options.optim.ema else None
        # Weights were drawn alike on all ranks; dropout must not be.
        torch.manual_seed(options.run.seed * 1_000_003 + self._world.rank + 1)
        self._network = NetworkWork(
            options,
            world=self._world,
            device=self._device,
            replica=self._replica,
            optimizer=self._optimizer,
            ema=self._ema,
            num_classes=num_classes,
            normaliser=self._normaliser(self._loader),
        )
        return self._network

    def _normaliser(self, loader: TrainingLoader) -> Normaliser:
        return Normaliser(
            self._train_spec, normalised=loader.normalised, channels_last=self._options.model.channels_last
        )

    # ------------------------------------------------------------------ the loop

    def fit(self) -> int:
        """Train to the end, or until a signal.

        Returns
        -------
        int
            Exit status: 0, or 143 when the run was asked to stop (its checkpoint is written).
        """
        options = self._options
        self._announce()
        stopped = False
        with self._signals_noted():
            while self._progress.step < self._total_steps and not stopped:
                stopped = self._train_epoch()
                if not stopped:
                    self._finish_epoch()
            stopped = self._vote.settle() or stopped
        self._flush()
        finished = self._progress.step >= self._total_steps
        if self._network is not None and (stopped or options.run.checkpoint_steps):
            self._save()
        self.log.record("done", step=self._progress.step, finished=finished, seconds=time.perf_counter() - self._born)
        self.log.say("stopped by a signal" if stopped and not finished else "done")
        return STOPPED if stopped and not finished else 0

    def _train_epoch(self) -> bool:
        epoch = self._progress.epoch
        self._epoch_start = time.perf_counter()
        self._epoch_images = 0
        self._epoch_waited = 0.0
        self._epoch_total = 0.0
        if self._progress.step_in_epoch == 0:
            self._loader.set_epoch(epoch)
        batches = iter(self._loader)
        try:
            while self._progress.step_in_epoch < self._steps_per_epoch and self._progress.step < self._total_steps:
                self._train_step(batches)
                if self._vote.cast(self._stop_asked):
                    return True
                every = self._options.run.checkpoint_steps
                if every and self._progress.step % every == 0 and self._network is not None:
                    self._save()
        finally:
            # Leaving early must end the loader's work now, not when the garbage collector finds it.
            close = getattr(batches, "close", None)
            if close is not None:
                close()
        return False

    def _train_step(self, batches: Iterator[TrainBatch]) -> None:
        progress = self._progress
        accum = self._options.optim.accum
        micro_batches = min(accum, self._micro_batches - progress.step_in_epoch * accum)
        lr = self.schedule(progress.step)
        num_images, loss_sum = 0, None
        for micro in range(micro_batches):
            self.clock.fetching()
            batch = next(batches, None)
            self.clock.fetched()
            if batch is None:
                raise UsageError(
                    f"--loader {self._options.data.loader} ended epoch {progress.epoch} at step "
                    f"{progress.step_in_epoch} of {self._steps_per_epoch}: it delivers less than its length says"
                )
            num_images += batch.global_size
            loss = self._work.micro_batch(batch, step=progress.step, micro=micro, last=micro == micro_batches - 1)
            loss_sum = loss if loss_sum is None else loss_sum + loss
        self._work.update(step=progress.step, lr=lr, num_images=num_images)
        assert loss_sum is not None
        times = self.clock.step_done()
        self._pending.append(_Pending(progress.step, progress.epoch, lr, num_images, loss_sum, times))
        self._progress = Progress(
            step=progress.step + 1, epoch=progress.epoch, step_in_epoch=progress.step_in_epoch + 1
        )
        if self._progress.step % self._options.run.log_steps == 0:
            self._flush()

    def _finish_epoch(self) -> None:
        self._flush()
        progress = self._progress
        whole = progress.step_in_epoch == self._steps_per_epoch
        seconds = time.perf_counter() - self._epoch_start
        record: dict[str, Any] = {
            "epoch": progress.epoch,
            "step": progress.step,
            "seconds": seconds,
            "images_per_s": self._epoch_images / max(seconds, 1e-9),
            "wait_pct": 100.0 * self._epoch_waited / max(self._epoch_total, 1e-9),
        }
        if self._network is not None:
            record |= {f"train_{name}": value for name, value in self._network.tally.result().items()}
            self._network.tally.sums.zero_()
        self.log.record("epoch", **record)
        self.log.say(
            f"epoch {progress.epoch}: {record['images_per_s']:.0f} images/s, waited for data "
            f"{record['wait_pct']:.1f} % of the time"
            + (f", loss {record['train_loss']:.4f}, top-1 {record['train_top1']:.2f} %" if self._network else "")
        )
        if self._network is not None and self._val_loader is not None:
            self._validate(self._val_loader, self._network)
        if whole:
            self._progress = Progress(step=progress.step, epoch=progress.epoch + 1)
        if self._network is not None and not self._options.run.checkpoint_steps:
            self._save()

    def _validate(self, loader: TrainingLoader, network: NetworkWork) -> None:
        start = time.perf_counter()
        loader.set_epoch(self._progress.epoch)
        result = network.evaluate(iter(loader), self._normaliser(loader))
        if result["num_images"] != self._num_val:
            raise UsageError(
                f"validation counted {result['num_images']} images, the data has {self._num_val}: "
                f"--loader {self._options.data.loader} lost or repeated some"
            )
        seconds = time.perf_counter() - start
        weights = "ema" if self._ema is not None else "model"
        self.log.record(
            "eval", epoch=self._progress.epoch, step=self._progress.step, weights=weights, seconds=seconds, **result
        )
        self.log.say(
            f"epoch {self._progress.epoch}: validation top-1 {result['top1']:.2f} %, top-5 {result['top5']:.2f} %, "
            f"loss {result['loss']:.4f} ({result['num_images']} images)"
        )

    # ------------------------------------------------------------------ log

    def _announce(self) -> None:
        self.monitor = DeviceMonitor(self._device if self._world.is_main else torch.device("cpu"))
        options = self._options
        self.log.record(
            "start",
            step=self._progress.step,
            epoch=self._progress.epoch,
            options=options.flat(),
            world_size=self._world.world_size,
            launcher=self._world.launcher,
            device=str(self._device),
            device_name=torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else platform.machine(),
            torch=torch.__version__,
            num_cores=len(os.sched_getaffinity(0)),
            steps_per_epoch=self._steps_per_epoch,
            total_steps=self._total_steps,
            startup_s=time.perf_counter() - self._born,
            device_monitor=self.monitor.problem or "nvml",
        )
        simulated = self._network is None
        self.log.say(
            f"{options.data.loader} loader, {self._world.world_size} process(es) on {self._device.type}, "
            + (
                f"SIMULATED device ({options.run.accelerator}: no training happens)"
                if simulated
                else f"{options.model.model} with {options.model.strategy}"
            )
            + f", {self._steps_per_epoch} steps per epoch, steps {self._progress.step} to {self._total_steps}"
        )

    def _flush(self) -> None:
        """Bring the numbers of the last steps from the device, add up the ranks, write."""
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
        busy = self.monitor.take_percent()
        world_size = self._world.world_size
        for item, (loss, waited, total, slept) in zip(self._pending, sums, strict=True):
            waited, total, slept = waited / world_size, total / world_size, slept / world_size
            values: dict[str, Any] = {
                "step": item.step,
                "epoch": item.epoch,
                "lr": item.lr,
                "loss": loss / max(1, item.num_images) if self._network is not None else None,
                "images": item.num_images,
                "start_s": item.times.start,
                "step_s": total,
                "wait_s": waited,
                "sleep_s": slept,
                "images_per_s": item.num_images / max(total, 1e-9),
                "wait_pct": 100.0 * waited / max(total, 1e-9),
                "device_pct": busy,
            }
            if self._flops_per_image:
                peak = self._options.run.peak_tflops * 1e12 * world_size
                values["mfu_pct"] = 100.0 * values["images_per_s"] * self._flops_per_image / peak
            self.log.record("step", **values)
            self._epoch_images += item.num_images
            self._epoch_waited += waited
            self._epoch_total += total
        self._say_steps([item.num_images for item in self._pending], sums, values)
        self._pending.clear()

    def _say_steps(self, images: list[int], sums: list[list[float]], last: dict[str, Any]) -> None:
        waited, total = (sum(row[column] for row in sums) for column in (1, 2))
        loss = "" if last["loss"] is None else f"  loss {last['loss']:.4f}  lr {last['lr']:.4g}"
        mfu = f"  mfu {last['mfu_pct']:.1f} %" if "mfu_pct" in last else ""
        rate = sum(images) * self._world.world_size / max(total, 1e-9)
        self.log.say(
            f"epoch {last['epoch']} step {last['step'] + 1}/{self._total_steps}{loss}"
            f"  {rate:.0f} images/s  data wait {100.0 * waited / max(total, 1e-9):.1f} %{mfu}"
        )

    # ------------------------------------------------------------------ checkpoints and signals

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a run to continue as if it had not been interrupted."""
        options = self._options
        return {
            "model": options.model.model,
            "classes": len(self._classes),
            "batch_size": options.data.batch_size,
            "accum": options.optim.accum,
            "seed": options.run.seed,
            "amp": options.model.amp,
            "ema": options.optim.ema > 0,
            "steps_per_epoch": self._steps_per_epoch,
            "total_steps": self._total_steps,
        }

    def _save(self) -> None:
        if self._output is None or self._network is None:
            return
        self._flush()
        rank_state = {
            "random": random_state(self._device),
            "loader": self._loader.state_dict(),
            "buffers": self._replica.buffers(),
            "ema_buffers": self._ema.buffers if self._ema is not None else {},
            "scaler": self._network.scaler.state_dict(),
            "tally": self._network.tally.sums,
        }
        path = save_checkpoint(
            self._output / "checkpoints",
            world=self._world,
            progress=self._progress,
            model=self._replica.module,
            optimizer=self._optimizer,
            ema=self._ema,
            rank_state=rank_state,
            meta={**self._identity(), "options": self._options.flat()},
            keep=self._options.run.keep,
        )
        self.log.record("checkpoint", step=self._progress.step, path=str(path))

    def _resume(self) -> bool:
        directory = self._output / "checkpoints" if self._output is not None else None
        path = choose_checkpoint(self._options.run.resume, directory)
        if path is None or self._network is None:
            return False
        self._progress, state = load_checkpoint(
            path,
            world=self._world,
            model=self._replica.module,
            optimizer=self._optimizer,
            ema=self._ema,
            expected=self._identity(),
        )
        with torch.no_grad():
            for kind, tensors in (
                ("buffers", self._replica.buffers()),
                ("ema_buffers", self._ema.buffers if self._ema is not None else {}),
            ):
                for name, tensor in tensors.items():
                    tensor.copy_(state[kind][name])
        self._network.scaler.load_state_dict(state["scaler"])
        self._network.tally.sums.copy_(state["tally"])
        if self._progress.step_in_epoch:
            self._loader.load_state_dict(state["loader"])
        set_random_state(state["random"], self._device)
        return True

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Turn SIGTERM (and SLURM's SIGUSR1 before the time limit) into a request that the next step honours."""

        def note(_number: int, _frame: object) -> None:
            self._stop_asked = True

        kept = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """End loaders, threads and files."""
        self.log.close()
        monitor = getattr(self, "monitor", None)
        if monitor is not None:
            monitor.close()
        self._loader.close()
        if self._val_loader is not None:
            self._val_loader.close()


def split_indices(num_samples: int, val_fraction: float, seed: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Divide sample numbers into training and validation, by chance but the same for each loader and rank.

    Parameters
    ----------
    num_samples : int
        Samples of the data set.
    val_fraction : float
        Share to hold out; 0 means that all train and none validate.
    seed : int
        Of the division.

    Returns
    -------
    tuple of numpy.ndarray or None
        Sorted int64 indices for training and for validation; None, None without a division.

    Raises
    ------
    UsageError
        One of the two parts would be empty.
    """
    if val_fraction == 0:
        return None, None
    num_val = round(num_samples * val_fraction)
    if not 0 < num_val < num_samples:
        raise UsageError(f"--val-fraction {val_fraction} of {num_samples} samples leaves one of the two parts empty")
    order = np.random.default_rng(seed).permutation(num_samples)
    return np.sort(order[num_val:]), np.sort(order[:num_val])


def run_training(options: TrainOptions, environ: Mapping[str, str] | None = None) -> int:
    """Run one process of a training job, as the launcher's environment describes it.

    Parameters
    ----------
    options : TrainOptions
        Everything the run was told.
    environ : Mapping, optional
        Instead of ``os.environ``.

    Returns
    -------
    int
        Exit status.
    """
    world = detect_world(os.environ if environ is None else environ)
    device = pick_device(options.run.device, world)
    torch.use_deterministic_algorithms(options.run.deterministic)
    torch.backends.cudnn.benchmark = not options.run.deterministic
    with process_group(world, device):
        trainer = Trainer(options, world, device)
        try:
            return trainer.fit()
        finally:
            trainer.close()
