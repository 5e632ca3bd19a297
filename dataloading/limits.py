"""How many cores and how much memory this process may use."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cpu_quota", "memory_bytes", "memory_limit", "num_cores", "read_text", "visible_cores"]

_NO_LIMIT = 1 << 60  # version 1 of control groups writes a huge number


def num_cores() -> int:
    """Return how many cores this process may use: those it sees, or fewer by the CPU quota of its control groups.

    A part of a core counts as a whole one.

    Examples
    --------
    >>> num_cores() >= 1
    True
    """
    quota = cpu_quota()
    return visible_cores() if quota is None else min(visible_cores(), math.ceil(quota))


def visible_cores() -> int:
    """Return how many cores this process may run on, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the smallest limit of CPU time of this process's control groups, in cores; None: no limit.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.
    """
    limits = []
    for folder in _control_groups("cpu", root):
        quota, _, period = read_text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
        if _number(quota) and _number(period):
            limits.append(_number(quota) / _number(period))
    return min(limits, default=None)


def memory_bytes() -> int:
    """Return how much memory this process may use: the machine's, or less by its control groups (Docker, SLURM).

    Examples
    --------
    >>> memory_bytes() > 0
    True
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit()
    return machine if limit is None else min(machine, limit)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the smallest memory limit of this process's control groups, in bytes; None: no limit.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.
    """
    return min(
        (
            limit
            for folder in _control_groups("memory", root)
            for name in ("memory.max", "memory.high", "memory.limit_in_bytes")
            if 0 < (limit := _number(read_text(folder / name))) < _NO_LIMIT
        ),
        default=None,
    )


def _control_groups(controller: str, root: Path) -> Iterator[Path]:
    """Give the folders of this process's control group and of those around it, versions 2 and 1."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if not controllers:
            tops = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            tops = [root / "sys/fs/cgroup" / each for each in (controllers, controller)]
        else:
            continue
        # In a container the name may be that of the machine outside: then only the top is there.
        parts = [part for part in name.split("/") if part not in ("", "..")]
        for top in tops:
            for depth in range(len(parts), -1, -1):
                yield top.joinpath(*parts[:depth])


def _number(text: str) -> int:
    """Return a number; 0 for "max", -1, or no text."""
    return int(text) if text.isascii() and text.isdigit() else 0


def read_text(path: Path) -> str:
    """Return a file's text without white space at its ends; nothing if it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""
