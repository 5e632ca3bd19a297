"""``beton convert huggingface``: parquet and Arrow files, and saved datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dataloading.cli import note

from ..cli import conversion_options, run_conversion
from .shared import SourcePath, WordsCommand, argument_out, note_classes, option_columns, option_field

if TYPE_CHECKING:
    from converters.fields import FieldSpec

__all__ = ["huggingface"]


@click.command(cls=WordsCommand)
@click.argument("src", nargs=-1, required=True, type=SourcePath(pattern=True))
@argument_out
@click.option("--split", default=None, help="Part of the dataset, such as train, where SRC holds several.")
@option_columns
@option_field
@conversion_options
def huggingface(
    src: tuple[str, ...],
    out: str,
    *,
    split: str | None,
    columns: list[str] | None,
    fields: dict[str, FieldSpec],
    **options: Any,
) -> None:
    """Convert Hugging Face's parquet or Arrow files into the file OUT or a set of shards.

    SRC is a dataset saved by save_to_disk, or one or several of: a file, a folder, a pattern such as
    'data/train-*.parquet'; parquet also by URL (hf://datasets/NAME/..., s3://...). Image, class label, number and text
    columns are taken by their types.
    """
    from ..sources.huggingface import HuggingFace

    source = HuggingFace(
        src, split=split, columns=columns, specs=fields, random_access=bool(options.get("shuffle"))
    )  # fmt: skip
    for hint in source.hints:
        note(f"warning: {hint}")
    if source.passed_over:
        note(f"columns not taken: {', '.join(source.passed_over)}; --field NAME=KIND takes them")
    extra = {
        **note_classes(source.class_names, are_words=source.has_words, quiet=options["quiet"]),
        "columns_not_taken": source.passed_over,
    }
    run_conversion(source, out, extra=extra, **options)
