"""Writes one file: samples in order -> workers -> writer, with checkpoints in a journal; then the destination.

Workers read, decode and encode. The parent alone writes, in the order of the samples, so the file's bytes are the same
for any number of workers, and however often a run was interrupted and resumed. Either the complete file appears, or
none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from converters.engine.alike import AlikeSamples
from converters.engine.converted import ConvertedSample
from converters.engine.estimate import check_space
from converters.engine.fingerprint import SamplesChecksum, changed_files, differences
from converters.engine.journal import Journal, journal_path
from converters.engine.packed import PackedSamples
from converters.engine.plan import FilePlan
from converters.engine.pool import DeadWorkerError, Pool
from converters.options import Options
from converters.output.files import cannot_write
from converters.output.targets import Store, check_target, resolve_destination
from converters.report import LISTS, Progress, Report, ReportedSample
from dataloading import ConvertError, FormatError, Reader, Shard, UsageError, Writer
from dataloading.cli import note
from dataloading.messages import counted
from dataloading.tools import FileInfo, remove_orphans

__all__ = ["has_begun", "make_file", "shard_of"]

_TAKEN_AT_ONCE = 1024


def make_file(plan: FilePlan, pool: Pool, progress: Progress, report: Report, *, wait_seconds: float = 0.0) -> Shard:
    """Write a file at its destination, a path or URL; resume it, or accept it if it exists.

    Parameters
    ----------
    plan : FilePlan
    pool : Pool
        Runs the conversion's `SampleConverter`.
    progress : Progress
    report : Report
        Filled in even if an error ends the conversion.
    wait_seconds : float
        How long to wait for another process that is writing the same file.

    Returns
    -------
    Shard
        The file's entry in a manifest.

    Raises
    ------
    ConvertError
        If a sample cannot be converted and may not be skipped, a worker dies, the disk is full, nothing is left to
        write, or the upload fails. No file is left under the name; what was to be uploaded is kept for ``resume``.
    UsageError
        If an existing file, or another interrupted conversion, must not be replaced.
    """
    options = plan.whole.options
    destination = resolve_destination(plan.path, options)
    if not destination.is_remote:
        _write_file(plan, pool, progress, report, wait_seconds)
        with Reader(plan.path) as reader:
            return shard_of(reader, plan.path)
    store = Store(destination.path)
    check_target(plan.path, options)
    if options.resume and store.size() is not None:
        there = store.info()
        found = plan.differs_from(there)
        if not found:
            _count_finished(there, plan, progress, report)
            return shard_of(there, plan.path)
        if not options.overwrite:
            raise UsageError(
                f"{plan.path} exists and is not what this command makes ({found}); --overwrite replaces it"
            )
    _write_file(dataclasses.replace(plan, path=destination.local), pool, progress, report, wait_seconds)
    store.upload(destination.local)
    with Reader(destination.local) as reader:
        shard = shard_of(reader, plan.path)
    Path(destination.local).unlink()
    return shard


def shard_of(file: FileInfo, path: str) -> Shard:
    """Return a file's entry in a manifest beside ``path``."""
    return Shard.of(file, path.rpartition("/")[2])


def has_begun(path: str, options: Options) -> bool:
    """Return whether an earlier run left the file, finished or unfinished."""
    local = resolve_destination(path, options).local
    return os.path.exists(local) or os.path.exists(journal_path(local))


def _count_finished(file: FileInfo, plan: FilePlan, progress: Progress, report: Report) -> None:
    progress.skip(len(plan.order))
    report.num_samples = report.num_resumed = file.num_samples
    report.num_bytes = file.num_bytes


def _write_file(plan: FilePlan, pool: Pool, progress: Progress, report: Report, wait_seconds: float) -> None:
    options = plan.whole.options
    if options.resume and os.path.lexists(plan.path) and _is_finished(plan, progress, report, wait_seconds):
        return
    remove = options.overwrite or options.resume
    if orphans := remove_orphans(plan.path, remove=remove):
        words = "removed" if remove else "left alone; --overwrite or --resume removes it"
        note(f"unfinished files of writers that are gone, {words}: {', '.join(orphans)}")
    try:
        with contextlib.closing(Journal(plan.path, wait_seconds=wait_seconds)) as journal:
            run = _Run(plan, journal, pool, progress, report)
            run.open()
            run.convert()
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise ConvertError(f"{cannot_write(plan.path, error)}. No file was left behind") from error


def _is_finished(plan: FilePlan, progress: Progress, report: Report, wait_seconds: float) -> bool:
    """Return whether the file already exists, and report it; raises if a different file must be kept."""
    try:
        with Reader(plan.path) as reader:
            found = plan.differs_from(reader)
            if not found:
                if os.path.exists(journal_path(plan.path)):
                    Journal(plan.path, wait_seconds=wait_seconds).remove()  # its process died between two steps
                _count_finished(reader, plan, progress, report)
                return True
    except FormatError as error:
        found = f"it cannot be read: {error}"
    if plan.whole.options.overwrite:
        return False
    raise UsageError(
        f"{plan.path} exists and is not what this command makes ({found}); --overwrite replaces it when the new file "
        "is complete"
    )


class _Run:
    """Writes one file in this process."""

    def __init__(self, plan: FilePlan, journal: Journal, pool: Pool, progress: Progress, report: Report) -> None:
        self._plan = plan
        self._source = plan.whole.source
        self._options = plan.whole.options
        self._journal = journal
        self._pool = pool
        self._progress = progress
        self._report = report
        self._num_done = self._first = 0
        self._checksum = SamplesChecksum(self._source)
        self._num_saved = dict.fromkeys(LISTS, 0)
        # Whether counts and file agree, so that a checkpoint is valid.
        self._is_consistent = True

    def open(self) -> None:
        """Start or resume, depending on the journal and the options."""
        plan, journal, options = self._plan, self._journal, self._options
        if journal.has_work and not options.resume and not options.overwrite:
            raise UsageError(
                f"an interrupted conversion of {_count(journal)} to {plan.path} is here: --resume continues it, "
                "--overwrite starts over and removes it"
            )
        resumes = journal.has_work and options.resume
        try:
            if resumes:
                self._compare()
                journal.reopen()
                self._writer = self._open_writer(self._checkpoints())
            else:
                journal.begin(
                    {
                        "identity": plan.identity(),
                        "files": dict(plan.whole.file_stamps),
                        "num_samples": len(plan.order),
                    }
                )
                self._writer = self._open_writer(None)
        except (FormatError, FileNotFoundError) as error:
            if not resumes:
                raise
            raise ConvertError(f"{error}. --overwrite starts over and removes it") from error
        except BaseException:
            if not resumes:
                journal.remove()
            raise
        if resumes:
            self._report.num_resumed = self._report.num_samples
            self._progress.skip(self._num_done)
            if options.check_space and self._num_done:
                used = os.stat(journal.part).st_blocks * 512
                needed = used / self._num_done * (len(plan.order) - self._num_done)
                check_space(os.path.dirname(plan.path) or os.curdir, needed)

    def _compare(self) -> None:
        """Refuse to resume a different conversion, or one whose source has changed."""
        plan, journal = self._plan, self._journal
        assert journal.header is not None
        assert journal.last is not None
        found = differences(journal.header["identity"], plan.identity())
        on_error = journal.last["on_error"]
        if not found and on_error != self._options.on_error and journal.last["num_faults"]:
            # Before the first fault it makes no difference.
            found = f"on_error was {on_error}, is {self._options.on_error} now, and samples have failed already"
        if found:
            raise UsageError(
                f"the interrupted conversion of {_count(journal)} to {plan.path} was another one: {found}. Give "
                "the same source and options to continue, or --overwrite to start over and remove it"
            )
        stamps = plan.whole.file_stamps
        if changed := changed_files(journal.header.get("files", stamps), stamps):
            raise UsageError(
                f"the source has changed since {plan.path} was begun: {changed} (its size or time differs). Restore "
                "it, or --overwrite to start over"
            )
        done = 0
        for state, _ in journal.records():
            first, done = done, state["done"]
            for start in range(first, done, _TAKEN_AT_ONCE):
                self._checksum.add(plan.order[start : min(done, start + _TAKEN_AT_ONCE)].tolist())
            if self._checksum.value != state["chain"]:
                raise UsageError(
                    f"the source has changed since {plan.path} was begun: of the samples that are done, one of those "
                    f"from {self._describe(int(plan.order[first]))} to {self._describe(int(plan.order[done - 1]))} has "
                    "another file now (its size or time differs). Restore it, or --overwrite to start over"
                )

    def _checkpoints(self) -> Iterator[bytes]:
        """Yield the writer's checkpoints from the journal, and restore the counts."""
        report = self._report
        for state, checkpoint in self._journal.records():
            self._num_done = state["done"]
            report.num_samples, report.source_bytes = state["num_samples"], state["source_bytes"]
            report.images = Counter(state["kinds"])
            for what, items in report.lists().items():
                items.extend(ReportedSample(index=at, name=name, reason=why) for at, name, why in state.get(what, ()))
            yield checkpoint
        self._num_saved = {what: len(items) for what, items in report.lists().items()}

    def _open_writer(self, checkpoints: Iterator[bytes] | None) -> Writer:
        return Writer(
            self._plan.path,
            self._plan.whole.fields,
            num_samples=len(self._plan.order),
            page_size=self._options.page_size,
            class_names=self._source.class_names,
            provenance=self._plan.provenance,
            overwrite=self._options.overwrite,
            part=self._journal.part,
            checkpoints=checkpoints,
        )

    def convert(self) -> None:
        """Write all missing samples, and rename the file."""
        report = self._report
        try:
            self._first = self._num_done
            rest = self._plan.order[self._first :]
            jobs = self._jobs(rest)
            due = time.monotonic() + self._options.checkpoint_seconds
            position = 0
            with contextlib.closing(self._pool.run(jobs, count=len(rest))) as results:
                for result in results:
                    indices = rest[position : position + result.num_samples].tolist()
                    position += result.num_samples
                    if isinstance(result, ConvertedSample):
                        self._write(indices[0], result)
                    else:
                        self._write_many(indices, result)
                    self._progress.advance(result.stored_bytes, count=result.num_samples)
                    if (now := time.monotonic()) >= due and not self._journal.is_saving:
                        self._save()
                        due = now + self._options.checkpoint_seconds
            if report.num_samples == 0:
                first = report.skipped[0]
                raise ConvertError(
                    f"none of the {counted(len(self._plan.order), 'sample')} could be converted. The first: "
                    f"{first.name}: {first.reason}"
                )
            self._journal.settle()
            self._writer.finish()
        except BaseException as error:
            self._end_with(error)
        self._journal.remove()
        report.num_bytes = os.stat(self._plan.path).st_size

    def _jobs(self, order: npt.NDArray[np.int64]) -> Iterator[tuple[int, object]]:
        for start in range(0, len(order), _TAKEN_AT_ONCE):  # as Python's integers all would take 40 bytes a sample
            indices = order[start : start + _TAKEN_AT_ONCE].tolist()
            yield from zip(indices, map(self._source.task, indices), strict=True)

    def _write_many(self, indices: list[int], samples: AlikeSamples | PackedSamples) -> None:
        """Write samples that were converted together."""
        self._is_consistent = False
        try:
            samples.append_to(self._writer)
        except UsageError:  # none of them was written; ``on_error`` handles them one by one
            self._is_consistent = True
            if isinstance(samples, PackedSamples):
                raise
            each = samples.stored_bytes // samples.num_samples
            for row, (index, stamp) in enumerate(zip(indices, samples.stamps, strict=True)):
                encoded = samples.encoded(row)
                self._write(
                    index,
                    ConvertedSample(encoded=encoded, images=samples.images, stored_bytes=each, stamp=stamp),
                )
            return
        report = self._report
        report.num_samples += samples.num_samples
        report.source_bytes += samples.source_bytes
        report.images.update(samples.kinds)
        self._checksum.add(indices, samples.stamps)
        self._num_done += samples.num_samples
        self._is_consistent = True

    def _write(self, index: int, sample: ConvertedSample) -> None:
        """Write one sample, or handle it by ``on_error``."""
        report, on_error, stamp = self._report, self._options.on_error, sample.stamp
        # If Ctrl-C interrupts this, counts and file disagree.
        self._is_consistent = False
        fault, is_written = sample.fault, False
        if sample.encoded is not None:
            try:
                self._append(sample)
                is_written = True
            except UsageError as error:  # nothing was written: it may be larger than a page
                fault = str(error)
                if on_error == "placeholder":
                    gray = self._plan.whole.converter().with_placeholders(index, sample.encoded, fault)
                    if gray is not None:
                        with contextlib.suppress(UsageError):
                            self._append(gray)
                            sample, is_written = gray, True
        if not is_written and on_error == "raise":
            self._is_consistent = True
            raise ConvertError(
                f"{self._describe(index)}: {fault}. {self._plan.path} was not written; --on-error skip "
                '(on_error="skip") leaves such samples out, placeholder puts gray images in their place, keep stores '
                "what Pillow shows of damaged ones"
            )
        if fault:
            self._list(sample.listed if is_written else "skipped", index, fault)
        if is_written:
            if sample.notes:
                self._list("tidied", index, sample.notes)
            report.num_samples += 1
            report.source_bytes += sample.source_bytes
            report.images.update(sample.images)
        self._checksum.add([index], None if stamp is None else [stamp])
        self._num_done += 1
        self._is_consistent = True

    def _append(self, sample: ConvertedSample) -> None:
        assert sample.encoded is not None
        self._writer.append_encoded(
            [(head, None if payload is None else np.frombuffer(payload, np.uint8)) for head, payload in sample.encoded]
        )

    def _list(self, what: str, index: int, reason: str) -> None:
        self._report.lists()[what].append(ReportedSample(index=index, name=self._source.name(index), reason=reason))

    def _save(self, *, wait: bool = False) -> None:
        """Write a checkpoint into the journal."""
        report, lists = self._report, self._report.lists()
        self._journal.settle()
        self._is_consistent = False
        state = {
            "done": self._num_done,
            "chain": self._checksum.value,
            "num_samples": report.num_samples,
            "source_bytes": report.source_bytes,
            "kinds": dict(report.images),
            **{
                what: [[item.index, item.name, item.reason] for item in items[self._num_saved[what] :]]
                for what, items in lists.items()
            },
            "num_faults": len(report.skipped) + len(report.replaced) + len(report.damaged),
            "on_error": self._options.on_error,
        }
        self._journal.save(state, self._writer.checkpoint(), self._writer.sync, wait=wait)
        self._num_saved = {what: len(items) for what, items in lists.items()}
        self._is_consistent = True

    def _end_with(self, error: BaseException) -> NoReturn:
        """Keep the files for a resume, and raise the error with that information."""
        plan, kept = self._plan, self._keep()
        if isinstance(error, DeadWorkerError):
            dead = plan.whole.dead_worker(error, plan.order[self._first :], plan.path)
            raise ConvertError(f"{dead}{kept}") from error
        if isinstance(error, (ConvertError, UsageError)):
            raise type(error)(f"{error}{kept}") from error
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise ConvertError(cannot_write(plan.path, error) + (kept or ". No file was left behind")) from error
        if kept:
            note(kept.removeprefix(". "))
        raise error

    def _keep(self) -> str:
        """Keep the unfinished file and journal if there is a checkpoint, else remove them; return a message."""
        journal, writer = self._journal, self._writer
        with contextlib.suppress(OSError):
            journal.settle()
        if journal.last is None:
            writer.abort()
            journal.remove()
            return ""
        if self._is_consistent and writer.is_open and not journal.is_broken and self._num_done > journal.last["done"]:
            with contextlib.suppress(OSError):  # a full disk: the previous checkpoint is valid
                self._save(wait=True)
        writer.suspend()
        return f". {_count(journal)} kept: --resume continues with them, --overwrite starts over"

    def _describe(self, index: int) -> str:
        return f"sample {index} ({self._source.name(index)})"


def _count(journal: Journal) -> str:
    done = journal.last["done"] if journal.last is not None else 0
    total = journal.header["num_samples"] if journal.header is not None else 0
    return f"{done:,} of {counted(total, 'sample')}"
