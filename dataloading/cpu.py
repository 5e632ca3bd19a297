"""How many cores and how much memory this process has."""

from __future__ import annotations

import os

__all__ = ["memory_bytes", "num_cores"]


def num_cores() -> int:
    """Return how many cores this process may use, which may be fewer than the machine has.

    Examples
    --------
    >>> num_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Return how much memory the machine has.

    Examples
    --------
    >>> memory_bytes() > 0
    True
    """
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
