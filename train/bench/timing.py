"""The child process: builds one loader and times a round on each request of the harness.

Communicates in JSON lines: stdin gets an object with a spec, then commands. Answers go to the original stdout; stdout
itself is redirected to stderr, because libraries print to it.

A round discards as many batches as may have been ready before it, starts the clock when the next batch arrives, and
stops it at the first batch after `seconds` whose number is a multiple of the workers (worker processes deliver in
bursts of that size). Batches continue across epochs, and the gaps between epochs count.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

__all__ = ["Stream", "main", "time_rest_of_epoch", "time_round"]

_STATED = ("torch", "torchvision", "numpy", "numba", "pillow")


class Stream:
    """The batches of a loader, across epochs, and their times."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._epoch: Iterator[Any] | None = None
        self._last_arrival = 0.0
        self.gaps: list[float] = []
        self.intervals: list[float] = []

    def next(self) -> Any:
        """Wait for the next batch, starting a new epoch if one has ended."""
        crossed = self._epoch is None
        while True:
            if self._epoch is None:
                self._epoch = iter(self._loader.image_batches())
            batch = next(self._epoch, None)
            if batch is not None:
                break
            if crossed and self._last_arrival == 0.0:
                raise RuntimeError("the loader delivers no batch: fewer images than one batch?")
            self._epoch, crossed = None, True
        now = time.perf_counter()
        if self._last_arrival:
            (self.gaps if crossed else self.intervals).append(now - self._last_arrival)
        self._last_arrival = now
        return batch

    def rest_of_epoch(self) -> Iterator[Any]:
        """Yield the remaining batches of the epoch begun by `next`."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            yield from epoch


def time_round(
    stream: Any,
    *,
    num_skipped: int,
    seconds: float,
    burst: int,
    batch_size: int,
    starting: Callable[[], None] = lambda: None,
) -> tuple[int, float]:
    """Return ``(images, seconds)`` of one round; the module's docstring defines a round.

    Parameters
    ----------
    stream : Stream
        Any object with `next`.
    num_skipped : int
        Batches that may have been ready before.
    seconds : float
        Minimum length of the round.
    burst : int
        Stop only after a multiple of this many batches.
    batch_size : int
        Expected rows.
    starting : callable
        Called just before the clock starts.
    """
    for _ in range(num_skipped + 1):
        stream.next()
    starting()
    start = time.perf_counter()
    images = number = 0
    while True:
        images += _rows(stream.next(), batch_size)
        number += 1
        now = time.perf_counter()
        if now - start >= seconds and number % burst == 0:
            return images, now - start


def time_rest_of_epoch(stream: Stream, *, num_skipped: int) -> tuple[int, float]:
    """Return ``(images, seconds)`` from batch `num_skipped` of the current epoch to its last.

    For a first epoch from storage: the skipped batches may have been read while others compiled.
    """
    images, start, now = 0, 0.0, 0.0
    for number, batch in enumerate(stream.rest_of_epoch()):
        now = time.perf_counter()
        if number < num_skipped:
            continue
        if start:
            images += int(batch.shape[0])
        else:
            start = now
    return images, now - start


def _rows(batch: Any, expected: int) -> int:
    rows = int(batch.shape[0])
    if rows != expected:
        raise RuntimeError(f"a batch has {rows} rows, expected {expected}: rounds would not be comparable")
    return rows


def main() -> None:
    """Answer the parent until it closes stdin."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    try:
        _serve(replies)
    except Exception as error:
        traceback.print_exc()
        _reply(replies, {"error": f"{type(error).__name__}: {error}", "missing": isinstance(error, ImportError)})
    replies.flush()
    # Threads and compiled libraries of some projects crash during the interpreter's shutdown.
    os._exit(0)


def _reply(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _serve(replies: TextIO) -> None:
    started = time.perf_counter()
    task = json.loads(sys.stdin.readline())
    from train.bench.spec import BenchSpec
    from train.loaders import LOADERS, make_measured_loader
    from train.machine import versions

    spec = BenchSpec(**task["spec"])
    entry = LOADERS[spec.loader]
    if entry.needs:  # imported separately, to distinguish a missing package from a broken one
        importlib.import_module(entry.needs)
    imported = time.perf_counter()
    loader = make_measured_loader(spec.loader, spec.loader_spec())
    built = time.perf_counter()
    stream = Stream(loader)
    batch = stream.next()
    first = time.perf_counter()
    _reply(
        replies,
        {
            "import_seconds": imported - started,
            "build_seconds": built - imported,
            "first_batch_seconds": first - built,
            "process_seconds": time.time() - task["spawned_at"],
            "seen": _describe(batch),
            "versions": versions(filter(None, (*_STATED, entry.package))),
            "python": sys.version.split()[0],
        },
    )
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "report":
            _reply(replies, {"report": loader.report()})
        elif command["do"] == "epoch":
            images, seconds = time_rest_of_epoch(stream, num_skipped=loader.num_ahead)
            _reply(replies, {"images": images, "seconds": seconds})
        else:
            _reply(replies, _round(loader, stream, spec, command["seconds"]))
    loader.close()


def _round(loader: Any, stream: Stream, spec: Any, seconds: float) -> dict[str, Any]:
    from train.machine import busy_seconds, cpu_of_group, memory_of_group

    group = os.getpgrp()
    before: list[tuple[float, float | None, float]] = []

    def starting() -> None:
        stream.gaps.clear()
        stream.intervals.clear()
        loader.clock_starts()
        before.append((cpu_of_group(group), busy_seconds(), time.perf_counter()))

    if hasattr(loader, "measure"):
        starting()
        images, taken = loader.measure(seconds)
    else:
        images, taken = time_round(
            stream,
            num_skipped=loader.num_ahead + spec.num_workers,
            seconds=seconds,
            burst=spec.num_workers,
            batch_size=spec.batch_size,
            starting=starting,
        )
    [(cpu_before, busy_before, began)] = before
    busy = busy_seconds()
    cpu = cpu_of_group(group) - cpu_before
    wall = time.perf_counter() - began
    loader.clock_stops()
    memory = memory_of_group(group)
    return {
        "images": images,
        "seconds": taken,
        "cpu_seconds_per_image": cpu / images,
        "own_bytes": memory.own_bytes,
        "mapped_bytes": memory.mapped_bytes,
        "other_cores": None if busy is None or busy_before is None else max(0.0, busy - busy_before - cpu) / wall,
        "gap_seconds": list(stream.gaps),
        "batch_seconds": statistics.median_high(stream.intervals) if stream.intervals else None,
    }


def _describe(batch: Any) -> dict[str, Any]:
    """Describe a batch, so that a loader that does different work stands out in the report."""
    described: dict[str, Any] = {"shape": list(batch.shape), "dtype": str(batch.dtype).removeprefix("torch.")}
    if batch.shape[0]:
        pixels = batch.float() if hasattr(batch, "float") else batch.astype("float32")
        described.update(mean=round(float(pixels.mean()), 3), std=round(float(pixels.std()), 3))
    return described


if __name__ == "__main__":
    main()
