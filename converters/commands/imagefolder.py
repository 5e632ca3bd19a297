"""``beton convert imagefolder``: folders of images, one a class."""

from __future__ import annotations

from typing import Any

import click

from dataloading.cli import note

from ..cli import conversion_options, run_conversion
from .shared import SourcePath, argument_out, comma_list

__all__ = ["imagefolder"]


@click.command()
@click.argument("src", type=SourcePath(folder=True))
@argument_out
@click.option("--extensions", default=None, metavar="LIST",
              help="Endings of image files, such as .jpg,.png,.gif. Default: those torchvision takes.")  # fmt: skip
@click.option("--allow-empty", is_flag=True, help="Accept classes without images.")
@conversion_options
def imagefolder(src: str, out: str, *, extensions: str | None, allow_empty: bool, **options: Any) -> None:
    """Convert SRC/CLASS/.../IMAGE into the file OUT or a set of shards.

    Classes and images are found and ordered exactly as torchvision.datasets.ImageFolder does, so labels are the
    same. SRC may be a URL. The file's bytes depend on the images, the options and the seed, not on the number of
    workers.
    """
    from ..sources.imagefolder import IMAGE_EXTENSIONS, ImageFolder

    endings: tuple[str, ...] = IMAGE_EXTENSIONS
    if extensions is not None:
        endings = tuple("." + word.lower().lstrip(".") for word in comma_list(extensions) or () if word.strip(" ."))
        if not endings:
            raise click.BadParameter(f"{extensions!r} names no ending", param_hint="--extensions")
    source = ImageFolder(src, extensions=endings, allow_empty=allow_empty)
    if source.num_ignored:
        shown = ", ".join(source.ignored[:3]) + (", ..." if source.num_ignored > 3 else "")
        note(f"not taken, by their ending or because they lie in no class folder: {source.num_ignored:,} ({shown})")
    extra = {"num_classes": len(source.class_names), "num_ignored": source.num_ignored, "ignored": source.ignored}
    run_conversion(source, out, extra=extra, **options)
