"""What one image costs, stage by stage: a model of the measured values, and its arithmetic in words.

Per training process and image, workers spend `decode + transform` seconds, on as many cores as there are workers or as
the process may use, whichever is less. Images that are not in the page cache are read from the disk, at random with
``shuffle="global"``, in order else. Disk, workers, copies and the device work at the same time: the slowest of these
stages bounds the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .measurements import Measurements

__all__ = [
    "Budget",
    "arithmetic",
    "budgets",
    "fits_into_memory",
    "missing_share",
    "rates",
    "sequential_seconds",
    "shown",
]

_NO_LIMIT = 1e6


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What one image costs one process, in seconds.

    Parameters
    ----------
    decode, transform : float
        Of a worker.
    workers, cores : float
        Workers, and cores that they get.
    read : float
        Of the disk.
    serial : float
        Of the transforms that one worker at a time can run.
    callables : float
        Of the caller's thread.
    copy : float
        To the device.
    device : float
        Of the device; 0 where its rate is not known.
    """

    decode: float
    transform: float
    workers: float
    cores: float
    read: float = 0.0
    serial: float = 0.0
    callables: float = 0.0
    copy: float = 0.0
    device: float = 0.0

    @property
    def work(self) -> float:
        """Seconds per image of all workers together."""
        return (self.decode + self.transform) / min(self.workers, self.cores)

    @property
    def loader(self) -> float:
        """Seconds per image of the Loader."""
        return max(self.work, self.read, self.serial)

    @property
    def feed(self) -> float:
        """Seconds per image until it is on the device."""
        return max(self.loader, self.callables, self.copy)

    @property
    def step(self) -> float:
        """Seconds per image of the whole."""
        return max(self.feed, self.device)

    def gain(self, **changes: float) -> float:
        """Return how many times faster the whole would be with other parts, at most a million."""
        other = replace(self, **changes).step
        return min(_NO_LIMIT, self.step / other) if other > 0 else _NO_LIMIT


def shown(value: float) -> str:
    """Write a rate with three digits or more.

    Examples
    --------
    >>> shown(12345.6), shown(12.345), shown(0.01234)
    ('12,346', '12.3', '0.0123')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def budgets(measured: Measurements) -> tuple[Budget, Budget]:
    """Return what an image costs in the first epoch, and in later ones."""
    work, setup = measured.work, measured.setup
    bandwidth, rate = measured.transfer_bytes_per_second, measured.device_rate
    first = Budget(
        decode=work.decode_seconds,
        transform=work.transform_seconds,
        workers=setup.num_workers,
        cores=measured.machine.usable_cores / setup.num_processes,
        read=missing_share(measured, first=True) * _read_seconds(measured),
        serial=work.serial_seconds,
        # Measured on the host: a device whose rate is given runs them itself.
        callables=0.0 if rate and not bandwidth else work.callable_seconds,
        copy=work.output_bytes / bandwidth if bandwidth else 0.0,
        device=1.0 / rate if rate else 0.0,
    )
    return first, replace(first, read=missing_share(measured, first=False) * _read_seconds(measured))


def _read_seconds(measured: Measurements) -> float:
    """Return the seconds that the disk needs for an image of one process; 0 where they are not known."""
    disk, share = measured.disk, measured.setup.num_processes
    if measured.setup.shuffle == "global":
        return share / disk.random_reads_per_second if disk.random_reads_per_second else 0.0
    return sequential_seconds(measured)


def sequential_seconds(measured: Measurements) -> float:
    """Return the seconds of an image of one process when the files are read in order; 0 where they are not known."""
    rate = measured.disk.sequential_bytes_per_second
    return measured.setup.num_processes * measured.file.image_bytes / rate if rate else 0.0


def fits_into_memory(measured: Measurements) -> bool:
    """Return whether the page cache can hold all files; True where the memory is not known."""
    return measured.file.num_bytes <= (measured.machine.memory_bytes or math.inf)


def missing_share(measured: Measurements, *, first: bool) -> float:
    """Return the share of the images that must come from the disk: in the first epoch, or in later ones."""
    memory, size = measured.machine.memory_bytes, measured.file.num_bytes
    too_large = 0.0 if fits_into_memory(measured) else 1.0 - memory / size
    cached = measured.disk.cached_share
    return max(too_large, 1.0 - cached) if first and cached is not None else too_large


def rates(first: Budget, later: Budget) -> dict[str, float]:
    """Return the images per second and process that each stage allows, and the run gets."""
    stages = {
        "disk": later.read,
        "workers": later.work,
        "serial transforms": later.serial,
        "loader": later.loader,
        "callables": later.callables,
        "copy to the device": later.copy,
        "device": later.device,
        "run": later.step,
    }
    if first.read != later.read:
        first_epoch = {"disk": first.read, "loader": first.loader, "run": first.step}
        stages |= {f"{name}, first epoch": seconds for name, seconds in first_epoch.items()}
    return {name: 1.0 / seconds for name, seconds in stages.items() if seconds > 0}


def arithmetic(measured: Measurements, first: Budget, later: Budget) -> list[str]:
    """Return the model's numbers, one stage a line."""
    work, setup = measured.work, measured.setup
    lines = []
    for budget, epoch in _epochs(first, later):
        if budget.read > 0:
            missing = missing_share(measured, first=budget is first)
            lines.append(
                f"disk{epoch}: {missing:.0%} of the images are not in memory; {missing:.2f} x "
                f"{_read_seconds(measured) * 1e3:.3g} ms = {_ms(budget.read)}"
            )
    budget = later
    pace = min(budget.workers, budget.cores)
    used = "worker" if budget.workers <= budget.cores else "core"
    used += "" if pace == 1 else "s"
    lines.append(
        f"workers: ({work.decode_seconds * 1e3:.3g} ms decode + {work.transform_seconds * 1e3:.3g} ms transform) / "
        f"{pace:.3g} {used} = {_ms(budget.work)}"
    )
    if budget.serial > 0:
        lines.append(f"serial transforms: one worker at a time, {_ms(budget.serial)}")
    for each, epoch in _epochs(first, later):
        if each.read > 0:
            lines.append(f"loader{epoch}: the slower of the two, as the disk reads ahead = {_ms(each.loader)}")
    if budget.callables > 0:
        lines.append(f"callables: in the caller's thread, {_ms(budget.callables)}")
    if budget.copy > 0:
        lines.append(
            f"copy: {work.output_bytes / 1e3:,.0f} kB / {(measured.transfer_bytes_per_second or 0) / 1e9:.3g} GB/s = "
            f"{_ms(budget.copy)}"
        )
    if budget.device > 0:
        lines.append(f"device ({measured.device_source or 'given'}): {_ms(budget.device)}")
    lines.append(f"the slowest stage decides: {_ms(budget.step)} per process")
    if setup.num_processes > 1:
        lines.append(f"{setup.num_processes} processes share {measured.machine.usable_cores:g} cores and the disk")
    return lines


def _epochs(first: Budget, later: Budget) -> list[tuple[Budget, str]]:
    return [(later, "")] if first.read == later.read else [(first, ", first epoch"), (later, ", later epochs")]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms an image ({shown(1 / seconds)} images/s)"
