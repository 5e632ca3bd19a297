"""Compare the utilisation that a training run reports with what rates measured separately predict.

    python benchmarks/utilisation.py --photos DIR [--loaders beton,torch,...]

First each loader runs alone, as in ``beton bench``: images/s. Then each feeds a simulated device that takes 60 % of our
loader's rate, in a process of ``beton train``; our loader also feeds a device that takes 150 % of it. The utilisation
measured is the share of the time in which the device had a batch. It is compared with two quotients: images/s that the
run delivered over the device's rate, timed from outside by watching its log grow; and the loader's rate alone over the
device's, at most 100 %, which leaves out that a training process also has work for the cores. About 25 s per loader on
two cores.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from math import ceil
from pathlib import Path

from common import bench_spec, parse, publish, say
from inputs import our_file

from dataloading import UsageError
from train.bench.harness import measure
from train.compare.runs import CompareOptions, RunResult, summarise_run
from train.launch import launched_environment, own_command, run_local_processes, training_arguments
from train.loaders import TRAINING_LOADERS
from train.metrics import read_log

PIPELINE = "train-normalized"  # what a training run on a CPU asks of a loader
WARMUP = 16  # steps, more than any loader has batches ahead
SHARE, HIGH_SHARE = 0.6, 1.5


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this script."""
    loaders = ",".join(name for name in TRAINING_LOADERS if name != "synthetic")
    parser.add_argument("--loaders", default=loaders, help="names, separated by commas; beton is always measured")


class Watch(threading.Thread):
    """Reads a growing log, and notes by the wall clock when each image was in it: no figure of the run's own."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._over = threading.Event()
        self._seen = [(0.0, 0)]  # seconds and steps

    def run(self) -> None:
        """Look every two milliseconds."""
        while not self._over.wait(0.002):
            steps = self._path.read_bytes().count(b'"event": "step"') if self._path.exists() else 0
            if steps > self._seen[-1][1]:
                self._seen.append((time.perf_counter(), steps))

    def rate(self, batch_size: int) -> float:
        """Return the images/s between the first and the last steps seen after the warm-up."""
        self._over.set()
        self.join()
        (began, first), *_, (ended, last) = [each for each in self._seen if each[1] >= WARMUP]
        return (last - first) * batch_size / (ended - began)


def train(options: CompareOptions, loader: str, directory: Path) -> tuple[RunResult, float]:
    """Feed the simulated device from one loader, in a new process; return also images/s by the wall clock."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log.jsonl").unlink(missing_ok=True)
    values = {**options.training_values(loader), "output": str(directory), "checkpoints": False}
    command = own_command("train", *training_arguments(values), python=options.python(loader))
    watch = Watch(directory / "log.jsonl")
    watch.start()
    with (directory / "output.txt").open("w") as stream:
        status = run_local_processes(command, 1, launched_environment(os.environ), stream)
    if status:
        raise SystemExit(f"{loader} ended with status {status}; see {directory / 'output.txt'}")
    run = summarise_run(read_log(directory / "log.jsonl"), loader=loader, repeat=0, warmup=WARMUP)
    return run, watch.rate(int(values["batch_size"]))


def main(argv: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = parse(__doc__, argv, add_options=add_options, rounds=2, seconds=2.5, batch_size=64)
    names = list(dict.fromkeys(["beton", *options.loaders.split(",")]))
    path = our_file(options, 500)
    results = measure(
        [bench_spec(options, name, path, pipeline=PIPELINE) for name in names],
        num_rounds=options.rounds,
        seconds=options.seconds,
        peers_python=options.peers_python,
        progress=say,
    )
    ours = results[0].median
    if not ours:
        raise SystemExit(f"beton: {results[0].status}")
    rows, data = [], []
    for result, share in [*((each, SHARE) for each in results), (results[0], HIGH_SHARE)]:
        name, alone, device = result.spec.loader, result.median, share * ours
        if not alone:
            rows.append([name, result.status])
            continue
        images = 1.6 * options.seconds * min(alone, device)
        training = {
            "data": str(path),
            "batch_size": options.batch_size,
            "num_workers": options.num_workers,
            "copies": str(options.work_dir),
            "steps": WARMUP + ceil(images / options.batch_size),
            "accelerator": f"sim:{device:.1f}",
        }
        directory = options.work_dir / "utilisation" / f"{name}-{share}"
        try:
            compared = CompareOptions(loaders=(name,), out=str(directory), warmup=WARMUP, training=training)
        except UsageError as error:
            rows.append([name, str(error)])
            continue
        say(f"training with {name} at {device:,.0f} images/s")
        run, delivered = train(compared, name, directory)
        assert run.busy_pct is not None
        predicted = 100.0 * min(1.0, alone / device)
        by_rate = 100.0 * delivered / device
        rows.append(
            [
                name,
                f"{device:,.0f}",
                f"{run.busy_pct:.1f}",
                f"{delivered:,.0f}",
                f"{by_rate:.1f} ({run.busy_pct - by_rate:+.1f})",
                f"{alone:,.0f}",
                f"{predicted:.1f} ({run.busy_pct - predicted:+.1f})",
                "",
            ]
        )
        figures = {"busy": run.busy_pct, "delivered": delivered, "by_rate": by_rate, "predicted": predicted}
        data.append({"loader": name, "alone": alone, "device": device, **figures})
    publish(
        options.out,
        options.command,
        "utilisation",
        "Utilisation of a simulated device, predicted and measured",
        f"{PIPELINE}, batches of {options.batch_size}, {options.num_workers} workers, one process.",
        head=[
            "loader",
            "device, images/s",
            "busy, %",
            "delivered, images/s",
            "delivered / device, %",
            "alone, images/s",
            "alone / device, %",
            "note",
        ],
        rows=rows,
        data=data,
        results=results,
    )


if __name__ == "__main__":
    main()
