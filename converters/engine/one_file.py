"""One file: samples in order -> workers -> writer, with checkpoints in a journal.

Workers read, decode and encode; the parent alone writes, in the order of the samples, so the file's bytes are the same
for any number of workers, and however often a run was cut off and gone on with. Either a complete file appears under
its name, or none does. Knows nothing of shards, engines or remote stores.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.engine.estimate import check_space
from converters.engine.fingerprint import SampleChain, changed_files, describe_fields, differences
from converters.engine.journal import Journal, journal_path
from converters.engine.pool import DeadWorkerError, Pool
from converters.engine.worker import Outcome, Work
from converters.options import Options
from converters.output.files import cannot_write
from converters.report import LISTS, Progress, Report, Skipped
from converters.source import Source
from dataloading import ConvertError, FormatError, Reader, UsageError, Writer
from dataloading.cli import note
from dataloading.messages import counted
from dataloading.tools import FileInfo, remove_orphans

__all__ = ["FileJob", "dead_worker", "write_file"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileJob:
    """One file to be made.

    Parameters
    ----------
    source : Source
        Where the samples come from.
    path : str
        The file, on this machine.
    order : int64[n]
        Indices of its samples in the source.
    work : Work
        What the pool runs, here for samples that turn out not to fit.
    options : Options
        How the conversion runs.
    provenance : mapping
        What the file remembers of its origin; files of equal provenance are taken for equal.
    names : str
        Checksum of the samples' names.
    files : mapping of str to str
        What `converters.engine.fingerprint.file_stamps` says of the source.
    wait_seconds : float
        How long to wait for another process that is writing the same file.
    """

    source: Source
    path: str
    order: npt.NDArray[np.int64]
    work: Work
    options: Options
    provenance: Mapping[str, Any]
    names: str
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    wait_seconds: float = 0.0

    def identity(self) -> dict[str, Any]:
        """Return what must be equal for one run to go on with another's work."""
        return {
            **self.provenance,
            "page_size": self.options.page_size,
            "fields": describe_fields(self.source.fields),
            "classes": list(self.source.class_names or ()),
            "num_samples": len(self.order),
            "names_of_samples": self.names,
        }

    def differs_from(self, file: FileInfo) -> str:
        """Return in words what a finished file has that this job would not make so, or nothing."""
        extension = file.extension
        then: dict[str, Any] = dict(extension.provenance) if extension is not None else {}
        then |= {"fields": describe_fields(file.fields)}
        then |= {"classes": list(file.class_names or ())}
        now = {**self.provenance, "fields": describe_fields(self.source.fields)}
        return differences(then, now | {"classes": list(self.source.class_names or ())})


def write_file(job: FileJob, pool: Pool, progress: Progress, report: Report) -> None:
    """Make a file, or go on with it, or find it made.

    Parameters
    ----------
    job : FileJob
        What to make.
    pool : Pool
        Runs ``job.work``.
    progress : Progress
        Told of each sample.
    report : Report
        Filled in, also where an error ends it.

    Raises
    ------
    ConvertError
        If a sample cannot be converted and is not to be skipped, a worker dies, the disk is full, or nothing is left
        to write. No file is left under the name.
    UsageError
        If there is a file, or the work of another conversion, that must not be touched.
    """
    options = job.options
    if options.resume and os.path.lexists(job.path) and _is_finished(job, progress, report):
        return
    orphans = remove_orphans(job.path, remove=options.overwrite or options.resume)
    if orphans:
        words = "removed" if options.overwrite or options.resume else "left alone; --overwrite or --resume removes it"
        note(f"unfinished files of writers that are gone, {words}: {', '.join(orphans)}")
    with _disk_errors(job.path), contextlib.closing(Journal(job.path, wait_seconds=job.wait_seconds)) as journal:
        run = _Run(job, journal, pool, progress, report)
        run.open()
        run.convert()


def _is_finished(job: FileJob, progress: Progress, report: Report) -> bool:
    """Tell whether the file is there already, and report it; another file in its place may have to be kept."""
    try:
        with Reader(job.path) as reader:
            found = job.differs_from(reader)
            num_samples, num_bytes = reader.num_samples, reader.num_bytes
    except FormatError as error:
        found = f"it cannot be read: {error}"
    if found and job.options.overwrite:
        return False
    if found:
        raise UsageError(
            f"{job.path} exists and is not what this command makes ({found}); --overwrite replaces it when the new "
            "file is complete"
        )
    if os.path.exists(journal_path(job.path)):
        Journal(job.path, wait_seconds=job.wait_seconds).remove()  # its process ended between two steps
    progress.skip(len(job.order))
    report.num_samples = report.num_resumed = num_samples
    report.num_bytes = num_bytes
    return True


class _Run:
    """The work on one file in this process."""

    def __init__(self, job: FileJob, journal: Journal, pool: Pool, progress: Progress, report: Report) -> None:
        self._job = job
        self._journal = journal
        self._pool = pool
        self._progress = progress
        self._writer: Writer | None = None
        self._done = self._first = 0
        self._chain = SampleChain(job.source)
        self._num_listed = dict.fromkeys(LISTS, 0)
        self._is_sound = True
        self._report = report

    def open(self) -> None:
        """Start anew or go on, as the journal and the options say."""
        job, journal, options = self._job, self._journal, self._job.options
        if journal.has_work and not options.resume and not options.overwrite:
            raise UsageError(
                f"an interrupted conversion of {_count(journal)} to {job.path} is here: --resume continues it, "
                "--overwrite starts anew and removes it"
            )
        going_on = journal.has_work and options.resume
        try:
            if going_on:
                self._compare()
                journal.reopen()
                self._writer = self._open_writer(self._checkpoints())
            else:
                facts = {"identity": job.identity(), "files": dict(job.files), "num_samples": len(job.order)}
                journal.begin(facts)
                self._writer = self._open_writer(None)
        except (FormatError, FileNotFoundError) as error:
            if not going_on:
                raise
            raise ConvertError(f"{error}. --overwrite starts anew and removes it") from error
        except BaseException:
            if not going_on:
                journal.remove()
            raise
        if going_on:
            self._report.num_resumed = self._report.num_samples
            self._progress.skip(self._done)
            self._check_space()

    def _compare(self) -> None:
        job, journal = self._job, self._journal
        assert journal.header is not None
        assert journal.last is not None
        found = differences(journal.header["identity"], job.identity())
        on_error = journal.last.facts["on_error"]
        if not found and on_error != job.options.on_error and journal.last.facts["num_faults"]:
            # Until the first fault it makes no difference.
            found = f"on_error was {on_error}, is {job.options.on_error} now, and samples have failed already"
        if found:
            raise UsageError(
                f"the interrupted conversion of {_count(journal)} to {job.path} was another one: {found}. Give "
                "the same source and options to go on, or --overwrite to start anew and remove it"
            )
        if changed := changed_files(journal.header.get("files", job.files), job.files):
            raise UsageError(
                f"the source has changed since {job.path} was begun: {changed} (its size or time differs). Restore it, "
                "or --overwrite to start anew"
            )
        chain = SampleChain(job.source)
        done = 0
        for record in journal.records():
            first = done
            for index in job.order[done : record.facts["done"]]:
                chain.add(int(index))
            done = record.facts["done"]
            if chain.value != record.facts["chain"]:
                raise UsageError(
                    f"the source has changed since {job.path} was begun: of the samples that are done, one of those "
                    f"from {self._describe(int(job.order[first]))} to {self._describe(int(job.order[done - 1]))} has "
                    "another file now (its size or time differs). Restore it, or --overwrite to start anew"
                )
        self._chain = chain

    def _checkpoints(self) -> Iterator[bytes]:
        report = self._report
        for record in self._journal.records():
            facts = record.facts
            self._done = facts["done"]
            report.num_samples, report.source_bytes = facts["num_samples"], facts["source_bytes"]
            report.kinds.clear()
            report.kinds.update(facts["kinds"])
            for what, listed in report.lists().items():
                listed.extend(Skipped(index=at, name=name, reason=why) for at, name, why in facts.get(what, ()))
            yield record.blob
        self._num_listed = {what: len(listed) for what, listed in report.lists().items()}

    def _open_writer(self, checkpoints: Iterator[bytes] | None) -> Writer:
        job = self._job
        return Writer(
            job.path,
            job.source.fields,
            num_samples=len(job.order),
            page_size=job.options.page_size,
            class_names=job.source.class_names,
            provenance=job.provenance,
            overwrite=job.options.overwrite,
            part=self._journal.part,
            checkpoints=checkpoints,
        )

    def _check_space(self) -> None:
        if self._job.options.check_space and self._done:
            used = os.stat(self._journal.part).st_blocks * 512
            needed = used / self._done * (len(self._job.order) - self._done)
            warning = check_space(os.path.dirname(self._job.path) or os.curdir, needed)
            if warning:
                note(warning)

    def convert(self) -> None:
        """Write all samples that are missing, and give the file its name."""
        job, report = self._job, self._report
        assert self._writer is not None
        try:
            self._first = self._done
            rest = job.order[self._first :]
            jobs = ((int(index), job.source.task(int(index))) for index in rest)
            due = time.monotonic() + job.options.checkpoint_seconds
            with contextlib.closing(self._pool.run(jobs)) as outcomes:
                for index, outcome in zip(map(int, rest), outcomes, strict=True):
                    self._take(index, outcome)
                    self._progress.advance(outcome.stored_bytes)
                    if (now := time.monotonic()) >= due and not self._journal.is_saving:
                        self._save()
                        due = now + job.options.checkpoint_seconds
            if report.num_samples == 0:
                first = report.skipped[0]
                raise ConvertError(
                    f"none of the {counted(len(job.order), 'sample')} could be converted. The first: {first.name}: "
                    f"{first.reason}"
                )
            self._journal.settle()
            self._writer.finish()
        except BaseException as error:
            self._end_with(error)
        self._journal.remove()
        report.num_bytes = os.stat(job.path).st_size

    def _take(self, index: int, outcome: Outcome) -> None:
        """Write one sample, or do with it what is to be done with those that fail."""
        assert self._writer is not None
        report, on_error = self._report, self._job.options.on_error
        values, fault, known = outcome.values, outcome.fault, outcome.stamps
        # Whatever breaks in here, such as Ctrl-C, leaves counts and file at odds.
        self._is_sound = False
        if values is not None:
            try:
                self._writer.append(values)
            except UsageError as error:  # nothing was written; it is larger than a page, for instance
                fault, values = str(error), None
                again = (
                    self._job.work.replace(index, outcome.values or {}, fault) if on_error == "placeholder" else None
                )
                if again is not None:
                    outcome, values = again, again.values
                    with contextlib.suppress(UsageError):
                        self._writer.append(again.values or {})
                    if self._writer.num_samples == report.num_samples:
                        values = None
        if values is None and on_error == "raise":
            self._is_sound = True
            raise ConvertError(
                f"{self._describe(index)}: {fault}. {self._job.path} was not written; --on-error skip "
                '(on_error="skip") leaves such samples out, placeholder puts gray images in their place, keep stores '
                "what Pillow shows of damaged ones"
            )
        if fault:
            self._list("skipped" if values is None else outcome.listed, index, fault)
        if values is not None:
            if outcome.notes:
                self._list("tidied", index, outcome.notes)
            report.num_samples += 1
            report.source_bytes += outcome.source_bytes
            report.kinds.update(outcome.kinds)
        self._chain.add(index, known)
        self._done += 1
        self._is_sound = True

    def _list(self, what: str, index: int, reason: str) -> None:
        self._report.lists()[what].append(Skipped(index=index, name=self._job.source.name(index), reason=reason))

    def _save(self, *, wait: bool = False) -> None:
        """Put a checkpoint into the journal."""
        assert self._writer is not None
        report, listed = self._report, self._num_listed
        self._journal.settle()
        self._is_sound = False
        facts = {
            "done": self._done,
            "chain": self._chain.value,
            "num_samples": report.num_samples,
            "source_bytes": report.source_bytes,
            "kinds": dict(report.kinds),
            **{
                what: [[item.index, item.name, item.reason] for item in items[listed[what] :]]
                for what, items in report.lists().items()
            },
            "num_faults": len(report.skipped) + len(report.replaced) + len(report.damaged),
            "on_error": self._job.options.on_error,
        }
        self._journal.save(facts, self._writer.checkpoint(), self._writer.sync, wait=wait)
        self._num_listed = {what: len(items) for what, items in report.lists().items()}
        self._is_sound = True

    def _end_with(self, error: BaseException) -> None:
        """Keep what another run can go on with, and raise the error with word of it."""
        kept = self._keep()
        if isinstance(error, DeadWorkerError):
            raise ConvertError(dead_worker(self._job, error, self._first) + kept) from error
        if isinstance(error, (ConvertError, UsageError)):
            raise type(error)(f"{error}{kept}") from error
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise ConvertError(cannot_write(self._job.path, error) + (kept or ". No file was left behind")) from error
        if kept:
            note(kept.removeprefix(". "))
        raise error

    def _keep(self) -> str:
        """Leave unfinished file and journal if there is more in them than a checkpoint costs; return words for it."""
        journal, writer = self._journal, self._writer
        assert writer is not None
        with contextlib.suppress(OSError):
            journal.settle()
        if journal.last is None:
            writer.abort()
            journal.remove()
            return ""
        if self._is_sound and writer.is_open and not journal.is_broken and self._done > journal.last.facts["done"]:
            with contextlib.suppress(OSError):  # a full disk: the checkpoint before holds
                self._save(wait=True)
        writer.suspend()
        return f". {_count(journal)} kept: --resume goes on with them, --overwrite starts anew"

    def _describe(self, index: int) -> str:
        return f"sample {index} ({self._job.source.name(index)})"


def dead_worker(job: FileJob, error: DeadWorkerError, before: int = 0) -> str:
    """Return the message for a worker that ended, with the sample it was on.

    Parameters
    ----------
    job : FileJob
        What was made.
    error : DeadWorkerError
        Its position counts from sample ``before`` of the job's order.
    """
    place = "while it was starting"
    if error.position is not None:
        index = int(job.order[before + error.position])
        place = f"on sample {index} ({job.source.name(index)})"
    elif "exit code" in error.how:
        place += (
            '. A script that converts needs `if __name__ == "__main__":` around the call; num_workers=0 does without '
            "workers"
        )
    return f"a worker process {error.how} {place}. {job.path} was not written"


def _count(journal: Journal) -> str:
    done = journal.last.facts["done"] if journal.last is not None else 0
    total = journal.header["num_samples"] if journal.header is not None else 0
    return f"{done:,} of {counted(total, 'sample')}"


@contextlib.contextmanager
def _disk_errors(path: str) -> Iterator[None]:
    """Turn the system's refusals into one message with the free space."""
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise ConvertError(f"{cannot_write(path, error)}. No file was left behind") from error
