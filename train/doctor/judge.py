"""From measured values to what bounds the run, and what to change. Pure functions.

Each cause is judged by what training would gain without it: its part is taken out of the model of `budget`, which is
solved again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dataloading.messages import counted, human_bytes

from .budget import Budget, arithmetic, budgets, fits_into_memory, missing_share, rates, sequential_seconds, shown
from .findings import NOTE, PROBLEM, Finding, Level, in_order, problems
from .measurements import Measurements

__all__ = ["Diagnosis", "judge"]

_WORTH_SAYING = 1.05
# Augmentation that costs this many times the decoding is not what the transforms of this package cost.
_SLOW_TRANSFORM = 4.0
# A first epoch that waits so little for the disk is no problem.
_SHORT_READ_SECONDS = 10.0
_UNKNOWN = "not known without the device's rate (--device-rate)"


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


def judge(measured: Measurements) -> Diagnosis:
    """Say what bounds the run, with the arithmetic, and what to change."""
    first, later = budgets(measured)
    found = [] if first.device >= first.feed else _disk(measured, first)
    if later.feed > later.device:
        found += _causes(measured, later, PROBLEM if later.device else NOTE)
    worth = [finding for finding in found if finding.gain >= _WORTH_SAYING]
    # Two equal stages: taking either away alone gains nothing.
    found = in_order([*(worth or found[:1]), *_contention(measured, later)])
    by_device = later.feed <= later.device and not problems(found)
    cause = "device" if by_device else found[0].name
    return Diagnosis(
        cause=cause,
        verdict=_verdict(measured, first, later, None if by_device else found[0]),
        rates=rates(first, later),
        arithmetic=arithmetic(measured, first, later),
        findings=[*found, *_headroom(later)],
    )


def _verdict(measured: Measurements, first: Budget, later: Budget, found: Finding | None) -> str:
    step = later.step
    if found is None:
        return (
            f"The device bounds the run: it takes {shown(1 / later.device)} images/s, and the loader can deliver "
            f"{shown(1 / later.feed)}."
        )
    if found.name == "contention" and measured.loader_rate:
        step = 1 / measured.loader_rate
    text = f"{found.what} The run gets {shown(1 / step)} images/s per process"
    if first.step > _WORTH_SAYING * step:
        text += f" ({shown(1 / first.step)} in the first epoch)"
    if later.device:
        text += f", which keeps the device busy {later.device / step:.0%} of the time"
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
    file, setup = measured.file, measured.setup
    missing, fits = missing_share(measured, first=True), fits_into_memory(measured)
    sequential = sequential_seconds(measured)
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
                what="The file is not in the page cache: the disk bounds the first epoch.",
                measured=measured_text,
                expected="a file that is in memory when training begins",
                advice=(
                    f"Read it once beforehand (cat {file.path} > /dev/null: about {seconds:.0f} s), or start with "
                    f'shuffle="pages", which reads in large pieces. Later epochs come from memory.'
                ),
                level=PROBLEM if seconds > _SHORT_READ_SECONDS else NOTE,
                gain=gain,
            )
        ]
    return [
        Finding(
            name="random-reads",
            what="The file is larger than memory and is read in random order, each image by itself.",
            measured=measured_text,
            expected=f"reads in order, {shown(1 / sequential)} images/s per process",
            advice=(
                'Use shuffle="pages", which reads whole pages and shuffles within a window of them; or store fewer '
                "bytes per image (beton convert --max-resolution); or a machine with more memory."
            ),
            gain=budget.gain(read=missing * sequential),
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
            expected=f"at most {_allowed(budget)} ms for decode and transform together" if budget.device else _UNKNOWN,
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
        expected=f"at most {_allowed(budget)} ms for both together" if budget.device else _UNKNOWN,
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
    rate, promised = measured.loader_rate, 1 / replace(later, read=0.0).loader
    if rate is None or rate > 0.5 * promised:
        return []
    machine = measured.machine
    crowded = machine.busy_cores > 0.2 * machine.cores
    cause = "other processes use the cores" if crowded else "memory, hyper-threads or Python code may limit it"
    missed = later.device > 0 and rate * later.device < 1
    return [
        Finding(
            name="contention",
            what=f"The Loader reached less than half of what its parts promise: {cause}.",
            measured=(
                f"{shown(rate)} images/s; other processes used {machine.busy_cores:.1f} of "
                f"{counted(machine.cores, 'core')}"
            ),
            expected=f"{shown(promised)} images/s",
            advice="Stop other jobs and measure again; beton doctor --scaling shows what more processes give.",
            level=PROBLEM if missed else NOTE,
            gain=min(promised, 1 / later.device if later.device else promised) / rate,
        )
    ]
