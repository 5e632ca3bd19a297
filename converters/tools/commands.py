"""The command line of `beton repair`, `merge`, `split`, `append`, `diff`, `export` and `upgrade`.

Parses words, calls the verb's function and prints its report; nothing heavy is imported before a verb runs.
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
from dataloading.messages import counted

__all__ = ["append", "diff", "export", "merge", "repair", "split", "upgrade"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SHOWN_AT_MOST = 20

_BETON = LocalFile()


def option_no_verify(command: _Command) -> _Command:
    """``--no-verify``: trust the input."""
    return click.option(
        "--no-verify", is_flag=True, help="Do not compare the input with its checksums before it is copied."
    )(command)


def _workers(num_workers: int | None) -> int:
    return default_num_workers() if num_workers is None else num_workers


def _print(report: Any, text: str, as_json: bool, **extra: Any) -> None:
    click.echo(json.dumps(dataclasses.asdict(report) | extra, indent=2) if as_json else text)


def _bytes(count: int) -> str:
    from converters.report import human_bytes

    return human_bytes(count)


@click.command()
@click.argument("file", type=_BETON)
@click.argument("out", type=click.Path(dir_okay=False))
@click.option("--zero", is_flag=True, help="Keep damaged samples, with a black image or an empty value.")
@option_num_workers
@option_overwrite
@option_json
@option_quiet
def repair(
    file: str, out: str, *, zero: bool, num_workers: int | None, overwrite: bool, as_json: bool, quiet: bool
) -> None:
    """Write what is sound of FILE into the new file OUT.

    Samples that a damaged byte touches, or whose image does not decode, are left out and listed. A checksum covers
    64 KiB: every sample with bytes in a damaged block counts as damaged. The result is verified before it appears.
    Of a shard set (SET.beton.json) a new set OUT.beton.json is made.
    """
    from converters.tools.repair import repair as run

    with full_disk_names(out):
        report = run(file, out, zero=zero, overwrite=overwrite, num_workers=_workers(num_workers), quiet=quiet)
    lines = [
        f"{report.path}: {report.num_samples:,} of {counted(report.num_source_samples, 'sample')}, "
        f"{_bytes(report.num_bytes)}, verified"
    ]
    if not report.num_problems:
        lines.append(f"{report.source} was sound already")
    for what, items in (("left out", report.dropped), ("blanked", report.blanked)):
        if items:
            lines.append(f"{what}: {len(items):,}")
            lines += [
                f"  sample {each.sample}{' (' + ', '.join(each.fields) + ')' if each.fields else ''}: {each.reason}"
                for each in items[:_SHOWN_AT_MOST]
            ]
            if len(items) > _SHOWN_AT_MOST:
                lines.append(f"  ... and {len(items) - _SHOWN_AT_MOST:,} more; --json lists all of them")
    if report.lost_shards:
        lines.append(f"shards left out whole: {len(report.lost_shards):,}")
        lines += [
            f"  {counted(each.num_samples, 'sample')}: {each.reason}" for each in report.lost_shards[:_SHOWN_AT_MOST]
        ]
        if len(report.lost_shards) > _SHOWN_AT_MOST:
            lines.append(f"  ... and {len(report.lost_shards) - _SHOWN_AT_MOST:,} more; --json lists all of them")
    if not report.checksums_usable:
        note(f"{report.source} has no usable checksums: damage that still decodes could not be seen")
    _print(report, "\n".join(lines), as_json)


@click.command()
@click.argument("out", type=click.Path(dir_okay=False))
@click.argument("files", type=_BETON, nargs=-1, required=True)
@click.option("--classes", type=Choice(["equal", "union"]), default="equal", show_default=True,
              help="Demand equal lists of classes, or map labels by name into the union of all lists.")  # fmt: skip
@click.option("--assume-classes", is_flag=True,
              help="Files without class names (FFCV's) have those of the others, on your word.")  # fmt: skip
@option_no_verify
@option_num_workers
@option_overwrite
@option_json
@option_quiet
def merge(
    out: str,
    files: Sequence[str],
    *,
    classes: Any,
    assume_classes: bool,
    no_verify: bool,
    num_workers: int | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the samples of FILES, in this order, into the new file OUT.

    All files (or shard manifests) must have the same fields. Stored bytes are copied as they are.
    """
    from converters.beton_files import list_files
    from converters.tools.merge import merge as run

    with full_disk_names(out):
        report = run(
            out, list_files(files), classes=classes, assume_classes=assume_classes, overwrite=overwrite,
            verify=not no_verify, num_workers=_workers(num_workers), quiet=quiet,
        )  # fmt: skip
    counts = ", ".join(f"{count:,} from {path}" for path, count in report.sources[:_SHOWN_AT_MOST])
    num_more = len(report.sources) - _SHOWN_AT_MOST
    more = f" and {counted(num_more, 'more file')}" if num_more > 0 else ""
    text = f"{report.path}: {counted(report.num_samples, 'sample')}, {_bytes(report.num_bytes)}: {counts}{more}"
    if report.num_relabelled:
        labels = counted(report.num_relabelled, "label")
        text += f"\n{counted(report.num_classes or 0, 'class')}; {labels} changed to keep their class's name"
    _print(report, text, as_json)


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
            self.fail(f"{value!r} is no list of shares; write positive numbers such as 0.9,0.1 or 8,1,1", param, ctx)
        return shares


@click.command()
@click.argument("file", type=_BETON)
@click.option("--ratio", type=Ratio(), default=None, metavar="A,B,...", help="Parts in these proportions: 0.9,0.1.")
@click.option("--by-class", is_flag=True, help="One part for each class.")
@click.option("--folds", type=click.IntRange(min=2), default=None, metavar="N", help="N parts of equal size.")
@click.option("--out", default=None, metavar="PATTERN",
              help="Names of the parts, with {name} or {index}. Default: FILE's name with -{name}.")  # fmt: skip
@click.option("--stratify/--no-stratify", default=True, show_default=True,
              help="Share out every class in the same proportions.")  # fmt: skip
@click.option("--group-field", default=None, metavar="FIELD", help="Keep samples with equal FIELD in one part.")
@option_seed
@option_no_verify
@option_num_workers
@option_overwrite
@option_json
@option_quiet
def split(
    file: str,
    *,
    ratio: tuple[float, ...] | None,
    by_class: bool,
    folds: int | None,
    out: str | None,
    stratify: bool,
    group_field: str | None,
    seed: int,
    no_verify: bool,
    num_workers: int | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write each sample of FILE, or of a shard set (SET.beton.json), into exactly one of several new files.

    Which one depends on the labels and the seed alone. Within a part samples keep their order.
    """
    from converters.beton_files import stem_of
    from converters.tools.split import split as run

    with full_disk_names(out or file):
        report = run(
            file, out=stem_of(file) + "-{name}.beton" if out is None else out, ratio=ratio, folds=folds,
            by_class=by_class, stratify=stratify, group_field=group_field, seed=seed, overwrite=overwrite,
            verify=not no_verify, num_workers=_workers(num_workers), quiet=quiet,
        )  # fmt: skip
    lines = [f"{part.path}: {counted(part.num_samples, 'sample')}, {_bytes(part.num_bytes)}" for part in report.parts]
    _print(report, "\n".join(lines), as_json)


@click.command()
@click.argument("manifest", type=_BETON)
@click.argument("files", type=_BETON, nargs=-1, required=True)
@option_no_verify
@option_num_workers
@option_json
def append(manifest: str, files: Sequence[str], *, no_verify: bool, num_workers: int | None, as_json: bool) -> None:
    """Add FILES to the shard set MANIFEST (SET.beton.json).

    Fields and classes must be the set's. Files that lie elsewhere are copied beside the manifest; it is replaced last.
    """
    from converters.tools.append import append as run

    with full_disk_names(manifest):
        report = run(manifest, files, verify=not no_verify, num_workers=_workers(num_workers))
    lines = [
        f"{shard.name}: {counted(shard.num_samples, 'sample')}, {_bytes(shard.num_bytes)}"
        + (" (copied)" if shard.name in report.copied else "")
        for shard in report.added
    ]
    lines.append(
        f"{report.path}: now {counted(report.num_shards, 'shard')}, {counted(report.num_samples, 'sample')}, "
        f"{_bytes(report.num_bytes)}"
    )
    _print(report, "\n".join(lines), as_json)


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
def diff(
    first: str,
    second: str,
    *,
    match_by: str | None,
    level: Any,
    min_psnr: float | None,
    limit: int,
    num_workers: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare two datasets sample by sample: fields, labels, pixels. Exit code 0 if they are the same, 1 if not.

    FIRST and SECOND are files, or manifests of shard sets (SET.beton.json), however many shards they have.
    """
    from converters.tools.diff import compare

    report = compare(
        first, second, match_by=match_by, level=level, min_psnr=min_psnr, max_listed=None if as_json else limit,
        num_workers=_workers(num_workers), quiet=quiet,
    )  # fmt: skip
    _print(report, _diff_text(report, limit), as_json, same=report.same)
    if not report.same:
        raise click.exceptions.Exit(1)


def _diff_text(report: Any, limit: int) -> str:
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
    lines.append("the same" if report.same else "not the same")
    return "\n".join(lines)


@click.command()
@click.argument("files", type=_BETON, nargs=-1, required=True)
@click.argument("out", type=click.Path())
@click.option("--format", "format_", type=Choice(["imagefolder", "webdataset"]), default="imagefolder",
              show_default=True, help="One folder a class, or tar shards.")  # fmt: skip
@click.option("--field", default=None, help="imagefolder: the image field. Default: the first.")
@click.option("--shard-size", type=Size(), default="1GiB", show_default=True, metavar="SIZE",
              help="webdataset: largest tar; 1GiB is 2^30, 1GB 10^9 bytes.")  # fmt: skip
@option_no_verify
@option_num_workers
@option_json
@option_quiet
def export(
    files: Sequence[str],
    out: str,
    *,
    format_: Any,
    field: str | None,
    shard_size: int,
    no_verify: bool,
    num_workers: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the images of FILES into the new folder OUT; their bytes are kept, raw pixels become PNG.

    Several files and shard sets (SET.beton.json) are one dataset, one behind the other.
    """
    from converters.tools.export import export as run

    with full_disk_names(out):
        report = run(
            files, out, format=format_, field=field, shard_bytes=shard_size, verify=not no_verify,
            num_workers=_workers(num_workers), quiet=quiet,
        )  # fmt: skip
    for text in report.notes:
        note(text)
    if report.left_out:
        note(f"fields without a place in this format: {', '.join(report.left_out)}")
    tars = report.format == "webdataset"
    what = counted(report.num_shards, "shard") if tars else counted(report.num_classes or 0, "class folder")
    samples = counted(report.num_samples, "sample")
    _print(report, f"{report.path}: {samples}, {_bytes(report.num_bytes)}, {what}", as_json)


@click.command()
@click.argument("file", type=_BETON)
@click.argument("out", type=click.Path(dir_okay=False))
@click.option("--class-names", type=_BETON, default=None, metavar="TEXTFILE", help="Class names, one a line.")
@click.option("--class-names-from", type=click.Path(exists=True), default=None, metavar="FILE|FOLDER",
              help="Class names of another .beton file or set, or a FOLDER's sub-folders, sorted, as ImageFolder "
                   "numbers them.")  # fmt: skip
@option_no_verify
@option_num_workers
@option_overwrite
@option_json
@option_quiet
def upgrade(
    file: str,
    out: str,
    *,
    class_names: str | None,
    class_names_from: str | None,
    no_verify: bool,
    num_workers: int | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
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
    with full_disk_names(out):
        report = run(
            file, out, class_names=names, overwrite=overwrite, verify=not no_verify, num_workers=_workers(num_workers),
            quiet=quiet,
        )  # fmt: skip
    classes = f", {counted(report.num_classes, 'class')}" if report.num_classes is not None else ""
    text = (
        f"{report.path}: {counted(report.num_samples, 'sample')}{classes}, {_bytes(report.num_bytes)} "
        f"(before: {_bytes(report.num_source_bytes)}); "
        f"{counted(report.num_recoded, 'JPEG')} with the same pixels, {counted(report.num_kept, 'other image')} copied"
    )
    _print(report, text, as_json)
