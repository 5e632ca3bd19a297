"""Shared code of the benchmark scripts: options, folders of inputs and results, reports."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # for a checkout that is not installed

from train.bench.harness import LoaderProcess, LoaderProcessError  # noqa: E402
from train.bench.report import write_report  # noqa: E402
from train.bench.spec import BenchSpec  # noqa: E402
from train.launch import find_peers_python  # noqa: E402
from train.tables import markdown_table  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"


class Options(argparse.Namespace):
    """The options of every script; see `parse`."""

    photos: Path
    work_dir: Path
    out: Path
    num_images: int
    num_workers: int
    batch_size: int
    rounds: int
    seconds: float
    peers_python: str | None
    quick: bool
    command: str


def parse(
    description: str | None,
    argv: list[str] | None = None,
    *,
    add_options: Callable[[argparse.ArgumentParser], None] | None = None,
    **defaults: object,
) -> Options:
    """Parse a script's command line.

    Parameters
    ----------
    description : str
        The script's docstring.
    argv : list of str, optional
        By default the process's.
    add_options : callable, optional
        Adds the options of this script.
    **defaults
        Default values that differ from those below.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="class folders with photographs")
    parser.add_argument("--work-dir", type=Path, default=Path("/tmp/beton-benchmarks"), help="folder for inputs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    parser.add_argument("--num-images", type=int, default=2160, help="images per input")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a round")
    parser.add_argument("--peers-python", default=None, help="interpreter with the other loaders (peers.sh)")
    parser.add_argument("--quick", action="store_true", help="smoke test; figures mean nothing")
    if add_options is not None:
        add_options(parser)
    parser.set_defaults(**defaults)
    options = parser.parse_args(argv, namespace=Options())
    if options.quick:
        options.num_images, options.rounds, options.seconds, options.batch_size = 360, 1, 0.5, 32
    options.peers_python = find_peers_python(options.peers_python)
    options.command = _command(sys.argv[1:] if argv is None else argv, str(options.photos))
    return options


# Local folders mean nothing to others; the script of a report adds its topics.
_NOT_SHOWN = ("--work-dir", "--out", "--peers-python", "--packages", "--topics")


def _command(words: list[str], photos: str) -> str:
    shown, skip = [], False
    for word in words:
        if not skip and word not in _NOT_SHOWN and not word.startswith(tuple(f"{name}=" for name in _NOT_SHOWN)):
            shown.append("PHOTOS" if word == photos else word)
        skip = word in _NOT_SHOWN
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *shown])


def add_copies(parser: argparse.ArgumentParser) -> None:
    """Add the option of `inputs.large_file`."""
    parser.add_argument("--copies", type=int, default=8, help="number of times each image is stored, for a large file")


def bench_spec(options: Options, loader: str, path: Path, **more: Any) -> BenchSpec:
    """Return the task of one loader."""
    usual = {"batch_size": options.batch_size, "num_workers": options.num_workers, "work_dir": str(options.work_dir)}
    return BenchSpec(loader=loader, path=str(path), **{**usual, **more})


def started(spec: BenchSpec, **environment: str) -> tuple[LoaderProcess, dict[str, Any]]:
    """Start a loader in a new process, and return both the process and its start-up times; the caller closes it."""
    process = LoaderProcess(spec, environment=environment)
    try:
        return process, process.start()
    except BaseException:
        process.close()
        raise


def failure(error: LoaderProcessError) -> str:
    """Return the note for a loader that could not be measured."""
    return f"{'not installed' if error.missing else 'failed'}: {error}"


def last_line(text: str) -> str:
    """Return the last line of a process's messages."""
    return (text.strip().splitlines() or ["it left no message"])[-1]


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def publish(
    out: Path,
    command: str,
    topic: str,
    title: str,
    text: str,
    *,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    data: Any,
    below: Sequence[str] = (),
    **more: Any,
) -> None:
    """Write a report of one text and one table, and print its Markdown and its path.

    Parameters
    ----------
    out : Path
        Folder of results.
    command, topic, title, data, **more
        See `write_report`.
    text : str
        Describes the measurement.
    head, rows
        The table; short rows are padded before their last cell, the note.
    below : sequence of str
        Further sections.
    """
    full = [[*row[:-1], *[""] * (len(head) - len(row)), row[-1]] for row in rows]
    sections = [text, markdown_table(head, full), *below]
    paths = write_report(out, topic, title=title, command=command, sections=sections, data=data, **more)
    print(next(path for path in paths if path.suffix == ".md").read_text())
    for path in paths:
        say(f"wrote {path}")
