"""From measured values to what bounds the run: arithmetic on the time one image costs. Pure functions.

The model, per training process and image: workers spend `decode + transform` seconds, on as many cores as there are
workers or as the process may use, whichever is less. Images that are not in the page cache are read from the disk: with
``shuffle="global"`` a worker waits for each read, so that this time is added; with ``shuffle="pages"`` pages are read
ahead, so that only the larger of the two counts. Copies and the device work at the same time as the workers. The
slowest of these stages bounds the run.

Each cause is judged by what training would gain without it: its part is taken out of the model, which is solved again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dataloading.messages import counted, human_bytes

from .findings import NOTE, PROBLEM, Finding, Level, in_order, problems
from .measurements import Measurements

__all__ = ["Budget", "Diagnosis", "judge", "shown"]

_WORTH_SAYING = 1.05
# Augmentation that costs this many times the decoding is not what the transforms of this package cost.
_SLOW_TRANSFORM = 4.0
# A first epoch that waits so little for the disk is no problem.
_SHORT_READ_SECONDS = 10.0


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
    reads_ahead : bool
        Whether reading and working overlap.
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
    reads_ahead: bool = False
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
        ready = max(self.work, self.read) if self.reads_ahead else self.work + self.read
        return max(ready, self.serial)

    @property
    def feed(self) -> float:
        """Seconds per image until it is on the device."""
        return max(self.loader, self.callables, self.copy)

    @property
    def step(self) -> float:
        """Seconds per image of the whole."""
        return max(self.feed, self.device)

    def gain(self, **changes: float) -> float:
        """Return how many times faster the whole would be with other parts."""
        other = replace(self, **changes).step  # type: ignore[arg-type]
        return self.step / other if other > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What bounds the run, and why.

    Parameters
    ----------
    cause : str
        Name of what bounds the run: the first finding's, or ``device``.
    verdict : str
        The same as a sentence.
    rates : dict of str to float
        Images per second and process that each stage allows.
    arithmetic : list of str
        How they were computed.
    findings : list of Finding
        The most useful first.
    """

    cause: str
    verdict: str
    rates: dict[str, float]
    arithmetic: list[str]
    findings: list[Finding]


def shown(value: float) -> str:
    """Write a rate with three digits or more.

    Examples
    --------
    >>> shown(12345.6), shown(12.345), shown(0.01234)
    ('12,346', '12.3', '0.0123')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def judge(measured: Measurements) -> Diagnosis:
    """Say what bounds the run, with the arithmetic, and what to change."""
    first, later = _budgets(measured)
    found = [] if first.device >= first.feed else _disk(measured, first)
    if later.feed > later.device:
        found += _causes(measured, later, PROBLEM if later.device else NOTE)
    worth = [finding for finding in found if finding.gain >= _WORTH_SAYING]
    # Two equal stages: taking either away alone gains nothing.
    found = in_order(worth or found[:1])
    by_device = later.feed <= later.device and not problems(found)
    cause = "device" if by_device else found[0].name
    return Diagnosis(
        cause=cause,
        verdict=_verdict(first, later, None if by_device else found[0]),
        rates=_rates(first, later),
        arithmetic=_arithmetic(measured, first, later),
        findings=[*found, *_headroom(later), *_contention(measured, later)],
    )


def _budgets(measured: Measurements) -> tuple[Budget, Budget]:
    """Return what an image costs in the first epoch, and in later ones."""
    work, setup = measured.work, measured.setup
    bandwidth, rate = measured.transfer_bytes_per_second, measured.device_rate
    reads_ahead = setup.shuffle != "global"
    first = Budget(
        decode=work.decode_seconds,
        transform=work.transform_seconds,
        workers=setup.num_workers,
        cores=measured.machine.usable_cores / setup.num_processes,
        read=_missing(measured, first=True) * _read_seconds(measured),
        reads_ahead=reads_ahead,
        serial=work.serial_seconds,
        # Measured on the host: a device whose rate is given runs them itself.
        callables=0.0 if rate and not bandwidth else work.callable_seconds,
        copy=work.output_bytes / bandwidth if bandwidth else 0.0,
        device=1.0 / rate if rate else 0.0,
    )
    return first, replace(first, read=_missing(measured, first=False) * _read_seconds(measured))


def _read_seconds(measured: Measurements) -> float:
    """Return the seconds that the disk needs for an image of one process; 0 where they are not known."""
    disk, share = measured.disk, measured.setup.num_processes
    if measured.setup.shuffle == "global":
        return share / disk.random_reads_per_second if disk.random_reads_per_second else 0.0
    return _sequential_seconds(measured)


def _sequential_seconds(measured: Measurements) -> float:
    rate = measured.disk.sequential_bytes_per_second
    return measured.setup.num_processes * measured.file.image_bytes / rate if rate else 0.0


def _missing(measured: Measurements, *, first: bool) -> float:
    """Return the share of the images that must come from the disk: in the first epoch, or in later ones."""
    too_large = max(0.0, 1.0 - measured.machine.memory_bytes / max(1, measured.file.num_bytes))
    cached = measured.disk.cached_share
    return max(too_large, 1.0 - cached) if first and cached is not None else too_large


def _rates(first: Budget, later: Budget) -> dict[str, float]:
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


def _verdict(first: Budget, later: Budget, found: Finding | None) -> str:
    if found is None:
        return (
            f"The device bounds the run: it takes {shown(1 / later.device)} images/s, and the loader can deliver "
            f"{shown(1 / later.feed)}."
        )
    text = f"{found.what} The run gets {shown(1 / later.step)} images/s per process"
    if first.step > _WORTH_SAYING * later.step:
        text += f" ({shown(1 / first.step)} in the first epoch)"
    if later.device:
        text += f", which keeps the device busy {later.device / later.step:.0%} of the time"
    return f"{text}."


def _causes(measured: Measurements, budget: Budget, usual: Level) -> list[Finding]:
    hops = [_decode(measured, budget, usual), *_transform(measured, budget, usual)]
    if budget.transform > budget.decode:
        hops.reverse()  # among equal gains the larger hop comes first
    return [*_quota(measured, budget), *_workers(measured, budget), *hops, *_caller(measured, budget)]


def _quota(measured: Measurements, budget: Budget) -> list[Finding]:
    machine, setup = measured.machine, measured.setup
    wanted = min(machine.cores, setup.num_workers * setup.num_processes)
    if machine.quota is None or machine.quota >= wanted:
        return []
    return [
        Finding(
            name="cpu-quota",
            what=(
                f"The control group grants {machine.quota:g} cores of CPU time to {counted(wanted, 'worker')}: they "
                f"are stopped for most of each period."
            ),
            measured=f"quota {machine.quota:g} cores, {counted(machine.cores, 'core')} visible",
            expected=f"a quota of {wanted} cores or none",
            advice=(
                "Raise the limit (docker run --cpus, Kubernetes limits.cpu, the batch system's cores per task). Until "
                f"then use num_workers={max(1, int(budget.cores))}."
            ),
            gain=budget.gain(cores=machine.cores / setup.num_processes),
        )
    ]


def _workers(measured: Measurements, budget: Budget) -> list[Finding]:
    best = int(budget.cores)
    if measured.setup.num_workers >= best:
        return []
    return [
        Finding(
            name="workers",
            what=(
                f"Too few workers: {counted(measured.setup.num_workers, 'worker')} use "
                f"{measured.setup.num_workers} of the {counted(best, 'core')} of this process."
            ),
            measured=f"num_workers={measured.setup.num_workers}",
            expected=f"num_workers={best}",
            advice=f"Set num_workers={best}, or leave it out: the Loader then takes the process's share of the cores.",
            gain=budget.gain(workers=best),
        )
    ]


def _disk(measured: Measurements, budget: Budget) -> list[Finding]:
    if budget.read <= 0:
        return []
    file, setup, machine = measured.file, measured.setup, measured.machine
    missing, fits = _missing(measured, first=True), file.num_bytes <= machine.memory_bytes
    sequential = _sequential_seconds(measured)
    gain = budget.gain(read=0.0)
    measured_text = f"{missing:.0%} of {human_bytes(file.num_bytes)} is not in memory; {_speeds(measured)}"
    needed = max(replace(budget, read=0.0).feed, budget.device)
    if sequential <= 0 or missing * sequential > needed:
        when = "in the first epoch" if fits else "in every epoch, as the file is larger than memory"
        rate = f"{file.image_bytes * setup.num_processes / needed / 1e6:,.0f} MB/s"
        return [
            Finding(
                name="storage",
                what=f"The disk is slow: even reading in order takes longer than the work on the images, {when}.",
                measured=measured_text,
                expected=f"{rate} for {shown(1 / needed)} images/s per process",
                advice=(
                    "Copy the file to a local SSD, or use cache_dir=; store fewer bytes per image "
                    "(beton convert --max-resolution, JPEG instead of raw)."
                ),
                gain=gain,
            )
        ]
    if fits:
        seconds = missing * file.num_bytes * sequential / setup.num_processes / max(1.0, file.image_bytes)
        return [
            Finding(
                name="cold-cache",
                what="The file is not in the page cache: workers wait for the disk in the first epoch.",
                measured=measured_text,
                expected="a file that is in memory when training begins",
                advice=(
                    f"Read it once beforehand (cat {file.path} > /dev/null: about {seconds:.0f} s), or start with "
                    f'shuffle="pages", which reads ahead. Later epochs come from memory.'
                ),
                level=PROBLEM if seconds > _SHORT_READ_SECONDS else NOTE,
                gain=gain,
            )
        ]
    return [
        Finding(
            name="random-reads",
            what="The file is larger than memory and is read in random order: workers wait for single reads.",
            measured=measured_text,
            expected=f"reads in order, {shown(1 / sequential)} images/s per process",
            advice=(
                'Use shuffle="pages", which reads pages ahead and shuffles within a window of them; or store fewer '
                "bytes per image (beton convert --max-resolution); or a machine with more memory."
            ),
            gain=budget.gain(read=missing * sequential, reads_ahead=True),
        )
    ]


def _speeds(measured: Measurements) -> str:
    disk = measured.disk
    parts = []
    if disk.sequential_bytes_per_second:
        parts.append(f"in order {disk.sequential_bytes_per_second / 1e6:,.0f} MB/s")
    if disk.random_reads_per_second:
        parts.append(f"at random {shown(disk.random_reads_per_second)} images/s")
    return ", ".join(parts) or "speed unknown"


def _transform(measured: Measurements, budget: Budget, usual: Level) -> list[Finding]:
    work = measured.work
    if work.transform_seconds <= 0:
        return []
    serial = work.serial_seconds > 0 and budget.loader <= work.serial_seconds
    slow = serial or work.transform_seconds > _SLOW_TRANSFORM * work.decode_seconds
    slowest = max(work.by_transform, key=lambda name: work.by_transform[name], default="")
    named = f"; the slowest is {slowest}, {work.by_transform[slowest] * 1e3:.3g} ms" if slowest else ""
    if serial:
        advice = (
            "Its Python code runs in one worker at a time, so more workers do not help: replace it with a transform of "
            "dataloading.transforms, or compile it (@T.transform), or do it on the device."
        )
    else:
        advice = f"Use a cheaper transform for it, or do it on the device{_place(measured)}. {_more_cores(budget)}"
    return [
        Finding(
            name="transform",
            what=(
                f"Transforms take {budget.transform * 1e3:.3g} ms an image, {_share(budget.transform, budget)} of the "
                f"work on it{named}."
            ),
            measured=f"transform {work.transform_seconds * 1e3:.3g} ms, decode {work.decode_seconds * 1e3:.3g} ms",
            expected=f"at most {_allowed(budget)} ms for decode and transform together" if budget.device else "less",
            advice=advice.strip(),
            level=PROBLEM if slow else usual,
            gain=budget.gain(transform=0.0, serial=0.0),
        )
    ]


def _share(part: float, budget: Budget) -> str:
    return f"{part / (budget.decode + budget.transform):.0%}"


def _place(measured: Measurements) -> str:
    return "" if measured.setup.on_device else ' (place="device" moves normalising, flips and colours there)'


def _allowed(budget: Budget) -> str:
    return f"{budget.device * min(budget.workers, budget.cores) * 1e3:.3g}"


def _more_cores(budget: Budget) -> str:
    if not budget.device:
        return ""
    needed = math.ceil((budget.decode + budget.transform) / budget.device)
    return f"Or give each process {counted(needed, 'core')} (now {budget.cores:.3g})." if needed > budget.cores else ""


def _decode(measured: Measurements, budget: Budget, usual: Level) -> Finding:
    file, size = measured.file, measured.setup.image_size
    if file.raw_share > 0.5:
        advice = "Store smaller images (beton convert --max-resolution)."
    elif file.shorter_side > 1.5 * size:
        advice = (
            f"Images are stored at {file.shorter_side:.0f} px and used at {size}: store smaller ones "
            f"(beton convert --max-resolution {2 * size}), or pixels (raw mode) if the disk has room."
        )
    else:
        advice = "Store pixels (raw mode) if disk and memory have room."
    return Finding(
        name="decode",
        what=(
            f"Decoding takes {budget.decode * 1e3:.3g} ms an image, {_share(budget.decode, budget)} of the work on it."
        ),
        measured=f"decode {budget.decode * 1e3:.3g} ms, transform {budget.transform * 1e3:.3g} ms",
        expected=f"at most {_allowed(budget)} ms for both together" if budget.device else "less",
        advice=f"{advice} {_more_cores(budget)}".strip(),
        level=usual,
        gain=budget.gain(decode=0.0),
    )


def _caller(measured: Measurements, budget: Budget) -> list[Finding]:
    found = []
    if budget.callables > 0:
        found.append(
            Finding(
                name="callables",
                what="Callables on finished batches run in the training loop's thread, where workers do not help.",
                measured=f"{budget.callables * 1e3:.3g} ms an image",
                expected="transforms of dataloading.transforms, which workers run",
                advice="Replace them with transforms of dataloading.transforms, or call them on the device.",
                level=PROBLEM if measured.transfer_bytes_per_second else NOTE,
                gain=budget.gain(callables=0.0),
            )
        )
    if budget.copy > 0:
        size = measured.work.output_bytes
        pixels = 3 * measured.setup.image_size**2
        advice = (
            'Copy uint8 and normalise on the device: place="device" on the Loader.'
            if size > 1.5 * pixels
            else "Check the link of the device (PCIe width and generation), or use smaller images."
        )
        found.append(
            Finding(
                name="copy",
                what="Copies to the device take longer than everything else.",
                measured=f"{size / 1e3:,.0f} kB an image at {(measured.transfer_bytes_per_second or 0) / 1e9:.3g} GB/s",
                expected=f"{pixels / 1e3:,.0f} kB an image as uint8",
                advice=advice,
                gain=budget.gain(copy=0.0),
            )
        )
    return found


def _headroom(budget: Budget) -> list[Finding]:
    if not budget.feed <= budget.device < 1.2 * budget.feed:
        return []
    return [
        Finding(
            name="headroom",
            what="The loader only just keeps up with the device: other load on the machine will be felt.",
            measured=f"loader {shown(1 / budget.feed)} images/s, device {shown(1 / budget.device)}",
            expected="a loader that could deliver a fifth more than the device takes",
            advice="Use the advice of docs/doctor.md for the slowest stage of the loader, or more cores.",
            level=NOTE,
        )
    ]


def _contention(measured: Measurements, later: Budget) -> list[Finding]:
    if measured.loader_rate is None or measured.loader_rate > 0.5 / replace(later, read=0.0).loader:
        return []
    return [
        Finding(
            name="contention",
            what="The Loader reached less than half of what its parts promise: something else uses the cores.",
            measured=(
                f"{shown(measured.loader_rate)} images/s; other processes used "
                f"{measured.machine.busy_cores:.1f} of {counted(measured.machine.cores, 'core')}"
            ),
            expected=f"{shown(1 / replace(later, read=0.0).loader)} images/s",
            advice="Stop other jobs on this machine, or measure again when it is quiet.",
            level=NOTE,
        )
    ]


def _arithmetic(measured: Measurements, first: Budget, later: Budget) -> list[str]:
    """Return the model's numbers, one stage a line."""
    work, setup = measured.work, measured.setup
    lines = []
    for budget, epoch in _epochs(first, later):
        if budget.read > 0:
            missing = _missing(measured, first=budget is first)
            lines.append(
                f"disk{epoch}: {missing:.0%} of the images are not in memory; {missing:.2f} x "
                f"{_read_seconds(measured) * 1e3:.3g} ms = {_ms(budget.read)}"
            )
    budget = later
    pace = min(budget.workers, budget.cores)
    used = "workers" if budget.workers <= budget.cores else "cores"
    lines.append(
        f"workers: ({work.decode_seconds * 1e3:.3g} ms decode + {work.transform_seconds * 1e3:.3g} ms transform) / "
        f"{pace:.3g} {used} = {_ms(budget.work)}"
    )
    if budget.serial > 0:
        lines.append(f"serial transforms: one worker at a time, {_ms(budget.serial)}")
    for each, epoch in _epochs(first, later):
        if each.read > 0:
            how = "the larger of the two, as pages are read ahead" if each.reads_ahead else "their sum, as workers wait"
            lines.append(f"loader{epoch}: {how} = {_ms(each.loader)}")
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
