"""Ctrl-C at random moments: interrupts loops over loaders of every kind, and counts what became of each.

usage: python -m tests.support.interrupts [--num N] [--kinds labels,images,os_cache,remote] [--seconds S]

A timer raises KeyboardInterrupt in the main thread, as Ctrl-C does, once a trial and at a random moment of it.
Right is: it reaches the trial each time; the loader then stands behind the last batch received; in the end there are as
many threads, open files and files on disk as before. A watchdog ends a process that hangs, with all its stacks.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dataloading import ImageField, IntField, Loader, Writer
from dataloading import transforms as T
from tests.support.files import raw, write_images, write_labels
from tests.support.servers import http_range_server

__all__ = ["KINDS", "Report", "interrupt"]

_HANG_SECONDS = 200
_LEAST = 10  # interrupts, however slow the machine is
_SWALLOWED_SECONDS = 30.0


@dataclass
class Report:
    """What became of the interrupts of one kind of loader."""

    kind: str
    interrupts: int = 0
    swallowed: int = 0
    lost_or_repeated: int = 0
    wrong_batches: int = 0
    ignored: list[str] = field(default_factory=list)  # what Python printed as "Exception ignored in"
    left_behind: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether nothing went wrong."""
        return not (self.swallowed or self.lost_or_repeated or self.wrong_batches or self.ignored or self.left_behind)


@contextlib.contextmanager
def _labels(folder: Path) -> Iterator[Callable[[], Loader]]:
    path = write_labels(folder / "labels.beton", 400)
    yield lambda: Loader(path, batch_size=16, num_workers=2, shuffle="global", fields=["label"])


@contextlib.contextmanager
def _images(folder: Path, **options: Any) -> Iterator[Callable[[], Loader]]:
    write_images(folder / "images.beton", 60, sizes=(30, 60))
    steps = [T.RandomResizedCrop(24), T.Normalize(0.5, 0.25), lambda images: images * 2]
    transforms = {"image": steps}
    yield lambda: Loader(
        folder / "images.beton", batch_size=8, num_workers=2, shuffle="global", transforms=transforms, **options
    )


@contextlib.contextmanager
def _remote(folder: Path) -> Iterator[Callable[[], Loader]]:
    # Eight pages of 2 MiB, the smallest there are, and room for five: they are fetched again and again.
    chance = np.random.default_rng(0)
    fields = {"image": ImageField(), "label": IntField()}
    with Writer(folder / "remote.beton", fields, num_samples=56, page_size=1 << 21) as writer:
        for index in range(56):
            writer.append({"image": raw(chance.integers(0, 256, (300, 300, 3), np.uint8)), "label": index})
    with http_range_server(folder) as server:
        yield lambda: Loader(
            f"{server.url}/remote.beton", batch_size=4, num_workers=2, shuffle="global", cache_dir=folder / "cache",
            cache_bytes=5 << 21, transforms={"image": [T.RandomResizedCrop(24)]},
        )  # fmt: skip


KINDS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Callable[[], Loader]]]] = {
    "labels": _labels,
    "images": _images,
    "os_cache": lambda folder: _images(folder, os_cache=False),
    "remote": _remote,
}


def interrupt(kind: str, folder: Path, *, num: int, seconds: float = 1e9, seed: int = 0) -> Report:
    """Interrupt loops over one kind of loader `num` times, or for so long; main thread only."""
    report = Report(kind)
    chance = random.Random(seed)
    hooks = sys.unraisablehook, threading.excepthook, signal.getsignal(signal.SIGALRM)
    sys.unraisablehook = threading.excepthook = lambda info: report.ignored.append(
        f"{info.exc_type.__name__} in {getattr(info, 'object', None)!r}: {info.exc_value}"
    )
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    started = time.monotonic()
    try:
        with KINDS[kind](folder) as make:
            _one_trial_after_another(report, make, chance, num, seconds, folder)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        sys.unraisablehook, threading.excepthook = hooks[:2]
        signal.signal(signal.SIGALRM, hooks[2])
    report.seconds = round(time.monotonic() - started, 1)
    return report


def _one_trial_after_another(
    report: Report, make: Callable[[], Loader], chance: random.Random, num: int, seconds: float, folder: Path
) -> None:
    with contextlib.closing(make()) as first:
        want = _epoch(first, 0)
        _epoch(first, 1)
        assert _epoch(first, 1) != want
    del first
    time.sleep(0.2)  # connections of the cache's client
    before = _what_is_there(folder)
    loader, trial = make(), None
    deadline = time.monotonic() + seconds
    while report.interrupts < num and (time.monotonic() < deadline or report.interrupts < _LEAST):
        trial = _Trial(loader, make, chance)
        if report.interrupts % 20 == 0:
            faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.004 + 1e-5)
            trial.run()
            report.swallowed += 1
        except KeyboardInterrupt:
            report.interrupts += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        report.lost_or_repeated += not trial.place_is_right()
        if report.interrupts % 100 == 0:
            report.wrong_batches += _epoch(loader, 0) != want
        if report.interrupts % 500 == 0:
            del trial, loader
            loader = make()
            trial = _Trial(loader, make, chance)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{report.kind}: {report.interrupts}")
    faulthandler.cancel_dump_traceback_later()  # its thread too
    del trial, loader
    limit = time.monotonic() + 60
    while (left := _left(before, _what_is_there(folder))) and time.monotonic() < limit:
        time.sleep(0.05)
    if left:
        faulthandler.dump_traceback(all_threads=True)
    report.left_behind += left


class _Trial:
    """What is interrupted: a loop, mostly; also leaving one early, closing, deriving and making loaders."""

    def __init__(self, loader: Loader, make: Callable[[], Loader], chance: random.Random) -> None:
        self.loader = loader
        self.make = make
        self.what = chance.choices(["loop", "leave", "close", "derive", "make"], [70, 15, 8, 5, 2])[0]
        self.epoch, self.step, self.num_steps = -1, -1, len(loader)
        self.begins = False  # a loop that has not had a batch yet
        self.start = loader.state_dict()

    def run(self) -> None:
        until = time.monotonic() + _SWALLOWED_SECONDS
        while time.monotonic() < until:
            if self.what == "derive":
                for _ in self.loader.with_indices(range(40)):
                    pass
            elif self.what == "make":
                for _ in self.make():
                    pass
            else:
                self.begins = True
                for batch in self.loader:
                    self.epoch, self.step, self.begins = batch.epoch, batch.step, False
                    if self.what == "leave":
                        break
                if self.what == "close":
                    self.loader.close()

    def place_is_right(self) -> bool:
        """Whether the loader stands behind the last batch that the loop has seen, and at no other place."""
        state = self.loader.state_dict()
        place = state["epoch"], state["consumed"]
        if self.epoch < 0:
            began = self.start["epoch"], self.start["consumed"]
            return place in (began, (began[0] + 1, 0))
        consumed = min((self.step + 1) * self.loader.batch_size, len(self.loader.dataset))
        following = [(self.epoch + 1, 0)] if self.begins or consumed == len(self.loader.dataset) else []
        return place in [(self.epoch, consumed), *following]


def _epoch(loader: Loader, epoch: int) -> list[tuple[list[int], int]]:
    loader.set_epoch(epoch)
    if loader.state_dict()["consumed"]:
        loader.load_state_dict(loader.state_dict() | {"epoch": epoch, "consumed": 0})
    return [(batch.indices.tolist(), sum(hash(value.numpy().tobytes()) for value in batch)) for batch in loader]


def _what_is_there(folder: Path) -> dict[str, Any]:
    gc.collect()
    threads = [each.name.partition(" ")[2] or each.name for each in threading.enumerate()]
    # The event loop of fsspec keeps some; the test's server has one for each connection.
    others = [each for each in threads if each.startswith("asyncio_") or "request" in each]
    return {
        "threads": sorted(each for each in threads if each not in others),
        "system's threads": len(os.listdir("/proc/self/task")) - len(others),
        "open files": len([each for each in Path("/proc/self/fd").iterdir() if "socket" not in _target(each)]),
        "files": sorted(str(each.relative_to(folder)) for each in folder.rglob("*")),
        "shared memory": sorted(each for each in os.listdir("/dev/shm") if "beton" in each),
    }


def _left(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Describe what there is more of than before; what the first loops left may end later."""

    def is_more(name: str) -> object:
        if isinstance(before[name], int):
            return after[name] > before[name]
        return Counter(after[name]) - Counter(before[name])

    return [f"{name}: {before[name]} before, {after[name]} now" for name in before if is_more(name)]


def _target(link: Path) -> str:
    with contextlib.suppress(OSError):  # the listing's own
        return os.readlink(link)
    return "socket"


def main() -> None:
    """Print one report a kind as JSON; exit 1 if something went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num", type=int, default=25_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    good = True
    for kind in options.kinds.split(","):
        with tempfile.TemporaryDirectory() as folder:
            report = interrupt(kind, Path(folder), num=options.num, seconds=options.seconds, seed=options.seed)
        good &= report.is_good
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
        sys.stdout.flush()
    sys.exit(not good)


if __name__ == "__main__":
    main()
