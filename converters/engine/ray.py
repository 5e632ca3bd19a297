"""Shards as tasks of a Ray cluster: each makes one file; a task whose node is lost starts again and goes on.

Owns the connection to the cluster and the translation of its errors. What a task makes is the plan's business
(``sharding.py``), so its bytes are those of any other engine. Destinations must be seen by all nodes: a shared file
system or a URL.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
from collections.abc import Sequence
from typing import Any

from converters.engine.pool import Pool
from converters.engine.shards import ShardPlan, clear_shards, make_shard
from converters.report import Progress, Report
from dataloading import BetonError, ConvertError, Shard, UsageError
from dataloading.tools import is_url

__all__ = ["run_shards"]

NUM_RETRIES = 10
# A lost node's processes may live on for a moment, and hold the lock on their shard.
_WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.5


def run_shards(plan: ShardPlan, mine: Sequence[int], progress: Progress, report: Report) -> dict[int, Shard]:
    """Make shards on the cluster that ``RAY_ADDRESS`` names or this process is connected to, else on this machine.

    Parameters
    ----------
    plan : ShardPlan
        What to make.
    mine : sequence of int
        Which shards.
    progress : Progress
        Told of each shard.
    report : Report
        Counts them.

    Returns
    -------
    dict of int to Shard
        What the manifest says of each.

    Raises
    ------
    ConvertError
        If a shard cannot be made, or its task was lost too often.
    UsageError
        If Ray is not installed or cannot be reached.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError('the engine "ray" needs the package ray: pip install "beton[ray]"') from error
    if plan.options.overwrite and not plan.options.resume:
        clear_shards(plan, mine)
    if not is_url(plan.path):
        plan = dataclasses.replace(plan, path=os.path.abspath(plan.path))
    # A task that is started again must go on with what the lost one left.
    plan = dataclasses.replace(plan, options=dataclasses.replace(plan.options, resume=True, quiet=True))
    is_ours = not ray.is_initialized()
    if is_ours:
        try:
            ray.init(logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
        except ValueError:  # options of a new cluster, where an address names one that runs
            ray.init(logging_level=logging.ERROR, log_to_driver=False)
        except ConnectionError as error:
            raise UsageError(
                f"the Ray cluster {os.environ.get('RAY_ADDRESS', '')} cannot be reached: {error}"
            ) from error
    try:
        return _run(ray, plan, mine, progress, report)
    finally:
        if is_ours:
            ray.shutdown()


def _run(ray: Any, plan: ShardPlan, mine: Sequence[int], progress: Progress, report: Report) -> dict[int, Shard]:
    task = ray.remote(num_cpus=max(1, plan.options.num_workers), max_retries=NUM_RETRIES)(_make)
    # As bytes: what goes wrong where it arrives is then the task's error, with its words.
    shared = ray.put(ray.cloudpickle.dumps(plan))
    numbers = {task.remote(shared, number): number for number in mine}
    waiting = list(numbers)
    found: dict[int, Shard] = {}
    try:
        while waiting:
            ready, waiting = ray.wait(waiting, timeout=_POLL_SECONDS)
            for reference in ready:
                number = numbers[reference]
                try:
                    found[number], own = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    cause = error.cause
                    if isinstance(cause, BetonError):
                        raise type(cause)(str(cause)) from error
                    raise ConvertError(f"{plan.shard(number)} was not written: {cause or error}") from error
                except ray.exceptions.RayError as error:
                    raise ConvertError(
                        f"{plan.shard(number)} was not written: its task was lost {NUM_RETRIES + 1} times "
                        f"({type(error).__name__}: {error}); --resume goes on"
                    ) from error
                if not is_url(plan.path) and not os.path.exists(plan.shard(number)):
                    raise ConvertError(
                        f"{plan.shard(number)} was written on another machine and cannot be seen here; a cluster needs "
                        "a folder that all machines share, or a URL"
                    )
                report.add(own)
                low, high = plan.bounds(number)
                progress.advance(own.num_bytes, count=high - low)
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)
    return found


def _make(data: bytes, number: int) -> tuple[Shard, Report]:
    """Make one shard of a pickled plan; runs on the cluster."""
    plan: ShardPlan = pickle.loads(data)
    report = Report(path=plan.shard(number))
    progress = Progress(1, quiet=True)
    with Pool(plan.work(), num_workers=plan.options.num_workers) as pool:
        shard = make_shard(plan, number, pool, progress, report, wait_seconds=_WAIT_SECONDS)
    return shard, report
