"""``beton synth OUT``: an ImageFolder of photo-like JPEG files with classes that a model can learn.

``scenes.py`` draws the pictures. The bytes depend on seed, size and number of classes, not on the number of workers.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from dataloading.cli import (
    default_num_workers,
    option_json,
    option_num_workers,
    option_overwrite,
    option_quiet,
    option_seed,
)
from dataloading.messages import counted

__all__ = ["SynthOptions", "make_dataset", "synth"]

QUALITY = 90
IMAGES_PER_TASK = 16
_CLASS_FOLDER = re.compile(r"class_\d{3,}")

Task = tuple[int, tuple[int, ...]]
Done = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SynthOptions:
    """Options of a synthetic dataset.

    Parameters
    ----------
    num_classes, num_images : int
        Image ``i`` belongs to class ``i % num_classes``.
    skip : int
        Index of the first image. Another range with the same seed has the same classes and other images, so it serves
        for validation.
    size : int
        Longest side in pixels, 16 to 4096.
    seed : int
    """

    num_classes: int = 10
    num_images: int = 2000
    skip: int = 0
    size: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        from dataloading import UsageError

        for name, low, high in (
            ("num_classes", 1, 100_000), ("num_images", 1, 100_000_000), ("skip", 0, 2**62), ("size", 16, 4096),
            ("seed", 0, 2**63 - 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} must be {low} to {high}, got {value}")
        if self.num_images < self.num_classes:
            raise UsageError(
                f"{counted(self.num_images, 'image')} cannot fill {counted(self.num_classes, 'class')}: ask for at "
                "least one image per class"
            )

    def tasks(self) -> Iterator[Task]:
        """Yield (label, indices) in chunks, class by class, since a class's texture is computed once per chunk."""
        for label in range(self.num_classes):
            first = self.skip + (label - self.skip) % self.num_classes
            indices = range(first, self.skip + self.num_images, self.num_classes)
            for start in range(0, len(indices), IMAGES_PER_TASK):
                yield label, tuple(indices[start : start + IMAGES_PER_TASK])


class Summary(NamedTuple):
    """The result: the folder, counts, size of all files, and JPEG bits per pixel (photographs: 1 to 2)."""

    out: str
    num_images: int
    num_classes: int
    total_bytes: int
    bits_per_pixel: float


def make_dataset(
    out: str | Path,
    options: SynthOptions,
    *,
    num_workers: int = 0,
    overwrite: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Summary:
    """Write a folder of images, one folder per class; it appears when it is complete.

    Parameters
    ----------
    num_workers : int
        Processes; 0 draws in this one.
    overwrite : bool
        Whether to replace a folder that an earlier run made.
    progress : callable, optional
        Called with the number of images just made.

    Raises
    ------
    UsageError
        If ``out`` exists and must not be replaced.
    """
    from converters.engine.pool import run_ordered
    from dataloading.tools import PartFolder

    target = Path(out)
    _check_target(target, overwrite=overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    count = total_bytes = total_pixels = 0
    with PartFolder(str(target)) as folder:
        for label in range(options.num_classes):
            Path(folder.part, _class_name(label)).mkdir()
        work = functools.partial(_draw_task, folder.part, options.seed, options.size)
        for images, num_bytes, pixels in run_ordered(work, options.tasks(), num_workers=num_workers):
            count, total_bytes, total_pixels = count + images, total_bytes + num_bytes, total_pixels + pixels
            if progress is not None:
                progress(images)
        _check_target(target, overwrite=overwrite)
        if target.exists():
            shutil.rmtree(target)
        folder.publish()
    return Summary(
        out=str(target),
        num_images=count,
        num_classes=options.num_classes,
        total_bytes=total_bytes,
        bits_per_pixel=8 * total_bytes / total_pixels,
    )


def _check_target(target: Path, *, overwrite: bool) -> None:
    from dataloading import UsageError

    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir() or target.is_symlink():
        raise UsageError(f"{target} exists and is not a folder; choose another name")
    strange = [entry.name for entry in target.iterdir() if not _CLASS_FOLDER.fullmatch(entry.name)]
    if strange:
        # A typing error must not delete the user's files.
        raise UsageError(f"{target} holds {strange[0]!r}, which this command did not make; choose another folder")
    if not overwrite and any(target.iterdir()):
        raise UsageError(f"{target} exists; pass --overwrite to replace it")


def _class_name(label: int) -> str:
    return f"class_{label:03d}"


def _draw_task(folder: str, seed: int, size: int, task: Task) -> Done:
    """Draw and store one piece of a class; runs in a worker. Returns images, bytes, pixels."""
    import numpy as np

    from converters.demo.scenes import SceneClass, draw_scene

    label, indices = task
    scene = SceneClass.of(seed, label)
    num_bytes = pixels = 0
    for index in indices:
        image = draw_scene(scene, np.random.default_rng([seed, 3, index]), size)
        path = Path(folder) / _class_name(label) / f"{index:08d}.jpg"
        image.save(path, "JPEG", quality=QUALITY)
        num_bytes += path.stat().st_size
        pixels += image.width * image.height
    return len(indices), num_bytes, pixels


@click.command()
@click.argument("out", type=click.Path(file_okay=False))
@click.option("--num-classes", type=click.IntRange(min=1), default=10, show_default=True, help="How many classes.")
@click.option("--num-images", type=click.IntRange(min=1), default=2000, show_default=True, help="How many images.")
@click.option("--skip", type=click.IntRange(min=0), default=0, show_default=True,
              help="Skip the first N images, to make other images of the same classes, for validation.")  # fmt: skip
@click.option("--size", type=click.IntRange(16, 4096), default=400, show_default=True, help="Longest side in pixels.")
@option_seed
@option_num_workers
@option_overwrite
@option_json
@option_quiet
def synth(out: str, *, num_workers: int | None, overwrite: bool, as_json: bool, quiet: bool, **options: int) -> None:
    """Make a photo-like dataset of JPEG files in OUT, one folder per class.

    For trials without real photographs: the pictures have the detail and file size of photographs. Their classes differ
    in shape, texture and (a little) colour, so a model can learn them.
    """
    from tqdm import tqdm

    workers = default_num_workers() if num_workers is None else num_workers
    with tqdm(total=options["num_images"], unit="image", disable=quiet, file=sys.stderr) as bar:
        summary = make_dataset(
            out, SynthOptions(**options), num_workers=workers, overwrite=overwrite, progress=bar.update
        )
    if as_json:
        click.echo(json.dumps(summary._asdict(), indent=2))
    else:
        click.echo(
            f"{summary.out}: {counted(summary.num_images, 'image')} in {counted(summary.num_classes, 'class')}, "
            f"{summary.total_bytes / 1e6:.1f} MB, {summary.bits_per_pixel:.2f} bits per pixel"
        )
