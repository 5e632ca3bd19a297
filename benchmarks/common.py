"""What the benchmark scripts share: their options, where inputs and results lie, the machine's peers."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # a checkout that was not installed

from train.bench.harness import find_peers_python  # noqa: E402

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
        Adds what only this script has.
    **defaults
        Other default values than those below.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder of class folders with photographs")
    parser.add_argument("--work-dir", type=Path, default=Path("/tmp/beton-benchmarks"), help="inputs are kept here")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results go here")
    parser.add_argument("--num-images", type=int, default=2160, help="images in each input")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a round")
    parser.add_argument("--peers-python", default=None, help="interpreter with the other loaders (peers.sh)")
    parser.add_argument("--quick", action="store_true", help="smoke test: figures are void")
    if add_options is not None:
        add_options(parser)
    parser.set_defaults(**defaults)
    options = parser.parse_args(argv, namespace=Options())
    if options.quick:
        options.num_images, options.rounds, options.seconds, options.batch_size = 360, 1, 0.5, 32
    options.peers_python = find_peers_python(options.peers_python)
    options.command = _command(sys.argv[1:] if argv is None else argv, str(options.photos))
    return options


# Where things lie on this machine says nothing to others; the topics of a report are added by its script.
_NOT_SHOWN = ("--work-dir", "--out", "--peers-python", "--topics")


def _command(words: list[str], photos: str) -> str:
    shown, skip = [], False
    for word in words:
        if not skip and word not in _NOT_SHOWN and not word.startswith(tuple(f"{name}=" for name in _NOT_SHOWN)):
            shown.append("PHOTOS" if word == photos else word)
        skip = word in _NOT_SHOWN
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *shown])


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def finish(paths: list[Path]) -> None:
    """Show a result's Markdown and say where it is."""
    print(next(path for path in paths if path.suffix == ".md").read_text())
    for path in paths:
        say(f"wrote {path}")
