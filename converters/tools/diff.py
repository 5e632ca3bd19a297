"""Compares two datasets sample by sample: by bytes, by pixels, or within a tolerance.

Pairs samples and defines equality. A dataset is a file or a shard set. Each is read once (the second in the order of
the pairs) with a bounded number of samples in memory; pairing by a field or by content takes 16 bytes per sample.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from converters.report import Progress
from converters.tools.input_files import InputFiles, Sample, Stored
from converters.tools.matching import Digests, combined, digest_array, field_keys, has_equals, match, unpaired
from converters.tools.pictures import decode_stored
from dataloading import DecodeError, EncodedImage, FormatError, ImageField, MaskField, UsageError
from dataloading.tools import field_differences

__all__ = ["DiffReport", "Difference", "Level", "compare"]

_T = TypeVar("_T")
Level = Literal["bytes", "pixels"]
Pixels: TypeAlias = "npt.NDArray[Any]"

_SAME, _EQUAL_PIXELS, _CLOSE, _CHANGED = range(4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Two different samples: their indices, and a message per differing field."""

    first: int
    second: int
    fields: dict[str, str]


@dataclasses.dataclass(kw_only=True)
class DiffReport:
    """The result of `compare`.

    Parameters
    ----------
    first, second : str
        The files or manifests.
    num_first, num_second : int
        Samples in either.
    matched_by : str
        ``"order"``, ``"content"`` or the field's name.
    notes : list of str
        Fields or classes that differ.
    num_pairs : int
        Pairs compared.
    only_first, only_second : list of int
        Samples without a partner, all of them.
    num_differing : int
        Pairs that differ.
    differing : list of Difference
        The first of them, up to ``max_listed``.
    images : dict of str to int
        How many pairs of images have ``equal_bytes``, ``equal_pixels`` (in other bytes), or are ``close`` or
        ``different``.
    lowest_psnr : float or None
        In dB over all pairs of images of one size whose pixels differ, against the largest value of the type.
    largest_difference : int
        Of one colour value over the same pairs.
    """

    first: str
    second: str
    num_first: int
    num_second: int
    matched_by: str
    notes: list[str] = dataclasses.field(default_factory=list)
    num_pairs: int = 0
    only_first: list[int] = dataclasses.field(default_factory=list)
    only_second: list[int] = dataclasses.field(default_factory=list)
    num_differing: int = 0
    differing: list[Difference] = dataclasses.field(default_factory=list)
    images: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"equal_bytes": 0, "equal_pixels": 0, "close": 0, "different": 0}
    )
    lowest_psnr: float | None = None
    largest_difference: int = 0

    @property
    def same(self) -> bool:
        """Whether both hold the same samples."""
        return not (self.notes or self.only_first or self.only_second or self.num_differing)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Verdict:
    """How two images compare."""

    kind: int
    words: str = ""
    psnr: float | None = None
    largest: int = 0


def compare(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    match_by: str | None = None,
    level: Level = "pixels",
    min_psnr: float | None = None,
    max_listed: int | None = None,
    num_workers: int = 1,
    quiet: bool = True,
) -> DiffReport:
    """Compare two datasets sample by sample.

    Parameters
    ----------
    first, second : str or path-like
        Files, or manifests of shard sets; how many shards there are makes no difference.
    match_by : str, optional
        The field whose equal values make two samples partners, or ``"content"`` for equal pixels (without images:
        equal stored bytes); by default the samples' order. Labels are compared by class name where both files have
        names.
    level : {"bytes", "pixels"}
        Whether images with equal pixels in other bytes (recoded losslessly, JPEG against raw) are the same.
    min_psnr : float, optional
        Images of one size count as equal from this PSNR in dB.
    max_listed : int, optional
        Maximum number of differing pairs to list; by default all.
    num_workers, quiet
        See `converters.tools`.

    Returns
    -------
    DiffReport

    Raises
    ------
    UsageError
        If a file does not have the field to match by, or the shards of a set have different fields or classes.
    FormatError
        If a file cannot be read, or a shard is missing.
    """
    if level not in ("bytes", "pixels"):
        raise UsageError(f"level must be 'bytes' or 'pixels', got {level!r}")
    if min_psnr is not None and (level == "bytes" or not min_psnr > 0):
        raise UsageError(f"min_psnr must be positive and goes with level='pixels', got {min_psnr!r}")
    with contextlib.ExitStack() as stack:
        left, right = (stack.enter_context(InputFiles([os.fspath(each)])) for each in (first, second))
        pool = stack.enter_context(ThreadPoolExecutor(max(1, num_workers)))
        report = DiffReport(
            first=left.path,
            second=right.path,
            num_first=len(left),
            num_second=len(right),
            matched_by=match_by or "order",
        )
        report.notes += field_differences(left.fields, right.fields)
        pairs = _pairs(left, right, match_by, pool)
        report.num_pairs = len(pairs[0])
        report.only_first = unpaired(len(left), pairs[0]).tolist()
        report.only_second = unpaired(len(right), pairs[1]).tolist()
        comparer = _Comparer(left, right, level, min_psnr)
        report.notes += comparer.notes
        with contextlib.closing(Progress(report.num_pairs, what="comparing", quiet=quiet)) as progress:
            for difference in _run(comparer, pairs, pool, max(1, num_workers), report):
                progress.advance()
                if difference is not None:
                    report.num_differing += 1
                    if max_listed is None or len(report.differing) < max_listed:
                        report.differing.append(difference)
    return report


def _pairs(
    left: InputFiles, right: InputFiles, match_by: str | None, pool: ThreadPoolExecutor
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if match_by is None:
        both = np.arange(min(len(left), len(right)), dtype=np.int64)
        return both, both
    if match_by == "content" and not ("content" in left.fields and "content" in right.fields):
        keys = (_content_keys(left, pool), _content_keys(right, pool))
        if not any(map(has_equals, keys)):
            return match(*keys)
        # If the same picture occurs under two labels, pair those with equal labels.
        ties = [name for name, field in left.fields.items() if right.fields.get(name) == field]
        ties = [name for name in ties if not isinstance(left.fields[name], ImageField)]
        return match(*keys, _tie_keys(left, right, ties) if ties else None)
    return match(_field_keys(left, match_by), _field_keys(right, match_by))


def _tie_keys(left: InputFiles, right: InputFiles, names: Sequence[str]) -> tuple[Digests, Digests]:
    """Return sample keys from the values of some fields; labels are compared by class name if both have names."""

    def keys(input_files: InputFiles, name: str) -> Digests:
        if name != left.label or left.class_names is None or right.class_names is None:
            return _field_keys(input_files, name)
        present, ids = np.unique(np.asarray(input_files.column(name)), return_inverse=True)
        words = [_word(input_files.class_names, value).encode() for value in present.tolist()]
        return digest_array(words, len(words))[ids.reshape(-1)]

    one, two = (combined([keys(each, name) for name in names]) for each in (left, right))
    return one, two


def _field_keys(input_files: InputFiles, field: str) -> npt.NDArray[np.uint64]:
    keys = []
    for input_file in input_files.files:
        keys.append(field_keys(input_file, field))
        input_file.close_until_read()
    return np.concatenate(keys)


def _content_keys(input_files: InputFiles, pool: ThreadPoolExecutor) -> Digests:
    images = [name for name, field in input_files.fields.items() if isinstance(field, ImageField)]
    names = images[:1] or [name for name, field in input_files.fields.items() if field.has_data]
    if not names:
        raise UsageError(f"{input_files.path} stores no bytes to match by; match by one of {list(input_files.fields)}")

    def content(index: int, sample: Sample) -> bytes:
        if not images:
            payloads = [data for name in names if (data := sample[name][1]) is not None]
            return b"".join(len(data).to_bytes(8, "little") + data.tobytes() for data in payloads)
        try:
            pixels = decode_stored(input_files.decoded(images[0], sample[images[0]]))
        except DecodeError as error:
            file, local = input_files.split_index(index)
            raise DecodeError(error.reason, sample=local, path=file.path, advice="`beton repair` drops it") from error
        return np.asarray(pixels.shape, np.int64).tobytes() + pixels.tobytes()

    return digest_array(_mapped(pool, content, enumerate(input_files.samples()), 16), len(input_files))


def _mapped(
    pool: ThreadPoolExecutor, function: Callable[..., _T], calls: Iterable[tuple[Any, ...]], num_waiting: int
) -> Iterator[_T]:
    """Call a function in threads, with a bounded number of calls at a time; yield the results in order."""
    waiting: deque[Future[_T]] = deque()
    for arguments in calls:
        waiting.append(pool.submit(function, *arguments))
        if len(waiting) > num_waiting:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


class _Comparer:
    """Compares the fields that both datasets have, see `compare`."""

    def __init__(self, left: InputFiles, right: InputFiles, level: Level, min_psnr: float | None) -> None:
        self.left, self.right = left, right
        self._level = level
        self._min_psnr = min_psnr
        self._names = [name for name, field in left.fields.items() if right.fields.get(name) == field]
        self._label, self._words = left.label, (left.class_names, right.class_names)
        self.notes = []
        one, two = self._words
        if one is not None and two is not None and set(one) != set(two):
            for there, names in (("first", sorted(set(one) - set(two))), ("second", sorted(set(two) - set(one)))):
                if names:
                    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                    self.notes.append(f"classes only in the {there}: {', '.join(names[:5])}{more}")

    def __call__(self, one: Sample, two: Sample) -> tuple[dict[str, str], list[_Verdict]]:
        """Return a message for each field in which two samples differ, and how their images compare."""
        words: dict[str, str] = {}
        verdicts = []
        for name in self._names:
            field = self.left.fields[name]
            if isinstance(field, ImageField):
                verdict = self._images(name, one[name], two[name])
                verdicts.append(verdict)
                if verdict.kind == _CHANGED or (verdict.kind == _EQUAL_PIXELS and self._level == "bytes"):
                    words[name] = verdict.words
            elif difference := self._values(name, one[name], two[name]):
                words[name] = difference
        return words, verdicts

    def _values(self, name: str, one: Stored, two: Stored) -> str:
        field = self.left.fields[name]
        if not field.has_data:
            a, b = one[0][0], two[0][0]
            if name == self._label and all(self._words):
                a_name, b_name = (_word(names, int(value)) for names, value in zip(self._words, (a, b), strict=True))
                return "" if a_name == b_name else f"{a_name} ({a}) against {b_name} ({b})"
            return "" if a == b or (a != a and b != b) else f"{a} against {b}"
        assert one[1] is not None and two[1] is not None
        if one[0] == two[0] and np.array_equal(one[1], two[1]):
            return ""
        try:
            a, b = self.left.decoded(name, one), self.right.decoded(name, two)
            if self._level != "bytes" and not isinstance(a, np.ndarray) and a == b:
                return ""
        except FormatError as error:
            return str(error)
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            if a.shape != b.shape:
                return f"shape {a.shape} against {b.shape}"
            return f"{int(np.count_nonzero(a != b))} of {a.size} elements"
        return f"{_short(a)} against {_short(b)}"

    def _images(self, name: str, one: Stored, two: Stored) -> _Verdict:
        assert one[1] is not None and two[1] is not None
        if one[0] == two[0] and np.array_equal(one[1], two[1]):
            return _Verdict(kind=_SAME)
        images: list[EncodedImage] = [self.left.decoded(name, one), self.right.decoded(name, two)]
        pixels: list[Pixels] = []
        for image, which in zip(images, ("first", "second"), strict=True):
            try:
                pixels.append(decode_stored(image))
            except DecodeError as error:
                return _Verdict(kind=_CHANGED, words=f"the {which} does not decode: {error.reason}")
        a, b = pixels
        if a.shape != b.shape:
            return _Verdict(kind=_CHANGED, words=f"{a.shape[1]}x{a.shape[0]} pixels against {b.shape[1]}x{b.shape[0]}")
        difference = np.abs(a.astype(np.int32) - b)
        largest = int(difference.max())
        if largest == 0:
            return _Verdict(
                kind=_EQUAL_PIXELS, words=f"equal pixels in other bytes ({one[1].size} against {two[1].size})"
            )
        if isinstance(self.left.fields[name], MaskField):
            return _Verdict(kind=_CHANGED, words=f"{np.count_nonzero(difference)} of {difference.size} pixels")
        peak = np.iinfo(a.dtype).max
        psnr = 10 * math.log10(peak**2 / float(np.mean(np.square(difference, dtype=np.float64))))
        words = f"PSNR {psnr:.1f} dB, largest difference {largest}"
        close = self._min_psnr is not None and psnr >= self._min_psnr
        return _Verdict(kind=_CLOSE if close else _CHANGED, words=words, psnr=psnr, largest=largest)


def _word(names: Sequence[str] | None, label: int) -> str:
    return names[label] if names is not None and 0 <= label < len(names) else str(label)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _run(
    comparer: _Comparer,
    pairs: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
    pool: ThreadPoolExecutor,
    workers: int,
    report: DiffReport,
) -> Iterator[Difference | None]:
    """Compare pairs in threads; yield in order what differs, None for equal pairs."""
    both = zip(comparer.left.samples(pairs[0]), comparer.right.samples(pairs[1]), strict=True)
    verdicts_in_order = _mapped(pool, comparer, both, 4 * workers)
    for first, second, (fields, verdicts) in zip(*pairs, verdicts_in_order, strict=True):
        for verdict in verdicts:
            report.images[("equal_bytes", "equal_pixels", "close", "different")[verdict.kind]] += 1
            report.largest_difference = max(report.largest_difference, verdict.largest)
            if verdict.psnr is not None:
                report.lowest_psnr = min(verdict.psnr, math.inf if report.lowest_psnr is None else report.lowest_psnr)
        yield Difference(first=int(first), second=int(second), fields=fields) if fields else None
