"""A training step: train the network, or simulate a device.

Contains forward, backward, loss weighting, scaling, clipping and the optimiser. The loop (``trainer``) does not know
which of the two runs.

**Loss weighting.** The gradient of an optimiser step is that of the mean loss over all images that count, on all ranks
and in all micro-batches, even if these differ in size. A micro-batch's loss is the sum over its rows times ``world_size
/ nominal``, with ``nominal = batch_size * world_size * accum`` (DDP and FSDP divide by the world size). The sum of the
micro-batches' `global_size` is known only after the last of them; if it is not ``nominal``, gradients are scaled by
``nominal / num_images`` before clipping.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from train.clock import StepClock
from train.devices import sim_rate
from train.distributed import World
from train.loaders.base import Normaliser, TrainBatch
from train.metrics import Tally, row_losses
from train.mixing import mix_batch, mix_by_recipe
from train.model import MovingAverage, local_part
from train.options import TrainOptions
from train.strategies.base import Replica


class Compute(Protocol):
    """Runs one optimiser step: its micro-batches, then the update."""

    def micro_batch(self, batch: TrainBatch, *, step: int, micro: int, last: bool) -> torch.Tensor:
        """Process one micro-batch and return this rank's summed loss, a float64 scalar on the device."""

    def update(self, *, step: int, lr: float, num_images: int) -> None:
        """Finish the step; `num_images` is the number of images that counted, of all ranks and micro-batches."""


class SimulatedCompute:
    """A simulated device with a fixed number of images per second. It computes nothing.

    It works beside the host, as a GPU does: the host hands over a batch and fetches the next one meanwhile. The host
    waits, by sleeping, only while the batch before is not done, so one batch is at work and at most one is fetched.
    When the device works follows by arithmetic from the batches' arrivals: a batch begins when it has arrived and the
    one before is done. So neither a host that wakes up late nor a log line costs device time, unless it takes longer
    than a batch. Devices of all ranks end a step together, as they do when gradients are averaged.
    """

    def __init__(self, rate: float, clock: StepClock) -> None:
        self._rate = rate
        self._clock = clock
        self._zero = torch.zeros((), dtype=torch.float64)
        self._step_began: float | None = None
        self._together = False
        self._free_at = 0.0
        self._idle = self._busy = 0.0

    def micro_batch(self, batch: TrainBatch, *, step: int, micro: int, last: bool) -> torch.Tensor:
        """Hand a batch over; return when the device begins with it."""
        del step, micro, last
        now = time.perf_counter()
        if self._step_began is None:
            self._step_began = self._free_at = self._clock.step_began
        begin = max(now, self._free_at)
        seconds = len(batch.labels) / self._rate
        self._idle += begin - self._free_at
        self._busy += seconds
        self._free_at = begin + seconds
        time.sleep(begin - now)
        return self._zero

    def update(self, *, step: int, lr: float, num_images: int) -> None:
        """End the step when the slowest rank's device has."""
        del step, lr, num_images
        assert self._step_began is not None, "update() without micro_batch()"
        took = self._idle + self._busy
        if dist.is_initialized():
            # Ranks have no common clock. They begin all steps but the first together, so that durations tell which rank
            # is the slowest. In the first step the last rank to come here is.
            longest = torch.tensor(took if self._together else self._free_at - time.perf_counter(), dtype=torch.float64)
            dist.all_reduce(longest, op=dist.ReduceOp.MAX)
            since = 0.0 if self._together else time.perf_counter() - self._step_began
            took, self._together = max(took, since + longest.item()), True
        self._clock.simulated(began=self._step_began, took=took, waited=self._idle, busy=self._busy)
        self._step_began = self._free_at = self._step_began + took
        self._idle = self._busy = 0.0


@dataclass
class NetworkCompute:
    """Forward, backward and optimiser on the device.

    Parameters
    ----------
    options : TrainOptions
        Recipe.
    world, device
        This process and the device of its network.
    replica, optimizer, ema
        The wrapped network, its optimiser, and the moving average that each step updates.
    num_classes : int
        Outputs of the network.
    mixes : tuple
        Batch transforms that replace those of ``--mixup`` and ``--cutmix``. If they smooth labels, the loss does not.
    normaliser : Normaliser
        Converts the loader's images into the network's input.
    clock : StepClock
        Is told where the parts of a step end.
    waits : callable
        Makes a context for what communicates (`watch_communication`).
    """

    options: TrainOptions
    _: KW_ONLY
    world: World
    device: torch.device
    replica: Replica
    optimizer: torch.optim.Optimizer
    ema: MovingAverage | None
    num_classes: int
    normaliser: Normaliser
    mixes: tuple[Any, ...] = ()
    clock: StepClock | None = None
    waits: Callable[[], AbstractContextManager[None]] = nullcontext

    def __post_init__(self) -> None:
        self._clock = self.clock if self.clock is not None else StepClock(self.device)
        self._parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self._nominal = self.options.data.batch_size * self.world.world_size * self.options.optim.accum
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.options.model.amp == "fp16")
        self.tally = Tally(self.device)
        smoothed = any(each.smoothing for each in self.mixes)
        self._label_smoothing = 0.0 if smoothed else self.options.optim.label_smoothing

    def micro_batch(self, batch: TrainBatch, *, step: int, micro: int, last: bool) -> torch.Tensor:
        """Accumulate one micro-batch's gradients."""
        optim = self.options.optim
        images, labels = computed_rows(batch)
        images, targets = self.normaliser(images), labels
        key = (self.options.run.seed, step, micro, self.world.rank)
        if self.mixes:
            images, targets = mix_by_recipe(images, labels, self.mixes, key=key)
        elif optim.mixup or optim.cutmix:
            images, targets = mix_batch(
                images, labels, self.num_classes, mixup=optim.mixup, cutmix=optim.cutmix, key=key
            )
        self._clock.mark("normalise and mix")

        def criterion(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            losses = row_losses(logits, targets, self._label_smoothing)
            return losses if batch.num_valid else losses * 0.0

        def scaled(loss: torch.Tensor) -> torch.Tensor:
            loss = self.scaler.scale(loss * (self.world.world_size / self._nominal))
            self._clock.mark("forward")
            return loss

        with self.waits():
            outputs = self.replica.forward_backward(images, targets, criterion, scaled, last=last)
        self._clock.mark("backward")
        if outputs is None or not self.replica.counts:
            return torch.zeros((), dtype=torch.float64, device=self.device)
        logits, losses = outputs
        self.tally.add(logits, labels, batch.num_valid, losses)
        return losses.sum().double()

    def update(self, *, step: int, lr: float, num_images: int) -> None:
        """Scale, clip and step; then update the moving average."""
        self._clock.mark(None)
        self.scaler.unscale_(self.optimizer) if self.scaler.is_enabled() else None
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if 0 < num_images != self._nominal:
            torch._foreach_mul_([local_part(gradient) for gradient in gradients], self._nominal / num_images)
        if self.options.optim.clip_norm:
            with self.waits():
                self.replica.clip_gradients(self._parameters, self.options.optim.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(step)
        self._clock.mark("optimiser")

    def evaluate(self, batches: Iterator[TrainBatch], normaliser: Normaliser) -> dict[str, float]:
        """Return loss, top-1 and top-5 over all ranks, each image counted once.

        Parameters
        ----------
        batches : iterator of TrainBatch
            The same number on every rank, since sharded networks gather their weights in each batch.
        normaliser : Normaliser
            For this loader's images.
        """
        tally = Tally(self.device)
        with self.replica.evaluating(self.ema) as network, torch.no_grad():
            for batch in batches:
                images, labels = computed_rows(batch)
                inputs = normaliser(images)
                logits = network(inputs)
                mirrored = network(inputs.flip(3)) if self.options.data.flip_at_test else None
                if self.replica.counts:
                    assert logits is not None
                    if mirrored is not None:
                        logits = (logits + mirrored) / 2
                    tally.add(logits, labels, batch.num_valid, row_losses(logits, labels, 0.0))
        return tally.result()


def computed_rows(batch: TrainBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images and labels to compute: those that count, or one padding row if none do.

    A rank without images (fewer are left than there are ranks) must still take part in the collectives of forward and
    backward; its single row has weight zero.
    """
    images, labels, num_valid = batch.images, batch.labels, batch.num_valid
    if num_valid:
        return images[:num_valid], labels[:num_valid]
    if len(labels):
        return images[:1], labels[:1]
    return images.new_zeros((1, *images.shape[1:])), labels.new_zeros(1)


def make_simulated(options: TrainOptions, clock: StepClock) -> SimulatedCompute | None:
    """Return the simulated device of ``--accelerator sim:RATE``, or None."""
    rate = sim_rate(options.run.accelerator)
    return SimulatedCompute(rate, clock) if rate else None
