"""Measure opening a file and its first shuffled batch, against the number of samples.

    python benchmarks/opening.py --photos DIR [--samples 100000,1000000,10000000,50000000]

The files are synthetic: real tables (48 bytes per sample: 2.4 GB for 50 million), and black raw images of 32x32 in a
hole that takes no disk space. Each step is timed in a new process; memory is the process's own, minus that after the
imports. Files are deleted afterwards. About 3 minutes, 1 more for FFCV.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import ROOT, last_line, parse, publish, say

from train.charts import lines

STEPS = """
import json, re, sys, time
path, loader, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
def own():
    text = open("/proc/self/smaps_rollup").read()
    return sum(int(n) for n in re.findall(r"^Pss_(?:Anon|Shmem): +(\\d+)", text, re.M)) * 1024
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
def mapped():
    parts = open("/proc/self/smaps").read().split(path)[1:]
    return sum(int(re.search(r"Rss: +(\\d+)", part)[1]) for part in parts) * 1024
measured = {}
if loader == "beton":
    from dataloading import Loader, Reader, transforms as T
    make = lambda: Loader(path, batch_size=256, shuffle="global", num_workers=workers, rank=0, world_size=1,
                          transforms={"image": [T.RandomResizedCrop(24)]})
    base = own()
    start = time.perf_counter(); reader = Reader(path); count = reader.num_samples
    measured["open_seconds"] = time.perf_counter() - start; measured["open_bytes"] = own() - base
else:
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.reader import Reader
    from ffcv.transforms import ToTensor
    pipelines = {"image": [RandomResizedCropRGBImageDecoder((24, 24)), ToTensor()], "label": [IntDecoder(), ToTensor()]}
    make = lambda: Loader(path, batch_size=256, order=OrderOption.RANDOM, num_workers=workers, os_cache=True,
                          pipelines=pipelines)
    base = own()
    start = time.perf_counter(); reader = Reader(path); count = reader.num_samples
    measured["open_seconds"] = time.perf_counter() - start; measured["open_bytes"] = own() - base
del reader
start = time.perf_counter(); made = make(); length = len(made)
measured["loader_seconds"] = time.perf_counter() - start
start = time.perf_counter(); iterator = iter(made); batch = next(iterator)  # kept: it owns the order
measured["first_batch_seconds"] = time.perf_counter() - start
measured["batch_bytes"] = own() - base; measured["peak_resident_bytes"] = peak(); measured["mapped_bytes"] = mapped()
measured["num_batches"] = length
assert len(batch[0]) == 256
print(json.dumps(measured)); sys.stdout.flush()
import os; os._exit(0)
"""


def one(path: Path, loader: str, num_workers: int) -> dict[str, Any]:
    """Open the file in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS, str(path), loader, str(num_workers)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    if done.returncode:
        return {"error": last_line(done.stderr)}
    measured: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def main(argv: list[str] | None = None) -> None:
    """Measure and write the report."""
    from tests.support.huge import make_huge_file

    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--samples", default="100000,1000000,10000000,50000000")
        parser.add_argument("--ffcv-limit", type=int, default=10_000_000, help="largest number of samples for FFCV")

    options = parse(__doc__, argv, add_options=add_options, rounds=3)
    counts = [int(word) for word in options.samples.split(",")] if not options.quick else [10_000, 100_000]
    rows, data = [], []
    series: dict[str, list[tuple[float, float]]] = {}
    for count in counts:
        path = options.work_dir / f"huge-{count}.beton"
        path.parent.mkdir(parents=True, exist_ok=True)
        say(f"making a file of {count:,} samples")
        make_huge_file(path, count)
        try:
            for loader in ("beton", "ffcv"):
                if loader == "ffcv" and count > options.ffcv_limit:
                    rows.append([loader, f"{count:,}", "-", "not run (--ffcv-limit)"])
                    continue
                measured = [one(path, loader, options.num_workers) for _ in range(options.rounds)]
                data.append({"loader": loader, "num_samples": count, "runs": measured})
                bad = next((entry["error"] for entry in measured if "error" in entry), None)
                if bad:
                    rows.append([loader, f"{count:,}", "-", f"failed: {bad}"])
                    continue
                middle = {key: statistics.median_high(entry[key] for entry in measured) for key in measured[0]}
                mib = {key: f"{middle[key] / 2**20:,.0f}" for key in middle if key.endswith("_bytes")}
                rows.append(
                    [
                        loader,
                        f"{count:,}",
                        f"{middle['open_seconds'] * 1e3:,.1f}",
                        mib["open_bytes"],
                        f"{middle['loader_seconds']:.2f}",
                        f"{middle['first_batch_seconds']:.2f}",
                        mib["batch_bytes"],
                        mib["peak_resident_bytes"],
                        mib["mapped_bytes"],
                        "",
                    ]
                )
                say(f"{loader}, {count:,}: {middle}")
                series.setdefault(loader, []).append((count, middle["open_seconds"]))
        finally:
            path.unlink(missing_ok=True)
    head = ["loader", "samples", "open, ms", "own MiB then", "Loader and len, s", "first shuffled batch, s",
            "own MiB then", "peak resident MiB", "of the file, MiB", "note"]  # fmt: skip
    title = "Opening a file, by number of samples"
    figure = lines(series, title=title, x="samples", y="seconds to open", log_x=True, log_y=True) if series else None
    publish(
        options.out,
        options.command,
        "opening",
        title,
        f"Medians of {options.rounds} fresh processes, tables in the page cache. Peak resident includes torch, and "
        "pages of the file: parts of the page cache that the process has touched. How much the system maps at a touch "
        "depends on how it has cached the file, up to 2 MiB.",
        head=head,
        rows=rows,
        data=data,
        figure=figure,
    )


if __name__ == "__main__":
    main()
