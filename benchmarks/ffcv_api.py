"""Measure one script, written for FFCV, on the real FFCV and on `dataloading.ffcv`.

    python benchmarks/ffcv_api.py --photos DIR

Both sides run the same file, `ffcv_script.py`, in processes of their own; rounds take turns. Cases: ``jpeg`` (longest
side 500, FFCV's own file, RandomResizedCrop 224 and flip), ``raw256`` (the same of pixels) and ``cifar`` (the recipe of
FFCV's CIFAR example: flip, translation, cutout, float16, torchvision's Normalize). ``first batch`` counts from the
Loader's construction in a new process, compiling included. About 3 minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from common import ROOT, Options, parse, publish, say
from inputs import ffcv_file, small_file

from train.summaries import compare, interleave, summarise

SCRIPT = ROOT / "benchmarks" / "ffcv_script.py"
SIDES = {"ffcv": [str(SCRIPT)], "ours": ["-m", "dataloading.ffcv", str(SCRIPT)]}


class Side:
    """A process that runs the script: it answers each line with the figures of some seconds of iteration."""

    def __init__(self, side: str, case: str, path: str, options: Options, cache: str) -> None:
        command = [sys.executable, "-W", "ignore", *SIDES[side], case, path]
        self._process = subprocess.Popen(
            [*command, str(options.batch_size), str(options.num_workers), str(options.seconds)],
            env=os.environ | {"NUMBA_CACHE_DIR": cache}, cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.start = self._answer()

    def measure(self) -> dict[str, Any]:
        """Let it iterate."""
        assert self._process.stdin is not None
        print("go", file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit(f"the script ended with {self._process.wait()}")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


def main(argv: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = parse(__doc__, argv, rounds=4)
    inputs = {
        "jpeg": ffcv_file(options, 500),
        "raw256": ffcv_file(options, 256, "raw"),
        "cifar": small_file(options),
    }
    rows: list[list[str]] = []
    data: dict[str, Any] = {}
    for case, path in inputs.items():
        if path is None:
            raise SystemExit("the real ffcv is not installed: pip install 'beton[ffcv]'")
        with tempfile.TemporaryDirectory() as cache:
            sides = {side: Side(side, case, str(path), options, cache) for side in SIDES}
            figures: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
            try:
                for _, side in interleave(list(SIDES), options.rounds):
                    figures[side].append(sides[side].measure())
            finally:
                for each in sides.values():
                    each.close()
        rates, per_core = (
            {side: [entry["images"] / entry[what] for entry in each] for side, each in figures.items()}
            for what in ("seconds", "cpu_seconds")
        )
        first = {side: sides[side].start["first_batch_seconds"] for side in SIDES}
        medians = [f"{summarise(rates[side]).median:,.0f}" for side in SIDES]
        ratios = [compare(each["ours"], each["ffcv"]) for each in (rates, per_core)]
        shown = [f"**{ratio.of_medians:.2f}** ({ratio.low:.2f}-{ratio.high:.2f})" for ratio in ratios]
        rows.append([case, *medians, *shown, *(f"{first[side]:.1f}" for side in SIDES), ""])
        data[case] = {"rates": rates, "per_core": per_core, "first_batch_seconds": first}
        say(" ".join(rows[-1]))
    head = ["case", "FFCV, images/s", "ours", "ratio", "per CPU second", "first batch, FFCV, s", "ours", "note"]
    publish(
        options.out,
        options.command,
        "ffcv-api",
        "One script on the real FFCV and on dataloading.ffcv",
        f"{options.num_workers} workers, {options.rounds} interleaved rounds of {options.seconds:g} s, warm cache; "
        f"batches of {options.batch_size}, of CIFAR 512. No compiled code is reused between runs. Interval: lowest and "
        f"highest ratio of neighbouring rounds.",
        head=head,
        rows=rows,
        data=data,
    )


if __name__ == "__main__":
    main()
