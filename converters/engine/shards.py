"""Several files that are one dataset: where the order is cut, who writes which, and the manifest that ends it.

Owns the plan of the shards. A shard is a file like any other, made, interrupted and gone on with by itself; its bytes
depend on the plan alone, not on the engine (``engines/``). The manifest is written when all shards are complete, by
whoever finds them so; writing it twice is no harm, as it is the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.engine.delivery import has_begun, make_file, shard_of
from converters.engine.estimate import PAGE_BYTES, check_space, measure
from converters.engine.fingerprint import names_digest
from converters.engine.journal import journal_path, part_path
from converters.engine.one_file import FileJob, dead_worker
from converters.engine.pool import DeadWorkerError, Pool
from converters.engine.worker import Work
from converters.images.policy import ImagePolicy
from converters.options import Options
from converters.output.targets import Store, check_target, place_of
from converters.report import Progress, Report
from converters.source import Source
from dataloading import ConvertError, FormatError, Manifest, Reader, Shard, UsageError
from dataloading.cli import note
from dataloading.messages import counted
from dataloading.tools import is_url, manifest_path, shard_path

__all__ = [
    "TRIED_FOR_SIZE",
    "TRIED_FOR_SPACE",
    "ShardPlan",
    "clear_shards",
    "convert_shards",
    "make_shard",
    "number_of_shards",
]

TRIED_FOR_SIZE = 256
"""Samples tried for --shard-size: the same ones everywhere, so that each machine counts the same shards."""
TRIED_FOR_SPACE = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """What all shards have in common; small enough to be sent to each machine.

    Parameters
    ----------
    source, policy, options
        See `converters.engine.convert.convert`.
    path : str
        The destination that names the shards.
    order : int64[n]
        Indices of all samples, in the order they are stored.
    provenance : mapping
        What the files remember of their origin.
    files : mapping of str to str
        What `converters.engine.fingerprint.file_stamps` says of the source.
    num_shards : int
        How many; 0 until it is known.
    """

    source: Source
    path: str
    order: npt.NDArray[np.int64]
    policy: ImagePolicy
    options: Options
    provenance: Mapping[str, Any]
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    num_shards: int = 0

    def work(self) -> Work:
        """Return what the workers run."""
        on_error = self.options.on_error
        return Work(self.source, self.policy, placeholder=on_error == "placeholder", as_shown=on_error == "keep")

    def shard(self, number: int) -> str:
        """Return the path or URL of a shard."""
        return shard_path(self.path, number, self.num_shards)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return where in the order a shard begins and ends; sizes differ by one at most.

        Examples
        --------
        >>> plan = ShardPlan(source=None, path="a.beton", order=np.arange(10), policy=None, options=None,
        ...                  provenance={}, num_shards=3)
        >>> [plan.bounds(number) for number in range(3)]
        [(0, 3), (3, 6), (6, 10)]
        """
        count = len(self.order)
        return count * number // self.num_shards, count * (number + 1) // self.num_shards

    def job(self, number: int, *, wait_seconds: float = 0.0) -> FileJob:
        """Return the file that a shard is."""
        low, high = self.bounds(number)
        names = names_digest(self.source, self.order[low:high])
        # The names tell a finished shard of an earlier run from one of a source that has changed.
        provenance = {
            **self.provenance, "shard": number, "num_shards": self.num_shards, "names_of_samples": names,
        }  # fmt: skip
        return FileJob(
            source=self.source, path=self.shard(number), order=self.order[low:high], work=self.work(),
            options=self.options, provenance=provenance, names=names, files=self.files, wait_seconds=wait_seconds,
        )  # fmt: skip


def convert_shards(plan: ShardPlan, report: Report) -> None:
    """Write the shards of a plan, or the one the options ask for, and the manifest when all are there.

    Parameters
    ----------
    plan : ShardPlan
        What to write.
    report : Report
        Filled in, also where an error ends it.

    Raises
    ------
    ConvertError
        See `converters.engine.one_file.write_file`. Shards that are complete stay, for ``resume``.
    UsageError
        If there are more shards than samples, or files are in the way.
    """
    options = plan.options
    with Pool(plan.work(), num_workers=0 if options.engine == "ray" else options.num_workers) as pool:
        plan = _with_number(plan, pool)
        mine = range(plan.num_shards) if options.shard_index is None else [options.shard_index]
        _check_targets(plan, mine)
        report.path = manifest_path(plan.path)
        total = sum(high - low for low, high in map(plan.bounds, mine))
        with contextlib.closing(Progress(total, quiet=options.quiet)) as progress:
            if options.engine == "ray":
                from converters.engine.ray import run_shards

                found = run_shards(plan, mine, progress, report)
            else:
                found = {}
                for number in mine:
                    found[number] = make_shard(plan, number, pool, progress, report)
    report.shards = [plan.shard(number) for number in mine]
    shards = found if len(found) == plan.num_shards else _all_shards(plan, found)
    report.is_whole = shards is not None
    if shards is not None:
        _save_manifest(plan, Manifest(shards=tuple(shards[number] for number in range(plan.num_shards))))


def make_shard(
    plan: ShardPlan, number: int, pool: Pool, progress: Progress, report: Report, *, wait_seconds: float = 0.0
) -> Shard:
    """Make one shard and count it in; see `converters.engine.delivery.make_file`."""
    own = Report(path=plan.shard(number))
    try:
        return make_file(plan.job(number, wait_seconds=wait_seconds), pool, progress, own)
    finally:
        report.add(own)


def _with_number(plan: ShardPlan, pool: Pool) -> ShardPlan:
    options = plan.options
    count = len(plan.order)
    plan = dataclasses.replace(plan, num_shards=1 if options.num_shards is None else number_of_shards(options, count))
    tried = TRIED_FOR_SIZE if options.shard_bytes is not None else min(TRIED_FOR_SPACE, count // 64)
    if options.shard_bytes is None and (not options.check_space or not tried or has_begun(plan.shard(0), options)):
        return plan
    try:
        guess = measure(plan.source, plan.order, pool, num_tried=tried, page_size=plan.options.page_size)
    except DeadWorkerError as error:
        job = dataclasses.replace(plan.job(0), order=plan.order, path=plan.path)
        raise ConvertError(dead_worker(job, error)) from error
    if options.shard_bytes is not None:
        plan = dataclasses.replace(plan, num_shards=number_of_shards(options, count, guess.sample_bytes))
    if options.check_space and not has_begun(plan.shard(0), options):
        place = place_of(plan.shard(0), options)
        # A remote shard leaves when it is uploaded.
        files = 1 if place.is_remote or options.shard_index is not None else plan.num_shards
        warning = check_space(place.folder, guess.num_bytes / plan.num_shards * files)
        if warning:
            note(warning)
    return plan


def number_of_shards(options: Options, num_samples: int, sample_bytes: float = 0.0) -> int:
    """Return how many shards the options ask for.

    Parameters
    ----------
    options : Options
        With ``num_shards`` or ``shard_bytes``.
    num_samples : int
        How many samples there are.
    sample_bytes : float
        Bytes a sample takes, for ``shard_bytes``.

    Raises
    ------
    UsageError
        If there are more shards than samples or than names, or no shard has the index asked for.
    """
    if options.num_shards is not None:
        if options.num_shards > num_samples:
            raise UsageError(
                f"{counted(options.num_shards, 'shard')} of {counted(num_samples, 'sample')}: a shard needs at least "
                "one; ask for fewer"
            )
        return options.num_shards
    assert options.shard_bytes is not None
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
    """Return how many bytes of samples a file of ``shard_bytes`` holds: the first page is its head, the last one ends.

    Smaller files than two pages there are none; those asked for hold what they would without pages.

    Examples
    --------
    >>> _room(100, 16), _room(32, 16), _room(20, 16), _room(5, 16)
    (80, 16, 16, 5)
    """
    return max(min(shard_bytes, page_size), (shard_bytes // page_size - 1) * page_size)


def _check_targets(plan: ShardPlan, mine: Sequence[int]) -> None:
    options = plan.options
    manifest = manifest_path(plan.path)
    there = (Store(manifest).size() is not None) if is_url(plan.path) else os.path.lexists(manifest)
    if there and not (options.overwrite or options.resume):
        raise UsageError(f"{manifest} exists; --overwrite replaces it and its shards, --resume completes them")
    for number in mine if not is_url(plan.path) else mine[:1]:
        try:
            check_target(plan.shard(number), options)
        except UsageError as error:
            if os.path.exists(place_of(plan.shard(number), options).local):
                raise UsageError(f"{error}; --resume keeps complete shards and goes on with the others") from error
            raise
    if there and options.overwrite and not options.resume:
        # While shards are replaced it would list some of the old and some of the new.
        if is_url(plan.path):
            Store(manifest).remove()
        else:
            Path(manifest).unlink()


def clear_shards(plan: ShardPlan, mine: Sequence[int]) -> None:
    """Remove shards and interrupted work on them, so that whatever is there later is the new run's."""
    for number in mine:
        place = place_of(plan.shard(number), plan.options)
        for path in (place.local, journal_path(place.local), part_path(place.local)):
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
        if place.is_remote and (store := Store(place.path)).size() is not None:
            store.remove()


def _all_shards(plan: ShardPlan, known: Mapping[int, Shard]) -> dict[int, Shard] | None:
    """Return what the manifest says of each shard if all are complete, else None."""
    paths = [plan.shard(number) for number in range(plan.num_shards)]
    missing = [number for number in range(plan.num_shards) if number not in known]
    if not is_url(plan.path) and not all(os.path.exists(paths[number]) for number in missing):
        return None
    shards = dict(known)
    for number in missing:
        try:
            store = Store(paths[number]) if is_url(plan.path) else None
            if store is not None and store.size() is None:
                return None
            file = Reader(paths[number]) if store is None else store.info()
            found = plan.job(number).differs_from(file)
            shards[number] = shard_of(file, paths[number])
        except (FormatError, FileNotFoundError) as error:
            found = str(error)
        if found:
            note(f"no manifest was written: {paths[number]} is not a shard of this conversion ({found})")
            return None
    return shards


def _save_manifest(plan: ShardPlan, manifest: Manifest) -> None:
    path = manifest_path(plan.path)
    if is_url(path):
        Store(path).write(manifest.to_text().encode())
    else:
        manifest.save(path, overwrite=True)
