"""The results of verifying a file."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from dataloading.messages import counted

__all__ = ["Findings", "Problem", "VerifyReport", "in_order"]

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem in a file.

    Parameters
    ----------
    region : str
        ``"header"``, ``"sample table"``, ``"pages"``, ``"padding"``, ``"extension block"``, ``"allocation table"`` or
        ``"samples"``.
    message : str
        Description of the problem.
    start, stop : int
        The affected bytes, as a half-open range; empty if unknown.
    page : int or None
        Page of the first affected byte, counted from the file's start.
    samples : tuple of (int, int)
        Half-open ranges of the affected samples.
    """

    region: str
    message: str
    start: int = 0
    stop: int = 0
    page: int | None = None
    samples: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        place = self.region
        if self.stop > self.start:
            place += f", bytes {self.start:,} to {self.stop - 1:,}"
        if self.page is not None:
            place += f" (page {self.page})"
        text = f"{place}: {self.message}"
        return f"{text}; {describe_samples(self.samples)}" if self.samples else text


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The result of :func:`verify_file`.

    Parameters
    ----------
    path : str
        The file.
    num_samples, num_bytes : int
        Its size; 0 samples if it could not be opened.
    has_checksums : bool
        Whether its writer stored checksums (FFCV does not).
    num_decoded : int
        How many images were decoded.
    problems : tuple of Problem
        Empty for an intact file.
    complete : bool
        Whether the whole file was checked; False if checking stopped after ``max_problems``.
    """

    path: str
    num_samples: int
    num_bytes: int
    has_checksums: bool
    num_decoded: int
    problems: tuple[Problem, ...]
    complete: bool

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    @property
    def samples(self) -> list[int]:
        """Every sample that a listed problem affects, ascending."""
        touched = {index for problem in self.problems for span in problem.samples for index in range(*span)}
        return sorted(touched)

    def __str__(self) -> str:
        if self.ok:
            how = "every byte matches its checksum" if self.has_checksums else "no checksums stored; structure is sound"
            decoded = f", {counted(self.num_decoded, 'image')} decoded" if self.num_decoded else ""
            return f"{self.path}: {counted(self.num_samples, 'sample')}, {self.num_bytes:,} bytes: {how}{decoded}"
        lines = [f"{self.path}: {counted(len(self.problems), 'problem')} found"]
        lines += [f"  {problem}" for problem in self.problems]
        return "\n".join(lines if self.complete else [*lines, "  ... and perhaps more: the search ended here"])


class Findings:
    """Collects problems as they are found; checks stop once `is_full`.

    Parameters
    ----------
    limit : int
        Maximum number of problems.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._problems: list[Problem] = []
        self.unreadable = False
        """Whether reading failed, so that access to the memory map could kill the process."""

    @property
    def full(self) -> bool:
        """Whether the maximum number of problems was found."""
        return len(self._problems) >= self._limit

    def add(self, problem: Problem) -> None:
        """Add a problem, unless the maximum is reached."""
        if not self.full:
            self._problems.append(problem)

    def samples(self) -> tuple[tuple[int, int], ...]:
        """Return the samples affected so far as ascending, disjoint ranges."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(span for problem in self._problems for span in problem.samples):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        return tuple(merged)

    def report(
        self, path: str, *, num_samples: int, num_bytes: int, has_checksums: bool, num_decoded: int
    ) -> VerifyReport:
        """Return the final report."""
        return VerifyReport(
            path=path,
            num_samples=num_samples,
            num_bytes=num_bytes,
            has_checksums=has_checksums,
            num_decoded=num_decoded,
            problems=tuple(self._problems),
            complete=not self.full,
        )


def describe_samples(spans: tuple[tuple[int, int], ...]) -> str:
    """Describe ranges of samples."""
    parts = [str(start) if stop == start + 1 else f"{start} to {stop - 1}" for start, stop in spans]
    single = len(spans) == 1 and spans[0][1] == spans[0][0] + 1
    return f"touches sample {parts[0]}" if single else f"touches samples {', '.join(parts)}"


def in_order(pool: ThreadPoolExecutor, window: int, jobs: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """Yield each job's result in order, with at most ``window`` running at a time, so memory stays bounded."""
    pending: deque[Future[Result]] = deque()
    for job in jobs:
        pending.append(pool.submit(job))
        if len(pending) >= window:
            yield pending.popleft().result()
    for future in pending:
        yield future.result()
