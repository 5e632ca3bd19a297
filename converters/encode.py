"""Source -> worker processes -> one writer: the engine behind every converter.

Workers read, decode and encode; the parent alone writes, in the order of the samples, so the file's bytes are the
same for any number of workers. Knows sources, the image policy and the writer, and nothing of any particular kind of
dataset. Either a complete file appears under its name, or none does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Generator, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import dataloading
from dataloading import BetonError, ConvertError, UsageError, Writer

from .chance import chances
from .policy import ImagePolicy
from .processes import DeadWorkerError, run_ordered
from .report import Progress, Report, Skipped, human_bytes
from .sources.base import Source
from .work import Outcome, Work

__all__ = ["Options", "convert", "estimate"]

OnError = Literal["raise", "skip"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How a conversion runs; only ``limit``, ``shuffle``, ``seed`` and ``page_size`` show in the file.

    Parameters
    ----------
    num_workers : int
        Worker processes; 0 works in the calling process.
    limit : int, optional
        Take only the first so many samples (after shuffling).
    shuffle : bool
        Store the samples in a random order.
    seed : int
        Seed of that order.
    page_size : int, optional
        The file's page size in bytes; by default 8 MiB, more if a sample needs it.
    overwrite : bool
        Replace an existing file when the new one is complete.
    on_error : {"raise", "skip"}
        What to do with a sample that cannot be converted.
    quiet : bool
        No progress on stderr.
    """

    num_workers: int = 0
    limit: int | None = None
    shuffle: bool = False
    seed: int = 0
    page_size: int | None = None
    overwrite: bool = False
    on_error: OnError = "raise"
    quiet: bool = True

    def __post_init__(self) -> None:
        if self.num_workers < 0:
            raise UsageError(f"num_workers must be 0 or more, got {self.num_workers}")
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"limit must be 0 or more, got {self.limit}")
        if self.on_error not in ("raise", "skip"):
            raise UsageError(f"on_error must be 'raise' or 'skip', got {self.on_error!r}")
        if self.page_size is not None and not (
            2 << 20 <= self.page_size < 4 << 30 and self.page_size & (self.page_size - 1) == 0
        ):
            raise UsageError(f"page_size must be a power of two from 2 MiB to 2 GiB, got {self.page_size}")


def convert(source: Source, path: str | os.PathLike[str], *, policy: ImagePolicy, options: Options) -> Report:
    """Write a source's samples into a new ``.beton`` file.

    Parameters
    ----------
    source : Source
        Where the samples come from.
    path : str or path-like
        The file to make; it appears when it is complete.
    policy : ImagePolicy
        How images are stored.
    options : Options
        Order, workers, what to do on errors.

    Returns
    -------
    Report
        Counts, sizes, time and what was skipped.

    Raises
    ------
    ConvertError
        If a sample cannot be converted and is not to be skipped, a worker dies, the disk is full, or nothing is left
        to write. No file is left behind.
    UsageError
        If the arguments cannot be honoured.
    """
    path = os.fspath(path)
    _check_target(path, options)
    order = sample_order(len(source), options)
    if len(order) == 0:
        raise ConvertError(f"there is nothing to write: the source has {len(source)} samples, limit={options.limit}")
    report = Report(path=path)
    start = time.monotonic()
    progress = Progress(len(order), quiet=options.quiet)
    try:
        with _disk_errors(path), contextlib.closing(progress), _open_writer(source, path, policy, options) as writer:
            with contextlib.closing(_outcomes(source, order, policy, options)) as outcomes:
                for index, outcome in outcomes:
                    _take(writer, source, index, outcome, options, report)
                    progress.advance(outcome.stored_bytes)
            if report.num_samples == 0:
                raise ConvertError(
                    f"none of the {len(order)} samples could be converted. The first: {report.skipped[0].name}: "
                    f"{report.skipped[0].reason}"
                )
            writer.finish()
    except DeadWorkerError as error:
        place = "while it was starting"
        if error.position is not None:
            place = f"on {_describe(source, int(order[error.position]))}"
        elif "exit code" in error.how:
            place += (
                '. A script that converts needs `if __name__ == "__main__":` around the call; num_workers=0 does '
                "without workers"
            )
        raise ConvertError(f"a worker process {error.how} {place}. {path} was not written") from error
    report.seconds = time.monotonic() - start
    report.num_bytes = os.stat(path).st_size  # noqa: PTH116
    return report


def sample_order(num_samples: int, options: Options) -> npt.NDArray[np.int64]:
    """Return the source indices of the samples in the order they are stored.

    The random order sorts one random number a sample, so it depends on the seed alone and not on a library's version.

    Parameters
    ----------
    num_samples : int
        Length of the source.
    options : Options
        ``shuffle``, ``seed`` and ``limit``.
    """
    if not options.shuffle:
        stop = num_samples if options.limit is None else min(num_samples, options.limit)
        return np.arange(stop, dtype=np.int64)
    keys = chances(options.seed, np.arange(num_samples))
    return np.argsort(keys, kind="stable")[: options.limit].astype(np.int64)


def _outcomes(
    source: Source, order: npt.NDArray[np.int64], policy: ImagePolicy, options: Options
) -> Generator[tuple[int, Outcome], None, None]:
    jobs = ((int(index), source.task(int(index))) for index in order)
    results = run_ordered(Work(source, policy), jobs, num_workers=options.num_workers)
    with contextlib.closing(results):
        for index, outcome in zip(order, results, strict=True):
            yield int(index), outcome


def _open_writer(source: Source, path: str, policy: ImagePolicy, options: Options) -> Writer:
    size = len(source) if options.limit is None else min(len(source), options.limit)
    return Writer(
        path,
        source.fields,
        num_samples=size,
        page_size=options.page_size,
        class_names=source.class_names,
        provenance={
            **source.provenance,
            "converter": f"beton {dataloading.__version__}",
            "images": policy.provenance(),
            "limit": options.limit,
            "shuffle": options.shuffle,
            "seed": options.seed,
        },
        overwrite=options.overwrite,
    )


def _take(writer: Writer, source: Source, index: int, outcome: Outcome, options: Options, report: Report) -> None:
    if outcome.values is None:
        if options.on_error == "raise":
            raise ConvertError(
                f"{_describe(source, index)}: {outcome.fault}. {writer.path} was not written; --on-error skip leaves "
                "such samples out"
            )
        report.skipped.append(Skipped(index=index, name=source.name(index), reason=outcome.fault))
        return
    try:
        writer.append(outcome.values)
    except UsageError as error:
        raise ConvertError(f"{_describe(source, index)}: {error}") from error
    report.num_samples += 1
    report.source_bytes += outcome.source_bytes
    report.kinds.update(outcome.kinds)


def _describe(source: Source, index: int) -> str:
    return f"sample {index} ({source.name(index)})"


def _check_target(path: str, options: Options) -> None:
    if os.path.isdir(path):  # noqa: PTH112
        raise UsageError(f"{path} is a folder; name the file to write, such as {os.path.join(path, 'train.beton')}")  # noqa: PTH118
    if os.path.lexists(path) and not options.overwrite:
        raise UsageError(f"{path} exists; --overwrite (overwrite=True) replaces it when the new file is complete")
    folder = os.path.dirname(path) or os.curdir  # noqa: PTH120
    if not os.path.isdir(folder):  # noqa: PTH112
        raise UsageError(f"the folder {folder} does not exist; make it first")


@contextlib.contextmanager
def _disk_errors(path: str) -> Iterator[None]:
    """Turn the system's refusals while writing into one message with the free space."""
    try:
        yield
    except BetonError:
        raise
    except BrokenPipeError:
        raise
    except OSError as error:
        free = ""
        with contextlib.suppress(OSError):
            status = os.statvfs(os.path.dirname(path) or os.curdir)  # noqa: PTH120
            free = f" ({human_bytes(status.f_bavail * status.f_frsize)} free there now)"
        raise ConvertError(f"cannot write {path}: {error.strerror or error}{free}. No file was left behind") from error


def estimate(source: Source, *, policy: ImagePolicy, options: Options, num_tried: int = 32) -> dict[str, Any]:
    """Convert a few samples spread over the source in memory, and scale up.

    Parameters
    ----------
    source : Source
        Where the samples come from.
    policy : ImagePolicy
        How images would be stored.
    options : Options
        Their number of workers scales the time.
    num_tried : int
        Samples to convert.

    Returns
    -------
    dict
        ``num_samples``, ``estimated_bytes``, ``estimated_seconds``, ``images`` (counts among those tried) and
        ``skipped`` (those tried that cannot be converted).
    """
    order = sample_order(len(source), options)
    tried = order[np.unique(np.linspace(0, len(order) - 1, min(num_tried, len(order))).astype(np.int64))]
    work = Work(source, policy)
    report = Report(path="")
    stored = 0
    start = time.monotonic()
    for index in map(int, tried):
        outcome = work((index, source.task(index)))
        if outcome.values is None:
            report.skipped.append(Skipped(index=index, name=source.name(index), reason=outcome.fault))
        stored += outcome.stored_bytes
        report.kinds.update(outcome.kinds)
    share = len(order) / max(1, len(tried))
    seconds = (time.monotonic() - start) * share / max(1, options.num_workers)
    return {
        "num_samples": len(order),
        "num_classes": len(source.class_names or ()),
        "num_tried": len(tried),
        "estimated_bytes": int(stored * share),
        "estimated_seconds": round(seconds, 1),
        "images": dict(sorted(report.kinds.items())),
        "skipped": [dataclasses.asdict(item) for item in report.skipped],
    }
