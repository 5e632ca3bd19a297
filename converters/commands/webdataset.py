"""``beton convert webdataset``: tar shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..cli import conversion_options, run_conversion
from .shared import (
    SourcePath,
    WordsCommand,
    argument_out,
    note_unused,
    option_classes,
    option_field,
    split_words,
)

if TYPE_CHECKING:
    from ..field_grammar import FieldSpec

__all__ = ["webdataset"]


@click.command(cls=WordsCommand)
@click.argument("src", nargs=-1, required=True, type=SourcePath(pattern=True))
@argument_out
@click.option("--map", "mapping", multiple=True, metavar="FIELD=ENDING[,...] ...",
              help="Which files of a sample fill which field, first ending present: image=jpg,png label=cls "
                   "meta=json. Default: image from any image's ending, label from cls.")  # fmt: skip
@option_field
@option_classes
@conversion_options
def webdataset(
    src: tuple[str, ...],
    out: str,
    *,
    mapping: tuple[str, ...],
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

    source = WebDataset(src, mapping=parse_map(split_words(mapping)) or None, specs=fields, class_names=classes)
    extra = {
        "num_shards_read": len(source.paths),
        "members_not_used": note_unused(source.unused, "--map FIELD=ENDING takes files of an ending"),
    }
    run_conversion(source, out, extra=extra, **options)
