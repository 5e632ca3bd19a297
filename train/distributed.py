"""Rank and world size of this process, and the collectives of the trainer.

Reads the launcher's environment (torchrun, SLURM, or none), starts and ends the process group, reduces small tensors,
and holds the vote that lets all ranks stop at the same step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dataloading import UsageError

from .rendezvous import LIMIT, first_node, rendezvous_address, store_after_restart, wait_for_ranks


@dataclass(frozen=True, kw_only=True)
class World:
    """One process among all of them.

    Parameters
    ----------
    rank, world_size : int
        This process among all of them.
    local_rank, local_world_size : int
        This process among those of its node.
    launcher : str
        ``torchrun``, ``slurm`` or ``none``.
    master : str
        ``host:port`` of the rendezvous; empty where torch reads it from the environment.
    launch : str
        What torchrun calls this run, the same after a restart; empty if it has no name of its own.
    restart : str
        ``1 of 3`` when torchrun has started the processes again after a failure, else empty.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    launcher: str = "none"
    master: str = ""
    launch: str = ""
    restart: str = ""

    @property
    def is_main(self) -> bool:
        """Whether this process (rank 0) writes the log."""
        return self.rank == 0


def detect_world(environ: Mapping[str, str]) -> World:
    """Read the launcher's environment variables.

    Raises
    ------
    UsageError
        A required variable is missing or not a number.

    Examples
    --------
    >>> detect_world({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1",
    ...               "SLURM_NTASKS_PER_NODE": "4", "SLURM_JOB_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "1234"}).master
    'gpu07:21234'
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        world_size = _number(environ, "WORLD_SIZE")
        return World(
            rank=_number(environ, "RANK"),
            world_size=world_size,
            local_rank=_number(environ, "LOCAL_RANK", "0"),
            local_world_size=_number(environ, "LOCAL_WORLD_SIZE", str(world_size)),
            launcher="torchrun",
            **_restart(environ),
        )
    if "SLURM_PROCID" in environ:
        # srun sets the variables of its step; a plain batch script has only those of the job.
        tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
        world_size = _number(environ, tasks, "1")
        if world_size > 1:
            return World(
                rank=_number(environ, "SLURM_PROCID"),
                world_size=world_size,
                local_rank=_number(environ, "SLURM_LOCALID"),
                local_world_size=_local_tasks(environ, world_size),
                launcher="slurm",
                master=_slurm_master(environ),
            )
    return World()


def _restart(environ: Mapping[str, str]) -> dict[str, str]:
    launch = environ.get("TORCHELASTIC_RUN_ID", "")
    count = _number(environ, "TORCHELASTIC_RESTART_COUNT", "0")
    allowed = environ.get("TORCHELASTIC_MAX_RESTARTS", "?")
    # "none" is torchrun's default, which runs share.
    return {"launch": "" if launch == "none" else launch, "restart": f"{count} of {allowed}" if count else ""}


def _number(environ: Mapping[str, str], name: str, default: str | None = None) -> int:
    text = environ.get(name, default)
    if text is None or not re.fullmatch(r"\d+", text):
        raise UsageError(f"environment variable {name} is {text!r}; the launcher should have set a number")
    return int(text)


def _local_tasks(environ: Mapping[str, str], world_size: int) -> int:
    # "4", "4(x2)" or "4(x2),3": tasks per node, run-length coded; ranks fill the nodes in this order.
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE")
    if text is None:
        return _number(environ, "SLURM_NTASKS_PER_NODE", str(world_size))
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(times or 1)
    node = _number(environ, "SLURM_NODEID", "0")
    return counts[min(node, len(counts) - 1)] if counts else world_size


def _slurm_master(environ: Mapping[str, str]) -> str:
    host = environ.get("MASTER_ADDR")
    if host is None:
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "127.0.0.1"
        host = first_node(nodes)
    # The port follows from the job: two jobs on a node use different ones, all tasks of a job the same.
    port = environ.get("MASTER_PORT") or str(20000 + _number(environ, "SLURM_JOB_ID", "0") % 10000)
    return f"{host}:{port}"


def pick_device(choice: str, world: World) -> torch.device:
    """Return the device of this process.

    Raises
    ------
    UsageError
        CUDA was requested but is not available, or this node has fewer devices than processes.
    """
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError("--device cuda, but torch sees no CUDA device; use --device cpu")
    if world.local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"process {world.local_rank} of this node has no device of its own: torch sees "
            f"{torch.cuda.device_count()}; start that many processes or use --device cpu"
        )
    return torch.device("cuda", world.local_rank)


@contextmanager
def process_group(world: World, device: torch.device) -> Iterator[None]:
    """Keep a process group open (nccl for CUDA plus gloo for the host, gloo for the CPU); nothing for one process."""
    if world.world_size == 1 and world.launcher == "none":
        yield
        return
    if world.launcher == "slurm":
        os.environ.setdefault("LOCAL_RANK", str(world.local_rank))
    place, store = rendezvous_address(os.environ, world.master), None
    if place is not None:
        by_slurm = world.launcher == "slurm"
        speaks = world.local_rank == 0
        store = wait_for_ranks(*place, rank=world.rank, world_size=world.world_size, speaks=speaks, at_once=by_slurm)
    elif world.restart:
        store = store_after_restart(os.environ, world.restart)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=store,  # without one: torchrun's
        rank=world.rank,
        world_size=world.world_size,
        timeout=LIMIT,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Return the element-wise sum over all ranks; the input is not changed."""
    total = values.clone()
    if dist.is_initialized():
        dist.all_reduce(total)
    return total


def barrier() -> None:
    """Wait until every rank has called this."""
    if dist.is_initialized():
        dist.barrier()


def broadcast_object(value: object) -> object:
    """Return rank 0's value on every rank."""
    if not dist.is_initialized():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def gather_objects(value: object) -> list[Any]:
    """Return every rank's value, in the order of ranks, on every rank."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


class StopVote:
    """Lets all ranks stop at the same step when one of them received a signal.

    Signals reach the ranks at different steps; if each rank stopped at once, the others would hang in a collective. So
    each step casts a vote on the host (gloo) and reads the vote of the previous step, which has arrived by then: no
    rank waits, and all read the same result.
    """

    def __init__(self) -> None:
        self._pending: tuple[torch.Tensor, dist.Work] | None = None

    def cast(self, stop: bool) -> bool:
        """Cast this step's vote and return the outcome of the previous step's."""
        if not dist.is_initialized():
            return stop
        outcome = self.settle()
        ballot = torch.tensor([int(stop)], dtype=torch.int32)
        work = dist.all_reduce(ballot, op=dist.ReduceOp.MAX, async_op=True)
        assert work is not None
        self._pending = (ballot, work)
        return outcome

    def settle(self) -> bool:
        """Wait for the pending vote, if there is one, and return its outcome."""
        if self._pending is None:
            return False
        ballot, work = self._pending
        self._pending = None
        work.wait()
        return bool(ballot.item())
