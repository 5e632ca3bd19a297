"""A sound file from a damaged one: `repair`, which leaves out or blanks what can no longer be trusted.

Owns the decision what is lost. A checksum covers 64 KiB, so a damaged block makes every value that has bytes in it
suspect; none of them is kept, because a JPEG with a flipped bit may well decode, to other pixels.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dataloading import (
    ConvertError,
    EncodedImage,
    FormatError,
    ImageField,
    JSONField,
    Reader,
    decode_jpeg,
    encode_jpeg,
    verify_file,
)

from ..report import Progress
from .copying import Donor, Stored, class_names_of, heir, stored_bytes
from .outputs import OutputSet

if TYPE_CHECKING:
    from dataloading import VerifyReport

__all__ = ["Lost", "RepairReport", "repair"]

_ALL_PROBLEMS = 10_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lost:
    """A sample of which something could not be kept.

    Parameters
    ----------
    sample : int
        Its index in the damaged file.
    fields : tuple of str
        The fields that were blanked; empty if the sample was left out.
    reason : str
        What is wrong with it.
    """

    sample: int
    fields: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepairReport:
    """What `repair` found and made.

    Parameters
    ----------
    source, path : str
        The damaged and the new file.
    num_source_samples, num_samples, num_bytes : int
        Samples before, samples after, bytes after.
    num_problems : int
        What `verify_file` found in the damaged file.
    checksums_usable : bool
        Whether every byte could be compared with its checksum. If not (FFCV wrote the file, or its list of checksums
        is damaged itself), only what structure and decoder can tell was found.
    dropped, blanked : tuple of Lost
        Samples left out, and samples kept with blank fields.
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


def repair(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    zero: bool = False,
    overwrite: bool = False,
    num_workers: int = 1,
    quiet: bool = True,
) -> RepairReport:
    """Write the sound samples of a file into a new one, which is verified before it appears.

    Parameters
    ----------
    path : str or path-like
        The damaged file; it is only read.
    out : str or path-like
        The file to make.
    zero : bool
        Keep a damaged sample whose record is readable, with what is damaged of it blank: a black image of the declared
        size, an array of zeros, no bytes, JSON's null. Its label and its undamaged fields stay.
    overwrite : bool
        Whether ``out`` may be replaced.
    num_workers : int
        Threads for verifying.
    quiet : bool
        No progress on stderr.

    Returns
    -------
    RepairReport

    Raises
    ------
    ConvertError
        If the file cannot be opened (its head or its end is damaged), or nothing sound is left.
    UsageError
        If ``out`` cannot be written.
    """
    source, target = os.fspath(path), os.fspath(out)
    workers = max(1, num_workers)
    with OutputSet([target], overwrite=overwrite, inputs=[source]) as files:
        found = verify_file(
            source, decode=decode_jpeg, decode_all=True, num_workers=workers, max_problems=_ALL_PROBLEMS
        )
        if any("cannot be read" in problem.message for problem in found.problems):
            raise ConvertError(f"{source}: the disk fails while reading; copy the file with ddrescue first:\n{found}")
        try:
            donor = Donor(source)
        except FormatError as error:
            raise ConvertError(
                f"{error}. Its samples cannot be found without that part, so there is nothing to repair from; restore "
                "the file or convert again"
            ) from error
        with donor:
            damage = _Damage(donor, found)
            plan = _plan(donor, damage, zero=zero)
            num_left = len(donor) - sum(not lost.fields for lost in plan.values())
            if num_left == 0:
                raise ConvertError(f"{source}: none of its {len(donor)} samples is sound; {target} was not written")
            _write(donor, files.part(target), plan, num_left, {"command": "repair", "zero": zero}, quiet=quiet)
            result = verify_file(files.part(target), decode=decode_jpeg, decode_all=True, num_workers=workers)
            if not result.ok:
                raise ConvertError(f"the repaired file is not sound, so {target} was not written:\n{result}")
            files.publish()
            return RepairReport(
                source=source,
                path=target,
                num_source_samples=len(donor),
                num_samples=num_left,
                num_bytes=os.stat(target).st_size,  # noqa: PTH116
                num_problems=len(found.problems),
                checksums_usable=found.has_checksums and not damage.unknown,
                dropped=tuple(lost for lost in plan.values() if not lost.fields),
                blanked=tuple(lost for lost in plan.values() if lost.fields),
            )


class _Damage:
    """Which samples are suspect, and of those whose records are sound, which bytes of the file.

    Parameters
    ----------
    donor : Donor
        The damaged file.
    found : VerifyReport
        What is wrong with it.
    """

    def __init__(self, donor: Donor, found: VerifyReport) -> None:
        self.reasons: dict[int, str] = {}
        """First reason by sample, for every sample a problem touches."""
        self.lost_records: set[int] = set()
        self.lost_sizes: set[int] = set()
        self.lost_fields: dict[int, set[str]] = {}
        self.unknown = False
        self._starts: list[int] = []
        self._stops: list[int] = []
        num_samples = len(donor)
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
        """Tell whether a damaged block of the pages has a byte of [start, stop)."""
        position = bisect.bisect_left(self._stops, start + 1)
        return position < len(self._starts) and self._starts[position] < stop


def _plan(donor: Donor, damage: _Damage, *, zero: bool) -> dict[int, Lost]:
    """Return what is lost, by sample in ascending order; samples that are not here are sound."""
    plan = {}
    for sample in sorted(damage.reasons):
        fields = _lost_fields(donor.reader, sample, damage)
        if fields is None or (fields and not zero):
            plan[sample] = Lost(sample=sample, fields=(), reason=damage.reasons[sample])
        elif fields:
            plan[sample] = Lost(sample=sample, fields=fields, reason=damage.reasons[sample])
    return plan


def _lost_fields(reader: Reader, sample: int, damage: _Damage) -> tuple[str, ...] | None:
    """Return the fields of a suspect sample whose bytes are, or None if its record is."""
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


def _write(
    donor: Donor, part: str, plan: dict[int, Lost], num_samples: int, step: dict[str, Any], *, quiet: bool
) -> None:
    step = {
        **step,
        "dropped": [lost.sample for lost in plan.values() if not lost.fields],
        "blanked": {str(lost.sample): list(lost.fields) for lost in plan.values() if lost.fields},
    }
    names = class_names_of(donor.reader)
    with (
        contextlib.closing(Progress(num_samples, what="repairing", quiet=quiet)) as progress,
        heir(part, [donor], num_samples=num_samples, step=step, class_names=names, overwrite=False) as writer,
    ):
        for sample in _samples(donor, plan):
            writer.append(sample)
            progress.advance(stored_bytes(sample))


def _samples(donor: Donor, plan: dict[int, Lost]) -> Iterator[dict[str, Stored]]:
    """Yield what is kept, in order: runs of sound samples straight from the file, blanked ones one by one."""
    start = 0
    for sample, lost in [*plan.items(), (len(donor), None)]:
        yield from donor.samples(np.arange(start, sample))
        if lost is not None and lost.fields:
            yield {name: _value(donor, name, sample, name in lost.fields) for name in donor.fields}
        start = sample + 1


def _value(donor: Donor, name: str, sample: int, is_lost: bool) -> Stored:
    field = donor.fields[name]
    [head] = donor.heads(name, np.array([sample]))
    if not field.has_data:
        return head, None
    if not is_lost:
        pointers, sizes = donor.reader.locate(name, [sample])
        return head, donor.read(int(pointers[0]), int(sizes[0]))
    if isinstance(field, ImageField):
        mode, width, height = (int(number) for number in head)
        black = np.zeros((height, width, field.channels), field.dtype)
        if mode == 0 and field.channels == 3:
            return field.encode(EncodedImage(0, width, height, encode_jpeg(black)))
        return field.encode(black)
    if isinstance(field, JSONField):
        return field.encode(None)
    return head, np.zeros(field.fixed_bytes or 0, np.uint8)
