"""``beton convert imagenet``: ImageNet's tars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dataloading.cli import Choice

from ..cli import conversion_options, run_conversion
from .shared import SourcePath, argument_out, note_unused, option_classes

if TYPE_CHECKING:
    from ..sources.imagenet import ImageNetTrain, ImageNetVal

__all__ = ["imagenet"]

_DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"


@click.command()
@click.argument("src", type=SourcePath())
@argument_out
@click.option("--split", type=Choice(["train", "val"]), default=None,
              help="Default: val if SRC's name has 'val' in it, else train.")  # fmt: skip
@click.option("--devkit", type=SourcePath(), metavar="TAR|FOLDER",
              help=f"val: the development kit with the labels. Default: {_DEVKIT} beside SRC.")  # fmt: skip
@click.option("--labels", type=SourcePath(), metavar="FILE",
              help="val: labels from a text file instead, with lines `NAME LABEL` or `NAME WNID`.")  # fmt: skip
@click.option("--synsets", type=SourcePath(), metavar="FILE",
              help="val: lines `ID WNID`, in place of the kit's MATLAB file, which needs SciPy.")  # fmt: skip
@option_classes
@conversion_options
def imagenet(
    src: str,
    out: str,
    *,
    split: str | None,
    devkit: str | None,
    labels: str | None,
    synsets: str | None,
    classes: list[str] | None,
    **options: Any,
) -> None:
    """Convert ImageNet as distributed, without unpacking, into the file OUT or a set of shards.

    SRC is ILSVRC2012_img_train.tar, a folder of its 1,000 inner tars, or the unpacked folder; or, for the
    validation set, ILSVRC2012_img_val.tar or a folder of its images. Tar files may be compressed, and SRC a URL.
    Labels of both are those of torchvision's ImageFolder over the unpacked training set: positions among the sorted
    WordNet ids.
    """
    from ..sources.imagenet import ImageNetTrain
    from ..sources.reading import name_of

    chosen = split or ("val" if "val" in name_of(src).lower() else "train")
    source: ImageNetTrain | ImageNetVal
    if chosen == "train":
        given = [name for name, value in (("--devkit", devkit), ("--labels", labels), ("--synsets", synsets)) if value]
        if given or classes is not None:
            raise click.UsageError(
                f"{(given or ['--classes'])[0]} is for --split val; train's classes are its tars' names"
            )
        source = ImageNetTrain(src)
    else:
        source = _val(src, devkit, labels, synsets, classes)
    extra = {"num_classes": len(source.class_names or ()), "members_not_used": note_unused(source.unused)}
    run_conversion(source, out, extra=extra, **options)


def _val(
    src: str, devkit: str | None, labels: str | None, synsets: str | None, classes: list[str] | None
) -> ImageNetVal:
    from ..sources.devkit import labels_from_devkit, labels_from_text
    from ..sources.imagenet import ImageNetVal
    from ..sources.reading import child, exists, folder_of

    if labels is not None:
        if devkit is not None or synsets is not None:
            raise click.UsageError("--labels takes the place of --devkit and --synsets; give one or the other")
        label_of, names = labels_from_text(labels, class_names=classes)
        return ImageNetVal(src, labels=label_of, class_names=names)
    if classes is not None:
        raise click.UsageError("--classes goes with --labels; the development kit has the classes itself")
    kit = devkit
    if kit is None:
        beside = child(folder_of(src), _DEVKIT)
        if not exists(beside):
            raise click.UsageError(
                f"the validation images have no labels in them: --devkit {_DEVKIT} (not found beside {src}), or "
                "--labels FILE with lines such as `ILSVRC2012_val_00000001.JPEG n01751748`"
            )
        kit = beside
    label_of, names = labels_from_devkit(kit, synsets=synsets)
    return ImageNetVal(src, labels=label_of, class_names=names)
