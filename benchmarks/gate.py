"""Compare the speed of two commits, topic by topic: build both, let them take turns, print ratios.

    python benchmarks/gate.py --photos DIR                      # the last commit against the files of this checkout
    python benchmarks/gate.py --photos DIR --old v0.1 --new main --only JPEG
    python benchmarks/gate.py --photos DIR --at-least 0.95      # exit status 1 if a topic is slower than that

A ratio above 1 means that the new side is faster. `CPU` compares the processor time per image, which hardly changes
when others use the machine; `wall` compares the time that passes. Each is the median of the rounds' ratios, in brackets
the extremes. `output` says whether both sides gave the same bytes for the same seed. Five rounds take about four
minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import ROOT, Options, parse, say
from inputs import our_file, photo_tree, small_file

from train.tables import format_table

HEAD = ("topic", "old us", "new us", "CPU", "wall", "output")


class Side:
    """The process that runs the topics with one checkout."""

    def __init__(self, checkout: Path, inputs: list[str]) -> None:
        script = ROOT / "benchmarks" / "gate_topics.py"
        # Compiled kernels of one commit must not be found by the other.
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(checkout / "build" / "gate-kernels")}
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(checkout), *inputs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.topics: list[str] = self._answer()

    def run(self, topic: str) -> dict[str, Any]:
        """Run a topic; the first time it is only prepared."""
        assert self._process.stdin is not None
        self._process.stdin.write(topic + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = self._answer()
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of one side ended with status {self._process.wait()}; see its message above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Give a folder with a commit's files and its native library; "files" means this checkout as it is."""
    if revision == "files":
        build(ROOT)
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="beton-gate-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            build(tree)
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def build(tree: Path) -> None:
    """Build a checkout's native library into it."""
    say(f"building the native library of {tree}")
    folder = str(tree / "build" / "gate")
    for command in (
        ["cmake", "-S", str(tree), "-B", folder, "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", folder, "--parallel"],
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def measure(options: Options, topic: str, old: Side, new: Side) -> tuple[list[str], float | None]:
    """Return a topic's row and its ratio of CPU time."""
    prepared = [side.run(topic) for side in (old, new)]
    errors = [answer["error"] for answer in prepared if "error" in answer]
    if errors:
        return [topic, "", "", "", "", errors[0]], None
    rounds = []
    for number in range(options.rounds):
        first, second = (old, new) if number % 2 else (new, old)
        answers = {first: first.run(topic), second: second.run(topic)}
        rounds.append((answers[old], answers[new]))
    cells = [f"{statistics.median(pair[k]['cpu'] for pair in rounds) * 1e6:,.1f}" for k in (0, 1)]
    ratios = {}
    for kind in ("cpu", "wall"):
        values = [pair[0][kind] / pair[1][kind] for pair in rounds]
        ratios[kind] = statistics.median(values)
        cells.append(f"{ratios[kind]:.2f} ({min(values):.2f}-{max(values):.2f})")
    same = prepared[0]["checksum"] == prepared[1]["checksum"]
    return [topic, *cells, "same" if same else "differs"], ratios["cpu"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this script."""
    parser.add_argument("--old", default="HEAD", help="a commit; by default the last one")
    parser.add_argument("--new", default="files", help="a commit; by default the files of this checkout")
    parser.add_argument("--only", default="", help="topics whose names contain this")
    parser.add_argument("--at-least", type=float, default=0.0, help="the smallest ratio of CPU time that passes")


def main(argv: list[str] | None = None) -> int:
    """Measure and print the table."""
    options = parse(__doc__, argv, add_options=add_options)
    inputs = [our_file(options, 500), our_file(options, 256, "raw"), small_file(options), photo_tree(options, 500)]
    words = [str(path.resolve()) for path in inputs]
    rows, slower = [], []
    with contextlib.ExitStack() as stack:
        trees = [stack.enter_context(checkout(revision)) for revision in (options.old, options.new)]
        old, new = (stack.enter_context(contextlib.closing(Side(tree, words))) for tree in trees)
        for topic in (name for name in new.topics if options.only in name):
            row, ratio = measure(options, topic, old, new)
            rows.append(row)
            say("  ".join(row))
            if ratio is not None and ratio < options.at_least:
                slower.append(topic)
    print(f"{options.old} (old) and {options.new} (new): CPU time per image, and old divided by new; "
          f"load {os.getloadavg()[0]:.1f}\n\n{format_table(HEAD, rows)}")  # fmt: skip
    for topic in slower:
        print(f"slower than {options.at_least}: {topic}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
