"""``beton convert torchvision``: torchvision's datasets."""

from __future__ import annotations

import json
from typing import Any

import click

from dataloading.cli import note

from ..cli import conversion_options, run_conversion
from .shared import SourcePath, WordsCommand, argument_out

__all__ = ["torchvision"]


class _Command(WordsCommand):
    words_options = ("--option",)


@click.command(cls=_Command)
@click.argument("name")
@argument_out
@click.option("--root", type=SourcePath(folder=True), required=True,
              help="Folder where torchvision keeps the dataset.")  # fmt: skip
@click.option("--split", default=None, help="Part, as the dataset calls it: train, test, val, ... Default: its own.")
@click.option("--option", "arguments", multiple=True, metavar="NAME=VALUE ...",
              help="Further arguments of the dataset's class, such as target_types=category.")  # fmt: skip
@conversion_options
def torchvision(
    name: str, out: str, *, root: str, split: str | None, arguments: tuple[str, ...], **options: Any
) -> None:
    """Convert torchvision.datasets.NAME, such as CIFAR10, into the file OUT or a set of shards.

    The dataset must lie in --root already, as torchvision expects it; nothing is downloaded. JPEG files keep their
    pixels; images that are not files, such as CIFAR's, are encoded at --quality, or kept exactly with --mode raw.
    """
    from ..sources.torchvision import TorchvisionDataset

    given = {}
    for text in arguments:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r}; write NAME=VALUE", param_hint="--option")
        try:
            given[key] = json.loads(value)
        except ValueError:
            given[key] = value
    source = TorchvisionDataset(name, root, split=split, options=given)
    if not source.has_files and options["mode"] == "jpg" and not options["quiet"]:
        note(f"{name} has pixels, not files: encoded at quality {options['quality']}; --mode raw keeps them")
    run_conversion(source, out, extra={"num_classes": len(source.class_names or ())}, **options)
