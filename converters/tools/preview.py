"""``beton preview FILE --recipe deit --out grid.png``: what a recipe of augmentations makes of a file's images.

A row is a sample, a column a draw: the images of one epoch. Masks and boxes are drawn over their images, the views of
one draw stand side by side.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from converters.local_file import LocalFile
from dataloading.cli import option_seed

__all__ = ["grid", "preview"]

_GAP, _CAPTION = 4, 14
_PAPER, _INK, _EDGE, _BOX, _POINT = (250, 250, 250), (40, 40, 40), (0, 0, 0), (255, 60, 60), (60, 255, 60)
_LARGEST_SIDE = 30_000  # of the picture, in pixels

Pixels = npt.NDArray[np.uint8]


@click.command()
@click.argument("file", type=LocalFile())
@click.option("--recipe", required=True, metavar="NAME|FILE.yaml",
              help="imagenet_train, simclr, dino, deit, trivial, detection, or a YAML file.")  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False), required=True, help="Picture to write, such as grid.png.")
@click.option("--rows", type=click.IntRange(1, 100), default=6, show_default=True, help="Samples, spread over FILE.")
@click.option("--draws", type=click.IntRange(1, 100), default=8, show_default=True, help="Draws of each sample.")
@click.option("--size", type=click.IntRange(16, 1024), default=128, show_default=True,
              help="Longest side of the largest image, in pixels.")  # fmt: skip
@click.option("--field", default=None, help="Image field for a recipe by name. Default: the first.")
@option_seed
def preview(
    file: str, *, recipe: str, out: str, rows: int, draws: int, size: int, field: str | None, seed: int
) -> None:
    """Draw what a recipe of augmentations makes of the images in FILE.

    Each row is a sample, each column another draw of it. Masks and boxes are drawn over their images, and several views
    stand side by side. The same seed gives the same picture.
    """
    from converters.tools.pictures import save_picture
    from converters.tools.summary import first_image_field
    from dataloading import Reader
    from dataloading.transforms import recipes

    with Reader(file) as reader:
        chosen = recipes.find(recipe, field=first_image_field(reader, field), num_classes=_num_classes(reader))
        picture = grid(reader, chosen, rows=rows, draws=draws, size=size, seed=seed)
    save_picture(picture, out)
    click.echo(f"wrote {out}")


def grid(
    reader: Any, recipe: Mapping[str, Any], *, rows: int = 6, draws: int = 8, size: int = 128, seed: int = 0
) -> Image.Image:
    """Return the picture of a recipe.

    Parameters
    ----------
    reader : Reader
        Of the file.
    recipe : mapping
        What `Loader` takes as ``transforms=``.
    rows, draws : int
        Samples, spread evenly over the file, and draws of each.
    size : int
        Longest side of the largest image, in pixels; smaller ones are shown in proportion.
    seed : int
        Of the loader.

    Raises
    ------
    UsageError
        The recipe does not fit the file, or the picture would be too large.
    """
    from converters.tools.pictures import caption
    from dataloading import Loader, UsageError

    chosen = np.unique(np.linspace(0, reader.num_samples - 1, min(rows, reader.num_samples)).astype(int))
    loader = Loader(
        reader.path, batch_size=len(chosen), indices=chosen, shuffle="none", seed=seed, transforms=recipe, num_workers=1
    )
    cells: list[list[Image.Image]] = []
    with contextlib.closing(loader):
        for epoch in range(draws):
            loader.set_epoch(epoch)
            batch = next(iter(loader))
            cells.append(_column(batch, recipe, reader.fields, size))
    width = max(cell.width for column in cells for cell in column)
    heights = [max(column[row].height for column in cells) for row in range(len(chosen))]
    extent = draws * (width + _GAP) + _GAP, sum(heights) + len(chosen) * (_CAPTION + _GAP) + _GAP
    if max(extent) > _LARGEST_SIDE:
        raise UsageError(
            f"the picture would be {extent[0]}x{extent[1]} pixels, more than {_LARGEST_SIDE}; take fewer rows and "
            "draws, or a smaller size"
        )
    sheet = Image.new("RGB", extent, _PAPER)
    draw = ImageDraw.Draw(sheet)
    top = _GAP
    for row, index in enumerate(map(int, chosen)):
        draw.text((_GAP, top), caption(draw, reader, index, extent[0] - 2 * _GAP), fill=_INK, font=_font())
        for number, column in enumerate(cells):
            sheet.paste(column[row], (_GAP + number * (width + _GAP), top + _CAPTION))
        top += heights[row] + _CAPTION + _GAP
    return sheet


def _font() -> Any:
    return ImageFont.load_default()


def _num_classes(reader: Any) -> int:
    """Return how many classes labels have, for the recipes that mix them."""
    from dataloading.tools import label_field

    if reader.class_names is not None:
        return len(reader.class_names)
    field = label_field(reader)
    return 1 if field is None else int(reader.column(field).max()) + 1


def _column(batch: Any, recipe: Mapping[str, Any], fields: Mapping[str, Any], size: int) -> list[Image.Image]:
    """Return the pictures of one draw, one a sample: its views side by side, in as many lines as they need."""
    views = [view for name in batch.names for view in _views(name, batch[name], recipe, fields)]
    masks = [np.asarray(value) for name in batch.names if (value := _mask(batch[name])) is not None]
    marks = [
        (_coordinates(fields[name]), batch[name])
        for name in batch.names
        if name in fields and _coordinates(fields[name])
    ]
    if not views:
        from dataloading import UsageError

        raise UsageError(f"the recipe delivers no image, only {', '.join(batch.names)}")
    scale = size / max(max(image.shape[:2]) for view in views for image in view)
    cells = []
    for row in range(len(views[0])):
        pictures = []
        for view in views:
            pixels = view[row]
            for mask in masks:
                if mask.shape[1:] == pixels.shape[:2]:
                    pixels = _masked(pixels, mask[row])
            pictures.append(_scaled(pixels, scale))
            for form, values in marks:
                _draw_marks(pictures[-1], np.asarray(values[row], np.float64), form, pixels.shape[:2], scale)
        cells.append(_side_by_side(pictures))
    return cells


def _views(name: str, value: Any, recipe: Mapping[str, Any], fields: Mapping[str, Any]) -> list[list[Pixels]]:
    """Return the images of one name of a batch, uint8 RGB: a list for each view."""
    several = value if isinstance(value, (list, tuple)) else [value]
    steps = recipe.get(name, [])
    steps = getattr(steps, "transforms", steps) or []
    if several and all(getattr(each, "ndim", 0) == 3 for each in several) and _holds_images(name, recipe, fields):
        return [[_shown(each, steps) for each in several]]  # of their own sizes
    return [[_shown(image, steps) for image in view] for view in several if getattr(view, "ndim", 0) == 4]


def _holds_images(name: str, recipe: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    from dataloading import ImageField, MaskField

    field = fields.get(getattr(recipe.get(name), "field", name))
    return isinstance(field, ImageField) and not isinstance(field, MaskField)


def _mask(value: Any) -> Any:
    return value if getattr(value, "ndim", 0) == 3 and not value.is_floating_point() else None


def _shown(image: Any, steps: Sequence[Any]) -> Pixels:
    """Return an image (C, H, W) as the loader gives it as uint8 RGB, without what normalises it."""
    from converters.tools.pictures import viewable

    values = np.moveaxis(image.float().numpy() if image.is_floating_point() else image.numpy(), 0, -1)
    if image.is_floating_point():
        last = next((step for step in reversed(steps) if hasattr(step, "mean") and hasattr(step, "std")), None)
        if last is not None:
            values = values * np.asarray(last.std, np.float32) + np.asarray(last.mean, np.float32)
        scaled = last is not None or any(getattr(step, "scale", None) is True for step in steps)
        values = np.clip(values * (255 if scaled else 1) + 0.5, 0, 255).astype(np.uint8)
    return viewable(values)


def _masked(pixels: Pixels, mask: npt.NDArray[Any]) -> Pixels:
    """Return an image with the classes of a mask as colours, half transparent; 0 and 255 are left as they are."""
    from converters.tools.pictures import viewable

    colours = viewable(mask[..., None], is_mask=True)
    marked = ((mask > 0) & (mask != 255))[..., None]
    blended: Pixels = np.where(marked, (pixels.astype(np.uint16) + colours) // 2, pixels).astype(np.uint8)
    return blended


def _scaled(pixels: Pixels, scale: float) -> Image.Image:
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    return picture.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC)


def _coordinates(field: Any) -> str:
    words = getattr(field, "coordinates", None) or "none"
    return "" if words == "none" else str(words)


def _draw_marks(
    picture: Image.Image, values: npt.NDArray[np.float64], form: str, size: tuple[int, int], scale: float
) -> None:
    """Draw boxes or points over a picture of an image of this (height, width)."""
    kind, _, relative = form.partition(" ")
    values = values.reshape(-1, values.shape[-1])
    width = 2 if kind == "points" else 4
    places = values[:, :width] * (np.tile([size[1], size[0]], width // 2) if relative else 1.0) * scale
    draw = ImageDraw.Draw(picture)
    for place in places:
        if kind == "points":
            x, y = place
            draw.ellipse((x - 3, y - 3, x + 3, y + 3), outline=_EDGE)
            draw.ellipse((x - 2, y - 2, x + 2, y + 2), outline=_POINT)
            continue
        left, top, right, bottom = place
        if kind == "xywh":
            right, bottom = left + right, top + bottom
        elif kind == "cxcywh":
            left, top, right, bottom = left - right / 2, top - bottom / 2, left + right / 2, top + bottom / 2
        right, bottom = max(left, right - 1), max(top, bottom - 1)
        # Between dark lines, so that it is seen on any colour.
        draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_EDGE)
        if min(right - left, bottom - top) > 2:
            draw.rectangle((left + 1, top + 1, right - 1, bottom - 1), outline=_EDGE)
        draw.rectangle((left, top, right, bottom), outline=_BOX)


def _side_by_side(pictures: Sequence[Image.Image]) -> Image.Image:
    """Return pictures as one: in a line, or in several no wider than the two largest."""
    if len(pictures) == 1:
        return pictures[0]
    widest = 2 * max(picture.width for picture in pictures) + 1
    places, left, top, line = [], 0, 0, 0
    for picture in pictures:
        if left and left + picture.width > widest:
            left, top, line = 0, top + line + 1, 0
        places.append((left, top))
        left, line = left + picture.width + 1, max(line, picture.height)
    whole = Image.new("RGB", (widest, top + line), _PAPER)
    for picture, place in zip(pictures, places, strict=True):
        whole.paste(picture, place)
    return whole
