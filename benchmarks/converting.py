"""Measure converting class folders: ours (pixels kept, bytes kept, re-encoded), FFCV's and other writers.

    python benchmarks/converting.py --photos DIR

The input is the 500-px tree (JPEG, quality 90), so no writer resizes. FFCV's writer re-encodes every image; ours
recodes it losslessly (``--keep pixels``, the default), copies it (``--keep bytes``) or re-encodes it (``--keep
never``). With 1 worker the figures are per core. The writers of WebDataset, LitData and MosaicML Streaming copy bytes
without checking them; the first and the last have no workers. Each run is a new process and times the conversion
without imports. About 10 s per case and round.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import ROOT, last_line, parse, publish, say
from inputs import photo_tree

from train.summaries import compare, interleave, summarise

PEERS = {"webdataset": "WebDataset's ShardWriter", "litdata": "LitData's optimize", "mds": "Streaming's MDSWriter"}
OURS = {"pixels": "beton, pixels kept", "bytes": "beton, bytes kept", "never": "beton, re-encoded"}


def command_of(case: str, tree: Path, out: Path, num_workers: int, peers_python: str | None) -> list[str]:
    """Return the command of a case."""
    workers = ["--num-workers", str(num_workers)]
    if case in PEERS:
        script, folder = str(ROOT / "benchmarks" / "peer_write.py"), str(out.with_suffix(""))
        return [peers_python or "no-peers", script, case, str(tree), folder, *workers]
    if case == "ffcv":
        return [sys.executable, str(ROOT / "benchmarks" / "ffcv_write.py"), str(tree), str(out), *workers]
    words = ["convert", "imagefolder", str(tree), str(out), "--overwrite", "--quiet", "--json", "--keep", case]
    return [sys.executable, "-m", "dataloading.cli", *words, *workers]


def main(argv: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = parse(__doc__, argv, rounds=3)
    tree = photo_tree(options, 500)
    out = options.work_dir / "converted.beton"
    runs: dict[str, list[dict[str, Any]]] = {}
    failures: dict[str, str] = {}
    peers_python = options.peers_python
    if peers_python is None:
        say("no .venv-peers (benchmarks/peers.sh makes it): skipping the other systems' writers")
    others = PEERS if peers_python else {}
    cases = [f"{case} {workers}" for workers in (1, 2) for case in ("ffcv", *OURS, *others)]
    cases = [case for case in cases if case not in ("webdataset 2", "mds 2")]  # they have no workers
    for number, name in interleave(cases, options.rounds):
        case, workers = name.split()
        if name in failures:
            continue
        command = command_of(case, tree, out, int(workers), peers_python)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            failures[name] = last_line(done.stderr)
            say(f"{name}: failed: {failures[name]}")
            continue
        run = json.loads(done.stdout[done.stdout.rindex("\n{") if "\n{" in done.stdout else 0 :])
        run["images_per_second"] = run["num_samples"] / run["seconds"]
        runs.setdefault(name, []).append(run)
        say(f"round {number + 1}  {name}: {run['images_per_second']:,.0f} images/s")
    out.unlink(missing_ok=True)
    rows = []
    for name in cases:
        case, workers = name.split()
        label = {**OURS, **PEERS}.get(case, "FFCV's writer")
        if name not in runs:
            rows.append([label, workers, "-", f"failed: {failures.get(name, '')}"])
            continue
        rates = [entry["images_per_second"] for entry in runs[name]]
        base = [entry["images_per_second"] for entry in runs.get(f"ffcv {workers}", [])]
        rate = summarise(rates)
        rows.append(
            [
                label,
                workers,
                f"{rate.median:,.0f}",
                f"{rate.low:,.0f}-{rate.high:,.0f}",
                f"**{compare(rates, base).of_medians:.2f}**" if base else "",
                f"{runs[name][0]['num_bytes'] / 2**20:,.0f}",
                "",
            ]
        )
    head = ["writer", "workers", "images/s", "min-max", "x FFCV", "file MiB", "note"]
    publish(
        options.out,
        options.command,
        "converting",
        "Converting an image folder",
        f"{options.num_images} JPEGs of 500 px, quality 90; {options.rounds} interleaved rounds, warm cache.",
        head=head,
        rows=rows,
        data={"runs": runs, "failures": failures},
    )


if __name__ == "__main__":
    main()
