"""Samples of a ``.beton`` file as pictures: one image, or a contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from converters.output.files import cannot_write
from converters.tools.summary import find_sample
from dataloading import ConvertError, DecodeError, EncodedImage, MaskField, Reader, decode_image
from dataloading.tools import label_field, whole_file

__all__ = ["caption", "contact_sheet", "decode_sample", "decode_stored", "save_picture", "viewable"]

_CELL, _CAPTION, _GAP = 160, 18, 6
_PAPER, _INK, _BAD = (250, 250, 250), (40, 40, 40), (200, 30, 30)


def decode_sample(reader: Reader, field: str, index: int) -> npt.NDArray[Any]:
    """Return one stored image as pixels, see `decode_stored`.

    Raises
    ------
    DecodeError
        If its file is damaged or has another size than the sample table says; names sample, field and file.
    """
    stored = reader.value(field, index)
    assert isinstance(stored, EncodedImage)
    try:
        return decode_stored(stored)
    except DecodeError as error:
        raise DecodeError(error.reason, sample=index, field=field, path=reader.path) from error


def decode_stored(image: EncodedImage) -> npt.NDArray[Any]:
    """Return the pixels of a stored image: uint8 or uint16, shape (height, width, channels); three channels are RGB."""
    return decode_image(image).reshape(image.height, image.width, image.channels)


def viewable(pixels: npt.NDArray[Any], *, is_mask: bool = False) -> npt.NDArray[np.uint8]:
    """Return pixels of any number of channels and depth as uint8 RGB to look at.

    One channel is gray, two are gray and alpha, of more the first three are shown. In a mask the numbers are classes:
    each gets a colour of its own, 0 is black.
    """
    if is_mask:
        coloured: npt.NDArray[np.uint8] = _class_colours()[pixels[..., 0] & 0xFF]
        return coloured
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    return np.repeat(pixels[..., :1], 3, axis=2) if pixels.shape[2] < 3 else pixels[..., :3]


def _class_colours() -> npt.NDArray[np.uint8]:
    """Return Pascal VOC's colours: three bits of a class number at a time become the high bits of R, G and B."""
    numbers = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for place in range(8):
        for channel in range(3):
            colours[:, channel] |= ((numbers >> channel & 1) << (7 - place)).astype(np.uint8)
        numbers = numbers >> 3
    return colours


def contact_sheet(readers: Sequence[Reader], field: str, rows: int, columns: int) -> Image.Image:
    """Return a sheet of images spread evenly over the files, each with its index over all files and its class.

    A damaged image is replaced by a note.
    """
    total = sum(reader.num_samples for reader in readers)
    chosen = np.unique(np.linspace(0, total - 1, min(rows * columns, total)).astype(int))
    step, line = _CELL + _GAP, _CELL + _CAPTION + _GAP
    sheet = Image.new("RGB", (columns * step + _GAP, -(-len(chosen) // columns) * line + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default()
    for place, index in enumerate(map(int, chosen)):
        left, top = _GAP + place % columns * step, _GAP + place // columns * line
        reader, local = find_sample(readers, index)
        try:
            pixels = decode_sample(reader, field, local)
            picture = Image.fromarray(viewable(pixels, is_mask=isinstance(reader.fields[field], MaskField)))
        except DecodeError as error:
            draw.rectangle((left, top, left + _CELL - 1, top + _CELL - 1), outline=_BAD)
            draw.multiline_text((left + 4, top + 4), _wrapped(error.reason), fill=_BAD, font=font)
        else:
            picture.thumbnail((_CELL, _CELL), Image.Resampling.LANCZOS)
            sheet.paste(picture, (left + (_CELL - picture.width) // 2, top + (_CELL - picture.height) // 2))
        text = _fitting(draw, f"{index}  {_class_of(reader, local)}", font, _CELL - 4)
        draw.text((left + 2, top + _CELL + 2), text, fill=_INK, font=font)
    return sheet


def caption(draw: ImageDraw.ImageDraw, reader: Reader, index: int, width: int) -> str:
    """Return a sample's index and class as a text of at most so many pixels in Pillow's own font."""
    return _fitting(draw, f"{index}  {_class_of(reader, index)}", ImageFont.load_default(), width)


def _class_of(reader: Reader, index: int) -> str:
    field = label_field(reader)
    if field is None:
        return ""
    label = int(reader.column(field)[index])
    names = reader.class_names
    return names[label] if names is not None and 0 <= label < len(names) else f"class {label}"


def _fitting(
    draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int
) -> str:
    # File names may not be text: invalid characters are shown escaped.
    text = text.encode("utf-8", "backslashreplace").decode()
    try:
        if draw.textlength(text, font=font) <= width:
            return text
        while text and draw.textlength(text + "...", font=font) > width:
            text = text[:-1]
    except UnicodeEncodeError:  # Pillow without FreeType draws Latin-1 only
        return _fitting(draw, text.encode("ascii", "backslashreplace").decode(), font, width)
    return text + "..."


def _wrapped(text: str, width: int = 24) -> str:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def save_picture(picture: Image.Image, out: str) -> None:
    """Write a picture that a command's ``--out`` names; a reader of the file sees all of it or nothing."""
    try:
        with whole_file(out) as part:
            picture.save(part)
    except ValueError as error:  # an ending that Pillow does not know
        raise click.BadParameter(f"cannot write {out}: {error}", param_hint="--out") from error
    except OSError as error:
        raise ConvertError(cannot_write(out, error)) from error
