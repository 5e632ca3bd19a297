"""Measure the memory of 1, 2 and 4 ranks that load the same file on one machine.

    python benchmarks/memory.py --photos DIR [--copies 8]

``own`` is the rank's anonymous and shared memory (each page counted once among the processes that share it), minus that
of a process that has only imported torch; ``mapped`` is the rank's part of the mapped page cache, which all ranks
share. About 40 s per loader and number of ranks.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from common import ROOT, Options, add_copies, bench_spec, failure, parse, publish, say
from inputs import large_file

from train.bench.harness import LoaderProcess, LoaderProcessError
from train.bench.spec import BenchSpec
from train.summaries import summarise

LOADERS = ("beton", "torch-fast", "ffcv")
RANKS = (1, 2, 4)


_IDLE = "import os, torch; from train.machine import memory_of_group; print(memory_of_group(os.getpgrp()).own_bytes)"


def torch_bytes() -> int:
    """Return the memory of a process that has only imported torch."""
    command = [sys.executable, "-c", _IDLE]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, start_new_session=True)
    return int(done.stdout)


def measure_ranks(options: Options, spec: BenchSpec, num_ranks: int) -> list[dict[str, Any]]:
    """Run several processes at once, and return each one's memory in the middle of its work."""
    ranks = [LoaderProcess(spec) for _ in range(num_ranks)]
    try:
        for rank in ranks:
            rank.start()
        # In the second round every buffer has been used.
        return [rank.round(options.seconds) for _ in range(2) for rank in ranks][num_ranks:]
    finally:
        for rank in ranks:
            rank.close()


def main(argv: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = parse(__doc__, argv, add_options=add_copies, seconds=3.0)
    path = large_file(options, options.copies if not options.quick else 2)
    file_bytes = path.stat().st_size

    def spec(name: str) -> BenchSpec:
        return bench_spec(options, name, path, stop_between=False)

    batch_bytes = options.batch_size * 3 * 224 * 224
    idle = torch_bytes()
    rows, data = [], []
    for name in LOADERS:
        for num_ranks in RANKS:
            try:
                entries = measure_ranks(options, spec(name), num_ranks)
            except LoaderProcessError as error:
                rows.append([name, str(num_ranks), "-", failure(error)])
                continue
            own = summarise([entry["own_bytes"] - idle for entry in entries]).median
            mapped = sum(entry["mapped_bytes"] for entry in entries)
            data.append({"loader": name, "num_ranks": num_ranks, "ranks": entries})
            row = [f"{own / 2**20:,.0f}", f"{own / file_bytes:.0%}", f"{mapped / 2**20:,.0f}", ""]
            rows.append([name, str(num_ranks), *row])
            say(f"{name}, {num_ranks} ranks: {own / 2**20:,.0f} MiB of its own each")
    head = ["loader", "ranks", "own MiB per rank", "of the file", "page cache mapped, all ranks, MiB", "note"]
    publish(
        options.out,
        options.command,
        "memory",
        "Memory of the ranks of one machine",
        f"One file of {file_bytes / 2**20:,.0f} MiB, batch {options.batch_size} "
        f"({batch_bytes / 2**20:.0f} MiB), {options.num_workers} workers per rank. A process that has only "
        f"imported torch has {idle / 2**20:,.0f} MiB, which is subtracted.",
        head=head,
        rows=rows,
        data={"idle_bytes": idle, "file_bytes": file_bytes, "runs": data},
    )


if __name__ == "__main__":
    main()
