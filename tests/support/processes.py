"""Processes with a gloo group among them, forked from a server that has imported torch once.

Spawning each anew would take most of a test's time for imports.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

import torch
import torch.distributed as dist

__all__ = ["init", "join", "start"]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["dataloading.loader", "train.trainer", "torch._dynamo", "torch.distributed.fsdp", __name__]
)


def start(target: Callable[..., None], world: int, folder: Path, *args: object) -> list[multiprocessing.Process]:
    """Start ``target(rank, world, folder, *args)`` on `world` processes."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = [
        CONTEXT.Process(target=target, args=(rank, world, folder, *args), daemon=True) for rank in range(world)
    ]
    for process in processes:
        process.start()
    return processes


def join(processes: list[multiprocessing.Process], *, seconds: float = 270.0) -> None:
    """Wait until all have ended well; a machine with much else to do gets nearly as long as pytest allows.

    Where one fails, the others get a moment to say what they know of it.
    """
    until = time.monotonic() + seconds
    running = {process.sentinel for process in processes}
    while running and time.monotonic() < until:
        running -= set(wait(list(running), until - time.monotonic()))
        if any(process.exitcode for process in processes):
            until = min(until, time.monotonic() + 20.0)
    for process in processes:
        process.kill()  # nothing to one that has ended
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)


def init(rank: int, world: int, folder: Path) -> None:
    """Join the gloo group that meets in `folder`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
