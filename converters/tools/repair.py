"""Makes an intact file from a damaged one: `repair` drops or blanks damaged samples.

Decides what is lost. A checksum covers 64 KiB, so every value with bytes in a damaged block is suspect. None of them is
kept, because a JPEG with a flipped bit may decode to other pixels.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from converters.report import Progress
from converters.tools.derived_files import copy_samples, derived_writer
from converters.tools.input_files import InputFile, Sample, Stored, file_name
from converters.tools.new_files import NewFiles, check_target, new_paths
from dataloading import ConvertError, EncodedImage, FormatError, ImageField, JSONField, Manifest, Reader, verify_file
from dataloading.messages import counted
from dataloading.tools import MODE_JPEG, decode_jpeg, encode_jpeg, is_manifest

if TYPE_CHECKING:
    from dataloading import VerifyReport

__all__ = ["Lost", "LostShard", "RepairReport", "repair"]

_ALL_PROBLEMS = 10_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lost:
    """A sample that was dropped or blanked.

    Parameters
    ----------
    sample : int
        Its index in the damaged file or shard set.
    fields : tuple of str
        The blanked fields; empty if the sample was dropped.
    reason : str
        The damage.
    """

    sample: int
    fields: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class LostShard:
    """A dropped shard, its number of samples in the manifest, and the reason."""

    path: str
    num_samples: int
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepairReport:
    """The result of `repair`.

    Parameters
    ----------
    source, path : str
        The damaged and the new file, or manifest.
    num_source_samples, num_samples, num_bytes : int
        Samples before, samples after, bytes after.
    num_problems : int
        What `verify_file` found in the damaged files.
    checksums_usable : bool
        Whether every byte could be compared with its checksum. If not (FFCV wrote the file, or its list of checksums is
        damaged), only damage that the structure checks and the decoder detect was found.
    dropped, blanked : tuple of Lost
        Dropped samples, and samples kept with blank fields.
    lost_shards : tuple of LostShard
        Dropped shards; their samples are not in ``dropped``.
    """

    source: str
    path: str
    num_source_samples: int
    num_samples: int
    num_bytes: int
    num_problems: int
    checksums_usable: bool
    dropped: tuple[Lost, ...]
    blanked: tuple[Lost, ...]
    lost_shards: tuple[LostShard, ...] = ()


def repair(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    zero: bool = False,
    overwrite: bool = False,
    num_workers: int = 1,
    quiet: bool = True,
) -> RepairReport:
    """Write the undamaged samples of a file or shard set into a new one, which is verified before it appears.

    Parameters
    ----------
    path : str or path-like
        The damaged file, or the manifest of a set with damaged shards; they are only read.
    out : str or path-like
        The file to make, or the new set's manifest, whose shards appear with it.
    zero : bool
        Keep damaged samples whose record is readable, and blank their damaged fields: a black image of the declared
        size, an array of zeros, no bytes, JSON's null. Labels and undamaged fields stay.
    overwrite, num_workers, quiet
        See `converters.tools`.

    Returns
    -------
    RepairReport

    Raises
    ------
    ConvertError
        If the file cannot be opened (its head or end is damaged), or every sample is damaged. Such a shard of a set is
        dropped.
    UsageError
        If ``out`` cannot be written.
    """
    source, target = os.fspath(path), os.fspath(out)
    workers = max(1, num_workers)
    new_paths(source, target, 1)
    check_target(target, overwrite=overwrite, inputs=[source])
    listed = _listed(source)
    surveys: list[_Survey] = []
    lost: list[LostShard] = []
    for file, num_samples in listed:
        try:
            surveys.append(_survey(file, workers, zero=zero))
        except _NothingSoundError as error:
            if not is_manifest(source):
                raise ConvertError(f"{error}; {target} was not written") from error
            lost.append(LostShard(path=file, num_samples=num_samples, reason=str(error)))
    if not surveys:
        raise ConvertError(f"{source}: none of its shards has an undamaged sample; {target} was not written")
    targets = new_paths(source, target, len(surveys))
    step = {"command": "repair", "zero": zero}
    identity = {**step, "from": [[os.path.abspath(each.path), *each.identity] for each in surveys]}
    inputs = [source, *(file for file, _ in listed)]
    with NewFiles(targets, overwrite=overwrite, inputs=inputs, anchor=target, identity=identity) as files:
        if not files.is_done:
            progress = Progress(sum(each.num_left for each in surveys), what="repairing", quiet=quiet)
            with contextlib.closing(progress):
                for survey, place in zip(surveys, targets, strict=False):
                    _write(survey, files.part(place), step, progress)
                    result = verify_file(files.part(place), decode=decode_jpeg, decode_all=True, num_workers=workers)
                    if not result.ok:
                        raise ConvertError(f"the repaired file is still damaged, so {place} was not written:\n{result}")
            if is_manifest(target):
                files.write_manifest()
            files.publish()
    plan = [*_through(listed, surveys)]
    return RepairReport(
        source=source,
        path=target,
        num_source_samples=sum(each.num_samples for each in surveys) + sum(each.num_samples for each in lost),
        num_samples=sum(each.num_left for each in surveys),
        num_bytes=sum(os.stat(place).st_size for place in targets[: len(surveys)]),
        num_problems=sum(each.num_problems for each in surveys) + len(lost),
        checksums_usable=all(each.checksums_usable for each in surveys),
        dropped=tuple(each for each in plan if not each.fields),
        blanked=tuple(each for each in plan if each.fields),
        lost_shards=tuple(lost),
    )


def _listed(source: str) -> list[tuple[str, int]]:
    """Return the files of a source, existing or not, and the manifest's number of samples for each."""
    if not is_manifest(source):
        return [(source, 0)]
    folder = os.path.dirname(source)
    return [(os.path.join(folder, shard.name), shard.num_samples) for shard in Manifest.load(source).shards]


class _NothingSoundError(ConvertError):
    """No sample of a file can be kept."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Survey:
    """A file's damage, and the samples to keep; see `InputFile`, `RepairReport` and `_plan`."""

    path: str
    identity: tuple[int, ...]
    num_samples: int
    num_problems: int
    checksums_usable: bool
    plan: dict[int, Lost]

    @property
    def num_left(self) -> int:
        """Samples that are kept, blank or not."""
        return self.num_samples - sum(not lost.fields for lost in self.plan.values())


def _survey(file: str, workers: int, *, zero: bool) -> _Survey:
    if not os.path.isfile(file):
        raise _NothingSoundError(f"{file} is not there")
    found = verify_file(file, decode=decode_jpeg, decode_all=True, num_workers=workers, max_problems=_ALL_PROBLEMS)
    if any("cannot be read" in problem.message for problem in found.problems):
        raise ConvertError(f"{file}: the disk fails while reading; copy the file with ddrescue first:\n{found}")
    try:
        input_file = InputFile(file)
    except FormatError as error:
        raise _NothingSoundError(
            f"{error}. Its samples cannot be found without that part, so there is nothing to repair from; restore "
            "the file or convert again"
        ) from error
    with input_file:
        damage = _Damage(input_file, found)
        survey = _Survey(
            path=file,
            identity=input_file.identity,
            num_samples=len(input_file),
            num_problems=len(found.problems),
            checksums_usable=found.has_checksums and not damage.unknown,
            plan=_plan(input_file, damage, zero=zero),
        )
    if survey.num_left == 0:
        raise _NothingSoundError(f"{file}: none of its {counted(survey.num_samples, 'sample')} is sound")
    return survey


def _through(listed: Sequence[tuple[str, int]], surveys: Sequence[_Survey]) -> Iterator[Lost]:
    """Yield what is lost; samples are counted across all files."""
    known = {each.path: each for each in surveys}
    start = 0
    for file, num_samples in listed:
        survey = known.get(file)
        for sample, lost in (survey.plan if survey is not None else {}).items():
            where = f"{file_name(file)}, its sample {sample}: " if len(listed) > 1 else ""
            yield dataclasses.replace(lost, sample=start + sample, reason=where + lost.reason)
        start += num_samples if survey is None else survey.num_samples


class _Damage:
    """The suspect samples, and the damaged bytes of the pages."""

    def __init__(self, input_file: InputFile, found: VerifyReport) -> None:
        self.reasons: dict[int, str] = {}  # the first problem of each affected sample
        self.lost_records: set[int] = set()
        self.lost_sizes: set[int] = set()
        self.lost_fields: dict[int, set[str]] = {}
        self.unknown = False
        self._starts: list[int] = []
        self._stops: list[int] = []
        num_samples = len(input_file)
        for problem in sorted(found.problems, key=lambda each: each.start):
            if problem.region == "pages":
                self._starts.append(problem.start)
                self._stops.append(problem.stop)
            if problem.region == "extension block":
                self.unknown = True
            for start, stop in problem.samples:
                for sample in range(max(0, start), min(stop, num_samples)):
                    self.reasons.setdefault(sample, str(problem).partition("; touches")[0])
                    if problem.region == "sample table":
                        self.lost_records.add(sample)
                    elif problem.region == "allocation table":
                        self.lost_sizes.add(sample)
                    elif problem.region == "samples":
                        name = problem.message.partition("'")[2].partition("'")[0]
                        self.lost_fields.setdefault(sample, set()).add(name)

    def covers(self, start: int, stop: int) -> bool:
        """Return whether a damaged block of the pages overlaps [start, stop)."""
        position = bisect.bisect_left(self._stops, start + 1)
        return position < len(self._starts) and self._starts[position] < stop


def _plan(input_file: InputFile, damage: _Damage, *, zero: bool) -> dict[int, Lost]:
    """Return the damage by sample, ascending; other samples are undamaged."""
    plan = {}
    for sample in sorted(damage.reasons):
        fields = _lost_fields(input_file.reader, sample, damage)
        if fields is None or (fields and not zero):
            plan[sample] = Lost(sample=sample, fields=(), reason=damage.reasons[sample])
        elif fields:
            plan[sample] = Lost(sample=sample, fields=fields, reason=damage.reasons[sample])
    return plan


def _lost_fields(reader: Reader, sample: int, damage: _Damage) -> tuple[str, ...] | None:
    """Return the damaged fields of a suspect sample, or None if its record is damaged."""
    if sample in damage.lost_records:
        return None
    lost = set(damage.lost_fields.get(sample, ()))
    for name, field in reader.fields.items():
        if not field.has_data:
            continue
        pointers, sizes, faults = reader.examine(name, np.array([sample]))
        start, size = int(pointers[0]), int(sizes[0])
        is_image = isinstance(field, ImageField)
        if faults or (is_image and sample in damage.lost_sizes) or damage.covers(start, start + size):
            lost.add(name)
        if name in lost and is_image:
            _, width, height, _ = reader.column(name)[sample].item()
            if not (width and height):
                return None
    return tuple(name for name in reader.fields if name in lost)


def _write(survey: _Survey, part: str, step: dict[str, Any], progress: Progress) -> None:
    plan = survey.plan
    step = {
        **step,
        "dropped": [lost.sample for lost in plan.values() if not lost.fields],
        "blanked": {str(lost.sample): list(lost.fields) for lost in plan.values() if lost.fields},
    }
    with InputFile(survey.path) as input_file:
        if input_file.identity != survey.identity:
            raise ConvertError(f"{survey.path} was changed after it was verified; start again")
        names = input_file.reader.class_names
        with derived_writer(part, [input_file], num_samples=survey.num_left, step=step, class_names=names) as writer:
            copy_samples(_samples(input_file, plan), writer, progress)


def _samples(input_file: InputFile, plan: dict[int, Lost]) -> Iterator[Sample]:
    """Yield the samples to keep, in order: runs of undamaged samples from the file, blanked samples one by one."""
    start = 0
    for sample, lost in [*plan.items(), (len(input_file), None)]:
        yield from input_file.samples(np.arange(start, sample))
        if lost is not None and lost.fields:
            yield {name: _value(input_file, name, sample, name in lost.fields) for name in input_file.fields}
        start = sample + 1


def _value(input_file: InputFile, name: str, sample: int, is_lost: bool) -> Stored:
    if not is_lost or not input_file.fields[name].has_data:
        return next(input_file.samples([sample], only=[name]))[name]
    field = input_file.fields[name]
    [head] = input_file.heads(name, np.array([sample]))
    if isinstance(field, ImageField):
        mode, width, height = (int(number) for number in head)
        black = np.zeros((height, width, field.channels), field.dtype)
        if mode == MODE_JPEG and field.channels == 3:
            return field.encode(EncodedImage(MODE_JPEG, width, height, encode_jpeg(black)))
        return field.encode(black)
    if isinstance(field, JSONField):
        return field.encode(None)
    return head, np.zeros(field.fixed_bytes or 0, np.uint8)
