"""Connects the processes of a run, and reports the ranks that are missing.

Rank 0 serves a store at ``MASTER_ADDR:MASTER_PORT``, in which ranks register.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # not in __all__, but documented

from dataloading import UsageError
from dataloading.messages import counted

LIMIT = timedelta(minutes=10)
FIRST_REPORT_SECONDS, NEXT_REPORT_SECONDS = 10.0, 60.0


def first_node(nodes: str) -> str:
    """Return the first host of a SLURM node list, as ``scontrol show hostnames`` gives it.

    Raises
    ------
    UsageError
        It is not a node list.

    Examples
    --------
    >>> first_node("rack[1-2]node[03-04,07],login"), first_node("cn[01-04]-ib"), first_node("[1-3]x")
    ('rack1node03', 'cn01-ib', '1x')
    """
    # Commas inside brackets separate numbers, commas outside separate names; a name may have several brackets.
    entry = re.match(r"(?:[^\s,\[\]]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+(?=,|$)", nodes.strip())
    if entry is None:
        raise UsageError(f"the SLURM node list {nodes!r} cannot be read; set MASTER_ADDR to the host of the first task")
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", entry.group())


def check_started_by_srun(environ: Mapping[str, str], num_tasks: int) -> None:
    """Refuse a SLURM job of several tasks that was started without srun: the other ranks would never connect.

    Raises
    ------
    UsageError
        This process does not belong to a SLURM step.
    """
    if not any(name.startswith("SLURM_STEP") for name in environ):
        raise UsageError(
            f"this SLURM job has {num_tasks} tasks, but srun did not start this process, so the others never connect: "
            f"use `srun beton train ...`, or on one node `beton train --nproc-per-node {num_tasks} ...`"
        )


def wait_for_ranks(host: str, port: int, *, rank: int, world_size: int, speaks: bool, at_once: bool = False) -> Store:
    """Wait until every rank has connected, and report which ranks are missing meanwhile.

    Parameters
    ----------
    host, port
        Address of rank 0.
    rank, world_size : int
        This process's rank and the number of ranks.
    speaks : bool
        Whether this process reports that it cannot reach rank 0. (Rank 0 reports missing ranks.)
    at_once : bool
        Report immediately that this rank waits for others.

    Returns
    -------
    torch.distributed.Store
        For `init_process_group`.

    Raises
    ------
    UsageError
        The port is in use, the host is unknown or unreachable, or ranks did not connect in time.
    """
    place = f"{host}:{port}"
    if rank == 0 and at_once:
        _say(f"rank 0 waits for {counted(world_size - 1, 'more process')} at {place}")
    store = _listen(host, port, world_size) if rank == 0 else _connect(host, port, rank, world_size, speaks)
    store.set(f"here/{rank}", "")
    store.add("come", 1)

    def missing() -> str:
        absent = [number for number in range(world_size) if not store.check([f"here/{number}"])]
        shown = ", ".join(map(str, absent[:20])) + (", ..." if len(absent) > 20 else "")
        return f"{counted(len(absent), 'process')} of {world_size} not connected yet to {place}: rank {shown}"

    _wait(lambda: store.add("come", 0) >= world_size, missing, speaks=rank == 0)
    return store


def store_after_restart(environ: Mapping[str, str], restart: str) -> Store:
    """Return a part of torchrun's store that the processes before the restart have not written to.

    The store lives on after a restart, with the addresses of the processes that have ended.
    """
    agent = TCPStore(environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), is_master=False, timeout=LIMIT)
    return PrefixStore(f"beton restart {restart}", agent)


def _listen(host: str, port: int, world_size: int) -> TCPStore:
    try:
        # The server listens on all interfaces, so this process can use the local address.
        return TCPStore("localhost", port, world_size, True, timeout=LIMIT, wait_for_workers=False)
    except RuntimeError as error:
        if "in use" not in str(error) and "EADDRINUSE" not in str(error):
            raise
        raise UsageError(
            f"port {port} of {host} is in use, perhaps by another run: set MASTER_PORT to a free one"
        ) from error


def _connect(host: str, port: int, rank: int, world_size: int, speaks: bool) -> TCPStore:
    trouble = ""

    def reached() -> bool:
        nonlocal trouble
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError as error:
            trouble = str(error)
            return False
        return True

    # Try a Python socket first: the store's own attempts can neither be interrupted nor report anything.
    _wait(
        reached, lambda: f"rank {rank} cannot reach rank 0 at MASTER_ADDR {host}:{port} yet ({trouble})", speaks=speaks
    )
    try:
        return TCPStore(host, port, world_size, False, timeout=LIMIT, wait_for_workers=False)
    except RuntimeError as error:
        raise UsageError(f"the server at {host}:{port} is not rank 0 of this run: {error}") from error


def _wait(done: Callable[[], bool], report: Callable[[], str], *, speaks: bool) -> None:
    began = time.monotonic()
    due = began + FIRST_REPORT_SECONDS
    pause = 0.01
    while not done():
        now = time.monotonic()
        if now - began > LIMIT.total_seconds():
            raise UsageError(f"{report()}; gave up after {LIMIT.total_seconds():.0f} s")
        if now >= due:
            due = now + NEXT_REPORT_SECONDS
            if speaks:
                _say(report())
        time.sleep(pause)
        pause = min(0.2, pause * 1.5)


def _say(text: str) -> None:
    sys.stderr.write(f"beton: {text}\n")
    sys.stderr.flush()


def rendezvous_address(environ: Mapping[str, str], master: str) -> tuple[str, int] | None:
    """Return the address of rank 0, or None if torchrun's agent serves the store.

    Raises
    ------
    UsageError
        The environment does not define it, or the port is not a number.
    """
    if not master:
        if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return None
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if not environ.get(name):
                raise UsageError(f"RANK and WORLD_SIZE are set, but {name} is not: the ranks connect there")
        master = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    host, _, port = master.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"MASTER_PORT is {port!r}; expected a number from 1 to 65535")
    return host, int(port)
