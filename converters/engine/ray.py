"""Writes shards as tasks of a Ray cluster, one file per task; a task whose node is lost restarts and resumes.

Connects to the cluster and translates its errors. All nodes must see the destination: a shared file system or a URL.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pickle
from pathlib import Path
from typing import Any

from converters.engine.journal import journal_path, part_path
from converters.engine.one_file import make_file
from converters.engine.plan import Conversion
from converters.engine.pool import Pool
from converters.output.targets import Store, resolve_destination
from converters.report import Progress, Report
from dataloading import BetonError, ConvertError, Shard, UsageError
from dataloading.tools import is_url

__all__ = ["run_on_cluster"]

NUM_RETRIES = 10
# Processes of a lost node may run a little longer, and hold the lock on their shard.
_WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.5


def run_on_cluster(plan: Conversion, progress: Progress, report: Report) -> dict[int, Shard]:
    """Write shards on the cluster of ``RAY_ADDRESS`` or of this process's connection, else on this machine.

    Returns
    -------
    dict of int to Shard
        The entry of each in the manifest.

    Raises
    ------
    ConvertError
        If a shard cannot be written, or its task was lost too often.
    UsageError
        If Ray is not installed or cannot be reached.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError('the engine "ray" needs the package ray: pip install "beton[ray]"') from error
    if plan.options.overwrite and not plan.options.resume:
        _clear_shards(plan)
    if not is_url(plan.path):
        plan = dataclasses.replace(plan, path=os.path.abspath(plan.path))
    # A restarted task must resume the work of the lost one.
    plan = dataclasses.replace(plan, options=dataclasses.replace(plan.options, resume=True, quiet=True))
    starts_cluster = not ray.is_initialized()
    if starts_cluster:
        try:
            ray.init(logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
        except ValueError:  # this option is for a new cluster; an address names a running one
            ray.init(logging_level=logging.ERROR, log_to_driver=False)
        except ConnectionError as error:
            raise UsageError(
                f"the Ray cluster {os.environ.get('RAY_ADDRESS', '')} cannot be reached: {error}"
            ) from error
    try:
        return _run(ray, plan, progress, report)
    finally:
        if starts_cluster:
            ray.shutdown()


def _clear_shards(plan: Conversion) -> None:
    """Remove shards, finished or not, so that files found later are the new run's."""
    for number in plan.shards():
        destination = resolve_destination(plan.file_path(number), plan.options)
        for path in (destination.local, journal_path(destination.local), part_path(destination.local)):
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
        if destination.is_remote and (store := Store(destination.path)).size() is not None:
            store.remove()


def _run(ray: Any, plan: Conversion, progress: Progress, report: Report) -> dict[int, Shard]:
    task = ray.remote(num_cpus=max(1, plan.options.num_workers), max_retries=NUM_RETRIES)(_make)
    # As bytes, so that an error of unpickling becomes the task's error, with its message.
    shared = ray.put(ray.cloudpickle.dumps(plan))
    numbers = {task.remote(shared, number): number for number in plan.shards()}
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
                    raise ConvertError(f"{plan.file_path(number)} was not written: {cause or error}") from error
                except ray.exceptions.RayError as error:
                    raise ConvertError(
                        f"{plan.file_path(number)} was not written: its task was lost {NUM_RETRIES + 1} times "
                        f"({type(error).__name__}: {error}); --resume goes on"
                    ) from error
                if not is_url(plan.path) and not os.path.exists(plan.file_path(number)):
                    raise ConvertError(
                        f"{plan.file_path(number)} was written on another machine and cannot be seen here; a cluster "
                        "needs a folder that all machines share, or a URL"
                    )
                report.add(own)
                low, high = plan.bounds(number)
                progress.advance(own.num_bytes, count=high - low)
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)
    return found


def _make(data: bytes, number: int) -> tuple[Shard, Report]:
    """Write one shard of a pickled plan; runs on the cluster."""
    plan: Conversion = pickle.loads(data)
    report = Report(path=plan.file_path(number))
    with Pool(plan.converter(), num_workers=plan.options.num_workers) as pool:
        shard = make_file(plan.file(number), pool, Progress(1, quiet=True), report, wait_seconds=_WAIT_SECONDS)
    return shard, report
