"""Writes a dataset as several files: their number, their writers, and the manifest.

A shard is written and resumed like any other file; its bytes depend only on the plan, not on the machine. The process
that finds all shards complete writes the manifest; writing it twice is harmless, as it is the same.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from converters.engine.estimate import PAGE_BYTES
from converters.engine.one_file import make_file, shard_of
from converters.engine.plan import Conversion
from converters.engine.pool import Pool
from converters.engine.ray import run_on_cluster
from converters.options import Options
from converters.output.targets import Store, check_target, resolve_destination
from converters.report import Progress, Report
from dataloading import FormatError, Manifest, Reader, Shard, UsageError
from dataloading.cli import note
from dataloading.messages import counted
from dataloading.tools import is_url, manifest_path

__all__ = ["number_of_shards", "write_shards"]


def write_shards(plan: Conversion, pool: Pool, report: Report) -> None:
    """Write the shards of a plan, or the one of the options, and the manifest when all are complete.

    The report is filled in even if an error ends the conversion.

    Raises
    ------
    ConvertError
        See `converters.engine.one_file.make_file`. Complete shards are kept for ``resume``.
    UsageError
        If there are more shards than samples, or files are in the way.
    """
    options, mine = plan.options, plan.shards()
    _check_targets(plan, mine)
    report.path = manifest_path(plan.path)
    total = sum(high - low for low, high in map(plan.bounds, mine))
    with contextlib.closing(Progress(total, quiet=options.quiet)) as progress:
        if options.engine == "ray":
            found = run_on_cluster(plan, progress, report)
        else:
            found = {}
            for number in mine:
                own = Report(path=plan.file_path(number))
                try:
                    found[number] = make_file(plan.file(number), pool, progress, own)
                finally:
                    report.add(own)
    report.shards = [plan.file_path(number) for number in mine]
    report.is_whole = _add_others(plan, found)
    if report.is_whole:
        manifest = Manifest(shards=tuple(found[number] for number in range(plan.num_shards)))
        if is_url(plan.path):
            Store(manifest_path(plan.path)).write(manifest.to_text().encode())
        else:
            manifest.save(manifest_path(plan.path), overwrite=True)


def number_of_shards(options: Options, num_samples: int, sample_bytes: float = 0.0) -> int:
    """Return the number of shards in the options, from ``sample_bytes`` if they give a size; 0 for one file.

    Raises
    ------
    UsageError
        If there are more shards than samples or than names, or ``shard_index`` is out of range.
    """
    if options.num_shards is not None:
        if options.num_shards > num_samples:
            raise UsageError(
                f"{counted(options.num_shards, 'shard')} of {counted(num_samples, 'sample')}: a shard needs at least "
                "one; ask for fewer"
            )
        return options.num_shards
    if options.shard_bytes is None:
        return 0
    room = _room(options.shard_bytes, options.page_size or PAGE_BYTES)
    number = min(num_samples, max(1, -(-int(sample_bytes * num_samples) // room)))
    if number > 100_000:
        raise UsageError(f"shards of {options.shard_bytes:,} bytes would be {number:,}; at most 100,000 have names")
    if options.shard_index is not None and options.shard_index >= number:
        raise UsageError(
            f"shard_index must be 0 to {number - 1} ({counted(number, 'shard')} of that size), got "
            f"{options.shard_index}"
        )
    return number


def _room(shard_bytes: int, page_size: int) -> int:
    """Return the bytes of samples in a file of ``shard_bytes``, without its first and last pages.

    No file is smaller than two pages. If less is requested, pages are ignored.

    Examples
    --------
    >>> _room(100, 16), _room(32, 16), _room(20, 16), _room(5, 16)
    (80, 16, 16, 5)
    """
    return max(min(shard_bytes, page_size), (shard_bytes // page_size - 1) * page_size)


def _check_targets(plan: Conversion, mine: Iterable[int]) -> None:
    options, manifest = plan.options, manifest_path(plan.path)
    store = Store(manifest) if is_url(plan.path) else None
    there = os.path.lexists(manifest) if store is None else store.size() is not None
    if there and not (options.overwrite or options.resume):
        raise UsageError(f"{manifest} exists; --overwrite replaces it and its shards, --resume completes them")
    for path in map(plan.file_path, mine):
        try:
            check_target(path, options)
        except UsageError as error:
            if os.path.exists(resolve_destination(path, options).local):
                raise UsageError(f"{error}; --resume keeps complete shards and goes on with the others") from error
            raise
        if store is not None:  # a request per shard would take too long
            break
    if there and options.overwrite and not options.resume:
        # While shards are replaced, it would list a mix of old and new ones.
        if store is None:
            Path(manifest).unlink()
        else:
            store.remove()


def _add_others(plan: Conversion, found: dict[int, Shard]) -> bool:
    """Add the shards of other processes; return whether all are complete."""
    missing = [number for number in range(plan.num_shards) if number not in found]
    remote = is_url(plan.path)
    if not remote and not all(os.path.exists(plan.file_path(number)) for number in missing):
        return False
    for number in missing:
        path = plan.file_path(number)
        try:
            if remote and Store(path).size() is None:
                return False
            file = Store(path).info() if remote else Reader(path)
            difference = plan.file(number).differs_from(file)
            found[number] = shard_of(file, path)
        except (FormatError, FileNotFoundError) as error:
            difference = str(error)
        if difference:
            note(f"no manifest was written: {path} is not a shard of this conversion ({difference})")
            return False
    return True
