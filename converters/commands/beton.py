"""``beton convert beton``: existing ``.beton`` files, stored again."""

from __future__ import annotations

from typing import Any

import click

from ..cli import conversion_options, run_conversion
from .shared import SourcePath, argument_out, comma_list

__all__ = ["beton"]


@click.command()
@click.argument("src", nargs=-1, required=True, type=SourcePath(pattern=True))
@argument_out
@click.option("--indices", default=None, metavar="START:STOP|FILE",
              help="Take these samples, in this order: a range, a .npy file, or a text file of numbers.")  # fmt: skip
@click.option("--classes", default=None, metavar="A,B,...",
              help="Take the samples of these classes, which get the labels 0, 1, ... in this order.")  # fmt: skip
@click.option("--no-verify", is_flag=True, help="Do not verify SRC's checksums first.")
@conversion_options
@click.pass_context
def beton(
    ctx: click.Context,
    /,
    src: tuple[str, ...],
    out: str,
    *,
    indices: str | None,
    classes: str | None,
    no_verify: bool,
    **options: Any,
) -> None:
    """Store the .beton files SRC, ours or FFCV's, again as the file OUT or a set of shards.

    With other options (--mode, --max-resolution, --quality, --keep, --shuffle), or only a part of the samples. JPEGs
    that need no change keep their pixels and gain restart markers; raw pixels and PNGs that need no change stay as
    they are unless --mode is given. Images stay turned as they are stored.
    """
    from ..sources.beton import BetonFiles, read_indices

    # The default mode must not turn losslessly stored pixels into JPEGs.
    has_mode = ctx.get_parameter_source("mode") is not click.core.ParameterSource.DEFAULT
    source = BetonFiles(
        src, indices=None if indices is None else read_indices(indices), classes=comma_list(classes),
        as_stored=not has_mode and options["channels"] == "rgb", longest=options["max_resolution"],
        verify=not (no_verify or options["dry_run"]),
    )  # fmt: skip
    options["orientation"] = "ignore"  # the loader shows stored pixels as they are
    run_conversion(source, out, extra={"num_classes": len(source.class_names or ())}, **options)
