"""A file brought to its destination: written in place, or written here and uploaded.

Knows how a file is made (``one_file.py``) and where files go (``targets.py``), and returns what a manifest says of it.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from converters.engine.journal import journal_path
from converters.engine.one_file import FileJob, write_file
from converters.engine.pool import Pool
from converters.options import Options
from converters.output.targets import Store, check_target, place_of
from converters.report import Progress, Report
from dataloading import Reader, Shard, UsageError
from dataloading.tools import FileInfo

__all__ = ["has_begun", "make_file", "shard_of"]


def make_file(job: FileJob, pool: Pool, progress: Progress, report: Report) -> Shard:
    """Make a file at its destination, a path or URL.

    Parameters
    ----------
    job, pool, progress, report
        See `converters.engine.one_file.write_file`.

    Returns
    -------
    Shard
        What a manifest says of the file.

    Raises
    ------
    ConvertError, UsageError
        See `converters.engine.one_file.write_file`, and if the upload fails; what was to be uploaded is kept for
        ``resume``.
    """
    place = place_of(job.path, job.options)
    if not place.is_remote:
        write_file(job, pool, progress, report)
        with Reader(job.path) as reader:
            return shard_of(reader, job.path)
    store = Store(place.path)
    check_target(job.path, job.options)
    if job.options.resume and store.size() is not None:
        there = store.info()
        found = job.differs_from(there)
        if not found:
            progress.skip(len(job.order))
            report.num_samples = report.num_resumed = there.num_samples
            report.num_bytes = there.num_bytes
            return shard_of(there, job.path)
        if not job.options.overwrite:
            raise UsageError(f"{job.path} exists and is not what this command makes ({found}); --overwrite replaces it")
    write_file(dataclasses.replace(job, path=place.local), pool, progress, report)
    store.upload(place.local)
    with Reader(place.local) as reader:
        shard = shard_of(reader, job.path)
    Path(place.local).unlink()
    return shard


def shard_of(file: FileInfo, path: str) -> Shard:
    """Return what a manifest beside ``path`` says of a file."""
    return Shard.of(file, path.rpartition("/")[2])


def has_begun(path: str, options: Options) -> bool:
    """Tell whether an earlier run has left work on a file, or the file."""
    local = place_of(path, options).local
    return os.path.exists(local) or os.path.exists(journal_path(local))
