"""Measure the first epoch from storage: the file is dropped from the page cache before each run.

    python benchmarks/cold_cache.py --photos DIR [--copies 8] [--loaders beton,torch-fast,ffcv]

Each measurement runs in its own process: it drops the cache (``posix_fadvise(DONTNEED)``; a file that a process has
mapped cannot be dropped), builds the loader, and measures the rate of the first epoch, without the batches that may
have been read during compilation. "warm" repeats it with the file in the cache. About 30 s per loader and round.

In a control group with a memory limit (``systemd-run --scope -p MemoryMax=2G``, Docker) and with enough copies it
measures a file larger than memory.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from common import add_copies, bench_spec, failure, parse, publish, say, started
from inputs import large_file

from dataloading.tools import memory_bytes
from train.bench.harness import LoaderProcessError
from train.bench.spec import PIPELINES, BenchSpec
from train.summaries import interleave, summarise

LOADERS = "beton,torch-fast,ffcv"


def drop_from_cache(path: Path) -> None:
    """Drop the file from the page cache; its pages must be clean, so they are written first."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def read_through(path: Path) -> float:
    """Read the file from start to end and return bytes per second."""
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass
    return path.stat().st_size / (time.perf_counter() - start)


def first_epoch(spec: BenchSpec) -> dict[str, Any]:
    """Build the loader in a new process and measure its first epoch."""
    process, start = started(spec)
    try:
        rest = process.rest_of_epoch()
    finally:
        process.close()
    return {**rest, "first_batch_seconds": start["build_seconds"] + start["first_batch_seconds"]}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this script."""
    add_copies(parser)
    parser.add_argument("--loaders", default=LOADERS, help=f"by default {LOADERS}")


def around_a_fault(path: Path) -> str:
    """Say how much the system reads for a byte that is not in memory."""
    device = path.stat().st_dev
    setting = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    return f"{setting.read_text().strip()} KiB" if setting.exists() else "an unknown number of bytes"


def main(argv: list[str] | None = None) -> None:
    """Measure cold and warm first epochs and write the report."""
    options = parse(__doc__, argv, add_options=add_options, rounds=3)
    path = large_file(options, options.copies if not options.quick else 2)
    drop_from_cache(path)
    disk = read_through(path)
    size, memory = path.stat().st_size, memory_bytes()
    is_larger = size > memory
    loaders = options.loaders.split(",")
    rates: dict[tuple[str, str], list[float]] = {}
    firsts: dict[tuple[str, str], list[float]] = {}
    failures: dict[str, str] = {}
    states = ("cold",) if is_larger else ("cold", "warm")  # no file larger than memory is warm
    cases = [f"{name} {state}" for name in loaders for state in states]
    for number, case in interleave(cases, options.rounds):
        name, state = case.split()
        if name in failures:
            continue
        drop_from_cache(path)
        if state == "warm":
            read_through(path)
        try:
            epoch = first_epoch(bench_spec(options, name, path))
        except LoaderProcessError as error:
            failures[name] = failure(error)
            say(f"{name}: {failures[name]}")
            continue
        rates.setdefault((name, state), []).append(epoch["images"] / epoch["seconds"])
        firsts.setdefault((name, state), []).append(epoch["first_batch_seconds"])
        say(f"round {number + 1}  {case}: {rates[name, state][-1]:,.0f} images/s")
    rows = []
    for name, state in (case.split() for case in cases):
        if (name, state) not in rates:
            rows.append([name, state, "-", "-", failures.get(name, "")])
            continue
        rate, first = summarise(rates[name, state]), summarise(firsts[name, state])
        rows.append(
            [name, state, f"{rate.median:,.0f} ({rate.low:,.0f}-{rate.high:,.0f})", f"{first.median:.2f}", ""],
        )
    head = ["loader", "page cache", "images/s", "first batch, s", "note"]
    publish(
        options.out,
        options.command,
        "cold_limited" if is_larger else "cold",
        "A file larger than memory" if is_larger else "First epoch with nothing in the page cache",
        f"{PIPELINES['train']}; one file of {size / 2**20:,.0f} MiB, shuffled, batch {options.batch_size}, "
        f"{options.num_workers} workers. Reading the file from start to end takes "
        f"{size / disk:.1f} s ({disk / 1e6:,.0f} MB/s); around a page fault the system reads {around_a_fault(path)}. "
        f"This process may use {memory / 2**20:,.0f} MiB of memory. First batch: from construction on.",
        head=head,
        rows=rows,
        data={
            "rates": {" ".join(key): value for key, value in rates.items()},
            "first_batch_seconds": {" ".join(key): value for key, value in firsts.items()},
            "failures": failures,
            "file_bytes": size,
            "sequential_bytes_per_second": disk,
        },
    )


if __name__ == "__main__":
    main()
