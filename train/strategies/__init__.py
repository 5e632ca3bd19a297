"""How processes share the work of training: one strategy a file, each a subclass of `base.Replica`.

=========  ==========================================================================  ===================
strategy   what a process holds                                                        dimensions of mesh
=========  ==========================================================================  ===================
``ddp``    everything; gradients are averaged                                          dp
``fsdp``   a part of parameters, gradients and optimiser state (ZeRO-3)                dp
``hsdp``   the same within a group of processes; groups are replicas of each other     dp_replicate, dp_shard
``zero1``  as ``fsdp`` between steps, all parameters within a step                     dp
``tp``     a part of each layer of a vision transformer (tensor parallel)              dp, tp
``pp``     some layers (pipeline parallel)                                             dp, pp
=========  ==========================================================================  ===================

A mesh's dimensions say how processes are arranged; the last one varies fastest, so its processes are neighbours on a
node. The loader divides the data over those whose name begins with ``dp`` (``Loader(mesh=...)``).
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from dataloading import UsageError
from train.distributed import World
from train.options import ModelOptions
from train.strategies.base import Replica

__all__ = ["STRATEGIES", "Strategy", "data_world", "lay_out", "make_mesh", "needs_images"]


class Strategy(NamedTuple):
    """Where a strategy lives, and how it arranges the processes."""

    target: str
    dimensions: tuple[str, ...]


STRATEGIES = {
    "ddp": Strategy("replicated:Replicated", ("dp",)),
    "fsdp": Strategy("sharded:Sharded", ("dp",)),
    "hsdp": Strategy("sharded:Sharded", ("dp_replicate", "dp_shard")),
    "zero1": Strategy("sharded:OptimizerSharded", ("dp",)),
    "tp": Strategy("tensor:TensorParallel", ("dp", "tp")),
    "pp": Strategy("pipeline:Pipeline", ("dp", "pp")),
}


def make_mesh(options: ModelOptions, world: World, device: torch.device) -> Any:
    """Arrange the processes as the strategy wants them.

    Returns
    -------
    DeviceMesh or None
        None for one process without a process group, which only ``ddp`` can do with.

    Raises
    ------
    UsageError
        There is no process group, or groups of ``--group-size`` do not divide the processes.
    """
    if not dist.is_initialized():
        if options.strategy == "ddp":
            return None
        raise UsageError(
            f"--strategy {options.strategy} needs a launcher, even for one process: "
            "beton train --nproc-per-node N ..., torchrun -m train ..., or srun"
        )
    from torch.distributed.device_mesh import init_device_mesh

    names = STRATEGIES[options.strategy].dimensions
    shape: tuple[int, ...] = (world.world_size,)
    if len(names) == 2:
        group = options.group_size or min(world.local_world_size, world.world_size)
        if world.world_size % group:
            raise UsageError(
                f"--strategy {options.strategy} makes groups of {group} processes, and {world.world_size} processes "
                f"are not a multiple of that; choose another --group-size"
            )
        shape = (world.world_size // group, group)
    return init_device_mesh(device.type, shape, mesh_dim_names=names)


def data_world(world: World, mesh: Any) -> World:
    """Return this process's place among those that get different data."""
    if mesh is None:
        return world
    rank, size = 0, 1
    for dimension, name in enumerate(mesh.mesh_dim_names):
        if name.startswith("dp"):
            rank, size = rank * mesh.size(dimension) + mesh.get_local_rank(dimension), size * mesh.size(dimension)
    return replace(world, rank=rank, world_size=size)


def needs_images(mesh: Any) -> bool:
    """Return whether this process uses images: of a pipeline's stages the first alone does."""
    return mesh is None or "pp" not in mesh.mesh_dim_names or mesh.get_local_rank("pp") == 0


def lay_out(model: nn.Module, options: ModelOptions, device: torch.device, mesh: Any = None) -> Replica:
    """Lay a network out over the processes by ``--strategy``.

    Parameters
    ----------
    model : torch.nn.Module
        The plain network, equal on all ranks; it is moved to the device and wrapped in place.
    options : ModelOptions
        Strategy, memory layout, compilation.
    device : torch.device
        This process's device.
    mesh : DeviceMesh or None
        From `make_mesh`.
    """
    if mesh is None:
        return Replica(model, options, device, mesh)
    module, _, name = STRATEGIES[options.strategy].target.partition(":")
    made: Replica = getattr(importlib.import_module(f"{__name__}.{module}"), name)(model, options, device, mesh)
    return made
