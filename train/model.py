"""Creates the network by name, and wraps it in DDP or FSDP2; parameter groups and the moving average.

Hides the differences between the two strategies from the training loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dataloading import UsageError

from .options import ModelOptions


class TinyNet(nn.Module):
    """A network for tests, with batch norm (keeps statistics) or group norm (treats rows separately)."""

    def __init__(self, num_classes: int, *, batch_norm: bool = False) -> None:
        super().__init__()

        def norm(channels: int) -> nn.Module:
            return nn.BatchNorm2d(channels) if batch_norm else nn.GroupNorm(2, channels)

        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
            norm(8),
            nn.ReLU(),
            nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), norm(16), nn.ReLU()),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(16, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (N, num_classes)."""
        logits: torch.Tensor = self.classifier(self.pool(self.features(images)).flatten(1))
        return logits


def build_model(name: str, num_classes: int) -> nn.Module:
    """Create an untrained network.

    Parameters
    ----------
    name : str
        ``tiny``, ``tiny-bn`` or the name of a torchvision classification model.
    num_classes : int
        Outputs.

    Raises
    ------
    UsageError
        torchvision has no such classification model.
    """
    if name in ("tiny", "tiny-bn"):
        return TinyNet(num_classes, batch_norm=name == "tiny-bn")
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        import difflib

        near = ", ".join(difflib.get_close_matches(name, known, n=3)) or "beton train --help"
        raise UsageError(f"--model {name!r} is not a torchvision classification model; did you mean: {near}?")
    options: dict[str, Any] = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    model: Any = models.get_model(name, weights=None, num_classes=num_classes, **options)
    if hasattr(model, "aux_logits"):
        model.aux_logits = False
    assert isinstance(model, nn.Module)
    return model


class Replica:
    """A network wrapped for training on several processes.

    Parameters
    ----------
    model : torch.nn.Module
        The network, equal on all ranks; it is moved to the device and wrapped in place.
    options : ModelOptions
        Strategy, layout, compilation.
    device : torch.device
        This process's device.
    """

    def __init__(self, model: nn.Module, options: ModelOptions, device: torch.device) -> None:
        # FSDP2 shards contiguous parameters only; kernels use channels_last if the images do.
        nhwc = options.channels_last and options.strategy != "fsdp"
        layout = torch.channels_last if nhwc else torch.contiguous_format
        model = model.to(device).to(memory_format=layout)
        distributed = dist.is_initialized()
        if options.sync_bn and distributed:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.module = model
        self._ddp: DistributedDataParallel | None = None
        self._fsdp: Any = None
        if options.strategy == "fsdp":
            self._fsdp = _shard(model, device)
        if options.compile:
            model.compile()
        if options.strategy == "ddp" and distributed:
            self._ddp = DistributedDataParallel(
                model,
                device_ids=[device.index] if device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                static_graph=False,
            )

    @property
    def training_module(self) -> nn.Module:
        """The module that the training step calls."""
        return self._ddp if self._ddp is not None else self.module

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Context for forward and backward; gradients are averaged over ranks only for the last micro-batch."""
        if self._fsdp is not None:
            self._fsdp.set_requires_gradient_sync(last)
        with self._ddp.no_sync() if self._ddp is not None and not last else nullcontext():
            yield

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the state without gradients (batch norm statistics), by name; each rank has its own."""
        return dict(self.module.named_buffers())

    @contextmanager
    def evaluating(self, ema: MovingAverage | None) -> Iterator[nn.Module]:
        """Yield the network for validation: with moving averages, if any, and statistics averaged over ranks.

        Everything is restored afterwards, so validation does not change the training.
        """
        weights = [_local(parameter) for parameter in self.module.parameters()]
        buffers = list(self.module.buffers())
        kept = [tensor.detach().clone() for tensor in (*weights, *buffers)]
        with torch.no_grad():
            if ema is not None:
                ema.copy_to(weights, buffers)
            if dist.is_initialized():
                for buffer in buffers:
                    if buffer.is_floating_point():
                        dist.all_reduce(buffer)
                        buffer.div_(dist.get_world_size())
        self.module.eval()
        try:
            yield self.module
        finally:
            self.module.train()
            if self._fsdp is not None:
                # FSDP keeps the root's weights gathered after a forward pass; the next training step would use that
                # copy of the averaged weights.
                self._fsdp.reshard()
            with torch.no_grad():
                for tensor, value in zip((*weights, *buffers), kept, strict=True):
                    tensor.copy_(value)


def _shard(model: nn.Module, device: torch.device) -> Any:
    if not dist.is_initialized():
        raise UsageError(
            "--strategy fsdp needs a launcher, even for one process: "
            "beton train --nproc-per-node N ..., torchrun -m train ..., or srun"
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    # One group per block of a sequence (a residual block, a transformer layer), gathered just before use.
    for container in list(model.modules()):
        if isinstance(container, (nn.Sequential, nn.ModuleList)):
            for block in container:
                if _is_block(block):
                    fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _is_block(module: nn.Module) -> bool:
    parts = list(module.children())
    inner = any(isinstance(part, (nn.Sequential, nn.ModuleList)) and len(part) > 1 for part in parts)
    return (
        bool(parts) and (not isinstance(module, nn.Sequential) or not inner) and any(True for _ in module.parameters())
    )


def _local(tensor: torch.Tensor) -> torch.Tensor:
    # The local part of a sharded parameter shares memory with the parameter.
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def parameter_groups(model: nn.Module, *, weight_decay: float, decay_norms: bool) -> list[dict[str, Any]]:
    """Split parameters into those with weight decay and those without (norms and biases: all with one dimension)."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if decay_norms or weight_decay == 0:
        return [{"params": parameters, "weight_decay": weight_decay}]
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


class MovingAverage:
    """Exponential moving average of weights and floating-point buffers.

    With the usual warm-up of the decay, ``min(decay, (1 + step) / (10 + step))``, the random initial weights do not
    dominate early averages.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self._module = module
        self.weights = {name: value.detach().clone() for name, value in module.named_parameters()}
        self.buffers = {name: value.detach().clone() for name, value in module.named_buffers()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Include the weights after optimiser step `step`, counted from 0."""
        weight = 1.0 - min(self.decay, (1 + step) / (10 + step))
        averages = [_local(value) for value in self.weights.values()]
        torch._foreach_lerp_(averages, [_local(value.detach()) for value in self._module.parameters()], weight)
        for average, value in zip(self.buffers.values(), self._module.buffers(), strict=True):
            if average.is_floating_point():
                average.lerp_(value, weight)
            else:
                average.copy_(value)

    def copy_to(self, weights: list[torch.Tensor], buffers: list[torch.Tensor]) -> None:
        """Copy the averages into the given tensors, in the module's order."""
        for target, average in zip((*weights, *buffers), (*self.weights.values(), *self.buffers.values()), strict=True):
            target.copy_(_local(average))


def count_flops(model: nn.Module, image_size: int) -> float:
    """Return the number of floating-point operations of one image's forward pass, counted on fake tensors."""
    import copy

    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copy.deepcopy(model).eval().to("meta")(torch.empty(1, 3, image_size, image_size, device="meta"))
    return float(counter.get_total_flops())
