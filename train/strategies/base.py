"""A network on one process, and the methods that a strategy overrides.

The training step calls these methods and does not depend on the strategy. Knows nothing of data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from train.model import MovingAverage, local_part
from train.options import ModelOptions
from train.recompute import recompute_blocks

_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}
Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Scaling = Callable[[torch.Tensor], torch.Tensor]


def clip_by_parts(parameters: list[nn.Parameter], max_norm: float, group: Any = None) -> None:
    """Scale gradients down to a norm of at most `max_norm`, where they are divided in different ways.

    `group` has the processes with the other parameters of the network, if there are any.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares: dict[Any, torch.Tensor] = {}  # by the dimensions of a mesh over which a gradient is divided
    for gradient in gradients:
        divided = enumerate(getattr(gradient, "placements", ()))
        key = getattr(gradient, "device_mesh", None), tuple(dim for dim, place in divided if not place.is_replicate())
        squares[key] = squares.get(key, 0.0) + torch.linalg.vector_norm(local_part(gradient)).square()
    for (mesh, dimensions), square in squares.items():
        for dimension in dimensions:
            dist.all_reduce(square, group=mesh.get_group(dimension))
    total = torch.stack(list(squares.values())).sum()
    if group is not None:
        dist.all_reduce(total, group=group)
    factor = (max_norm / (total.sqrt() + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([local_part(gradient) for gradient in gradients], factor)


class Replica:
    """A network laid out over the processes; this class is that of one process by itself.

    Parameters
    ----------
    model : torch.nn.Module
        The plain network, equal on all ranks; it is moved to the device and changed in place.
    options : ModelOptions
        Memory layout, compilation, and the options of the strategy.
    device : torch.device
        This process's device.
    mesh : DeviceMesh or None
        The arrangement of the processes; None without a process group.

    Attributes
    ----------
    module : torch.nn.Module
        What has the parameters and buffers, under the names of the plain network.
    counts : bool
        Whether this rank's losses and hits are added up. Of ranks that share one copy of the network, one counts.
    data_group : ProcessGroup or None
        The processes that hold the same part of the network as this one; None means all.
    """

    channels_last = True
    """Whether weights can have that memory layout."""

    def __init__(self, model: nn.Module, options: ModelOptions, device: torch.device, mesh: Any) -> None:
        self.options = options
        self.device = device
        self.mesh = mesh
        self.counts = True
        self.data_group: dist.ProcessGroup | None = None
        nhwc = options.channels_last and self.channels_last
        model = model.to(device).to(memory_format=torch.channels_last if nhwc else torch.contiguous_format)
        if options.activation_checkpointing:
            recompute_blocks(model)
        self.module = self.prepare(model)
        if options.compile:
            self.module.compile()
        self.training_module = self.wrap(self.module)

    # ------------------------------------------------------------------ what a strategy changes

    def prepare(self, model: nn.Module) -> nn.Module:
        """Divide or convert the network, before it is compiled."""
        return model

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return what the training step calls."""
        return module

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Context for forward and backward; gradients are averaged over ranks only for the last micro-batch."""
        del last
        yield

    def forward_backward(
        self, images: torch.Tensor, targets: torch.Tensor, criterion: Criterion, scaled: Scaling, *, last: bool
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Add the gradients of a micro-batch's loss, ``scaled(criterion(logits, targets).sum())``.

        Returns
        -------
        tuple of torch.Tensor or None
            The logits and the loss of each row; None on ranks that do not have them.
        """
        with self.micro_batch(last=last):
            with self.precision():
                logits = self.training_module(images)
            losses = criterion(logits, targets)
            scaled(losses.sum()).backward()
        return logits.detach(), losses.detach()

    def clip_gradients(self, parameters: list[nn.Parameter], max_norm: float) -> None:
        """Scale gradients down to a norm, that of the whole network, of at most `max_norm`."""
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def after_evaluation(self) -> None:
        """Undo what a forward pass without a backward pass leaves behind."""

    # ------------------------------------------------------------------ what is the same for all

    def precision(self) -> AbstractContextManager[Any]:
        """Return a context for a forward pass."""
        dtype = _PRECISION.get(self.options.amp)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the state without gradients (batch norm statistics), by name; each rank has its own."""
        return dict(self.module.named_buffers())

    @contextmanager
    def evaluating(self, ema: MovingAverage | None) -> Iterator[Callable[[torch.Tensor], torch.Tensor | None]]:
        """Yield the network for validation: with moving averages, if any, and statistics averaged over ranks.

        Everything is restored afterwards, so validation does not change the training.
        """
        weights = [local_part(parameter) for parameter in self.module.parameters()]
        buffers = list(self.module.buffers())
        kept = [tensor.detach().clone() for tensor in (*weights, *buffers)]
        with torch.no_grad():
            if ema is not None:
                ema.copy_to(weights, buffers)
            if dist.is_initialized():
                for buffer in buffers:
                    if buffer.is_floating_point():
                        dist.all_reduce(buffer, group=self.data_group)
                        buffer.div_(dist.get_world_size(self.data_group))
        self.module.eval()
        try:
            yield self.logits
        finally:
            self.module.train()
            self.after_evaluation()
            with torch.no_grad():
                for tensor, value in zip((*weights, *buffers), kept, strict=True):
                    tensor.copy_(value)

    def logits(self, images: torch.Tensor) -> torch.Tensor | None:
        """Return the outputs for a validation batch, shape (N, num_classes); None on ranks that do not have them."""
        with self.precision():
            output: torch.Tensor = self.module(images)
        return output
