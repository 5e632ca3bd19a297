"""``beton convert webdataset``: tar shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dataloading.cli import note
from dataloading.messages import counted

from ..cli import conversion_options, run_conversion
from .shared import (
    SourcePath,
    WordsCommand,
    argument_out,
    note_classes,
    note_unused,
    option_classes,
    option_field,
    split_words,
)

if TYPE_CHECKING:
    from converters.fields import FieldSpec

__all__ = ["webdataset"]


def _filled(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{text!r} fills nothing in; write FIELD=VALUE, such as label=-1")
        found[name.strip()] = value
    return found


@click.command(cls=WordsCommand)
@click.argument("src", nargs=-1, required=True, type=SourcePath(pattern=True))
@argument_out
@click.option("--map", "mapping", multiple=True, metavar="FIELD=ENDING[,...] ...",
              help="Which files of a sample fill which field, first ending present: image=jpg,png label=cls "
                   "meta=json. Default: image from any image's ending, label from cls.")  # fmt: skip
@click.option("--fill", "fill", multiple=True, metavar="FIELD=VALUE ...", callback=_filled,
              help="Value of a field in samples that have no file for it, such as label=-1.")  # fmt: skip
@option_field
@option_classes
@conversion_options
def webdataset(
    src: tuple[str, ...],
    out: str,
    *,
    mapping: tuple[str, ...],
    fill: dict[str, str],
    fields: dict[str, FieldSpec],
    classes: list[str] | None,
    **options: Any,
) -> None:
    """Convert WebDataset's tar shards SRC into the file OUT or a set of shards.

    SRC is one or several of: a tar file, a folder of them, a pattern such as 'train-{000..146}.tar' or
    'train-*.tar' (quoted, so that the shell leaves it alone); paths or URLs. Files are grouped as WebDataset does:
    neighbours whose paths agree up to the first dot of the name are one sample.
    """
    from ..sources.webdataset import WebDataset, parse_map

    source = WebDataset(
        src, mapping=parse_map(split_words(mapping)) or None, specs=fields, class_names=classes, fill=fill
    )
    for name, count in source.num_filled.items():
        note(f"filled in: {name}={source.fill[name]} in {counted(count, 'sample')}")
    extra = {
        **note_classes(source.class_names, are_words=source.has_words, quiet=options["quiet"]),
        "num_filled": source.num_filled,
        "num_shards_read": len(source.paths),
        "members_not_used": note_unused(source.unused, "--map FIELD=ENDING takes files of an ending"),
    }
    run_conversion(source, out, extra=extra, **options)
