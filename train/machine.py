"""Describes the machine, installed versions, and the resources of a process group, from ``/proc`` (Linux only)."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dataloading.tools import num_cores

__all__ = ["Memory", "busy_seconds", "cpu_of_group", "hardware", "hardware_slug", "memory_of_group", "versions"]

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def hardware() -> dict[str, object]:
    """Return the CPU, the cores this process may use, memory in GiB and the kernel, for the head of a report."""
    model = platform.processor() or platform.machine()
    memory = 0.0
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        match = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
        memory = int(match[1]) / 2**20 if match else 0.0
    except OSError:
        pass
    return {
        "cpu": model,
        "cores": num_cores(),
        "memory_gib": round(memory, 1),
        "kernel": ".".join(platform.release().split(".")[:2]),
    }


def hardware_slug(machine: dict[str, object]) -> str:
    """Return a short name for file names, such as ``epyc-2core``.

    Examples
    --------
    >>> hardware_slug({"cpu": "AMD EPYC 7B13 64-Core Processor", "cores": 2})
    'epyc-2core'
    """
    words = [word for word in re.findall(r"[a-z0-9]+", str(machine["cpu"]).lower()) if word not in _NOISE]
    family = next((word for word in words if word in _FAMILIES), words[0] if words else "cpu")
    return f"{family}-{machine['cores']}core"


_NOISE = {"amd", "intel", "r", "tm", "cpu", "processor", "core"}
_FAMILIES = ("epyc", "xeon", "ryzen", "threadripper", "graviton", "ampere", "neoverse", "grace")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


class Memory(NamedTuple):
    """Memory of a process group.

    Parameters
    ----------
    own_bytes : int
        Anonymous memory, shared or not, each page counted once.
    mapped_bytes : int
        Their share of mapped file pages: page cache, which all processes share and the system can reclaim.
    """

    own_bytes: int
    mapped_bytes: int


def _processes(group: int) -> Iterator[tuple[Path, list[str]]]:
    """Yield each process of a group: its folder in ``/proc``, and the fields of its ``stat`` from the state on."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The command's name may contain spaces and parentheses, so fields are counted from its last ")".
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if len(fields) > 14 and int(fields[2]) == group:
            yield entry, fields


def cpu_of_group(group: int) -> float:
    """Return the CPU seconds of a process group so far, including children it has waited for."""
    return sum(sum(map(int, fields[11:15])) for _, fields in _processes(group)) / _TICKS


def memory_of_group(group: int) -> Memory:
    """Return the memory of a process group, by proportional set size."""
    own = mapped = 0
    for entry, _ in _processes(group):
        try:
            rollup = (entry / "smaps_rollup").read_text()
        except OSError:
            continue
        sizes = {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB", rollup, re.MULTILINE)}
        own += sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0)
        mapped += sizes.get("Pss_File", 0)
    return Memory(own, mapped)


def busy_seconds() -> float | None:
    """Return the CPU seconds of all processes since the machine started, or None."""
    try:
        fields = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    # Stolen time counts: another guest used the core while we needed it.
    return (user + nice + system + irq + softirq + steal) / _TICKS
