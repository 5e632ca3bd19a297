"""What the system lets this process use: cores, CPU quota and memory, read from ``/proc`` and ``/sys`` (Linux).

Every function takes the root folder of these trees, so that tests can give one of their own.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from dataloading.tools import num_cores

from .measurements import Machine

__all__ = ["ROOT", "cpu_quota", "machine", "memory_bytes", "read_text"]

ROOT = Path("/")
_NO_LIMIT = 1 << 60  # version 1 of control groups writes a huge number


def read_text(path: Path) -> str:
    """Return a file's text without white space at its ends; nothing if it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Give the folders of this process's control group and of those around it, versions 2 and 1."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
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


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the smallest limit of CPU time, in cores, of the control groups of this process; None: no limit."""
    limits = []
    for folder in _control_groups(root, "cpu"):
        quota, _, period = read_text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_bytes(root: Path = ROOT) -> int:
    """Return how much memory the page cache can grow into: what is available, or less by the control groups."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", read_text(root / "proc/meminfo"), re.MULTILINE)
    available = int(match[1]) * 1024 if match else 0
    limits = [
        int(text)
        for folder in _control_groups(root, "memory")
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes")
        if (text := read_text(folder / name)).isdigit() and int(text) < _NO_LIMIT
    ]
    return min([available, *limits])


def machine(root: Path = ROOT, *, cores: int | None = None, busy_cores: float = 0.0) -> Machine:
    """Return what this process may use.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.
    cores : int, optional
        By default those of its affinity.
    busy_cores : float
        Cores that others used while measuring.
    """
    return Machine(
        cores=cores or num_cores(), quota=cpu_quota(root), memory_bytes=memory_bytes(root), busy_cores=busy_cores
    )
