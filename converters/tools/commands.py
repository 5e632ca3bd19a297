"""The command line of `beton repair`, `merge`, `split`, `append`, `diff`, `export` and `upgrade`.

Parses arguments, calls the command's function and prints its report; heavy imports are delayed until a command runs.
Options that need no conversion are passed on in ``options``, under the names of the function's arguments.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from converters.local_file import LocalFile
from converters.output.files import full_disk_names
from dataloading.cli import (
    Choice,
    Size,
    default_num_workers,
    note,
    option_json,
    option_num_workers,
    option_overwrite,
    option_quiet,
    option_seed,
)
from dataloading.messages import counted, human_bytes

__all__ = ["append", "diff", "export", "merge", "repair", "split", "upgrade"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SHOWN_AT_MOST = 20

_BETON = LocalFile()


def option_no_verify(command: _Command) -> _Command:
    """``--no-verify``: trust the input."""
    return click.option(
        "--no-verify", "verify", is_flag=True, callback=lambda _ctx, _param, is_given: not is_given,
        help="Do not compare the input with its checksums before it is copied.",
    )(command)  # fmt: skip


def _run(function: Callable[..., Any], *args: Any, place: str, num_workers: int | None, **options: Any) -> Any:
    """Call a command's function; a full disk is reported for ``place``."""
    workers = default_num_workers() if num_workers is None else num_workers
    with full_disk_names(place):
        return function(*args, num_workers=workers, **options)


def _print(report: Any, lines: Sequence[str], as_json: bool, **extra: Any) -> None:
    click.echo(json.dumps(dataclasses.asdict(report) | extra, indent=2) if as_json else "\n".join(lines))


def _first(items: Sequence[Any], line_of: Callable[[Any], str]) -> list[str]:
    """Return a line per item, up to a readable number."""
    more = len(items) - _SHOWN_AT_MOST
    lines = [f"  {line_of(item)}" for item in items[:_SHOWN_AT_MOST]]
    return [*lines, f"  ... and {more:,} more; --json lists all of them"] if more > 0 else lines


def _size(sized: Any) -> str:
    """Return the samples and bytes of a report, part or shard."""
    return f"{counted(sized.num_samples, 'sample')}, {human_bytes(sized.num_bytes)}"


@click.command()
@click.argument("file", type=_BETON)
@click.argument("out", type=click.Path(dir_okay=False))
@click.option("--zero", is_flag=True, help="Keep damaged samples, with a black image or an empty value.")
@option_num_workers
@option_overwrite
@option_json
@option_quiet
def repair(file: str, out: str, *, as_json: bool, **options: Any) -> None:
    """Write the undamaged samples of FILE into the new file OUT.

    Samples with a damaged byte, or whose image does not decode, are dropped and listed. A checksum covers 64 KiB: every
    sample with bytes in a damaged block counts as damaged. The result is verified before it appears. Of a shard set
    (SET.beton.json) a new set OUT.beton.json is made.
    """
    from converters.tools.repair import repair as run

    report = _run(run, file, out, place=out, **options)
    lines = [
        f"{report.path}: {report.num_samples:,} of {counted(report.num_source_samples, 'sample')}, "
        f"{human_bytes(report.num_bytes)}, verified"
    ]
    if not report.num_problems:
        lines.append(f"{report.source} was not damaged")
    for what, items in (("left out", report.dropped), ("blanked", report.blanked)):
        if items:
            lines.append(f"{what}: {len(items):,}")
            lines += _first(items, _lost_line)
    if report.lost_shards:
        lines.append(f"shards dropped: {len(report.lost_shards):,}")
        lines += _first(report.lost_shards, lambda each: f"{counted(each.num_samples, 'sample')}: {each.reason}")
    if not report.checksums_usable:
        note(f"{report.source} has no usable checksums: damage that still decodes could not be seen")
    _print(report, lines, as_json)


def _lost_line(lost: Any) -> str:
    return f"sample {lost.sample}{' (' + ', '.join(lost.fields) + ')' if lost.fields else ''}: {lost.reason}"


@click.command()
@click.argument("out", type=click.Path(dir_okay=False))
@click.argument("files", type=_BETON, nargs=-1, required=True)
@click.option("--classes", type=Choice(["equal", "union"]), default="equal", show_default=True,
              help="Require equal class lists, or map labels by name into the union of all lists.")  # fmt: skip
@click.option("--assume-classes", is_flag=True,
              help="Assume that files without class names (FFCV's) have those of the others.")  # fmt: skip
@option_no_verify
@option_num_workers
@option_overwrite
@option_json
@option_quiet
def merge(out: str, files: Sequence[str], *, as_json: bool, **options: Any) -> None:
    """Write the samples of FILES, in this order, into the new file OUT.

    All files (or shard manifests) must have the same fields. Stored bytes are copied as they are.
    """
    from converters.beton_files import list_files
    from converters.tools.merge import merge as run

    report = _run(run, out, list_files(files), place=out, **options)
    counts = ", ".join(f"{count:,} from {path}" for path, count in report.sources[:_SHOWN_AT_MOST])
    num_more = len(report.sources) - _SHOWN_AT_MOST
    more = f" and {counted(num_more, 'more file')}" if num_more > 0 else ""
    lines = [f"{report.path}: {_size(report)}: {counts}{more}"]
    if report.num_relabelled:
        labels = counted(report.num_relabelled, "label")
        lines.append(f"{counted(report.num_classes or 0, 'class')}; {labels} changed to keep their class's name")
    _print(report, lines, as_json)


class Ratio(click.ParamType):  # type: ignore[type-arg]
    """Shares of the parts: ``0.9,0.1`` or ``8,1,1``."""

    name = "shares"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Parse ``value`` or fail."""
        if isinstance(value, tuple):
            return value
        try:
            shares = tuple(float(word) for word in str(value).split(","))
        except ValueError:
            shares = ()
        if len(shares) < 2 or not all(0 < share < 1e9 for share in shares):
            self.fail(f"{value!r} is not a list of shares; write positive numbers such as 0.9,0.1 or 8,1,1", param, ctx)
        return shares


@click.command()
@click.argument("file", type=_BETON)
@click.option("--ratio", type=Ratio(), default=None, metavar="A,B,...", help="Parts in these proportions: 0.9,0.1.")
@click.option("--by-class", is_flag=True, help="One part per class.")
@click.option("--folds", type=click.IntRange(min=2), default=None, metavar="N", help="N parts of equal size.")
@click.option("--out", default=None, metavar="PATTERN",
              help="Names of the parts, with {name} or {index}. Default: FILE's name with -{name}.")  # fmt: skip
@click.option("--stratify/--no-stratify", default=True, show_default=True,
              help="Split every class in the same proportions.")  # fmt: skip
@click.option("--group-field", default=None, metavar="FIELD", help="Keep samples with equal FIELD in one part.")
@option_seed
@option_no_verify
@option_num_workers
@option_overwrite
@option_json
@option_quiet
def split(file: str, *, out: str | None, as_json: bool, **options: Any) -> None:
    """Write each sample of FILE, or of a shard set (SET.beton.json), into exactly one of several new files.

    The choice depends only on the labels and the seed. Within a part samples keep their order.
    """
    from converters.beton_files import stem_of
    from converters.tools.split import split as run

    pattern = stem_of(file) + "-{name}.beton" if out is None else out
    report = _run(run, file, out=pattern, place=out or file, **options)
    _print(report, [f"{part.path}: {_size(part)}" for part in report.parts], as_json)


@click.command()
@click.argument("manifest", type=_BETON)
@click.argument("files", type=_BETON, nargs=-1, required=True)
@option_no_verify
@option_num_workers
@option_json
def append(manifest: str, files: Sequence[str], *, as_json: bool, **options: Any) -> None:
    """Add FILES to the shard set MANIFEST (SET.beton.json).

    Fields and classes must match the set's. Files from elsewhere are copied beside the manifest, which is replaced
    last.
    """
    from converters.tools.append import append as run

    report = _run(run, manifest, files, place=manifest, **options)
    lines = [
        f"{shard.name}: {_size(shard)}{' (copied)' if shard.name in report.copied else ''}" for shard in report.added
    ]
    lines.append(f"{report.path}: now {counted(report.num_shards, 'shard')}, {_size(report)}")
    _print(report, lines, as_json)


@click.command()
@click.argument("first", type=_BETON)
@click.argument("second", type=_BETON)
@click.option("--match-by", default=None, metavar="FIELD|content",
              help="Pair samples by equal FIELD, or by equal pixels. Default: by their order.")  # fmt: skip
@click.option("--level", type=Choice(["pixels", "bytes"]), default="pixels", show_default=True,
              help="Whether equal pixels in other bytes are the same.")  # fmt: skip
@click.option("--min-psnr", type=click.FloatRange(min=0, min_open=True), default=None, metavar="DB",
              help="Images this close or closer count as the same.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=0), default=_SHOWN_AT_MOST, show_default=True,
              help="Differing samples to list; --json lists all.")  # fmt: skip
@option_num_workers
@option_json
@option_quiet
def diff(first: str, second: str, *, limit: int, as_json: bool, **options: Any) -> None:
    """Compare two datasets sample by sample: fields, labels, pixels. Exit code 0 if they are the same, 1 if not.

    FIRST and SECOND are files, or manifests of shard sets (SET.beton.json), however many shards they have.
    """
    from converters.tools.diff import compare

    report = _run(compare, first, second, place=first, max_listed=None if as_json else limit, **options)
    _print(report, _diff_lines(report, limit), as_json, same=report.same)
    if not report.same:
        raise click.exceptions.Exit(1)


def _diff_lines(report: Any, limit: int) -> list[str]:
    how = "in order" if report.matched_by == "order" else f"by {report.matched_by}"
    lines = [
        f"{report.first}: {counted(report.num_first, 'sample')}; "
        f"{report.second}: {counted(report.num_second, 'sample')}; {counted(report.num_pairs, 'pair')} {how}"
    ]
    lines += report.notes
    for where, only in (("first", report.only_first), ("second", report.only_second)):
        if only:
            shown = ", ".join(map(str, only[:limit])) + (", ..." if len(only) > limit else "")
            lines.append(f"only in the {where}: {counted(len(only), 'sample')} ({shown})")
    if any(report.images.values()):
        lines.append(
            "images: " + ", ".join(f"{n:,} {kind.replace('_', ' ')}" for kind, n in report.images.items() if n)
        )
    if report.lowest_psnr is not None:
        lines.append(f"lowest PSNR {report.lowest_psnr:.1f} dB, largest difference {report.largest_difference}")
    for each in report.differing:
        pair = f"sample {each.first}" + (f" and {each.second}" if each.second != each.first else "")
        lines.append(f"{pair}: " + "; ".join(f"{name}: {words}" for name, words in each.fields.items()))
    if num_more := report.num_differing - len(report.differing):
        lines.append(f"... and {counted(num_more, 'more pair')}; --json lists all of them")
    if report.matched_by == "order" and (report.num_differing or report.only_first or report.only_second):
        lines.append("samples were compared in order; after `split`, `merge` or --shuffle say --match-by content")
    return [*lines, "the same" if report.same else "not the same"]


@click.command()
@click.argument("files", type=_BETON, nargs=-1, required=True)
@click.argument("out", type=click.Path())
@click.option("--format", type=Choice(["imagefolder", "webdataset"]), default="imagefolder",
              show_default=True, help="One folder per class, or tar shards.")  # fmt: skip
@click.option("--field", default=None, help="imagefolder: the image field. Default: the first.")
@click.option("--shard-size", "shard_bytes", type=Size(), default="1GiB", show_default=True, metavar="SIZE",
              help="webdataset: largest tar; 1GiB is 2^30, 1GB 10^9 bytes.")  # fmt: skip
@option_no_verify
@option_num_workers
@option_json
@option_quiet
def export(files: Sequence[str], out: str, *, as_json: bool, **options: Any) -> None:
    """Write the images of FILES into the new folder OUT; their bytes are kept, raw pixels become PNG.

    Several files and shard sets (SET.beton.json) form one dataset.
    """
    from converters.tools.export import export as run

    report = _run(run, files, out, place=out, **options)
    for text in report.notes:
        note(text)
    if report.left_out:
        note(f"fields that this format cannot hold: {', '.join(report.left_out)}")
    tars = report.format == "webdataset"
    what = counted(report.num_shards, "shard") if tars else counted(report.num_classes or 0, "class folder")
    _print(report, [f"{report.path}: {_size(report)}, {what}"], as_json)


@click.command()
@click.argument("file", type=_BETON)
@click.argument("out", type=click.Path(dir_okay=False))
@click.option("--class-names", type=_BETON, default=None, metavar="TEXTFILE", help="Class names, one per line.")
@click.option("--class-names-from", type=click.Path(exists=True), default=None, metavar="FILE|FOLDER",
              help="Class names of another .beton file or set, or a FOLDER's sub-folders, sorted, as ImageFolder "
                   "numbers them.")  # fmt: skip
@option_no_verify
@option_num_workers
@option_overwrite
@option_json
@option_quiet
def upgrade(
    file: str, out: str, *, class_names: str | None, class_names_from: str | None, as_json: bool, **options: Any
) -> None:
    """Write FILE, which FFCV made, into OUT with restart markers, checksums and, if given, class names.

    JPEGs are re-coded without a change to any pixel, which is checked; FFCV still reads the result. Of a shard set
    (SET.beton.json) a new set OUT.beton.json is made.
    """
    from converters.tools.upgrade import read_class_names
    from converters.tools.upgrade import upgrade as run

    if class_names is not None and class_names_from is not None:
        raise click.UsageError("give either --class-names or --class-names-from, not both")
    names = None
    if class_names is not None or class_names_from is not None:
        names = read_class_names(file=class_names, like=class_names_from)
    report = _run(run, file, out, place=out, class_names=names, **options)
    classes = f", {counted(report.num_classes, 'class')}" if report.num_classes is not None else ""
    line = (
        f"{report.path}: {counted(report.num_samples, 'sample')}{classes}, {human_bytes(report.num_bytes)} "
        f"(before: {human_bytes(report.num_source_bytes)}); "
        f"{counted(report.num_recoded, 'JPEG')} with the same pixels, {counted(report.num_kept, 'other image')} copied"
    )
    _print(report, [line], as_json)
