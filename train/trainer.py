"""The training loop: epochs and steps, logging, validation, checkpoints, signals.

A step is defined in ``step``, the loaders in ``loaders``, checkpoints in ``checkpoint``; each can be read alone.
"""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dataloading import UsageError
from dataloading.messages import counted
from dataloading.tools import num_cores
from train.rank_states import seed_rank
from train.step import Compute, NetworkCompute, make_simulated

from .checkpoint import (
    CheckpointWriter,
    Progress,
    find_checkpoints,
    find_resumable,
    load_checkpoint,
    random_state,
    saved_by_launch,
    set_random_state,
)
from .clock import COMMUNICATION, StepClock
from .data import make_data
from .devices import peak_flops
from .distributed import StopVote, World, broadcast_object, detect_world, pick_device, process_group
from .loaders.base import Normaliser, TrainBatch, TrainingLoader
from .meters import Meters, watch_communication
from .metrics import RunLog
from .model import MovingAverage, build_model, count_flops, parameter_groups
from .optimizers import make_optimizer
from .options import RunOptions, TrainOptions
from .output import lock_folder, prepare_folder
from .profile import Ranges, StepProfiler, amdahl
from .rendezvous import check_started_by_srun
from .schedule import Schedule
from .seen import SeenData
from .steplog import StepLog, StepRecord
from .strategies import data_world, lay_out, make_mesh
from .trackers import make_trackers

STOPPED = 128 + signal.SIGTERM


class Trainer:
    """One process of a training run.

    Raises
    ------
    UsageError
        The data is too small for one step, or does not match the options.
    """

    def __init__(
        self, options: TrainOptions, world: World, device: torch.device, resume_from: Path | None = None
    ) -> None:
        self._options = options
        self._world = world
        self._device = device
        self._start_time = time.perf_counter()
        self.clock = StepClock(device)
        self._vote = StopVote()
        self._stop_asked = False
        self._saved_step = -1
        self._mesh = make_mesh(options.model, world, device)
        self._data_world = data_world(world, self._mesh)
        self._data = make_data(options, self._data_world, device, self._mesh)
        self._loader = self._data.loader
        data, optim = options.data, options.optim
        if len(self._loader) == 0:
            raise UsageError(
                f"an epoch of {data.data} gives no batch of {counted(data.batch_size, 'image')} on "
                f"{counted(self._data_world.world_size, 'process')}; lower --batch-size or pass --tail pad"
            )
        self._steps_per_epoch = -(-len(self._loader) // optim.accum)
        scale = data.batch_size * self._data_world.world_size * optim.accum / 256 if optim.scale_lr else 1.0
        run_epochs = optim.steps / self._steps_per_epoch if optim.steps else optim.epochs
        self.schedule = Schedule(
            peak=optim.lr * scale,
            warmup=min(0.5, optim.warmup_epochs / run_epochs),
            kind=optim.schedule,
            drop_every=optim.step_epochs / run_epochs,
            drop=optim.step_factor,
        )
        self._output = Path(options.run.output) if options.run.output else None
        self.progress = Progress()
        self._flops_per_image = 0.0
        self._peak_flops, self._no_mfu = options.run.peak_tflops * 1e12, ""
        if not self._peak_flops:
            self._peak_flops, self._no_mfu = peak_flops(self._device_name, options.model.amp)
        self._no_communication = ""
        self._network: NetworkCompute | None = None
        simulated = make_simulated(options, self.clock)
        self._compute: Compute = simulated if simulated is not None else self._make_network()
        run = options.run
        self._top1: float | None = None
        self._checkpoints: CheckpointWriter | None = None
        if self._output is not None and self._network is not None and run.checkpoints:
            self._checkpoints = CheckpointWriter(
                self._output / "checkpoints",
                world=world,
                background=run.async_checkpoints,
                keep=run.keep,
                keep_best=run.keep_best,
            )
        self._resumed_from = self._resume(resume_from)
        saved = self._resumed_from or {}
        self._started = saved.get("started") or datetime.now().astimezone().isoformat(" ", "seconds")
        # Before the log is opened: a tracker that is missing ends the run.
        self._trackers = make_trackers(options.run.track, self._output, options.flat()) if world.is_main else []
        log_path = self._output / "log.jsonl" if self._output is not None else None
        self.log = RunLog(log_path, active=world.is_main)
        self.log.trackers = self._trackers
        self._profiler = self._make_profiler() if options.run.profile else None
        self._seen = self._make_seen() if options.run.log_seen else None
        self._steps = StepLog(
            self.log,
            world=world,
            device=device,
            flops_per_image=self._flops_per_image,
            peak_flops=self._peak_flops,
            has_loss=self._network is not None,
            meters=Meters(
                device,
                self._loader,
                self._replica.training_module if self._network is not None else None,
                active=world.is_main,
            ),
            separates_communication=not self._no_communication,
        )

    @property
    def _device_name(self) -> str:
        return torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else platform.machine()

    # ------------------------------------------------------------------ making the parts

    def _make_network(self) -> NetworkCompute:
        options = self._options
        num_classes = options.model.num_classes or len(self._data.classes)
        if num_classes < len(self._data.classes):
            raise UsageError(
                f"--num-classes {num_classes} is less than the {counted(len(self._data.classes), 'class')} of "
                f"{options.data.data}"
            )
        torch.manual_seed(options.run.seed)
        model = build_model(
            options.model.model,
            num_classes,
            image_size=options.data.image_size,
            drop_path=options.model.drop_path,
            blurpool=options.model.blurpool,
        )
        if self._peak_flops:
            self._flops_per_image = 3.0 * count_flops(model, options.data.image_size)
        self._replica = lay_out(model, options.model, self._device, self._mesh)
        groups = parameter_groups(
            self._replica.module,
            weight_decay=options.optim.weight_decay,
            decay_norms=options.optim.norm_weight_decay,
        )
        # The learning rate is set in each step.
        self._optimizer = make_optimizer(groups, options.optim, lr=self.schedule.peak)
        self._ema = MovingAverage(self._replica.module, options.optim.ema) if options.optim.ema else None
        # Initial weights are the same on all ranks; dropout must not be.
        seed_rank(options.run.seed, 0, self._data_world.rank)
        cuda = self._device.type == "cuda"
        waits, self._no_communication = watch_communication(self._replica.training_module, self.clock, cuda=cuda)
        self._network = NetworkCompute(
            options,
            world=self._data_world,
            device=self._device,
            replica=self._replica,
            optimizer=self._optimizer,
            ema=self._ema,
            num_classes=num_classes,
            normaliser=self._normaliser(self._loader),
            mixes=self._data.mixes,
            clock=self.clock,
            waits=waits,
        )
        return self._network

    def _make_profiler(self) -> StepProfiler:
        assert self._output is not None
        ranges = Ranges()
        self.clock.on_part = ranges.part
        self._loader.trace(ranges.hop)
        return StepProfiler(self._output / f"trace-rank{self._world.rank}.json", self._device, ranges)

    def _say_profile(self, profiler: StepProfiler) -> None:
        parts = profiler.parts()
        lines = amdahl(parts, data="data wait", communication=COMMUNICATION)
        if self._no_communication:
            lines.append(f"communication inside forward and backward is not known apart: {self._no_communication}")
        self.log.record("profile", step=self.progress.step, path=str(profiler.path), parts_s=parts, lines=lines)
        self.log.say(f"wrote {profiler.path}, for chrome://tracing or ui.perfetto.dev")
        for line in lines:
            self.log.say(f"  {line}")

    def _make_seen(self) -> SeenData:
        num_classes = max(self._options.model.num_classes, len(self._data.classes))
        return SeenData(num_classes, self._data.spec, normalised=self._loader.normalised)

    def _normaliser(self, loader: TrainingLoader) -> Normaliser:
        return Normaliser(
            self._data.spec, normalised=loader.normalised, channels_last=self._options.model.channels_last
        )

    # ------------------------------------------------------------------ the loop

    def fit(self) -> int:
        """Train to the end, or until a signal.

        Returns
        -------
        int
            Exit status: 0, or 143 after a stop by a signal (the checkpoint is written).
        """
        options = self._options
        self._announce()
        stopped = False
        with self._signals_noted():
            while not (self._finished or stopped):
                stopped, whole = self._train_epoch()
                if not stopped:
                    self._finish_epoch(whole=whole)
            stopped = self._vote.settle() or stopped
        self._steps.flush()
        finished = self._finished
        if self._seen is not None:
            self.log.record("seen", **self._seen.result())
        if self._network is not None and (stopped or options.run.checkpoint_steps):
            self._save()
        self._finish_saving()
        self.log.record(
            "done", step=self.progress.step, finished=finished, seconds=time.perf_counter() - self._start_time
        )
        self.log.say("stopped by a signal" if stopped and not finished else "done")
        return STOPPED if stopped and not finished else 0

    @property
    def _finished(self) -> bool:
        optim, progress = self._options.optim, self.progress
        return progress.step >= optim.steps if optim.steps else progress.epoch >= optim.epochs

    def _share_done(self, progress: Progress) -> float:
        """Return the completed fraction of the run's images, or with ``--steps`` of its steps."""
        optim = self._options.optim
        if optim.steps:
            return progress.step / optim.steps
        return (progress.epoch + progress.images / self._data.num_images) / optim.epochs

    def _total_steps(self) -> int:
        """Count the steps of the whole run; steps before a resume may have had another batch size."""
        optim, progress = self._options.optim, self.progress
        if self._finished:
            return progress.step
        left = -(-self._loader.batches_left // optim.accum)
        later = max(0, optim.epochs - progress.epoch - 1)
        return optim.steps or progress.step + left + later * self._steps_per_epoch

    def _train_epoch(self) -> tuple[bool, bool]:
        """Train the rest of an epoch; return whether a signal stopped it, and whether it was completed."""
        self._epoch_start = time.perf_counter()
        if self._options.data.start_size:
            self._loader.set_image_size(self._options.data.crop_size(self.progress.epoch))
        self._loader.set_epoch(self.progress.epoch)  # a resumed loader is already there
        left = self._loader.batches_left
        self._steps.start_epoch(total_steps=self._total_steps())
        batches = iter(self._loader)
        try:
            while left and not self._finished:
                micro_batches = min(self._options.optim.accum, left)
                self.train_step(batches, micro_batches)
                left -= micro_batches
                if self._vote.cast(self._stop_asked) and not self._finished:
                    return True, False
                every = self._options.run.checkpoint_steps
                if every and self.progress.step % every == 0 and self._network is not None:
                    self._save()
            if not left and next(batches, None) is not None:
                # One more `next` also ends the epoch for the loader: ours prefetches the next epoch meanwhile.
                raise UsageError(f"--loader {self._options.data.loader} delivers more batches than its length")
        finally:
            # After an early exit the loader must stop now, not at the next garbage collection.
            close = getattr(batches, "close", None)
            if close is not None:
                close()
        return False, not left

    def train_step(self, batches: Iterator[TrainBatch], micro_batches: int) -> None:
        """Take one optimiser step."""
        progress = self.progress
        num_images, loss_sum = 0, None
        indices: list[np.ndarray] = []
        for micro in range(micro_batches):
            self.clock.fetching()
            batch = next(batches, None)
            self.clock.fetched()
            if batch is None:
                raise UsageError(
                    f"--loader {self._options.data.loader} ended epoch {progress.epoch} after {progress.images} "
                    f"images of {self._data.num_images}: it delivers fewer batches than its length"
                )
            if self._seen is not None:
                self._seen.add(batch)
            num_images += batch.global_size
            if batch.indices is not None:
                indices.append(batch.indices[: batch.num_valid])
            loss = self._compute.micro_batch(batch, step=progress.step, micro=micro, last=micro == micro_batches - 1)
            loss_sum = loss if loss_sum is None else loss_sum + loss
        self.progress = replace(progress, step=progress.step + 1, images=progress.images + num_images)
        lr = self.schedule(self._share_done(progress), self._share_done(self.progress))
        self._compute.update(step=progress.step, lr=lr, num_images=num_images)
        assert loss_sum is not None
        times = self.clock.step_done()
        if self._profiler is not None and self._profiler.step_done(times):
            self._say_profile(self._profiler)
        self._steps.add(
            StepRecord(
                step=progress.step,
                epoch=progress.epoch,
                lr=lr,
                num_images=num_images,
                loss_sum=loss_sum,
                times=times,
                indices=indices,
            )
        )
        if self.progress.step % self._options.run.log_steps == 0:
            self._steps.flush()

    def _finish_epoch(self, *, whole: bool) -> None:
        self._steps.flush()
        progress = self.progress
        # A simulated device may still have a batch to do.
        seconds = max(time.perf_counter() - self._epoch_start, self._steps.epoch_seconds)
        rate = self._steps.epoch_images / max(seconds, 1e-9)
        record: dict[str, Any] = {"epoch": progress.epoch, "step": progress.step, "seconds": seconds}
        record |= {"images_per_s": rate, **self._steps.epoch_figures()}
        if self._network is not None:
            record |= {f"train_{name}": value for name, value in self._network.tally.result().items()}
            self._network.tally.sums.zero_()
        self.log.record("epoch", **record)
        self.log.say(
            f"epoch {progress.epoch}: {rate:.0f} images/s, waited for data "
            f"{record['wait_pct']:.1f} % of the time"
            + (f", loss {record['train_loss']:.4f}, top-1 {record['train_top1']:.2f} %" if self._network else "")
        )
        for line in self._steps.epoch_lines():
            self.log.say(line)
        if self._network is not None and self._data.val_loader is not None:
            self._validate(self._data.val_loader, self._network)
        if whole:
            self.progress = Progress(step=progress.step, epoch=progress.epoch + 1)
        if self._network is not None and (self._top1 is not None or not self._options.run.checkpoint_steps):
            self._save()

    def _validate(self, loader: TrainingLoader, network: NetworkCompute) -> None:
        start = time.perf_counter()
        loader.set_epoch(self.progress.epoch)
        result = network.evaluate(self._data.val_batches(), self._normaliser(loader))
        if result["num_images"] != self._data.num_val:
            raise UsageError(
                f"validation counted {counted(int(result['num_images']), 'image')}, the data has {self._data.num_val}: "
                f"--loader {self._options.data.loader} lost or repeated some"
            )
        self._top1 = result["top1"] if self._options.run.keep_best else None
        seconds = time.perf_counter() - start
        weights = "ema" if self._ema is not None else "model"
        self.log.record(
            "eval", epoch=self.progress.epoch, step=self.progress.step, weights=weights, seconds=seconds, **result
        )
        self.log.say(
            f"epoch {self.progress.epoch}: validation top-1 {result['top1']:.2f} %, top-5 {result['top5']:.2f} %, "
            f"loss {result['loss']:.4f} ({counted(int(result['num_images']), 'image')})"
        )

    # ------------------------------------------------------------------ log

    def _announce(self) -> None:
        options = self._options
        self.log.record(
            "start",
            step=self.progress.step,
            epoch=self.progress.epoch,
            options=options.flat(),
            world_size=self._world.world_size,
            launcher=self._world.launcher,
            restart=self._world.restart,
            device=str(self._device),
            device_name=self._device_name,
            torch=torch.__version__,
            num_cores=num_cores(),
            steps_per_epoch=self._steps_per_epoch,
            total_steps=self._total_steps(),
            startup_s=time.perf_counter() - self._start_time,
            device_monitor=self._steps.meters.problem or "nvml",
            communication=self._no_communication or "measured",
            notes=self._notes(),
            mfu=self._no_mfu or f"of {self._peak_flops / 1e12:g} TFLOP/s",
        )
        simulated = self._network is None
        saved = self._resumed_from
        if saved is not None:
            self.log.say(
                f"resumed {saved['path']}: epoch {saved['epoch']} after {saved['images']} of {self._data.num_images} "
                f"images, saved by {counted(saved['world_size'], 'process')} with batch size "
                f"{saved['options']['batch_size']}, of the run started {self._started}"
            )
            changed = _changed_options(saved["options"], options.flat())
            if changed:
                self.log.say(f"changed since that checkpoint: {', '.join(changed)}")
        elif options.run.resume == "auto":
            self.log.say(f"no checkpoint in {options.run.output} to resume: a new run")
        if self._output is None and not simulated:
            self.log.say("warning: without --output nothing of this run will be saved, neither weights nor log")
        for note in self._notes():
            self.log.say(note)
        self.log.say(
            f"{options.data.loader} loader, {counted(self._world.world_size, 'process')} on {self._device.type}, "
            + (
                f"SIMULATED device ({options.run.accelerator}: no training happens)"
                if simulated
                else f"{options.model.model} with {options.model.strategy}"
            )
            + f", {self._steps_per_epoch} steps per epoch, steps {self.progress.step} to {self._total_steps()}"
        )

    def _notes(self) -> list[str]:
        """Return what the user should know about data and options."""
        notes = list(self._data.notes)
        if self._no_communication:
            notes.append(f"exposed communication is left out: {self._no_communication}")
        if self._options.model.fsdp_offload and self._device.type == "cpu" and self._network is not None:
            notes.append("--fsdp-offload does nothing on CPUs: parameters and optimiser are in host memory anyway")
        return notes

    # ------------------------------------------------------------------ checkpoints and signals

    def _identity(self) -> dict[str, Any]:
        """Return the options that must match to resume a run: its data, its network and its length."""
        options = self._options
        return {
            "model": options.model.model,
            "classes": len(self._data.classes),
            "class_names": hashlib.sha256("\0".join(self._data.classes).encode()).hexdigest()[:8],
            "images": self._data.num_images,
            "seed": options.run.seed,
            "amp": options.model.amp,
            "ema": options.optim.ema > 0,
            "tensor parallel": options.model.strategy == "tp",  # its parameters have other names
            "steps": options.optim.steps,
        }

    def _save(self) -> None:
        if self._checkpoints is None or self._network is None:
            return
        if self.progress.step == self._saved_step and self._top1 is None:
            return
        self._saved_step = self.progress.step
        self._steps.flush()
        rank_state = {
            "random": random_state(self._device),
            "loader": self._loader.state_dict(),
            "buffers": self._replica.buffers(),
            "ema_buffers": self._ema.buffers if self._ema is not None else {},
            "scaler": self._network.scaler.state_dict(),
            "tally": self._network.tally.sums,
        }
        self._finish_saving()
        meta = {
            "started": self._started,
            "run": self._identity(),
            "warmup": self.schedule.warmup,
            "options": self._options.flat(),
            "top1": self._top1,
            "data_world_size": self._data_world.world_size,
            "launch": self._world.launch,
        }
        self._checkpoints.save(
            self.progress,
            model=self._replica.module,
            optimizer=self._optimizer,
            ema=self._ema,
            rank_state=rank_state,
            meta=meta,
        )
        self._top1 = None
        if not self._options.run.async_checkpoints:
            self._finish_saving()

    def _finish_saving(self) -> None:
        """Wait for the checkpoint that is being written, and note it."""
        path = self._checkpoints.wait() if self._checkpoints is not None else None
        if path is not None:
            self.log.record("checkpoint", step=int(path.name.removeprefix("step-")), path=str(path))

    def _resume(self, path: Path | None) -> dict[str, Any] | None:
        """Load a checkpoint; return its ``meta.json``, or None without one."""
        if path is None or self._network is None:
            return None
        self.progress, state, meta = load_checkpoint(
            path,
            world=self._world,
            model=self._replica.module,
            optimizer=self._optimizer,
            ema=self._ema,
            expected=self._identity(),
            data_world_size=self._data_world.world_size,
        )
        with torch.no_grad():
            for kind, tensors in (
                ("buffers", self._replica.buffers()),
                ("ema_buffers", self._ema.buffers if self._ema is not None else {}),
            ):
                for name, tensor in tensors.items():
                    tensor.copy_(state[kind][name])
        self._network.scaler.load_state_dict(state["scaler"])
        if self.progress.images:
            self._loader.load_state_dict(state["loader"])
        # With --steps the warm-up depends on the size of a step; a resumed run keeps its schedule.
        if self._options.optim.steps:
            self.schedule = replace(self.schedule, warmup=meta["warmup"])
        if self._share_done(self.progress) > 1:
            raise UsageError(
                f"{path} is at epoch {meta['epoch']}, after the end of this run of --epochs "
                f"{self._options.optim.epochs}; pass more"
            )
        if "random" in state or self._world.is_main:
            self._network.tally.sums.copy_(state["tally"])
        if "random" in state:
            set_random_state(state["random"], self._device)
        else:
            seed_rank(self._options.run.seed, self.progress.step, self._data_world.rank)
        return meta

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Make SIGTERM (and SLURM's SIGUSR1 before the time limit) stop the run after the current step."""

        def note(_number: int, _frame: object) -> None:
            self._stop_asked = True

        kept = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Close loaders, threads and files."""
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._profiler is not None:
            self._profiler.close()
        for tracker in self._trackers:
            tracker.close()
        self.log.close()
        self._steps.close()
        self._data.close()


def _changed_options(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the changed options that affect the training, as ``lr 0.5 -> 0.1``."""
    aside = {
        "output",
        "overwrite_output",
        "resume",
        "checkpoints",
        "checkpoint_steps",
        "async_checkpoints",
        "keep",
        "keep_best",
        "log_steps",
        "num_workers",
    }
    return [
        f"{name} {before[name]} -> {value}"
        for name, value in now.items()
        if name not in aside and name in before and before[name] != value
    ]


@contextmanager
def output_locked(run: RunOptions, world: World) -> Iterator[Path | None]:
    """Lock ``--output`` for this run on rank 0 and yield the checkpoint to resume from; every rank raises its error.

    Raises
    ------
    UsageError
        Another run is writing there, or left checkpoints that this run does not continue; or those are damaged.
    """
    found: Any = None
    with ExitStack() as held:
        if world.is_main:
            try:
                found = _prepare_output(run, world, held)
            except (UsageError, OSError) as error:
                found = error
        found = broadcast_object(found)
        if isinstance(found, Exception):
            raise found
        yield found


def _prepare_output(run: RunOptions, world: World, held: ExitStack) -> Path | None:
    if not run.output:
        return find_resumable(run.resume, Path())[0]
    folder = Path(run.output)
    # Worker processes of a killed rank hold its lock until they notice that it is gone.
    held.enter_context(lock_folder(folder, wait_seconds=60.0 if world.restart else 0.0))
    goes_on = bool(world.restart) and saved_by_launch(folder / "checkpoints", world.launch)
    if goes_on:
        # Whatever --resume and --overwrite-output asked for was done at the first start.
        run = replace(run, resume="auto", overwrite_output=False)
    resume, notes = find_resumable(run.resume, folder / "checkpoints")
    checkpoints = find_checkpoints(folder / "checkpoints")
    notes += prepare_folder(folder, checkpoints, resume=resume, overwrite=run.overwrite_output)
    if world.restart:
        where = f"continues from {resume}" if goes_on else "had no checkpoint of its own: a new start"
        notes.append(f"a process of this run failed; restart {world.restart} {where}")
    sys.stderr.write("".join(f"{note}\n" for note in notes))
    return resume


def run_training(options: TrainOptions, environ: Mapping[str, str] | None = None) -> int:
    """Run one process of a training job, configured by the launcher's environment.

    Returns
    -------
    int
        Exit status.
    """
    environ = os.environ if environ is None else environ
    world = detect_world(environ)
    if world.launcher == "slurm":
        check_started_by_srun(environ, world.world_size)
    device = pick_device(options.run.device, world)
    torch.use_deterministic_algorithms(options.run.deterministic)
    torch.backends.cudnn.benchmark = not options.run.deterministic
    with process_group(world, device), output_locked(options.run, world) as resume_from:
        trainer = Trainer(options, world, device, resume_from)
        try:
            return trainer.fit()
        finally:
            trainer.close()
