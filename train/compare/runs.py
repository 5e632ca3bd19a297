"""Runs the same training with several loaders, in new processes, interleaved; and summarises their logs.

``report`` and ``plot`` present the results.

Definitions, over the steps after the warm-up, means over ranks:

- images/s: images of all ranks / step time;
- data wait: time waiting for the next batch / step time;
- device busy: what NVML reports on a GPU; on a CPU the share of the step that is not waiting for data; with a
  simulated device the share it slept;
- time to N steps: from making the loader (workers, compilation) to the end of step N, warm-up included.
"""

from __future__ import annotations

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

from dataloading import BetonError, UsageError
from dataloading.messages import counted
from train.classes import check_labels, match_classes
from train.devices import REAL, sim_rate
from train.launch import launched_environment, own_command, run_local_processes, training_arguments
from train.loaders import TRAINING_LOADERS
from train.metrics import read_log
from train.options import make_options
from train.output import hold_folder
from train.summaries import Summary, summarise

DEFAULT_STEPS = 50


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
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = self.loaders
        if not names or len(set(names)) != len(names) or set(names) - set(TRAINING_LOADERS):
            raise UsageError(f"--loaders {','.join(names)}: expected different names of {', '.join(TRAINING_LOADERS)}")
        if self.nproc_per_node < 1 or self.repeats < 1 or self.warmup < 0:
            raise UsageError("--nproc-per-node and --repeats must be at least 1, --warmup at least 0")
        if not {"steps", "epochs"} & self.training.keys():
            self.training["steps"] = DEFAULT_STEPS
        steps = self.training.get("steps", 0)
        if steps and steps <= self.warmup:
            raise UsageError(f"--steps {steps} leaves no step after --warmup {self.warmup}")
        for loader in self.loaders:
            make_options(**self.training_values(loader))  # errors come before the first run, not in the middle

    def training_values(self, loader: str) -> dict[str, Any]:
        """Return the training options of one loader's runs."""
        # By default loaders end an epoch differently; compared steps must have one size.
        values = {"tail": "drop", **self.training, "loader": loader}
        if self.stock_data and loader in ("torch", "torch-fast"):
            values["data"] = self.stock_data
        return values

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
    wait_s, step_s : list of float
        Per step, warm-up included.
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
    wait_s: list[float]
    step_s: list[float]


@dataclass(frozen=True, kw_only=True)
class LoaderResult:
    """Results of one loader over its runs; `ratio` is images/s divided by the baseline's in the same repeat."""

    loader: str
    images_per_s: Summary
    ratio: Summary
    wait_pct: Summary
    busy_pct: Summary | None
    busy_source: str
    time_to_steps_s: Summary
    first_batch_s: Summary


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

    @property
    def simulated(self) -> bool:
        """Whether the device was simulated."""
        return self.simulated_images_per_s > 0

    def to_json(self) -> str:
        """Return all results as indented JSON."""
        return json.dumps({"kind": "beton-compare", "simulated": self.simulated, **asdict(self)}, indent=1)


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
        wait_s=[step["wait_s"] for step in steps],
        step_s=[step["step_s"] for step in steps],
    )


def summarise_loaders(runs: Sequence[RunResult], loaders: Sequence[str]) -> list[LoaderResult]:
    """Summarise the runs of each loader; ratios are computed per repeat, as the machine's load varies."""
    by_key = {(run.loader, run.repeat): run for run in runs}
    results = []
    for loader in loaders:
        own = sorted((run for run in runs if run.loader == loader), key=lambda run: run.repeat)
        busy = [run.busy_pct for run in own if run.busy_pct is not None]
        ratios = [run.images_per_s / max(by_key[loaders[0], run.repeat].images_per_s, 1e-12) for run in own]
        results.append(
            LoaderResult(
                loader=loader,
                images_per_s=summarise([run.images_per_s for run in own]),
                ratio=summarise(ratios),
                wait_pct=summarise([run.wait_pct for run in own]),
                busy_pct=summarise(busy) if busy else None,
                busy_source=own[0].busy_source,
                time_to_steps_s=summarise([run.time_to_steps_s for run in own]),
                first_batch_s=summarise([run.first_batch_s for run in own]),
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
    with hold_folder(Path(options.out), option="--out"):
        return _run_all(options, progress)


def _run_all(options: CompareOptions, progress: Callable[[str], None]) -> Comparison:
    runs: list[RunResult] = []
    start_record: dict[str, Any] = {}
    count = len(options.loaders)
    _check_data(options, progress)
    for repeat in range(options.repeats):
        for place in range(count):
            # Each repeat starts with another loader, because the first one has colder caches.
            loader = options.loaders[(repeat + place) % count]
            directory = Path(options.out) / "runs" / f"{loader}-{repeat}"
            began = time.perf_counter()
            records = _run_once(options, loader, directory)
            start_record = next(record for record in records if record["event"] == "start")
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
        machine={
            "num_cores": start_record["num_cores"],
            "processor": _processor(),
            "device": start_record["device_name"] if start_record["device"].startswith("cuda") else "cpu",
            "torch": start_record["torch"],
            "python": platform.python_version(),
        },
        loaders=summarise_loaders(runs, options.loaders),
        runs=runs,
    )


def _check_data(options: CompareOptions, progress: Callable[[str], None]) -> None:
    """Refuse labels out of range, or with different meanings in two files, before any run."""
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


def _run_once(options: CompareOptions, loader: str, directory: Path) -> list[dict[str, Any]]:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log.jsonl").unlink(missing_ok=True)  # from an earlier comparison
    values = {**options.training_values(loader), "output": str(directory), "log_steps": 10, "checkpoints": False}
    output = directory / "output.txt"
    command = own_command("train", *training_arguments(values))
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


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine() or sys.platform
