"""Command lines and environments of training processes. Imports nothing heavy."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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


def training_command(nproc_per_node: int, values: Mapping[str, Any]) -> list[str]:
    """Return the command of one training run with the option values given.

    Parameters
    ----------
    nproc_per_node : int
        Processes; a single one runs without a launcher.
    values : Mapping
        Options by name.
    """
    arguments = []
    for name, value in values.items():
        if isinstance(value, bool):
            arguments.append(option_flag(name if value else f"no_{name}"))
        else:
            arguments.append(f"{option_flag(name)}={value}")
    if nproc_per_node == 1:
        return [sys.executable, "-m", "train", *arguments]
    return torchrun_command(nproc_per_node, arguments)


def launch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with this copy of the project findable, also where it is not installed."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, "PYTHONPATH": ":".join(paths)}
