"""Source -> ``.beton``, in one file or in shards, here or on a cluster: the front of the engine behind every converter.

Owns the order of the samples, the checks before any work, and the choice between one file (``one_file.py``), shards
(``sharding.py``) and a remote destination (``targets.py``). Knows nothing of any particular kind of dataset.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from typing import Any

import numpy as np
import numpy.typing as npt

import dataloading
from converters.engine.delivery import has_begun, make_file
from converters.engine.estimate import check_space, measure
from converters.engine.fingerprint import file_stamps, names_digest
from converters.engine.one_file import FileJob, dead_worker
from converters.engine.order import sample_order
from converters.engine.pool import DeadWorkerError, Pool
from converters.engine.shards import (
    TRIED_FOR_SIZE,
    TRIED_FOR_SPACE,
    ShardPlan,
    convert_shards,
    number_of_shards,
)
from converters.engine.worker import Work
from converters.images.field_kinds import settled
from converters.images.geometry import check_declared
from converters.images.policy import ImagePolicy
from converters.options import Engine, OnError, Options
from converters.output.targets import check_target, place_of
from converters.report import Progress, Report
from converters.source import Source
from converters.sources.reading import without_scheme
from dataloading import ConvertError, UsageError
from dataloading.cli import note
from dataloading.messages import counted
from dataloading.tools import manifest_path

__all__ = ["Engine", "OnError", "Options", "convert", "estimate", "sample_order"]


def convert(source: Source, path: str | os.PathLike[str], *, policy: ImagePolicy, options: Options) -> Report:
    """Write a source's samples into a new ``.beton`` file, or into shards.

    Parameters
    ----------
    source : Source
        Where the samples come from.
    path : str or path-like
        The file to make, or a URL such as ``s3://bucket/train.beton``; it appears when it is complete. With shards it
        names them: ``train-00000-of-00004.beton`` and so on, and the manifest ``train.beton.json``.
    policy : ImagePolicy
        How images are stored.
    options : Options
        Order, workers, shards, what to do on errors.

    Returns
    -------
    Report
        Counts, sizes, time and what was skipped.

    Raises
    ------
    ConvertError
        If a sample cannot be converted and is not to be skipped, a worker dies, the disk is full or will be, or none of
        the samples could be converted. No file is left under its name; work worth it is kept for ``resume``.
    UsageError
        If the arguments cannot be honoured, there is nothing to write, or a file or an interrupted conversion is in the
        way.
    """
    path = os.fspath(path)
    path = without_scheme(path)
    if not options.is_sharded:
        check_target(path, options)
    _check_error_log(options)
    order = _order(source, options)
    check_declared(source.fields, policy)
    source = settled(source, policy, order)
    start = time.monotonic()
    report = Report(path=path)
    provenance = _provenance(source, policy, options)
    plan = ShardPlan(
        source=source, path=path, order=order, policy=policy, options=options, provenance=provenance,
        files=file_stamps(source),
    )  # fmt: skip
    try:
        if options.is_sharded:
            convert_shards(plan, report)
        else:
            _convert_one(plan, report)
    except BaseException:
        with contextlib.suppress(ConvertError):  # the first error says more
            _save_faults(report, options)
        raise
    _save_faults(report, options)
    report.seconds = time.monotonic() - start
    return report


def _convert_one(plan: ShardPlan, report: Report) -> None:
    source, options = plan.source, plan.options
    work = plan.work()
    # A minute for ten million of them.
    with contextlib.closing(Progress(len(plan.order), what="reading names", quiet=options.quiet)) as reading:
        names = names_digest(source, plan.order, reading.advance)
    job = FileJob(
        source=source, path=plan.path, order=plan.order, work=work, options=options, provenance=plan.provenance,
        names=names, files=plan.files,
    )  # fmt: skip
    with Pool(work, num_workers=options.num_workers) as pool:
        _check_space(job, pool)
        with contextlib.closing(Progress(len(plan.order), quiet=options.quiet)) as progress:
            make_file(job, pool, progress, report)


def _check_space(job: FileJob, pool: Pool) -> None:
    """Refuse to begin what the disk cannot hold; small conversions are not worth the trial."""
    num_tried = min(TRIED_FOR_SPACE, len(job.order) // 64)
    if not job.options.check_space or not num_tried or has_begun(job.path, job.options):
        return
    try:
        guess = measure(job.source, job.order, pool, num_tried=num_tried, page_size=job.options.page_size)
    except DeadWorkerError as error:
        raise ConvertError(dead_worker(job, error)) from error
    warning = check_space(place_of(job.path, job.options).folder, guess.num_bytes)
    if warning:
        note(warning)


def _provenance(source: Source, policy: ImagePolicy, options: Options) -> dict[str, Any]:
    """Return what a file remembers of its origin; equal input and options give equal provenance."""
    return {
        **source.provenance,
        "converter": f"beton {dataloading.__version__}",
        "images": policy.provenance(),
        "limit": options.limit,
        "shuffle": options.shuffle,
        "seed": options.seed,
    }


def _check_error_log(options: Options) -> None:
    """Refuse a list of errors that could not be written, before hours of work and not after them."""
    if options.error_log is None:
        return
    folder = os.path.dirname(options.error_log) or os.curdir
    if os.path.isdir(options.error_log):
        raise UsageError(f"error_log is a file to write, and {options.error_log} is a folder; name a file in it")
    if not os.path.isdir(folder):
        raise UsageError(f"the folder {folder} of error_log does not exist; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"error_log cannot be written: there is no permission to make files in {folder}")


def _save_faults(report: Report, options: Options) -> None:
    if options.error_log is not None:
        path = options.error_log
        if options.shard_index is not None:  # each of these processes has a list of its own
            stem, ending = os.path.splitext(path)
            path = f"{stem}-{options.shard_index:05}{ending}"
        report.save_faults(path)


def estimate(
    source: Source, path: str | os.PathLike[str], *, policy: ImagePolicy, options: Options, num_tried: int = 32
) -> dict[str, Any]:
    """Convert a few samples spread over the source in memory, and scale up.

    Parameters
    ----------
    source : Source
        Where the samples come from.
    path : str or path-like
        The file that would be made, or that would name the shards.
    policy : ImagePolicy
        How images would be stored.
    options : Options
        Their number of workers scales the time.
    num_tried : int
        Samples to convert; where the size of shards is given as many as the conversion tries, so that it counts the
        same shards.

    Returns
    -------
    dict
        ``path`` (of several files, the manifest), ``num_samples``, ``estimated_bytes``, ``estimated_seconds``,
        ``images`` (counts among those tried) and ``skipped`` (those tried that cannot be converted). With shards also
        ``num_shards``, ``shards`` (the paths of the first and the last), ``shard_samples`` (the least and the most) and
        ``estimated_shard_bytes`` (of the largest). With ``shard_index`` everything is about that shard.

    Raises
    ------
    UsageError
        If there is nothing to write, or there cannot be such shards.
    """
    path = os.fspath(path)
    order = _order(source, options)
    check_declared(source.fields, policy)
    source = settled(source, policy, order)
    if options.shard_bytes is not None:
        num_tried = TRIED_FOR_SIZE
    with Pool(Work(source, policy), num_workers=0) as pool:
        guess = measure(source, order, pool, num_tried=num_tried, page_size=options.page_size)
    counts, shards = [len(order)], {}
    if options.is_sharded:
        number = number_of_shards(options, len(order), guess.sample_bytes)
        plan = ShardPlan(
            source=source, path=path, order=order, policy=policy, options=options, provenance={}, num_shards=number
        )
        mine = range(number) if options.shard_index is None else [options.shard_index]
        counts = [high - low for low, high in map(plan.bounds, mine)]
        path = manifest_path(path) if options.shard_index is None else plan.shard(options.shard_index)
        shards = {
            "num_shards": number,
            "shards": [plan.shard(mine[0]), plan.shard(mine[-1])],
            "shard_samples": [min(counts), max(counts)],
            "estimated_shard_bytes": guess.file_bytes(max(counts)),
        }
    share = sum(counts) / len(order)
    return {
        "path": path,
        "num_samples": sum(counts),
        "num_classes": len(source.class_names or ()),
        "num_tried": guess.num_tried,
        "estimated_bytes": sum(map(guess.file_bytes, counts)),
        "estimated_seconds": round(share * guess.total_seconds / max(1, options.num_workers), 1),
        "images": dict(sorted(guess.kinds.items())),
        "skipped": [dataclasses.asdict(item) for item in guess.faults],
        **shards,
    }


def _order(source: Source, options: Options) -> npt.NDArray[np.int64]:
    order = sample_order(len(source), options)
    if len(order) == 0:
        limit = "" if options.limit is None else f", of which limit={options.limit} takes none"
        raise UsageError(f"there is nothing to write: the source has {counted(len(source), 'sample')}{limit}")
    return order
