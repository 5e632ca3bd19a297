"""Progress and summary of a conversion."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TextIO

from dataloading import ConvertError
from dataloading.messages import counted, human_bytes
from dataloading.tools import whole_file

__all__ = ["LISTS", "Progress", "Report", "ReportedSample"]

LISTS = {
    "skipped": "skipped",
    "replaced": "replaced by gray images",
    "damaged": "damaged, stored as Pillow shows them",
    "tidied": "tidied (JPEGs with stray bytes; no pixel suffers)",
}
"""The lists of a `Report`, and descriptions of their content."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportedSample:
    """A sample in a report's list: its index in the source, its file's name if it has one, and the reason."""

    index: int
    name: str
    reason: str


@dataclasses.dataclass(kw_only=True)
class Report:
    """The result of a conversion.

    Parameters
    ----------
    path : str
        The file that was written; with shards, the manifest.
    num_samples, num_resumed : int
        Samples in it, and the number of those that an earlier run wrote.
    num_bytes, source_bytes : int
        Its size, and bytes of image files read.
    seconds : float
        Wall-clock time.
    num_workers : int or None
        Worker processes that were started; 0 if this process did all the work, None if it is not known.
    images : Counter
        Numbers of images that were "transcoded" (pixels kept), "kept" (bytes kept), "encoded" or stored "raw".
    skipped, replaced, damaged, tidied : list of ReportedSample
        In the order of conversion: skipped samples; samples with a gray image instead of their own; damaged images that
        were stored as Pillow reads them (``on_error="keep"``); and JPEGs with stray bytes, which libjpeg skips. These
        change no pixel, and are not copied unless the file's exact bytes are kept.
    shards : list of str
        The files, if the dataset has shards.
    is_whole : bool
        Whether the dataset is complete; False while other shards are missing.
    """

    path: str
    num_samples: int = 0
    num_resumed: int = 0
    num_bytes: int = 0
    source_bytes: int = 0
    seconds: float = 0.0
    num_workers: int | None = None
    images: Counter[str] = dataclasses.field(default_factory=Counter)
    skipped: list[ReportedSample] = dataclasses.field(default_factory=list)
    replaced: list[ReportedSample] = dataclasses.field(default_factory=list)
    damaged: list[ReportedSample] = dataclasses.field(default_factory=list)
    tidied: list[ReportedSample] = dataclasses.field(default_factory=list)
    shards: list[str] = dataclasses.field(default_factory=list)
    is_whole: bool = True

    @property
    def samples_per_second(self) -> float:
        """Samples written per second of wall-clock time, including the start-up of workers."""
        return (self.num_samples - self.num_resumed) / self.seconds if self.seconds else 0.0

    def lists(self) -> dict[str, list[ReportedSample]]:
        """Return the lists of samples, by the names in `LISTS`."""
        return {name: getattr(self, name) for name in LISTS}

    def add(self, other: Report) -> None:
        """Add the counts and lists of one file's report."""
        self.num_samples += other.num_samples
        self.num_resumed += other.num_resumed
        self.num_bytes += other.num_bytes
        self.source_bytes += other.source_bytes
        self.images.update(other.images)
        for name, listed in self.lists().items():
            listed.extend(getattr(other, name))

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "path": self.path,
            "num_samples": self.num_samples,
            "num_resumed": self.num_resumed,
            "num_bytes": self.num_bytes,
            "source_bytes": self.source_bytes,
            "seconds": round(self.seconds, 3),
            "samples_per_second": round(self.samples_per_second, 1),
            "num_workers": self.num_workers,
            "images": dict(sorted(self.images.items())),
            **self._listed(),
            "shards": self.shards,
            "is_whole": self.is_whole,
        }

    def _workers(self) -> str:
        if self.num_workers is None:
            return ""
        return f", {counted(self.num_workers, 'worker process')}" if self.num_workers else ", no worker processes"

    def _listed(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for name, listed in self.lists().items():
            facts |= {f"num_{name}": len(listed), name: [dataclasses.asdict(item) for item in listed]}
        return facts

    def save_faults(self, path: str) -> None:
        """Write the lists of samples to ``path``, as JSON; a `ConvertError` if they cannot be written."""
        facts = {"path": self.path, "num_samples": self.num_samples, **self._listed()}
        try:
            with whole_file(path) as part, open(part, "w", encoding="utf-8") as file:
                json.dump(facts, file, indent=1)
                file.write("\n")
        except OSError as error:
            raise ConvertError(f"the list of errors {path} cannot be written: {error.strerror or error}") from error

    def __str__(self) -> str:
        images = ", ".join(f"{count:,} {became}" for became, count in sorted(self.images.items()))
        lines = [
            f"{self.path}: {counted(self.num_samples, 'sample')}, {human_bytes(self.num_bytes)}"
            f" from {human_bytes(self.source_bytes)} of source files",
            f"images: {images}" if images else "",
            *(f"{LISTS[name]}: {len(listed):,}" for name, listed in self.lists().items() if listed),
            f"already there: {counted(self.num_resumed, 'sample')}" if self.num_resumed else "",
            f"shards: {len(self.shards):,}" if self.shards else "",
            "" if self.is_whole else "the other shards are not complete yet; the last to finish writes the manifest",
            f"time: {self.seconds:.1f} s, {self.samples_per_second:,.0f} samples/s{self._workers()}",
        ]
        return "\n".join(line for line in lines if line)


class Progress:
    """Progress on a stream: a bar on a terminal, periodic lines elsewhere, nothing if quiet.

    Parameters
    ----------
    total : int
        Number of samples.
    what : str
        The activity, such as "converting".
    quiet : bool
        Print nothing.
    stream : file, optional
        By default stderr.
    every_seconds : float
        Time between lines without a terminal.
    clock : callable
        A monotonic clock in seconds.
    """

    def __init__(
        self,
        total: int,
        *,
        what: str = "converting",
        quiet: bool = False,
        stream: TextIO | None = None,
        every_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._what = what
        self._stream = sys.stderr if stream is None else stream
        self._every = every_seconds
        self._clock = clock
        self._done = 0
        self._before = 0
        self._bytes = 0
        self._start = self._last = clock()
        self._bar: Any = None
        self._lines = not quiet and not self._stream.isatty()
        if not quiet and self._stream.isatty():
            import tqdm

            self._bar = tqdm.tqdm(
                total=total, desc=what, unit="img", file=self._stream, dynamic_ncols=True, mininterval=0.2, leave=False
            )

    def advance(self, num_bytes: int = 0, *, count: int = 1) -> None:
        """Count one more sample, or ``count``, of ``num_bytes`` stored bytes."""
        self._done += count
        self._bytes += num_bytes
        if self._bar is not None:
            if self._bar.update(count):  # redrawn
                self._bar.set_postfix_str(
                    f"{self._bytes / max(self._clock() - self._start, 1e-9) / 1e6:,.1f} MB/s", False
                )
            return
        if self._lines and (now := self._clock()) - self._last >= self._every:
            self._last = now
            self._stream.write(self._line(now) + "\n")
            self._stream.flush()

    def skip(self, count: int) -> None:
        """Count samples of an earlier run; the rate excludes them and the time it took to find them."""
        if self._done == self._before:
            self._start = self._clock()
        self._done += count
        self._before += count
        if self._bar is not None:
            self._bar.initial += count
            self._bar.update(count)

    def _line(self, now: float) -> str:
        rate = max(self._done - self._before, 1) / max(now - self._start, 1e-9)
        left = (self._total - self._done) / rate
        return (
            f"{self._what}: {self._done:,} of {self._total:,} ({self._done / self._total:.0%}), {rate:,.0f} images/s, "
            f"{self._bytes / max(now - self._start, 1e-9) / 1e6:,.1f} MB/s, {_clock_words(left)} left"
        )

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _clock_words(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
