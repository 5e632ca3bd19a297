"""What a conversion tells: progress while it runs, and a summary when it is done."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["Progress", "Report", "Skipped", "human_bytes"]


def human_bytes(count: float) -> str:
    """Return a number of bytes in words, units in powers of two.

    Examples
    --------
    >>> human_bytes(0), human_bytes(1536), human_bytes(8 << 20)
    ('0 B', '1.5 KiB', '8.0 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Skipped:
    """A sample that was left out.

    Parameters
    ----------
    index : int
        Its index in the source.
    name : str
        Its file, where it has one.
    reason : str
        Why it was left out.
    """

    index: int
    name: str
    reason: str


@dataclasses.dataclass(kw_only=True)
class Report:
    """The result of a conversion.

    Parameters
    ----------
    path : str
        The file that was written.
    num_samples : int
        Samples in it.
    num_bytes : int
        Its size.
    source_bytes : int
        Bytes of image files read.
    seconds : float
        Wall-clock time.
    kinds : Counter
        How many images were "transcoded" (pixels kept), "kept" (bytes kept), "encoded" anew, or stored "raw".
    skipped : list of Skipped
        What was left out, in the source's order of conversion.
    """

    path: str
    num_samples: int = 0
    num_bytes: int = 0
    source_bytes: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)
    skipped: list[Skipped] = dataclasses.field(default_factory=list)

    @property
    def samples_per_second(self) -> float:
        """Samples written per second of wall-clock time, start-up of workers included."""
        return self.num_samples / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        return {
            "path": self.path,
            "num_samples": self.num_samples,
            "num_bytes": self.num_bytes,
            "source_bytes": self.source_bytes,
            "seconds": round(self.seconds, 3),
            "samples_per_second": round(self.samples_per_second, 1),
            "images": dict(sorted(self.kinds.items())),
            "num_skipped": len(self.skipped),
            "skipped": [dataclasses.asdict(item) for item in self.skipped],
        }

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.kinds.items()))
        lines = [
            f"{self.path}: {self.num_samples:,} samples, {human_bytes(self.num_bytes)}"
            f" from {human_bytes(self.source_bytes)} of source files",
            f"images: {kinds}" if kinds else "",
            f"skipped: {len(self.skipped):,}" if self.skipped else "",
            f"time: {self.seconds:.1f} s, {self.samples_per_second:,.0f} samples/s",
        ]
        return "\n".join(line for line in lines if line)


class Progress:
    """Progress on a stream: a bar on a terminal, a line now and then elsewhere, nothing if quiet.

    Parameters
    ----------
    total : int
        Samples to come.
    what : str
        A word for what is being done.
    quiet : bool
        Say nothing.
    stream : file, optional
        By default stderr, as it is when the progress begins.
    every_seconds : float
        Time between lines where there is no terminal.
    clock : callable
        Seconds that only go up.
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
        self._bytes = 0
        self._start = self._last = clock()
        self._bar: Any = None
        self._lines = not quiet and not self._stream.isatty()
        if not quiet and self._stream.isatty():
            import tqdm

            self._bar = tqdm.tqdm(
                total=total, desc=what, unit="img", file=self._stream, dynamic_ncols=True, mininterval=0.2, leave=False
            )

    def advance(self, num_bytes: int = 0) -> None:
        """Count one more sample, of ``num_bytes`` stored bytes."""
        self._done += 1
        self._bytes += num_bytes
        if self._bar is not None:
            self._bar.update()
            return
        if self._lines and (now := self._clock()) - self._last >= self._every:
            self._last = now
            self._stream.write(self._line(now) + "\n")
            self._stream.flush()

    def _line(self, now: float) -> str:
        rate = self._done / max(now - self._start, 1e-9)
        left = (self._total - self._done) / rate
        return (
            f"{self._what}: {self._done:,} of {self._total:,} ({self._done / self._total:.0%}), {rate:,.0f} images/s, "
            f"{self._bytes / max(now - self._start, 1e-9) / 1e6:,.1f} MB/s, {_clock_words(left)} left"
        )

    def close(self) -> None:
        """Take the bar away; it leaves no trace, so that the result follows the command."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _clock_words(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
