"""The command ``beton convert SOURCE SRC OUT.beton``: the options that all sources share, and the list of sources.

Parses options and prints the result; ``engine/convert.py`` converts. Heavy imports are delayed until a command runs, so
that ``--help`` is fast.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dataloading import ConvertError, UsageError
from dataloading.cli import (
    Choice,
    LazyGroup,
    Size,
    Verb,
    default_num_workers,
    note,
    option_dry_run,
    option_json,
    option_limit,
    option_num_workers,
    option_overwrite,
    option_quiet,
    option_seed,
)
from dataloading.messages import counted, human_bytes

if TYPE_CHECKING:
    from converters.source import Source

__all__ = ["conversion_options", "convert", "run_conversion"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SHOWN_AT_MOST = 20

# A new source is a line here, a command in `commands` and a class in `sources`.
_SOURCES = {
    "imagefolder": Verb("converters.commands.imagefolder:imagefolder", "Folders of images, one per class."),
    "imagenet": Verb("converters.commands.imagenet:imagenet", "ImageNet's tars, train and val, without unpacking."),
    "webdataset": Verb("converters.commands.webdataset:webdataset", "WebDataset's tar shards."),
    "huggingface": Verb("converters.commands.huggingface:huggingface", "Parquet, Arrow, datasets of save_to_disk."),
    "manifest": Verb("converters.commands.manifest:manifest", "A table of paths: CSV, TSV, JSON lines, parquet."),
    "torchvision": Verb("converters.commands.torchvision:torchvision", "torchvision.datasets: CIFAR10, MNIST, ..."),
    "arrays": Verb("converters.commands.arrays:arrays", "NumPy arrays: .npz and .npy."),
    "beton": Verb("converters.commands.beton:beton", "Existing .beton files, ours or FFCV's."),
}


class _Sources(LazyGroup):
    """The sources by name. If a path is given instead of a name, the error suggests the right command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the one that suits a path."""
        from .next_command import next_command

        if args and args[0] not in _SOURCES and (words := next_command(args)) is not None:
            raise click.UsageError(words, ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; error messages spell options as on the command line."""
        try:
            return super().invoke(ctx)
        except (ConvertError, UsageError) as error:
            from .next_command import as_command
            from .settings import option_names

            raise type(error)(as_command(str(error), option_names())) from error


@click.group(cls=_Sources, verbs=_SOURCES)
def convert() -> None:
    """Convert an image dataset into a .beton file, or into a set of shards (--num-shards, --shard-size)."""
    # No conversion needs linear algebra; NumPy's library for it would start a thread per core, in each worker too.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def conversion_options(command: _Command) -> _Command:
    """Add the options that all sources share, in the order of the help text."""
    options = [
        click.option("--max-resolution", type=click.IntRange(1, 65535), metavar="PIXELS",
                     help="Shrink images whose longest side is larger. Default: keep sizes."),
        click.option("--channels", type=Choice(["rgb", "gray", "keep"]), default="rgb", show_default=True,
                     help="Make images RGB, which FFCV reads; or gray; or keep alpha, gray and 16 bits as the first "
                          "image has them."),
        click.option("--mode", type=Choice(["jpg", "raw", "mix", "smart", "png"]), default="jpg",
                     show_default=True, help="How images are stored. jpg: JPEG. raw: pixels. mix: a random part "
                                             "of each. smart: whichever is smaller. png: lossless (with --channels "
                                             "gray or keep)."),
        click.option("--quality", type=click.IntRange(1, 100), default=90, show_default=True,
                     help="JPEG quality of images that are encoded; kept JPEGs are not changed."),
        click.option("--keep", type=Choice(["pixels", "bytes", "files", "never"]), default="pixels", show_default=True,
                     help="What to keep of a JPEG that needs no change. pixels: exact pixels, recoded losslessly with "
                          "restart markers, fastest to load. bytes: its exact bytes. never: re-encode at --quality. "
                          "files: the bytes of JPEGs and PNGs; FFCV does not read such images."),
        click.option("--mix-fraction", type=click.FloatRange(0, 1), default=0.5, show_default=True, metavar="F",
                     help="--mode mix: fraction stored as JPEG; the rest is raw."),
        click.option("--smart-threshold", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True,
                     metavar="T", help="--mode smart: JPEG where raw takes more than T times its bytes."),
        click.option("--subsampling", type=Choice(["4:2:0", "4:2:2", "4:4:4"]), default="4:2:0",
                     show_default=True, help="Chroma subsampling of images that must be encoded."),
        click.option("--resample", type=Choice(["box", "bilinear", "bicubic", "lanczos"]), default="lanczos",
                     show_default=True, help="Antialiased filter for shrinking (Pillow's)."),
        click.option("--background", default="white", show_default=True, metavar="COLOUR", callback=_colour,
                     help="Colour behind transparent pixels: a name, #rrggbb or R,G,B."),
        click.option("--orientation", type=Choice(["apply", "ignore"]), default="apply", show_default=True,
                     help="Rotate images upright by EXIF orientation, or keep them as stored."),
        click.option("--annotations", type=Choice(["stored", "upright"]), default="stored", show_default=True,
                     help="Whether masks, boxes and points are drawn on images as stored, and are turned with them, or "
                          "on upright ones."),
        click.option("--to-srgb", is_flag=True, help="Convert embedded colour profiles to sRGB."),
        click.option("--shuffle", is_flag=True, help="Store the samples in a random order (see --seed)."),
        option_limit,
        option_seed,
        click.option("--max-pixels", type=click.IntRange(min=1), default=1 << 28, show_default=True, metavar="N",
                     help="Refuse images of more pixels before they are decoded."),
        click.option("--on-error", type=Choice(["raise", "skip", "placeholder", "keep"]), default="raise",
                     show_default=True, help="What to do with an image that cannot be converted: stop, leave the "
                                             "sample out, store a gray image, or keep what Pillow shows of a damaged "
                                             "one (LOAD_TRUNCATED_IMAGES). All are listed."),
        click.option("--error-log", type=click.Path(dir_okay=False, writable=True), metavar="FILE",
                     help="Write the skipped, replaced, damaged and tidied samples, with reasons, to FILE as JSON."),
        click.option("--resume", is_flag=True, help="Continue an interrupted conversion, if there is one."),
        click.option("--num-shards", type=click.IntRange(min=1), metavar="K",
                     help="Write K files OUT-00000-of-K.beton and the manifest OUT.beton.json."),
        click.option("--shard-size", type=Size(), metavar="SIZE",
                     help="Write files of about SIZE each, such as 4GiB (2^30) or 4GB (10^9 bytes)."),
        click.option("--shard-index", type=click.IntRange(min=0), metavar="I",
                     help="Write only shard I, from 0, as a task of a job array; the last one writes the manifest."),
        click.option("--engine", type=Choice(["local", "ray"]), default="local", show_default=True,
                     help="Work on this machine, or spread shards over a Ray cluster (RAY_ADDRESS)."),
        click.option("--temp-dir", type=click.Path(file_okay=False), metavar="DIR",
                     help="Folder for files before they are uploaded, if OUT is a URL. Default: the system's."),
        click.option("--space-check/--no-space-check", "check_space", default=True, show_default=True,
                     help="Refuse to start when the disk is clearly too small."),
        click.option("--page-size", type=Size(), default=None, metavar="SIZE",
                     help="Page size, a power of two such as 16MiB. Default: 8MiB, larger if an image needs it."),
        option_num_workers,
        option_overwrite,
        option_dry_run,
        option_json,
        option_quiet,
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _colour(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, int, int]:
    from converters.images.policy import colour

    try:
        return colour(value)
    except UsageError as error:
        raise click.BadParameter(str(error)) from error


def run_conversion(
    source: Source,
    out: str,
    *,
    extra: dict[str, Any],
    num_workers: int | None,
    dry_run: bool,
    as_json: bool,
    **others: Any,
) -> None:
    """Convert ``source`` into ``out`` with the shared options, and print the result; JSON includes ``extra``."""
    from converters.engine.convert import convert, estimate

    from .settings import settings

    if num_workers is None:
        # On a cluster each shard's task has its own workers.
        num_workers = 0 if others["engine"] == "ray" else default_num_workers()
    options, policy = settings({"num_workers": num_workers, **others})
    if dry_run:
        _print_estimate(estimate(source, out, policy=policy, options=options) | extra, as_json)
        return
    report = convert(source, out, policy=policy, options=options)
    for what, listed in report.lists().items():
        for item in listed[:_SHOWN_AT_MOST]:
            note(f"{what} {item.name}: {item.reason}")
        if len(listed) > _SHOWN_AT_MOST:
            note(f"... and {len(listed) - _SHOWN_AT_MOST:,} more; --json and --error-log list all of them")
    num_changed = sum(report.images.values()) - report.images["kept"]
    if policy.keep == "files" and num_changed:
        note(
            f"{counted(num_changed, 'image')} could not stay as the file is: to be resized or rotated, or neither JPEG "
            "nor a plain PNG (no palette, transparent colour, interlacing or 16-bit colours)"
        )
    if not options.quiet and (words := _on_disk(report.path, report.num_bytes)):
        note(words)
    click.echo(json.dumps(report.as_dict() | extra, indent=2) if as_json else str(report))


def _on_disk(path: str, num_bytes: int) -> str:
    """Explain the length of a small file, which is mostly empty pages; "" for other files."""
    if num_bytes > 64 << 20 or not os.path.isfile(path) or path.endswith(".json"):
        return ""
    used = os.stat(path).st_blocks * 512
    if used * 2 > num_bytes:
        return ""
    return (
        f"{human_bytes(num_bytes)} long, of which {human_bytes(used)} are on the disk: a file has whole pages, here "
        "mostly empty; --page-size 2MiB makes it shorter"
    )


def _print_estimate(guess: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"dry_run": True, **guess}, indent=2))
        return
    images = ", ".join(f"{count} {became}" for became, count in guess["images"].items())
    shards = guess.get("num_shards")
    what = guess["path"] if shards is None else _names_of_shards(guess)
    click.echo(
        f"would write {what}: {counted(guess['num_samples'], 'sample')}, "
        f"about {human_bytes(guess['estimated_bytes'])}, in about {guess['estimated_seconds']:,.0f} s "
        f"(from {counted(guess['num_tried'], 'sample')} tried: {images})"
    )
    if shards is not None and guess["shards"][0] != guess["shards"][1]:
        low, high = guess["shard_samples"]
        samples = counted(high, "sample") if low == high else f"{low:,} to {counted(high, 'sample')}"
        click.echo(f"each shard: {samples}, about {human_bytes(guess['estimated_shard_bytes'])}")
    for item in guess["skipped"]:
        click.echo(f"cannot be converted: {item['name']}: {item['reason']}")


def _names_of_shards(guess: dict[str, Any]) -> str:
    first, last = guess["shards"]
    if guess["path"] == first:
        return f"{first}, one of {counted(guess['num_shards'], 'shard')}"
    names = first if first == last else f"{first} to {last}"
    return f"{counted(guess['num_shards'], 'shard')}, {names}, and {guess['path']}"
