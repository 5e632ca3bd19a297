"""``beton convert arrays``: NumPy arrays."""

from __future__ import annotations

from typing import Any

import click

from dataloading.cli import note

from ..cli import conversion_options, run_conversion
from .shared import SourcePath, argument_out, comma_list, note_classes, option_classes

__all__ = ["arrays"]


@click.command()
@click.argument("src", nargs=-1, required=True, type=SourcePath(pattern=True))
@argument_out
@click.option("--image", default=None, metavar="NAME",
              help="Array of images (N, H, W[, C]), uint8. Default: image, images, x, data, or the only "
                   "such array.")  # fmt: skip
@click.option("--label", default=None, metavar="NAME",
              help="Array of labels (N,). Default: label, labels, y, target or targets.")  # fmt: skip
@click.option("--arrays", "names", default=None, metavar="A,B,...", help="Further arrays to include. Default: all.")
@option_classes
@conversion_options
def arrays(
    src: tuple[str, ...],
    out: str,
    *,
    image: str | None,
    label: str | None,
    names: str | None,
    classes: list[str] | None,
    **options: Any,
) -> None:
    """Convert NumPy arrays into the file OUT or a set of shards; the first axis is the sample.

    SRC is an .npz archive, or .npy files (images.npy labels.npy), or a folder of them. An array's name is that in
    the archive, or the file's name. Arrays beside images and labels become fields of their own.
    """
    from ..sources.arrays import Arrays

    source = Arrays(src, image=image, label=label, names=comma_list(names), class_names=classes)
    if source.without_tensors:
        note(
            f"torch has no tensors for {', '.join(source.without_tensors)}: the Loader delivers the other fields, with "
            "fields=[...]; save numbers instead, such as dates.astype('int64')"
        )
    extra = note_classes(source.class_names, are_words=source.has_words, quiet=options["quiet"])
    run_conversion(source, out, extra=extra, **options)
