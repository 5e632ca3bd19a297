"""The ``beton`` command: finds its verbs, runs one, turns errors into messages and exit codes.

Owns what all verbs share: the lazy group, the exit codes (0 success, 1 a fault of the data or the machine, 2 wrong
usage, 130 Ctrl-C, 143 SIGTERM), and common options. It knows a verb only by its name, the module of its code and one
line of help, so ``beton --help`` imports neither torch nor numba, and a verb imports no other verb. Another package may
add verbs as entry points of the group ``beton.commands``.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import click

from dataloading.limits import num_cores
from dataloading.messages import did_you_mean

from .entry import own_packages_first
from .errors import BetonError, UsageError

__all__ = [
    "Choice",
    "LazyGroup",
    "Size",
    "Verb",
    "beton",
    "default_num_workers",
    "main",
    "note",
    "option_dry_run",
    "option_json",
    "option_limit",
    "option_num_workers",
    "option_overwrite",
    "option_quiet",
    "option_seed",
    "run_command",
]

_ENTRY_POINT_GROUP = "beton.commands"
_INTERRUPTED, _TERMINATED = 130, 143


class Verb(NamedTuple):
    """A command: ``"module:attribute"`` of its `click.Command`, and its line in the list of commands."""

    target: str
    summary: str


# A verb's line of help is here, since reading it from the verb would import the verb.
_VERBS = {
    "convert": Verb("converters.cli:convert", "Convert an image dataset into a .beton file, or a set of shards."),
    "synth": Verb("converters.demo.synth:synth", "Make a photo-like dataset of JPEG files to try things on."),
    "info": Verb("converters.tools.info:info", "Show what a .beton file holds: fields, sizes, classes, pictures."),
    "preview": Verb(
        "converters.tools.preview:preview", "Draw what a recipe of augmentations makes of a file's images."
    ),
    "verify": Verb("converters.tools.verify:verify", "Check a .beton file: structure, checksums, every image."),
    "diff": Verb("converters.tools.commands:diff", "Compare two .beton files or shard sets sample by sample."),
    "repair": Verb("converters.tools.commands:repair", "Make a sound .beton file from a damaged one."),
    "upgrade": Verb(
        "converters.tools.commands:upgrade", "Add restart markers, checksums and class names to a file of FFCV."
    ),
    "merge": Verb("converters.tools.commands:merge", "Make one .beton file from several."),
    "split": Verb("converters.tools.commands:split", "Cut a .beton file by ratio, by class or in folds."),
    "append": Verb("converters.tools.commands:append", "Add .beton files to a shard set."),
    "export": Verb("converters.tools.commands:export", "Turn a .beton file into an image folder or WebDataset tars."),
    "train": Verb("train.cli:train", "Train an ImageNet-style model with DDP or FSDP."),
    "compare": Verb("train.cli:compare", "Run the same training with several loaders and compare them."),
    "bench": Verb("train.bench.cli:bench", "Measure how fast a .beton file loads on this machine."),
    "doctor": Verb("train.doctor.cli:doctor", "Say what bounds training on this machine, and what to change."),
    "warm-up": Verb("dataloading.warm_up:warm_up", "Compile the operations of transforms ahead of their use."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports only the one that runs.

    Parameters
    ----------
    verbs : mapping of str to Verb
        Its own commands by name.
    added : callable, optional
        Returns those of other packages. Called only for a list of all, or for a name that is not among ``verbs``.
    """

    def __init__(
        self,
        *args: Any,
        verbs: Mapping[str, Verb],
        added: Callable[[], Mapping[str, Verb]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.verbs = verbs
        self._added = added

    def _all(self) -> Mapping[str, Verb]:
        return self.verbs if self._added is None else {**self.verbs, **self._added()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table's order, which is the order of use."""
        return list(self._all())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command ``cmd_name``; None if there is none."""
        verb = self.verbs.get(cmd_name) or self._all().get(cmd_name)
        if verb is None:
            return None
        module_name, _, attribute = verb.target.partition(":")
        try:
            command = getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError) as error:
            if _debugging(ctx):
                raise
            raise click.ClickException(
                f"`{ctx.command_path} {cmd_name}` cannot start: {error}. Reinstall the package, or run "
                f"`beton --debug {cmd_name}` to see where it fails."
            ) from error
        if not isinstance(command, click.Command):
            raise click.ClickException(f"{verb.target} is a {type(command).__name__}, not a command.")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run; the error for an unknown name suggests the nearest ones."""
        name = args[0]
        if name not in self.verbs and not name.startswith("-") and name not in (known := self._all()):
            guess = did_you_mean(name, known) or f"There are: {', '.join(known)}."
            raise click.UsageError(f"No such command {name!r}. {guess}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List names and summaries without importing a single command."""
        rows = [(name, verb.summary) for name, verb in self._all().items()]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


@lru_cache(maxsize=1)
def _added_verbs() -> Mapping[str, Verb]:
    # Reads the metadata of all installed packages, which takes as long as a short verb.
    from importlib.metadata import entry_points

    points = sorted(entry_points(group=_ENTRY_POINT_GROUP), key=lambda point: point.name)
    return {
        point.name: Verb(point.value, f"Added by {point.value.partition(':')[0]}.")
        for point in points
        if point.name not in _VERBS
    }


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from . import __version__

        click.echo(f"beton {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    verbs=_VERBS,
    added=_added_verbs,
    name="beton",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`beton VERB --help` explains a verb. Exit codes: 0 success, 1 faulty data or machine, 2 wrong usage.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error (BETON_DEBUG=1 does the same).")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def beton(debug: bool) -> None:
    """Convert image datasets into .beton files and feed them to PyTorch at full speed."""
    # The value is read from the context by `_debugging`; here it only has to be accepted.


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run ``beton`` and leave the process with its exit code.

    Parameters
    ----------
    args : sequence of str, optional
        The arguments after ``beton``; by default those of the process.
    """
    own_packages_first()
    run_command(beton, args, prog_name="beton")


def run_command(command: click.Command, args: Sequence[str] | None = None, *, prog_name: str) -> NoReturn:
    """Run a command and leave the process with its exit code; an error becomes one line.

    Parameters
    ----------
    command : click.Command
        ``beton``, or a verb that can be started by itself (``python -m train``).
    args : sequence of str, optional
        Its arguments; by default those of the process.
    prog_name : str
        Its name in usage messages.
    """
    words = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in words[:1] or os.environ.get("BETON_DEBUG", "").lower() not in {"", "0", "false", "no"}
    with _termination_unwinds():
        code = _run(command, words, prog_name=prog_name, debug=debug)
        code = _flush(code)
    if args is None and code == 0:
        gc.freeze()  # the process exits: spare it a search for cycles among all that it has imported
    raise SystemExit(code)


def _run(command: click.Command, words: list[str], *, prog_name: str, debug: bool) -> int:
    try:
        result = command.main(words, prog_name=prog_name, standalone_mode=False)
    except click.Abort:
        note("beton: interrupted; nothing unfinished was kept under the final name")
        return _INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        return 0  # the reader (`| head`) has seen enough
    except _Terminated:
        note("beton: terminated (SIGTERM); nothing unfinished was kept under the final name")
        return _TERMINATED
    except (BetonError, OSError, MemoryError) as error:
        if debug:
            traceback.print_exception(error)
        note(f"beton: error: {str(error) or type(error).__name__}")
        return 2 if isinstance(error, UsageError) else 1
    # Anything else is a fault of this program: its traceback is what a bug report needs.
    return result if isinstance(result, int) else 0


def _flush(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit and would complain about the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _debugging(ctx: click.Context) -> bool:
    return bool(ctx.find_root().params.get("debug"))


class _Terminated(BaseException):
    """Raised on SIGTERM so that clean-up runs; not an Exception, so that nothing catches it."""


@contextmanager
def _termination_unwinds() -> Iterator[None]:
    """While a verb runs, let SIGTERM unwind the stack as Ctrl-C does, so that temporary files are removed."""

    def unwind(_number: int, _frame: FrameType | None) -> NoReturn:
        raise _Terminated

    try:
        before = signal.signal(signal.SIGTERM, unwind)
    except ValueError:  # not the main thread: the caller owns the process and its signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def note(text: str) -> None:
    """Write one line to stderr, so that stdout has the result only."""
    # Escaped, as a file name that is not UTF-8 must not cause an error.
    click.echo(text.encode(errors="backslashreplace").decode(), err=True)


def default_num_workers() -> int:
    """Return how many workers a verb starts by default: one per core this process may use."""
    return num_cores()


class Choice(click.Choice):  # type: ignore[type-arg] # generic from click 8.4 on only
    """One of a few words; the error for a wrong one suggests the nearest.

    Examples
    --------
    >>> Choice(["jpg", "raw"]).convert("raw", None, None)
    'raw'
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value``, or fail with all words and the nearest one."""
        try:
            word: str = super().convert(value, param, ctx)
        except click.BadParameter as error:
            guess = did_you_mean(str(value), map(str, self.choices))
            self.fail(f"{error.message} {guess}".rstrip(), param, ctx)
        return word


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: ``8388608``, ``8MiB``, ``500MB``.

    ``KiB MiB GiB TiB`` and the single letters ``K M G T`` are powers of 1,024, ``KB MB GB TB`` powers of 1,000, as for
    GNU's tools; upper and lower case are the same.

    Examples
    --------
    >>> [Size().convert(text, None, None) for text in ("2KiB", "2K", "2KB", "7")]
    [2048, 2048, 2000, 7]
    """

    name = "size"
    _UNITS: Mapping[str, int] = {
        "": 1, "B": 1,
        **{letter + ending: 1024**power for power, letter in enumerate("KMGT", 1) for ending in ("", "IB")},
        **{letter + "B": 1000**power for power, letter in enumerate("KMGT", 1)},
    }  # fmt: skip

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse ``value`` or fail with the accepted spellings."""
        if isinstance(value, int):
            return value
        text = str(value).strip().upper()
        digits = text.rstrip("KMGTIB ")
        unit = self._UNITS.get(text[len(digits) :].strip())
        if not (digits.isascii() and digits.isdigit()) or unit is None:
            self.fail(
                f"{value!r} is not a size; write a whole number of bytes, or one with a unit: 8MiB (x 2^20), 8MB "
                "(x 10^6), 1GiB",
                param,
                ctx,
            )
        return int(digits) * unit


# Options that mean the same everywhere.
option_num_workers = click.option(
    "--num-workers",
    type=click.IntRange(min=0),
    default=None,
    show_default="all cores",
    help="Workers; the result does not depend on it. 0: none beside this process.",
)
option_seed = click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of every random choice."
)
option_limit = click.option("--limit", type=click.IntRange(min=0), default=None, help="Take only the first N samples.")
option_overwrite = click.option(
    "--overwrite", is_flag=True, help="Replace the output if it exists, once the new one is complete."
)
option_dry_run = click.option("--dry-run", is_flag=True, help="Write nothing; say what would be done.")
option_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
option_quiet = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")


if __name__ == "__main__":
    main()
