"""``fsdp``, ``hsdp``, ``zero1``: parameters, gradients and optimiser state divided by FSDP2 (`fully_shard`).

One group of parameters per block of the network: it is gathered just before it is used. ``hsdp`` is the same on a mesh
of two dimensions: sharded over the second, averaged over the first. ``zero1`` gathers each block once per step and
keeps it until its backward pass is done (docs/decisions/0012 says why it is not ZeroRedundancyOptimizer).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from train.model import blocks_of
from train.options import ModelOptions
from train.strategies.base import Replica


class Sharded(Replica):
    """`fully_shard`, block by block."""

    channels_last = False  # FSDP2 divides contiguous parameters; kernels follow the images' layout
    reshard_after_forward = True
    module: FSDPModule  # type: ignore[assignment]

    def prepare(self, model: nn.Module) -> nn.Module:
        """Divide each block, then what is left."""
        return shard(model, self.options, self.mesh, reshard_after_forward=self.reshard_after_forward)

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Reduce gradients in the last micro-batch only."""
        self.module.set_requires_gradient_sync(last)
        yield

    def after_evaluation(self) -> None:
        """Drop the gathered weights, or the next training step would compute with those of the moving average."""
        for part in self.module.modules():  # type: ignore[attr-defined]
            if isinstance(part, FSDPModule):
                part.reshard()


class OptimizerSharded(Sharded):
    """Whole parameters within a step; what is kept between steps is divided."""

    reshard_after_forward = False

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Keep the gathered parameters until the step's last backward pass."""
        self.module.set_reshard_after_backward(last)
        with super().micro_batch(last=last):
            yield


def shard(model: nn.Module, options: ModelOptions, mesh: Any, *, reshard_after_forward: bool = True) -> nn.Module:
    """Divide a network over a mesh of one dimension, or of two: the first replicates, the second divides."""
    settings: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": reshard_after_forward}
    if options.fsdp_dtype == "bf16":
        settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if options.fsdp_offload:
        pinned = mesh.device_type == "cuda"
        settings["offload_policy"] = CPUOffloadPolicy(pin_memory=pinned) if pinned else OffloadPolicy()
    for block in blocks_of(model):
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    return model
