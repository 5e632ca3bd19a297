"""Command lines and environments of training processes. Imports nothing heavy."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any


def option_flag(name: str) -> str:
    """Return the command-line spelling of an option.

    Examples
    --------
    >>> option_flag("batch_size")
    '--batch-size'
    """
    return "--" + name.replace("_", "-")


def torchrun_command(nproc_per_node: int, arguments: list[str]) -> list[str]:
    """Return the command that runs ``python -m train`` in so many processes on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc_per_node}"]
    return [*launcher, "-m", "train", *arguments]


def training_arguments(values: Mapping[str, Any]) -> list[str]:
    """Return the words that give the option values.

    Examples
    --------
    >>> training_arguments({"batch_size": 8, "scale_lr": False})
    ['--batch-size=8', '--no-scale-lr']
    """
    arguments = []
    for name, value in values.items():
        if isinstance(value, bool):
            arguments.append(option_flag(name if value else f"no_{name}"))
        else:
            arguments.append(f"{option_flag(name)}={value}")
    return arguments


def run_local_processes(command: list[str], num_processes: int, environ: Mapping[str, str], stream: IO[str]) -> int:
    """Run a command as every rank of a small job on this machine, and wait for it.

    What torchrun does, without its restarts and its own import of torch, which would take longer than some of the
    runs that are compared. When a rank fails, the others are ended.

    Parameters
    ----------
    command : list of str
        The same for all ranks, which tell themselves apart by RANK.
    num_processes : int
        With one, no RANK is set: the process is by itself.
    environ : Mapping
        Environment of all.
    stream : file
        Takes the output of all.

    Returns
    -------
    int
        0, or the status of the first that failed.
    """
    places: list[dict[str, str]] = [{}]
    if num_processes > 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_processes)}
        common |= {"LOCAL_WORLD_SIZE": str(num_processes), "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", "1")}
        places = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_processes)]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for place in places:
            environment = {**environ, **place}
            children.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
                )
            )
        while True:
            statuses = [child.poll() for child in children]
            failed = [status for status in statuses if status]
            if failed:
                return failed[0]
            if None not in statuses:
                return 0
            time.sleep(0.05)
    finally:
        for child in children:
            if child.poll() is None:
                child.terminate()
        for child in children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def launch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with this copy of the project findable, also where it is not installed."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, "PYTHONPATH": ":".join(paths)}
