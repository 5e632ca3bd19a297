"""``beton convert manifest``: a table of paths and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dataloading.cli import note
from dataloading.messages import counted

from ..cli import conversion_options, run_conversion
from .shared import SourcePath, WordsCommand, argument_out, note_classes, option_classes, option_field

if TYPE_CHECKING:
    from converters.fields import FieldSpec

__all__ = ["manifest"]


@click.command(cls=WordsCommand)
@click.argument("src", type=SourcePath())
@argument_out
@click.option("--image-column", default=None, metavar="NAME",
              help="Column with the images' paths or URLs. Default: image, path, file, filename, ...")  # fmt: skip
@click.option("--label-column", default=None, metavar="NAME",
              help="Column with the labels. Default: label, class, category or target, if there is one.")  # fmt: skip
@click.option("--root", type=SourcePath(folder=True), default=None, metavar="FOLDER",
              help="Folder of relative paths. Default: the table's folder.")  # fmt: skip
@option_field
@option_classes
@conversion_options
def manifest(
    src: str,
    out: str,
    *,
    image_column: str | None,
    label_column: str | None,
    root: str | None,
    fields: dict[str, FieldSpec],
    classes: list[str] | None,
    **options: Any,
) -> None:
    """Convert the images that the table SRC lists into the file OUT or a set of shards.

    SRC is a .csv, .tsv, .jsonl or .parquet file, or its URL. Labels that are words are numbered in sorted order,
    or as --classes says; whole numbers stay as they are. The order of the rows is kept.
    """
    from converters.source import printable

    from ..sources.table import Table

    source = Table(
        src, image_column=image_column, label_column=label_column, specs=fields, class_names=classes, root=root,
        random_access=bool(options.get("shuffle")),
    )  # fmt: skip
    label = "none" if source.label_column is None else f"'{source.label_column}'"
    if not options["quiet"]:
        note(f"{counted(len(source), 'row')}; images from the column '{source.image_column}', labels from {label}")
    if source.passed_over:
        labels = "" if source.label_column is not None else "there are no labels, --label-column NAME takes some; "
        names = ", ".join(map(printable, source.passed_over))
        note(f"warning: {labels}columns not taken: {names}; --field NAME=KIND takes them")
    extra = {
        **note_classes(source.class_names, are_words=source.has_words, quiet=options["quiet"]),
        "columns_not_taken": source.passed_over,
    }
    run_conversion(source, out, extra=extra, **options)
