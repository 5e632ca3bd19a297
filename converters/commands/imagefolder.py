"""``beton convert imagefolder``: folders of images, one per class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dataloading.cli import Choice, note

from ..cli import conversion_options, run_conversion
from .shared import SourcePath, argument_out, comma_list, option_classes

if TYPE_CHECKING:
    from ..sources.class_lists import ClassOrder

__all__ = ["imagefolder"]


@click.command()
@click.argument("src", type=SourcePath(folder=True))
@argument_out
@click.option("--extensions", default=None, metavar="LIST",
              help="Endings of image files, such as .jpg,.png,.gif. Default: those torchvision takes.")  # fmt: skip
@click.option("--allow-empty", is_flag=True, help="Accept classes without images.")
@click.option("--class-order", type=Choice(["name", "number"]), default="name", show_default=True, is_eager=True,
              help="Sort class folders as text, as torchvision does, or as numbers: 2 before 10.")  # fmt: skip
@option_classes
@conversion_options
def imagefolder(
    src: str,
    out: str,
    *,
    extensions: str | None,
    allow_empty: bool,
    class_order: ClassOrder,
    classes: list[str] | None,
    **options: Any,
) -> None:
    """Convert SRC/CLASS/.../IMAGE into the file OUT or a set of shards.

    Classes and images are found and ordered as by torchvision.datasets.ImageFolder, so labels are the same; hidden
    folders are skipped. SRC may be a URL. The file's bytes depend on the images, the options and the seed, not on the
    number of workers.
    """
    from converters.source import printable

    from ..sources.imagefolder import IMAGE_EXTENSIONS, ImageFolder

    endings: tuple[str, ...] = IMAGE_EXTENSIONS
    if extensions is not None:
        endings = tuple("." + word.lower().lstrip(".") for word in comma_list(extensions) or () if word.strip(" ."))
        if not endings:
            raise click.BadParameter(f"{extensions!r} names no ending", param_hint="--extensions")
    source = ImageFolder(
        src, extensions=endings, allow_empty=allow_empty, class_names=classes, class_order=class_order
    )  # fmt: skip
    if source.num_ignored:
        shown = ", ".join(source.ignored[:3]) + (", ..." if source.num_ignored > 3 else "")
        note(f"not taken, by their ending or because they lie in no class folder: {source.num_ignored:,} ({shown})")
    for what, listed in (("hidden, not taken", source.hidden), ("classes without images", source.without_images)):
        if listed:
            note(
                f"{what}: {len(listed):,} ({', '.join(map(printable, listed[:3]))}{', ...' if len(listed) > 3 else ''})"
            )
    if source.numbers_as_text:
        label = next(label for label, name in enumerate(source.class_names) if int(name) != label)
        note(
            f"class folders are numbers, sorted as texts as torchvision does: the folder {source.class_names[label]} "
            f"has the label {label}; --class-order number sorts them as numbers"
        )
    extra = {
        "num_classes": len(source.class_names), "num_ignored": source.num_ignored, "ignored": source.ignored,
        "hidden": source.hidden, "classes_without_images": source.without_images,
    }  # fmt: skip
    run_conversion(source, out, extra=extra, **options)
