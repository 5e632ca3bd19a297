"""What the system lets this process use: cores, CPU quota and memory, read from ``/proc`` and ``/sys`` (Linux).

Every function takes the root folder of these trees, so that tests can give one of their own.
"""

from __future__ import annotations

import re
from pathlib import Path

from dataloading.tools import cpu_quota, memory_limit, read_text, visible_cores

from .measurements import Machine

__all__ = ["ROOT", "machine", "memory_bytes"]

ROOT = Path("/")


def memory_bytes(root: Path = ROOT) -> int:
    """Return how much memory the page cache can grow into: what is available, or less by the control groups."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", read_text(root / "proc/meminfo"), re.MULTILINE)
    available = int(match[1]) * 1024 if match else 0
    limit = memory_limit(root)
    return available if limit is None else min(available, limit)


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
        cores=cores or visible_cores(), quota=cpu_quota(root), memory_bytes=memory_bytes(root), busy_cores=busy_cores
    )
