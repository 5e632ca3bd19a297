"""All ranks together: gathers what `facts` collects on each, and compares their clocks."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from train.distributed import World, gather_objects, process_group

from .facts import Facts, collect

__all__ = ["clock_offset", "exchange_facts", "gather_facts", "own_facts"]

_CLOCK_ROUNDS = 10


def gather_facts(world: World, *, path: str | None = None, num_workers: int = 0) -> list[Facts]:
    """Collect the facts of every rank, in the order of ranks; every rank gets all of them.

    If this rank cannot reach the rendezvous, it returns its own alone: then there is no way to the others.
    """
    own = own_facts(world, path=path, num_workers=num_workers)
    if world.launcher == "none" or own.rendezvous not in ("ok", "not set"):
        return [own]
    with process_group(world, torch.device("cpu")):
        return exchange_facts(own)


def own_facts(world: World, *, path: str | None = None, num_workers: int = 0) -> Facts:
    """Collect the facts of this rank."""
    return collect(
        os.environ,
        path=path,
        num_workers=num_workers,
        rank=world.rank,
        world_size=world.world_size,
        local_world_size=world.local_world_size,
        master=world.master,
    )


def exchange_facts(own: Facts) -> list[Facts]:
    """Compare clocks and gather the facts of all ranks, in the process group that is open."""
    offset, error = clock_offset()
    return gather_objects(dataclasses.replace(own, clock_offset=offset, clock_error=error))


def clock_offset(clock: Callable[[], float] = time.time) -> tuple[float, float]:
    """Return how far this rank's clock is ahead of rank 0's, and half of the round trip: it is not more exact.

    As NTP does it (RFC 5905): rank 0 sends, the other answers with its own time, which belongs to the middle of the
    round trip; the shortest of several round trips counts.

    Parameters
    ----------
    clock : callable
        Gives seconds.
    """
    message = torch.zeros(1, dtype=torch.float64)
    result = torch.zeros(dist.get_world_size(), 2, dtype=torch.float64)
    for other in range(1, dist.get_world_size()):
        for number in range(_CLOCK_ROUNDS):
            if dist.get_rank() == 0:
                sent = clock()
                dist.send(message, other)
                dist.recv(message, other)
                half = (clock() - sent) / 2
                if number == 0 or half < float(result[other, 1]):
                    result[other] = torch.tensor([float(message) - sent - half, half], dtype=torch.float64)
            elif dist.get_rank() == other:
                dist.recv(message, 0)
                message[0] = clock()
                dist.send(message, 0)
    dist.broadcast(result, 0)
    offset, half = result[dist.get_rank()].tolist()
    return offset, half
