"""What a training process and its workers use of the host: processor, memory, disk. Linux, from ``/proc``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dataloading.tools import num_cores
from train.launch import process_parents
from train.machine import busy_seconds

__all__ = ["HostMeter", "HostUse"]

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_PSS_SECONDS = 30.0  # the kernel walks all pages for it


@dataclass(frozen=True, kw_only=True)
class HostUse:
    """Use since the reading before.

    Parameters
    ----------
    cpu_pct : float
        Of this process and its workers; 100 is one core.
    machine_pct : float or None
        Of all cores of the machine, by whatever ran; None where the system does not say.
    rss_bytes : int
        Resident memory, shared pages counted once per process.
    pss_bytes : int or None
        Resident memory, shared pages divided among those who share them; None between its readings.
    disk_bytes_per_s : float or None
        Read from the disk; None where the system does not say.
    cache_hit_pct : float or None
        Share of the bytes read that came from the page cache; None if nothing was read.
    """

    cpu_pct: float
    machine_pct: float | None
    rss_bytes: int
    pss_bytes: int | None
    disk_bytes_per_s: float | None
    cache_hit_pct: float | None


@dataclass(frozen=True)
class _Sums:
    seconds: float
    cpu: float
    machine: float | None
    rss: int
    disk: int | None
    read: int


class HostMeter:
    """Reads the use of a process and its descendants.

    Parameters
    ----------
    pid : int, optional
        The process; this one by default.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._last = self._sums()
        self._next_pss = 0.0

    def take(self, mapped_bytes: int = 0) -> HostUse:
        """Return the use since the last call.

        Parameters
        ----------
        mapped_bytes : int
            Bytes read through memory maps meanwhile, which system calls do not count: those of our Loader.
        """
        before, now = self._last, self._sums()
        self._last = now
        seconds = max(now.seconds - before.seconds, 1e-9)
        machine = disk = hit = pss = None
        if now.machine is not None and before.machine is not None:
            machine = 100.0 * (now.machine - before.machine) / seconds / (os.cpu_count() or num_cores())
        if now.disk is not None and before.disk is not None:
            from_disk = max(0, now.disk - before.disk)
            disk = from_disk / seconds
            read = max(0, now.read - before.read) + mapped_bytes
            if read:
                hit = 100.0 * max(0.0, 1.0 - from_disk / read)
        if now.seconds >= self._next_pss:
            pss = sum(map(_pss, self._family()))
            self._next_pss = now.seconds + _PSS_SECONDS
        return HostUse(
            cpu_pct=100.0 * max(0.0, now.cpu - before.cpu) / seconds,
            machine_pct=machine,
            rss_bytes=now.rss,
            pss_bytes=pss,
            disk_bytes_per_s=disk,
            cache_hit_pct=hit,
        )

    def _family(self) -> Iterator[Path]:
        parents = process_parents()
        family = [self._pid]
        for pid in family:  # grows while it is gone through
            family += [child for child, parent in parents.items() if parent == pid]
            yield Path("/proc") / str(pid)

    def _sums(self) -> _Sums:
        cpu, rss, disk, read, told = 0, 0, 0, 0, False
        for folder in self._family():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                cpu += int(fields[11]) + int(fields[12])
                rss += int((folder / "statm").read_text().split()[1]) * _PAGE
                counts = dict(re.findall(r"^(\w+): (\d+)$", (folder / "io").read_text(), re.MULTILINE))
            except (OSError, IndexError, ValueError):
                continue  # it has just ended, or belongs to somebody else
            told = True
            disk += int(counts["read_bytes"])
            read += int(counts["rchar"])
        return _Sums(time.perf_counter(), cpu / _TICKS, busy_seconds(), rss, disk if told else None, read)


def _pss(folder: Path) -> int:
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", (folder / "smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
