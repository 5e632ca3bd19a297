"""Runs the same training with several loaders, in new processes, interleaved; and summarises their logs.

``report`` and ``plot`` present the results.

Definitions, over the steps after the warm-up, means over ranks:

- images/s: images of all ranks / step time;
- data wait: time waiting for the next batch / step time;
- device busy: what NVML reports on a GPU; on a CPU the share of the step that is not waiting for data; with a
  simulated device the share of the time in which it had a batch;
- time to N steps: from making the loader (workers, compilation) to the end of step N, warm-up included.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dataloading import BetonError, UsageError
from dataloading.messages import counted
from train.classes import check_labels, match_classes
from train.compare.checks import DataCheck, check_data
from train.devices import REAL, published, sim_rate
from train.launch import (
    find_peers_python,
    launched_environment,
    own_command,
    run_local_processes,
    training_arguments,
)
from train.loaders import LOADERS, TRAINING_LOADERS
from train.machine import hardware, versions
from train.metrics import read_log
from train.options import make_options
from train.output import lock_folder
from train.summaries import Summary, percentile, summarise

DEFAULT_STEPS = 50
DEFAULT_PRICE = 2.0
IMAGENET_IMAGES = 1_281_167  # of ILSVRC 2012, training
_STATED = ("beton", "torch", "torchvision", "numpy", "numba", "pillow")


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The options of a comparison.

    Parameters
    ----------
    loaders : tuple of str
        Names; the first is the baseline.
    nproc_per_node : int
        Training processes per run.
    repeats : int
        Runs per loader.
    warmup : int
        First steps that rates exclude.
    out : str
        Directory for the runs' logs.
    stock_data : str
        Data for the ``torch`` loaders instead of ``--data``, e.g. the directory it was converted from.
    price_per_gpu_hour : float
        US dollars, for the cost of an ImageNet epoch.
    command : str
        Command line, for the report.
    training : dict
        Training options that differ from their defaults.

    Raises
    ------
    UsageError
        A value is not allowed, or no step is left after the warm-up.
    """

    loaders: tuple[str, ...]
    out: str
    nproc_per_node: int = 1
    repeats: int = 3
    warmup: int = 5
    stock_data: str = ""
    price_per_gpu_hour: float = DEFAULT_PRICE
    command: str = ""
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = self.loaders
        if not names or len(set(names)) != len(names) or set(names) - set(TRAINING_LOADERS):
            raise UsageError(f"--loaders {','.join(names)}: expected different names of {', '.join(TRAINING_LOADERS)}")
        if self.nproc_per_node < 1 or self.repeats < 1 or self.warmup < 0:
            raise UsageError("--nproc-per-node and --repeats must be at least 1, --warmup at least 0")
        if not 0 <= self.price_per_gpu_hour < math.inf:
            raise UsageError(f"--price-per-gpu-hour is {self.price_per_gpu_hour}; expected US dollars, 0 or more")
        if not {"steps", "epochs"} & self.training.keys():
            self.training["steps"] = DEFAULT_STEPS
        steps = self.training.get("steps", 0)
        if steps and steps <= self.warmup:
            raise UsageError(f"--steps {steps} leaves no step after --warmup {self.warmup}")
        for loader in self.loaders:
            self.python(loader)
            make_options(**self.training_values(loader))  # errors come before the first run, not in the middle

    def training_values(self, loader: str) -> dict[str, Any]:
        """Return the training options of one loader's runs."""
        # By default loaders end an epoch differently; compared steps must have one size.
        copies = str(Path(self.out) / "copies")
        values = {"tail": "drop", "copies": copies, **self.training, "loader": loader}
        if self.stock_data and loader in ("torch", "torch-fast"):
            values["data"] = self.stock_data
        return values

    def python(self, loader: str) -> str:
        """Return the interpreter that has a loader: this one, or that of the peers' environment.

        Raises
        ------
        UsageError
            The loader is not installed here, and there is no other environment.
        """
        entry = LOADERS[loader]
        if not entry.needs or _is_installed(entry.needs):
            return sys.executable
        peers = find_peers_python()
        if peers is None:
            raise UsageError(
                f"--loaders: {loader} is not installed; pip install {entry.package}, or make an environment with the "
                "other loaders (benchmarks/peers.sh) and name its interpreter in BETON_PEERS_PYTHON"
            )
        return peers

    @property
    def accelerator(self) -> str:
        """``real`` or ``sim:RATE``."""
        return str(self.training.get("accelerator", REAL))


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Results of one run.

    Parameters
    ----------
    loader, repeat
        The run's loader and its repeat.
    images_per_s, wait_pct, busy_pct
        As the module's docstring defines them; `busy_pct` is None if unknown.
    busy_source : str
        ``nvml``, ``step`` or ``simulated``.
    time_to_steps_s : float
        Seconds to the end of the last step.
    first_batch_s : float
        Seconds to the arrival of the first batch.
    num_steps : int
        Steps, warm-up included.
    start_s, wait_s, step_s : list of float
        Per step, warm-up included.
    busy : list of float or None
        Utilisation per step, 0 to 1; None where it is unknown.
    loss : list of float or None
        Per step; None with a simulated device.
    parts_s : dict
        Mean seconds per part of a step, after the warm-up.
    """

    loader: str
    repeat: int
    images_per_s: float
    wait_pct: float
    busy_pct: float | None
    busy_source: str
    time_to_steps_s: float
    first_batch_s: float
    num_steps: int
    start_s: list[float]
    wait_s: list[float]
    step_s: list[float]
    busy: list[float | None]
    loss: list[float | None]
    parts_s: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class LoaderResult:
    """Results of one loader over its runs.

    Parameters
    ----------
    ratio : Summary
        Images/s divided by the baseline's in the same repeat.
    step_p50_s, step_p99_s : float
        Median and 99th percentile of the step time over all runs.
    busy_by_rates_pct : float or None
        Utilisation computed from rates: images/s divided by the simulated devices' rate; None with a real device.
    imagenet_gpu_hours : float
        GPU-hours per epoch of ImageNet's training images at this rate.
    """

    loader: str
    images_per_s: Summary
    ratio: Summary
    wait_pct: Summary
    busy_pct: Summary | None
    busy_source: str
    time_to_steps_s: Summary
    first_batch_s: Summary
    step_p50_s: float
    step_p99_s: float
    busy_by_rates_pct: float | None
    imagenet_gpu_hours: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All results of a comparison, and the machine."""

    accelerator: str
    simulated_images_per_s: float
    nproc_per_node: int
    repeats: int
    warmup: int
    num_steps: int
    training: dict[str, Any]
    stock_data: str
    machine: dict[str, Any]
    loaders: list[LoaderResult]
    runs: list[RunResult]
    price_per_gpu_hour: float = DEFAULT_PRICE
    command: str = ""
    data_checks: list[DataCheck] = field(default_factory=list)

    @property
    def simulated(self) -> bool:
        """Whether the device was simulated."""
        return self.simulated_images_per_s > 0

    def to_json(self) -> str:
        """Return all results as indented JSON."""
        source = published(self.accelerator)
        kind = {"kind": "beton-compare", "simulated": self.simulated}
        return json.dumps({**kind, "published": asdict(source) if source else None, **asdict(self)}, indent=1)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package it is in
        return False


def summarise_run(records: Sequence[Mapping[str, Any]], *, loader: str, repeat: int, warmup: int) -> RunResult:
    """Summarise one run's log.

    Raises
    ------
    BetonError
        The log has no step after the warm-up.
    """
    steps = [record for record in records if record["event"] == "step"]
    timed = steps[warmup:]
    if not timed:
        raise BetonError(
            f"the run of loader {loader} logged {len(steps)} steps; none is left after {warmup} of warm-up"
        )
    seconds = max(math.fsum(step["step_s"] for step in timed), 1e-12)
    waited = math.fsum(step["wait_s"] for step in timed)
    slept = math.fsum(step["sleep_s"] for step in timed)
    watched = [step["device_pct"] for step in timed if step["device_pct"] is not None]
    start = next(record for record in records if record["event"] == "start")
    busy: float | None
    if start["options"]["accelerator"] != REAL:
        busy, source = 100.0 * slept / seconds, "simulated"
    elif start["device"].startswith("cuda"):
        busy, source = (math.fsum(watched) / len(watched) if watched else None), "nvml"
    else:
        busy, source = 100.0 * (seconds - waited) / seconds, "step"
    return RunResult(
        loader=loader,
        repeat=repeat,
        images_per_s=sum(step["images"] for step in timed) / seconds,
        wait_pct=100.0 * waited / seconds,
        busy_pct=busy,
        busy_source=source,
        time_to_steps_s=steps[-1]["start_s"] + steps[-1]["step_s"],
        first_batch_s=steps[0]["start_s"] + steps[0]["wait_s"],
        num_steps=len(steps),
        start_s=[step["start_s"] for step in steps],
        wait_s=[step["wait_s"] for step in steps],
        step_s=[step["step_s"] for step in steps],
        busy=[_busy_share(step, source) for step in steps],
        loss=[step.get("loss") for step in steps],
        parts_s=_parts(timed, source),
    )


def _busy_share(step: Mapping[str, Any], source: str) -> float | None:
    if source == "nvml":
        return None if step["device_pct"] is None else float(step["device_pct"]) / 100.0
    busy: float = step["sleep_s"] if source == "simulated" else step["step_s"] - step["wait_s"]
    return busy / max(float(step["step_s"]), 1e-12)


def _parts(steps: Sequence[Mapping[str, Any]], source: str) -> dict[str, float]:
    """Return the mean seconds per part of a step; time without a name is the rest."""

    def mean(name: str) -> float:
        return math.fsum(step[name] for step in steps) / len(steps)

    parts = {"waiting for data": mean("wait_s")}
    if source == "simulated":
        parts["simulated device"] = mean("sleep_s")
    for name in steps[0].get("parts_s", {}):
        seconds = math.fsum(step["parts_s"][name] for step in steps) / len(steps)
        if seconds > 0:
            parts[name] = seconds
    return {**parts, "rest": max(0.0, mean("step_s") - math.fsum(parts.values()))}


def summarise_loaders(
    runs: Sequence[RunResult], loaders: Sequence[str], *, warmup: int = 0, nproc: int = 1, device_rate: float = 0.0
) -> list[LoaderResult]:
    """Summarise the runs of each loader; ratios are computed per repeat, as the machine's load varies.

    Parameters
    ----------
    runs, loaders
        Results, and the loaders in report order; the first is the baseline.
    warmup : int
        First steps that percentiles exclude.
    nproc : int
        Number of devices.
    device_rate : float
        Images/s of a simulated device, 0 for a real one.
    """
    by_key = {(run.loader, run.repeat): run for run in runs}
    results = []
    for loader in loaders:
        own = sorted((run for run in runs if run.loader == loader), key=lambda run: run.repeat)
        busy = [run.busy_pct for run in own if run.busy_pct is not None]
        rate = summarise([run.images_per_s for run in own])
        seconds = sorted(value for run in own for value in run.step_s[warmup:])
        ratios = [run.images_per_s / max(by_key[loaders[0], run.repeat].images_per_s, 1e-12) for run in own]
        results.append(
            LoaderResult(
                loader=loader,
                images_per_s=rate,
                ratio=summarise(ratios),
                wait_pct=summarise([run.wait_pct for run in own]),
                busy_pct=summarise(busy) if busy else None,
                busy_source=own[0].busy_source,
                time_to_steps_s=summarise([run.time_to_steps_s for run in own]),
                first_batch_s=summarise([run.first_batch_s for run in own]),
                step_p50_s=percentile(seconds, 50),
                step_p99_s=percentile(seconds, 99),
                busy_by_rates_pct=100.0 * rate.mean / (device_rate * nproc) if device_rate else None,
                imagenet_gpu_hours=IMAGENET_IMAGES / max(rate.mean, 1e-12) * nproc / 3600.0,
            )
        )
    return results


def run_comparison(options: CompareOptions, *, progress: Callable[[str], None]) -> Comparison:
    """Run every loader `repeats` times and summarise.

    Raises
    ------
    BetonError
        A run failed; the message ends with its last lines.
    """
    with lock_folder(Path(options.out), option="--out"):
        return _run_all(options, progress)


def _run_all(options: CompareOptions, progress: Callable[[str], None]) -> Comparison:
    runs: list[RunResult] = []
    start_record: dict[str, Any] = {}
    seen: dict[str, list[dict[str, Any]]] = {loader: [] for loader in options.loaders}
    count = len(options.loaders)
    class_counts = _check_labels(options, progress)
    for loader in options.loaders:
        if LOADERS[loader].stream and not LOADERS[loader].ceiling:
            # Not in a run: writing the copy is no part of what is measured.
            progress(f"{loader}: copying the data into its own format, unless an earlier comparison did")
            _run_once(options, loader, Path(options.out) / "runs" / f"{loader}-copy", steps=1)
    for repeat in range(options.repeats):
        for place in range(count):
            # Each repeat starts with another loader, because the first one has colder caches.
            loader = options.loaders[(repeat + place) % count]
            directory = Path(options.out) / "runs" / f"{loader}-{repeat}"
            began = time.perf_counter()
            records = _run_once(options, loader, directory)
            start_record = next(record for record in records if record["event"] == "start")
            seen[loader] += [record for record in records if record["event"] == "seen"]
            run = summarise_run(records, loader=loader, repeat=repeat, warmup=options.warmup)
            runs.append(run)
            progress(
                f"[{len(runs)}/{options.repeats * count}] {loader}: {run.images_per_s:.0f} images/s, "
                f"data wait {run.wait_pct:.1f} % ({time.perf_counter() - began:.0f} s)"
            )
    return Comparison(
        accelerator=options.accelerator,
        simulated_images_per_s=sim_rate(options.accelerator),
        nproc_per_node=options.nproc_per_node,
        repeats=options.repeats,
        warmup=options.warmup,
        num_steps=min(run.num_steps for run in runs),
        training=make_options(**options.training_values(options.loaders[-1])).flat(),
        stock_data=options.stock_data,
        machine=_machine(options.loaders, start_record),
        loaders=summarise_loaders(
            runs,
            options.loaders,
            warmup=options.warmup,
            nproc=options.nproc_per_node,
            device_rate=sim_rate(options.accelerator),
        ),
        runs=runs,
        price_per_gpu_hour=options.price_per_gpu_hour,
        command=options.command,
        data_checks=check_data(
            {loader: records for loader, records in seen.items() if not LOADERS[loader].ceiling}, class_counts
        ),
    )


def _machine(loaders: Sequence[str], start: Mapping[str, Any]) -> dict[str, Any]:
    facts = hardware()
    packages = dict.fromkeys([*_STATED, *(LOADERS[loader].package for loader in loaders if LOADERS[loader].package)])
    return {
        "num_cores": start["num_cores"],
        "processor": facts["cpu"],
        "memory_gib": facts["memory_gib"],
        "kernel": facts["kernel"],
        "device": start["device_name"] if start["device"].startswith("cuda") else "cpu",
        "torch": start["torch"],
        "python": platform.python_version(),
        "versions": versions(packages),
    }


def _check_labels(options: CompareOptions, progress: Callable[[str], None]) -> list[int]:
    """Refuse labels out of range, or with different meanings in two files, before any run.

    Returns
    -------
    list of int
        Samples of each class in the first loader's data.
    """
    from train.loaders.stored_images import open_images

    num_classes = int(options.training.get("num_classes", 0))
    sources = {}
    for loader in options.loaders:
        path = options.training_values(loader)["data"]
        if path not in sources:
            sources[path] = open_images(path)
    opened = list(sources.values())
    for source in opened:
        check_labels(source, max(num_classes, len(source.classes)))
    for source in opened[1:]:
        match_classes(opened[0], source, num_classes=num_classes)
        match_classes(source, opened[0], num_classes=num_classes)
        if len(source) != len(opened[0]):
            progress(
                f"note: {source.path} has {counted(len(source), 'sample')}, {opened[0].path} has {len(opened[0]):,}: "
                "the loaders do not read the same images"
            )
    if options.training.get("val"):
        val = open_images(options.training["val"])
        for source in opened:
            match_classes(source, val, num_classes=num_classes)
    counts = np.bincount(opened[0].labels(), minlength=max(num_classes, len(opened[0].classes)))
    return [int(count) for count in counts]


def _run_once(options: CompareOptions, loader: str, directory: Path, **more: Any) -> list[dict[str, Any]]:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log.jsonl").unlink(missing_ok=True)  # from an earlier comparison
    values = {**options.training_values(loader), "output": str(directory), "log_steps": 10, "checkpoints": False}
    values |= {"log_seen": True, **more}
    output = directory / "output.txt"
    command = own_command("train", *training_arguments(values), python=options.python(loader))
    with output.open("w", encoding="utf-8") as stream:
        status = run_local_processes(command, options.nproc_per_node, launched_environment(os.environ), stream)
    if status != 0:
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
        causes = [line for line in lines if "error" in line.lower()][:3]
        shown = "\n  ".join(dict.fromkeys([*causes, *lines[-3:]]))
        raise BetonError(
            f"the run with loader {loader} ended with status {status}; its output is in {output}:\n  {shown}"
        )
    return read_log(directory / "log.jsonl")
