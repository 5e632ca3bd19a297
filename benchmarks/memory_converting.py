"""Measure memory and time of converting and checking very many samples: a table of ten million rows.

    python benchmarks/memory_converting.py [--samples 10000000] [--steps convert,shards,...]

The rows repeat 300 JPEGs of 8 to 32 pixels, with one of 1,000 class names and a number, so that the count dominates,
not the images. Each step is a separate command, sampled once a second: ``own`` is the peak of anonymous and shared
memory, ``resident`` includes pages of mapped files, which the system can reclaim. ``convert`` is killed halfway
(``--kill-at``), and ``resume`` continues it; ``same`` does both with fewer samples and compares the file with one that
was never interrupted. ``shard`` makes one of 64 shards of all samples, ``shards`` 8 shards of a tenth of them, and
``merge`` one file of ten times these; the other steps use that file. Skipped steps keep the results of an earlier run;
``--steps ""`` only writes the report. Needs about 20 GB of disk for ten million samples, and two hours on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, ROOT, publish, say
from PIL import Image

BETON = [sys.executable, "-m", "dataloading.cli"]
NUM_IMAGES, NUM_CLASSES, NUM_SHARDS, NUM_COMPARED, SHARE = 300, 1000, 8, 300_000, 10
KEPT = ["--keep", "bytes", "--shuffle", "--field", "weight=float"]
LOADER = """
import sys, time
from dataloading import Loader
start = time.perf_counter()
loader = Loader(sys.argv[1], batch_size=256, shuffle="global", num_workers=2, rank=0, world_size=1,
                transforms={"image": [__import__("dataloading").transforms.CenterCrop(24)]})
for number, batch in enumerate(loader):
    if number == 100:
        break
"""
STEPS = ("same", "convert", "resume", "shard", "shards", "merge", "info", "loader", "verify", "diff", "split")
_PERCENT = re.compile(r"\((\d+)%\)")


@dataclasses.dataclass(kw_only=True)
class Peak:
    """The peak memory of one process, in bytes."""

    own: int = 0
    resident: int = 0

    def see(self, pid: str) -> None:
        """Sample the process."""
        with contextlib.suppress(OSError):  # it has just ended
            found = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M))
            if "VmHWM" in found:  # empty while it is starting or ending
                self.own = max(self.own, (int(found["RssAnon"]) + int(found["RssShmem"])) * 1024)
                self.resident = max(self.resident, int(found["VmHWM"]) * 1024)


def children_of(pid: str) -> list[str]:
    """Return the children of a process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


def watched(command: list[str], log: Path, *, kill_at: int | None = None) -> dict[str, Any]:
    """Run a command and return its time and memory; with ``kill_at`` kill it at that progress.

    Parameters
    ----------
    command : list of str
        What to run.
    log : Path
        Receives its messages; a file beside it receives a line of JSON per sample.
    kill_at : int, optional
        Percent.
    """
    start = time.monotonic()
    parent = Peak()
    workers: dict[str, Peak] = {}
    with open(log, "w") as errors, open(log.with_suffix(".jsonl"), "w") as looks:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors)
        killed = False
        while process.poll() is None:
            parent.see(str(process.pid))
            for pid in children_of(str(process.pid)):
                workers.setdefault(pid, Peak()).see(pid)
            look = {"seconds": round(time.monotonic() - start, 1), "parent": dataclasses.asdict(parent),
                    "workers": [dataclasses.asdict(peak) for peak in workers.values()]}  # fmt: skip
            print(json.dumps(look), file=looks, flush=True)
            if kill_at is not None and not killed:
                said = _PERCENT.findall(log.read_text())
                if said and int(said[-1]) >= kill_at:
                    process.send_signal(signal.SIGKILL)
                    killed = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0 if time.monotonic() - start > 20 else 0.1)
    if process.returncode != (-signal.SIGKILL if kill_at is not None else 0):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{log.read_text()}")
    return {
        "seconds": time.monotonic() - start,
        "parent": dataclasses.asdict(parent),
        "worker": dataclasses.asdict(max(workers.values(), key=lambda peak: peak.own, default=Peak())),
    }


def make_input(folder: Path, count: int) -> Path:
    """Return the table, creating it if necessary."""
    path = folder / f"{count}.csv"
    if path.exists():
        return path
    say(f"making a table of {count:,} rows")
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    for number in range(NUM_IMAGES):
        width, height = (int(side) for side in chance.integers(8, 33, 2))
        level = chance.integers(0, 256, (2, 2, 3), dtype=np.uint8)
        picture = Image.fromarray(level).resize((width, height), Image.Resampling.BILINEAR)
        place = images / f"{number:03}.jpg"
        if not place.exists():  # one that is being read must not change
            picture.save(place, quality=90, optimize=True)
    part = path.with_suffix(".part")
    with open(part, "w") as file:
        file.write("image,label,weight\n")
        for row in range(count):
            number = row * 7919
            file.write(f"images/{number % NUM_IMAGES:03}.jpg,class-{number % NUM_CLASSES:03},{row % 997 / 7:.3f}\n")
    part.rename(path)
    return path


def remove(folder: Path, *patterns: str) -> None:
    """Remove the files that a step left."""
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink()


class Bench:
    """The steps, ordered so that each finds the files it needs."""

    def __init__(self, folder: Path, manifest: Path, count: int, num_workers: int, kill_at: int) -> None:
        self._folder = folder
        self._manifest = manifest
        self._count = count
        self._kill_at = kill_at
        self._workers = ["--num-workers", str(num_workers)]
        self.one = folder / "one.beton"
        self.shards = folder / "shards.beton"
        self.merged = str(folder / "merged.beton")

    def run(self, name: str, *words: str, kill_at: int | None = None) -> dict[str, Any]:
        """Run ``beton`` with these arguments."""
        return watched([*BETON, *words], self._folder / f"{name}.log", kill_at=kill_at)

    def convert(self, out: Path, *words: str, source: Path | None = None, kill_at: int | None = None) -> dict[str, Any]:
        """Convert the table."""
        source = self._manifest if source is None else source
        command = ["convert", "manifest", str(source), str(out), *KEPT, *self._workers, *words]
        return self.run(out.stem, *command, kill_at=kill_at)

    def same(self) -> dict[str, Any]:
        """Compare a conversion that was killed and resumed with an uninterrupted one."""
        small = make_input(self._manifest.parent, NUM_COMPARED)
        whole, again = self._folder / "whole.beton", self._folder / "again.beton"
        measured = self.convert(whole, source=small)
        self.convert(again, source=small, kill_at=40)
        self.convert(again, "--resume", source=small)
        if whole.read_bytes() != again.read_bytes():
            raise SystemExit("the resumed file differs from the uninterrupted one")
        remove(self._folder, "whole.beton", "again.beton")
        return {**measured, "num_samples": NUM_COMPARED}

    def step(self, name: str) -> dict[str, Any]:
        """Run a step and return its time and memory."""
        steps: dict[str, Callable[[], dict[str, Any]]] = {
            "same": self.same,
            "convert": self.interrupted,
            "resume": lambda: self.convert(self.one, "--resume"),
            "shard": lambda: self.convert(self._folder / "shard.beton", "--num-shards", "64", "--shard-index", "9"),
            "shards": self.in_shards,
            "merge": self.many_times,
            "info": lambda: self.run("info", "info", self.merged),
            "loader": lambda: watched([sys.executable, "-c", LOADER, self.merged], self._folder / "loader.log"),
            "verify": lambda: self.run("verify", "verify", self.merged, *self._workers),
            "diff": lambda: self.run("diff", "diff", self.merged, self.merged, *self._workers),
            "split": lambda: self.run("split", "split", self.merged, "--ratio", "0.9,0.1", *self._workers),
        }  # fmt: skip
        try:
            return steps[name]()
        finally:
            remove(self._folder, "merged-*.beton", "shard-*", ".shard-*")

    def interrupted(self) -> dict[str, Any]:
        """Convert, and kill it halfway."""
        remove(self._folder, "one.beton", ".one.beton.*")
        measured = self.convert(self.one, kill_at=self._kill_at)
        return {
            **measured,
            "percent": self._kill_at,
            "journal_bytes": (self._folder / ".one.beton.journal").stat().st_size,
        }

    def in_shards(self) -> dict[str, Any]:
        """Convert a tenth into shards."""
        remove(self._folder, "shards-*.beton", "shards.beton.json", ".shards-*")
        return self.convert(self.shards, "--num-shards", str(NUM_SHARDS), "--limit", str(self._count // SHARE))

    def many_times(self) -> dict[str, Any]:
        """Merge the shards ten times, under different names, since a file counts only once."""
        folders = [self._folder / f"copy-{number}" for number in range(SHARE)]
        for copy in folders:
            copy.mkdir(exist_ok=True)
            for path in self._folder.glob("shards*.beton*"):
                with contextlib.suppress(FileExistsError):
                    (copy / path.name).hardlink_to(path)
        manifests = [str(copy / f"{self.shards.name}.json") for copy in folders]
        try:
            return self.run("merge", "merge", self.merged, *manifests, "--overwrite", *self._workers)
        finally:
            for copy in folders:
                shutil.rmtree(copy)


def rows_of(found: dict[str, dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the table's rows."""
    killed_at = found.get("convert", {}).get("percent", 50)
    words = {
        "same": f"convert {NUM_COMPARED:,}",
        "convert": f"convert, killed at {killed_at} %", "resume": "convert --resume",
        "shard": "convert --num-shards 64 --shard-index 9", "shards": f"convert a tenth, --num-shards {NUM_SHARDS}",
        "merge": f"merge {SHARE} times {NUM_SHARDS} shards", "loader": "Loader, 100 shuffled batches",
        "diff": "diff, with itself", "split": "split --ratio 0.9,0.1",
    }  # fmt: skip
    for name in STEPS:
        if name in found:
            measured = found[name]
            sizes = [measured[who][what] for who in ("parent", "worker") for what in ("own", "resident")]
            mib = [f"{size / 2**20:,.0f}" if size else "" for size in sizes]
            yield [words.get(name, name), f"{measured['seconds']:,.0f}", *mib]


def main(argv: list[str] | None = None) -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--steps", default=",".join(STEPS), help="which steps, separated by commas")
    parser.add_argument("--note", default="", help="a note for the report")
    parser.add_argument("--kill-at", type=int, default=50, metavar="PERCENT", help="when to kill the conversion")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--work-dir", type=Path, default=Path("/tmp/beton-benchmarks"), help="folder for inputs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    options = parser.parse_args(argv)
    folder = options.work_dir / f"memory-{options.samples}"
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder, make_input(options.work_dir / "manifests", options.samples), options.samples,
                  options.num_workers, options.kill_at)  # fmt: skip
    kept = folder / "found.json"
    found: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    for name in filter(None, options.steps.split(",")):
        say(f"{name} ...")
        found[name] = bench.step(name)
        say(f"{name}: {found[name]}")
        kept.write_text(json.dumps(found, indent=1))
    size = next((path.stat().st_size for path in (bench.one, Path(bench.merged)) if path.exists()), 0)
    head = ["step", "seconds", "parent, own MiB", "parent, resident MiB", "a worker, own MiB", "resident MiB"]
    publish(
        options.out,
        f"python benchmarks/memory_converting.py --samples {options.samples}",
        "memory-converting",
        f"Memory of converting {options.samples:,} samples",
        f"A table of {options.samples:,} rows, images of 8 to 32 px, {options.num_workers} workers, random order; "
        f"the file has {size / 2**30:.1f} GiB. The journal when the conversion was killed: "
        f"{found.get('convert', {}).get('journal_bytes', 0) / 2**20:,.0f} MiB.",
        head=head,
        rows=list(rows_of(found)),
        below=[options.note] if options.note else [],
        data={"note": options.note, "num_samples": options.samples, "file_bytes": size, "steps": found},
    )
    if shutil.disk_usage(folder).free < size:
        say(f"{folder} can be removed")


if __name__ == "__main__":
    main()
