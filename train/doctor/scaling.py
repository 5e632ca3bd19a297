"""``beton doctor --scaling FILE``: how fast 1, 2, 4 ... processes load on this machine, and what limits their number.

Each process has its own Loader with the same number of workers and its share of the epoch, as in data-parallel
training. All start together, and the slowest one's time counts.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dataloading import BetonError, Loader
from dataloading.messages import counted
from dataloading.tools import open_files
from train.charts import lines
from train.distributed import World, barrier, process_group, sum_over_ranks
from train.launch import launch_environment, own_command, run_local_processes
from train.tables import format_table

from .fits import Scalability, fit_scaling
from .pipeline import default_transforms, image_field

__all__ = ["Point", "draw", "law_of", "measure_scaling", "run_rank", "summary"]


@dataclass(frozen=True, kw_only=True)
class Point:
    """The speed of so many processes together.

    Parameters
    ----------
    processes : int
    images_per_second : float
        Of all.
    step_seconds : float
        Per batch of each.
    """

    processes: int
    images_per_second: float
    step_seconds: float


def run_rank(world: World, path: str, result: Path, options: dict[str, Any]) -> None:
    """Be one of the processes: load for some seconds, and let rank 0 write what all reached.

    Parameters
    ----------
    world : World
        This process among all.
    path : str
        The dataset.
    result : Path
        File for the result.
    options : dict
        ``num_workers, batch_size, image_size, seconds, payload_bytes``; the last is what an all_reduce after each batch
        exchanges, as for gradients.
    """
    payload = torch.zeros(max(1, options["payload_bytes"] // 4))
    field = image_field(open_files(path))
    with process_group(world, torch.device("cpu")):
        loader = Loader(
            path,
            batch_size=options["batch_size"],
            shuffle="global",
            transforms=default_transforms(field, options["image_size"]),
            num_workers=options["num_workers"],
            rank=world.rank,
            world_size=world.world_size,
        )

        def batches() -> Any:
            while True:
                yield from loader

        stream = batches()
        next(stream)  # compiles and starts workers
        barrier()
        images = steps = 0
        started = time.perf_counter()
        while True:
            images += next(stream).num_valid
            steps += 1
            # All ranks must do the same number of steps: rank 0's clock decides.
            over = torch.tensor([float(world.rank == 0 and time.perf_counter() - started > options["seconds"])])
            if options["payload_bytes"] and dist.is_initialized():
                dist.all_reduce(payload)
            if float(sum_over_ranks(over)):
                break
        taken = time.perf_counter() - started
        total = float(sum_over_ranks(torch.tensor([float(images)], dtype=torch.float64)))
        if world.is_main:
            result.write_text(json.dumps({"images": total, "seconds": taken, "steps": steps}))
        barrier()
        loader.close()


def measure_scaling(
    path: str, counts: Sequence[int], *, options: dict[str, Any], progress: Callable[[str], None] = lambda text: None
) -> list[Point]:
    """Measure each number of processes, one after the other.

    Parameters
    ----------
    path : str
        The dataset.
    counts : sequence of int
        Numbers of processes.
    options : dict
        As for `run_rank`.
    progress : callable
        Called with a line of text now and then.

    Raises
    ------
    BetonError
        A process failed; the message has its last line.
    """
    points = []
    for count in counts:
        progress(f"loading in {counted(count, 'process')}")
        with tempfile.TemporaryDirectory(prefix="beton-scaling-") as name, tempfile.TemporaryFile("w+") as log:
            result = Path(name) / "result.json"
            words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
            command = own_command("doctor", path, "--scaling", f"--scaling-result={result}", *words)
            status = run_local_processes(command, count, launch_environment(os.environ), log)
            if status or not result.exists():
                log.seek(0)
                last = [line for line in log.read().splitlines() if line.strip()][-1:]
                raise BetonError(f"{counted(count, 'process')} ended with {status}: {' '.join(last)}")
            done = json.loads(result.read_text())
        points.append(
            Point(
                processes=count,
                images_per_second=done["images"] / done["seconds"],
                step_seconds=done["seconds"] / done["steps"],
            )
        )
    return points


def law_of(points: Sequence[Point]) -> Scalability | None:
    """Fit the law; None if only one number of processes, or not 1, was measured."""
    rates = {point.processes: point.images_per_second for point in points}
    return fit_scaling(rates) if 1 in rates and len(rates) > 1 else None


def summary(points: Sequence[Point]) -> str:
    """Return the table and the fitted law as text."""
    one = next((point.images_per_second for point in points if point.processes == 1), 0.0)
    law = law_of(points)
    rows = [
        [
            str(point.processes),
            f"{point.images_per_second:,.0f}",
            f"{point.step_seconds * 1e3:,.1f}",
            f"{point.images_per_second / (one * point.processes):.0%}" if one else "",
            f"{law.predict(point.processes):,.0f}" if law is not None else "",
        ]
        for point in points
    ]
    text = format_table(["processes", "images/s", "ms a step", "efficiency", "fitted"], rows, notes=False)
    if law is None:
        return text
    limit = "without limit" if law.limit == float("inf") else f"at most {law.limit:,.0f} images/s"
    return (
        f"{text}\n\nN processes reach N x {law.rate:,.0f} / (1 + {law.serial:.3g} (N - 1) + {law.crosstalk:.3g} N "
        f"(N - 1)):\n{law.serial:.1%} of the work is serial or waits for what is shared (cores, disk, memory); {limit}."
    )


def draw(points: Sequence[Point], title: str) -> Any:
    """Draw measured, fitted and ideal rates."""
    law = law_of(points)
    series = {"beton": [(float(point.processes), point.images_per_second) for point in points]}
    if law is not None:
        counts = [float(point.processes) for point in points]
        series["fitted"] = [(count, law.predict(count)) for count in counts]
        series["ideal"] = [(count, count * law.rate) for count in counts]
    return lines(series, title=title, x="processes", y="images/s")
