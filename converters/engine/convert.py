"""Converts a source to ``.beton``, as one file or shards, on this machine or a cluster: the engine's entry point.

Does the checks before a conversion, and chooses between one file (``one_file.py``) and shards (``shards.py``). Knows no
particular kind of dataset.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from typing import Any

from converters.engine.estimate import check_space, try_samples
from converters.engine.one_file import has_begun, make_file
from converters.engine.plan import Conversion, sample_order
from converters.engine.pool import Pool
from converters.engine.shards import number_of_shards, write_shards
from converters.images.policy import ImagePolicy
from converters.options import Options
from converters.output.targets import check_target, resolve_destination
from converters.report import Progress, Report
from converters.source import Source
from dataloading import ConvertError, UsageError
from dataloading.tools import manifest_path

__all__ = ["Options", "convert", "estimate", "sample_order"]

_TRIED_FOR_SIZE = 256
"""Samples tried for --shard-size: the same on every machine, so that all compute the same number of shards."""
_TRIED_FOR_SPACE = 32


def convert(source: Source, path: str | os.PathLike[str], *, policy: ImagePolicy, options: Options) -> Report:
    """Write a source's samples into a new ``.beton`` file, or into shards.

    Parameters
    ----------
    source : Source
        The source of the samples.
    path : str or path-like
        The file to make, or a URL such as ``s3://bucket/train.beton``; it appears when it is complete. With shards
        their names derive from it: ``train-00000-of-00004.beton`` and so on, and the manifest ``train.beton.json``.
    policy : ImagePolicy
        How images are stored.
    options : Options
        Order, workers, shards, error handling.

    Returns
    -------
    Report
        Counts, sizes, time and what was skipped.

    Raises
    ------
    ConvertError
        If a sample cannot be converted and may not be skipped, a worker dies, the disk is full or will be, or none of
        the samples could be converted. No file is left under its name; work that was done is kept for ``resume``.
    UsageError
        If an argument is invalid, there is nothing to write, or a file or an interrupted conversion is in the way.
    """
    if not options.is_sharded:
        check_target(os.fspath(path), options)
    _check_error_log(options)
    start = time.monotonic()
    plan = Conversion.of(source, path, policy, options)
    report = Report(path=plan.path)
    # On a cluster the tasks have their own workers.
    num_workers = 0 if options.engine == "ray" else options.num_workers
    try:
        starts_here = bool(getattr(source, "starts_here", False))
        with Pool(plan.converter(), num_workers=num_workers, starts_here=starts_here) as pool:
            plan = _with_shards_and_space(plan, pool)
            if options.is_sharded:
                write_shards(plan, pool, report)
            else:
                _write_one(plan, pool, report)
            if options.engine == "local" and report.num_samples > report.num_resumed:
                report.num_workers = pool.num_started
    except BaseException:
        with contextlib.suppress(ConvertError):  # the first error is more informative
            _save_error_log(report, options)
        raise
    _save_error_log(report, options)
    report.seconds = time.monotonic() - start
    return report


def _with_shards_and_space(plan: Conversion, pool: Pool) -> Conversion:
    """Return the plan with its number of shards; refuse what the disk cannot hold."""
    options, count = plan.options, len(plan.order)
    num_tried = _TRIED_FOR_SIZE
    if options.shard_bytes is None:
        plan = dataclasses.replace(plan, num_shards=number_of_shards(options, count))
        # For small conversions the trial costs too much.
        num_tried = min(_TRIED_FOR_SPACE, count // 64)
        if not options.check_space or not num_tried or has_begun(plan.file_path(), options):
            return plan
    guess = try_samples(plan, pool, num_tried=num_tried)
    if options.shard_bytes is not None:
        plan = dataclasses.replace(plan, num_shards=number_of_shards(options, count, guess.sample_bytes))
    if options.check_space and not has_begun(plan.file_path(), options):
        destination = resolve_destination(plan.file_path(), options)
        # A remote shard is deleted here after its upload.
        is_one = destination.is_remote or options.shard_index is not None
        check_space(destination.folder, guess.file_bytes(count) / (max(1, plan.num_shards) if is_one else 1))
    return plan


def _write_one(plan: Conversion, pool: Pool, report: Report) -> None:
    # This takes a minute for ten million.
    with contextlib.closing(Progress(len(plan.order), what="reading names", quiet=plan.options.quiet)) as reading:
        file = plan.file(progress=lambda count: reading.advance(count=count))
    with contextlib.closing(Progress(len(plan.order), quiet=plan.options.quiet)) as progress:
        make_file(file, pool, progress, report)


def _check_error_log(options: Options) -> None:
    """Refuse an unwritable error log before the conversion, not hours later."""
    if options.error_log is None:
        return
    folder = os.path.dirname(options.error_log) or os.curdir
    if os.path.isdir(options.error_log):
        raise UsageError(f"error_log is a file to write, and {options.error_log} is a folder; name a file in it")
    if not os.path.isdir(folder):
        raise UsageError(f"the folder {folder} of error_log does not exist; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"error_log cannot be written: there is no permission to make files in {folder}")


def _save_error_log(report: Report, options: Options) -> None:
    if options.error_log is not None:
        path = options.error_log
        if options.shard_index is not None:  # each of these processes has its own list
            stem, ending = os.path.splitext(path)
            path = f"{stem}-{options.shard_index:05}{ending}"
        report.save_faults(path)


def estimate(
    source: Source, path: str | os.PathLike[str], *, policy: ImagePolicy, options: Options, num_tried: int = 32
) -> dict[str, Any]:
    """Convert a few samples spread over the source in memory, and scale up.

    Parameters
    ----------
    source, path, policy, options
        See `convert`. The number of workers scales the time.
    num_tried : int
        Number of samples to convert. With a given size of shards it is the conversion's own number, so that both
        compute the same number of shards.

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
        If there is nothing to write, or such shards are impossible.
    """
    plan = Conversion.of(source, path, policy, options)
    with Pool(plan.converter(), num_workers=0) as pool:
        guess = try_samples(plan, pool, num_tried=num_tried if options.shard_bytes is None else _TRIED_FOR_SIZE)
    count = len(plan.order)
    path, counts, shards = plan.path, [count], {}
    if options.is_sharded:
        plan = dataclasses.replace(plan, num_shards=number_of_shards(options, count, guess.sample_bytes))
        mine = plan.shards()
        counts = [high - low for low, high in map(plan.bounds, mine)]
        path = manifest_path(path) if options.shard_index is None else plan.file_path(options.shard_index)
        shards = {
            "num_shards": plan.num_shards,
            "shards": [plan.file_path(mine[0]), plan.file_path(mine[-1])],
            "shard_samples": [min(counts), max(counts)],
            "estimated_shard_bytes": guess.file_bytes(max(counts)),
        }
    seconds = guess.seconds / guess.num_tried * sum(counts) / max(1, options.num_workers)
    return {
        "path": path,
        "num_samples": sum(counts),
        "num_classes": len(source.class_names or ()),
        "num_tried": guess.num_tried,
        "estimated_bytes": sum(map(guess.file_bytes, counts)),
        "estimated_seconds": round(seconds, 1),
        "images": dict(sorted(guess.images.items())),
        "skipped": [dataclasses.asdict(item) for item in guess.faults],
        **shards,
    }
