"""Which rank this process is: from arguments, a DeviceMesh, torch.distributed or the launcher.

torch is used only if the process has imported it already. Knows no data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.checks import at_least
from dataloading.errors import UsageError
from dataloading.limits import num_cores

__all__ = ["Ranks", "find_ranks"]


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The position of a process among those that share the data.

    Parameters
    ----------
    rank, world_size : int
        Among the data-parallel ranks: processes with equal numbers read the same batches.
    source : str
        Where the two numbers come from, for messages.
    local_world_size : int
        Processes on this machine.
    num_nodes : int
        Nodes with equally many data-parallel ranks; 1 where that is not known.
    node, local_rank : int
        This process's node, and the number of its data-parallel rank there.
    """

    rank: int
    world_size: int
    source: str
    local_world_size: int = 1
    num_nodes: int = 1
    node: int = 0
    local_rank: int = 0

    @property
    def num_local_cores(self) -> int:
        """Cores the process may use, shared among the ranks of this machine, at least 1."""
        return max(1, num_cores() // self.local_world_size)

    def check_unchanged(self) -> None:
        """Raise if torch.distributed contradicts these ranks: they would read each other's samples.

        Raises
        ------
        UsageError
            The process group was initialised after the loader was made, with other numbers.
        """
        group = _process_group()
        if self.source not in ("arguments", "mesh") and group is not None and group != (self.rank, self.world_size):
            raise UsageError(
                f"the loader was made for rank {self.rank} of {self.world_size} ({self.source}), but "
                f"torch.distributed now says rank {group[0]} of {group[1]}: "
                f"call init_process_group before making the loader, or pass rank= and world_size="
            )


def find_ranks(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    mesh: Any = None,
    dp_dim: str | Sequence[str] | None = None,
    num_nodes: int | None = None,
    node_rank: int | None = None,
    local_world_size: int | None = None,
    by_node: bool = False,
) -> Ranks:
    """Find this process's rank: from arguments, else the mesh, else torch.distributed, else the launcher's variables.

    Parameters
    ----------
    rank, world_size : int, optional
        Given together, or not at all.
    mesh : torch DeviceMesh, optional
        The whole mesh, or the part of it over which data is split.
    dp_dim : str or sequence of str, optional
        The mesh dimensions over which data is split, the first varying slowest. By default the only dimension
        of a mesh that has one, else "dp", else "dp_replicate" and "dp_shard".
    num_nodes, node_rank, local_world_size : int, optional
        Machines, this machine's number, processes on it. By default what torchrun (GROUP_RANK, LOCAL_RANK,
        LOCAL_WORLD_SIZE) or SLURM (SLURM_NNODES, SLURM_NODEID, SLURM_LOCALID) set, if that fits the world size.
    by_node : bool
        Whether nodes matter; otherwise one is assumed, and the environment's variables about nodes are ignored.

    Raises
    ------
    UsageError
        The numbers contradict each other, or the mesh has no such dimension.
    """
    if (rank is None) != (world_size is None):
        raise UsageError(f"pass rank= and world_size= together, got rank={rank} and world_size={world_size}")
    if rank is not None and world_size is not None:
        rank, world_size = at_least("rank", rank, 0), at_least("world_size", world_size, 1)
    num_nodes = None if num_nodes is None else at_least("num_nodes", num_nodes, 1)
    node_rank = None if node_rank is None else at_least("node_rank", node_rank, 0)
    local_world_size = None if local_world_size is None else at_least("local_world_size", local_world_size, 1)
    if mesh is None and dp_dim is not None:
        raise UsageError(f"dp_dim={dp_dim!r} names dimensions of mesh=, which is not given")
    local = local_world_size or _environment("LOCAL_WORLD_SIZE") or 1
    if mesh is not None:
        if rank is not None:
            raise UsageError("mesh= says which rank this is: leave out rank= and world_size=")
        return _from_mesh(mesh, dp_dim, local, num_nodes if by_node else 1)
    rank, world_size, source = _flat(rank, world_size)
    nodes, node, local_rank = 1, 0, rank
    if by_node:
        nodes, node, local_rank = _nodes(rank, world_size, num_nodes, node_rank, local_world_size)
    return Ranks(
        rank=rank,
        world_size=world_size,
        source=source,
        local_world_size=local,
        num_nodes=nodes,
        node=node,
        local_rank=local_rank,
    )


def _flat(rank: int | None, world_size: int | None) -> tuple[int, int, str]:
    if rank is not None and world_size is not None:
        if rank >= world_size:
            raise UsageError(f"rank={rank} must be in 0..{world_size - 1}, as world_size is {world_size}")
        return rank, world_size, "arguments"
    group = _process_group()
    if group is not None:
        return *group, "torch.distributed"
    environment = _environment("RANK"), _environment("WORLD_SIZE")
    if environment[0] is not None and environment[1] is not None:
        # A launcher started several processes: without this each would silently read everything.
        return environment[0], environment[1], "RANK, WORLD_SIZE"
    return 0, 1, "a single process"


# ---- nodes


def _nodes(
    rank: int, world_size: int, num_nodes: int | None, node_rank: int | None, local_world_size: int | None
) -> tuple[int, int, int]:
    """Find the number of nodes, this one's number, and the local rank."""
    if num_nodes is not None or local_world_size is not None:
        nodes = world_size // max(local_world_size or 1, 1) if num_nodes is None else num_nodes
        each = world_size // max(nodes, 1) if local_world_size is None else local_world_size
        if nodes < 1 or each * nodes != world_size:
            raise UsageError(
                f"num_nodes={num_nodes} and local_world_size={local_world_size} do not fit world_size={world_size}: "
                f"every node must have as many ranks"
            )
    else:
        each = _environment("LOCAL_WORLD_SIZE") or world_size // max(_environment("SLURM_NNODES") or 1, 1)
        nodes = world_size // each if each > 0 else 1
        # Ignore variables of a launcher that did not start this world (an interactive allocation, rank= by hand).
        if nodes < 1 or nodes * each != world_size:
            nodes, each = 1, world_size
    if nodes == 1:
        return 1, 0, rank
    launched = rank in (_environment("RANK"), _environment("SLURM_PROCID"))
    node = node_rank if node_rank is not None or not launched else _first("GROUP_RANK", "SLURM_NODEID")
    local_rank = _first("LOCAL_RANK", "SLURM_LOCALID") if launched else None
    if node is None:
        return nodes, *divmod(rank, each)
    if local_rank is None and node == rank // each:
        local_rank = rank % each
    if local_rank is None or not (0 <= node < nodes and 0 <= local_rank < each):
        # Guessing here could give two ranks the same samples.
        raise UsageError(
            f"node {node} of {nodes} does not fit rank {rank} of {world_size} with {each} ranks a node: where ranks "
            f"are not numbered node by node, the environment must say LOCAL_RANK (torchrun and srun do)"
        )
    return nodes, node, local_rank


# ---- meshes


def _from_mesh(mesh: Any, dp_dim: str | Sequence[str] | None, local_world_size: int, num_nodes: int | None) -> Ranks:
    """Flatten the mesh's data-parallel dimensions; processes that differ in others only get the same rank."""
    if not hasattr(mesh, "get_coordinate") or not hasattr(mesh, "mesh_dim_names"):
        raise UsageError(f"mesh= must be a torch DeviceMesh, got {type(mesh).__name__}")
    names = tuple(mesh.mesh_dim_names or ())
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise UsageError("this process is not part of mesh=")
    ranks: npt.NDArray[np.int64] = mesh.mesh.cpu().numpy()
    axes = _dp_axes(names, ranks.ndim, dp_dim)
    shape = [ranks.shape[axis] for axis in axes]
    rank = int(np.ravel_multi_index([coordinate[axis] for axis in axes], shape))
    world_size = int(np.prod(shape))
    # Rows: data-parallel ranks; columns: the processes that share each.
    others = [axis for axis in range(ranks.ndim) if axis not in axes]
    processes = ranks.transpose(*axes, *others).reshape(world_size, -1)
    nodes, node, local_rank = _mesh_nodes(processes, rank, local_world_size, num_nodes)
    return Ranks(
        rank=rank,
        world_size=world_size,
        source="mesh",
        local_world_size=local_world_size,
        num_nodes=nodes,
        node=node,
        local_rank=local_rank,
    )


def _dp_axes(names: tuple[str, ...], num_dims: int, dp_dim: str | Sequence[str] | None) -> list[int]:
    if dp_dim is None:
        if num_dims == 1:
            return [0]
        known = [name for name in names if name == "dp"] or [
            name for name in names if name in ("dp_replicate", "dp_shard")
        ]
        if not known:
            raise UsageError(
                f"mesh= has the dimensions {names or num_dims}: say with dp_dim= over which of them data is split"
            )
        return [names.index(name) for name in known]
    wanted = (dp_dim,) if isinstance(dp_dim, str) else tuple(dp_dim)
    for name in wanted:
        if name not in names:
            raise UsageError(f"dp_dim={dp_dim!r}: mesh= has no dimension {name!r}, only {names}")
    return [names.index(name) for name in wanted]


def _mesh_nodes(
    processes: npt.NDArray[np.int64], rank: int, local_world_size: int, num_nodes: int | None
) -> tuple[int, int, int]:
    """Find the nodes of data-parallel ranks, if each rank is on one node and all nodes have equally many."""
    if num_nodes is not None:
        return _nodes(rank, len(processes), num_nodes, None, None)
    if local_world_size > 1:
        homes = processes // local_world_size
        numbers, counts = np.unique(homes[:, 0], return_counts=True)
        if (homes == homes[:, :1]).all() and (counts == counts[0]).all():
            home = homes[rank, 0]
            local_rank = int(np.count_nonzero(homes[:rank, 0] == home))
            return len(numbers), int(np.searchsorted(numbers, home)), local_rank
    return 1, 0, rank


# ---- the process's surroundings


def _process_group() -> tuple[int, int] | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _first(*names: str) -> int | None:
    return next((value for value in map(_environment, names) if value is not None), None)


def _environment(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"the environment variable {name}={value!r} is not a number") from None
