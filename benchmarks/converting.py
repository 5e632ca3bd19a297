"""Measure conversion: class folders and small arrays, against FFCV's writer and those of other systems.

    python benchmarks/converting.py --photos DIR --num-images 8640

Folders hold 500-px JPEGs of quality 90, so no writer resizes. FFCV's writer re-encodes every image; ours recodes it
losslessly (``--keep pixels``, the default), copies it (``--keep bytes``) or re-encodes it (``--keep never``). The
writers of WebDataset and LitData copy bytes without checking them; the former has no workers. Small arrays: 50,000 of
32 px, from a ``.npz`` and by ``converters.write(dataset)``, stored raw; and once 1,281,167 of 8 px. All cases with two
workers are interleaved; those with one worker take the first two rounds. Each run is a new process and
times the conversion without imports, with the start of workers. About 6 minutes with 8,640 images on two idle cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import ROOT, last_line, parse, publish, say
from inputs import array_file, photo_tree

from train.summaries import compare, interleave, summarise
from train.tables import markdown_table

LABELS = {
    "ffcv": "FFCV's writer",
    "pixels": "beton, pixels kept",
    "bytes": "beton, bytes kept",
    "never": "beton, re-encoded",
    "webdataset": "WebDataset's ShardWriter",
    "litdata": "LitData's optimize",
    "ffcv-arrays": "FFCV's writer, 50,000 arrays of 32 px",
    "arrays": "beton, the same arrays (.npz)",
    "dataset": "beton, the same as a dataset (converters.write)",
    "ffcv-arrays-8": "FFCV's writer, 1,281,167 arrays of 8 px",
    "arrays-8": "beton, the same arrays (.npz)",
    "dataset-8": "beton, the same as a dataset (converters.write)",
}
PEERS = ("webdataset", "litdata")
FOLDERS = ("pixels", "bytes", "never")
ROUNDS_WITH_ONE_WORKER = 2


def command_of(case: str, inputs: dict[str, Path], out: Path, num_workers: str, peers_python: str | None) -> list[str]:
    """Return the command of a case."""
    kind = case.partition("-")[0]
    is_folder = kind in (*FOLDERS, *PEERS) or case == "ffcv"
    source = str(inputs["folder" if is_folder else "8" if case.endswith("-8") else "32"])
    script = {"ffcv": "ffcv_write.py"}.get(kind, "peer_write.py" if kind in PEERS else "our_write.py")
    words = [str(ROOT / "benchmarks" / script)]
    words += [] if kind == "ffcv" else [kind]
    words += [source, str(out.with_suffix("") if kind in PEERS else out), "--num-workers", num_workers]
    python = (peers_python or "no-peers") if kind in PEERS else sys.executable
    return [python, *words, *(["--mode", "raw"] if kind == "ffcv" and not is_folder else [])]


def model(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Return what 1 to 64 workers on as many cores would reach: the workers' share divides, the parent's does not."""
    rows = []
    for case in FOLDERS:
        if not (found := runs.get(f"{case} 2")):
            continue
        parent, worker = (
            statistics.median(run[name] / run["num_samples"] for run in found)
            for name in ("parent_cpu_seconds", "workers_cpu_seconds")
        )
        rates = [min(count / worker, 1 / parent) for count in (1, 2, 4, 8, 16, 32, 64)]
        rows.append([LABELS[case], f"{1000 * parent:.3f}", f"{1000 * worker:.3f}", *(f"{rate:,.0f}" for rate in rates)])
    head = ["case", "parent, ms an image", "worker, ms an image", *(str(2**power) for power in range(7))]
    return (
        "Images per second by number of workers, computed from the CPU time with two workers: at most workers / "
        "worker's time, and 1 / parent's time. Assumes a core for each process, and no limit by the disk.\n\n"
        + markdown_table(head, rows)
    )


def row(name: str, runs: dict[str, list[dict[str, Any]]], failures: dict[str, str]) -> list[str]:
    """Return a row of the table."""
    case, workers = name.split()
    if name not in runs:
        return [LABELS[case], workers, "-", f"failed: {failures.get(name, '')}"]
    found = runs[name]
    rate = summarise([entry["images_per_second"] for entry in found])
    base_name = f"ffcv {workers}"
    if {"arrays", "dataset"} & {*case.split("-")}:
        base_name = "ffcv-arrays-8 2" if case.endswith("-8") else "ffcv-arrays 2"
    base = [entry["images_per_second"] for entry in runs.get(base_name, [])]
    ratio = f"**{rate.median / statistics.median(base):.2f}**" if base else ""
    if len(base) == len(found):
        by_round = compare(rate.values, base)
        ratio += f" ({by_round.low:.2f}-{by_round.high:.2f})"
    cpu = [entry.get("parent_cpu_seconds", 0.0) + entry.get("workers_cpu_seconds", 0.0) for entry in found]
    per_image = 1000 * statistics.median(cpu) / found[0]["num_samples"]
    shown = f"{per_image:.3f}" if per_image else ""
    size = f"{found[0]['num_bytes'] / 2**20:,.0f}"
    return [LABELS[case], workers, f"{rate.median:,.0f}", f"{rate.low:,.0f}-{rate.high:,.0f}", ratio, shown, size, ""]


def main(argv: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = parse(__doc__, argv, rounds=5)
    inputs = {
        "folder": photo_tree(options, 500),
        "32": array_file(options, 2_000 if options.quick else 50_000, 32),
        "8": array_file(options, 20_000 if options.quick else 1_281_167, 8),
    }
    out = options.work_dir / "converted.beton"
    # As after an installation: our modules are compiled once, also in a checkout that keeps no bytecode.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(options.work_dir / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    peers_python = options.peers_python
    if peers_python is None:
        say("no .venv-peers (benchmarks/peers.sh makes it): skipping the other systems' writers")
    peers = ["webdataset 1", "litdata 2"] if peers_python else []
    two = ["ffcv 2", *(f"{case} 2" for case in FOLDERS), *peers, "ffcv-arrays 2", "arrays 2", "dataset 2"]
    one = ["ffcv 1", *(f"{case} 1" for case in FOLDERS)]
    once = ["ffcv-arrays-8 2", "arrays-8 2", "dataset-8 2"]
    runs: dict[str, list[dict[str, Any]]] = {}
    failures: dict[str, str] = {}
    loads = []

    def run(name: str) -> dict[str, Any] | None:
        case, workers = name.split()
        command = command_of(case, inputs, out, workers, peers_python)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            failures[name] = last_line(done.stderr)
            say(f"{name}: failed: {failures[name]}")
            return None
        result: dict[str, Any] = json.loads(done.stdout[done.stdout.rindex("\n{") if "\n{" in done.stdout else 0 :])
        result["images_per_second"] = result["num_samples"] / result["seconds"]
        return result

    run("arrays 1")  # compiles the bytecode
    before = os.getloadavg()[0]
    order = [*interleave(two, options.rounds), *interleave(one, min(ROUNDS_WITH_ONE_WORKER, options.rounds))]
    for number, name in [*order, *((0, name) for name in once)]:
        if name in failures or (result := run(name)) is None:
            continue
        runs.setdefault(name, []).append(result)
        loads.append(os.getloadavg()[0])
        say(f"round {number + 1}  {name}: {result['images_per_second']:,.0f} images/s")
    out.unlink(missing_ok=True)
    rows = [row(name, runs, failures) for name in [*two, *one, *once]]
    head = ["writer", "workers", "images/s", "min-max", "x FFCV (by round)", "CPU ms/image", "file MiB", "note"]
    publish(
        options.out,
        options.command,
        "converting",
        "Converting images",
        f"{options.num_images} JPEGs of 500 px, quality 90, and small arrays; {options.rounds} interleaved rounds, "
        f"warm cache. Load average before: {before:.1f}; meanwhile, with this benchmark: {min(loads, default=0):.1f} "
        f"to {max(loads, default=0):.1f}.",
        head=head,
        rows=rows,
        data={"runs": runs, "failures": failures},
        below=[model(runs)],
    )


if __name__ == "__main__":
    main()
