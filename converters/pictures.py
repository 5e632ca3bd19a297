"""Samples of a ``.beton`` file as pictures: one image, or a contact sheet."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from dataloading import DecodeError, EncodedImage, Reader, decode_jpeg, label_field

__all__ = ["contact_sheet", "decode_sample"]

_CELL, _CAPTION, _GAP = 160, 18, 6
_PAPER, _INK, _BAD = (250, 250, 250), (40, 40, 40), (200, 30, 30)


def decode_sample(reader: Reader, field: str, index: int) -> npt.NDArray[np.uint8]:
    """Return one stored image as pixels.

    Parameters
    ----------
    reader : Reader
        The file.
    field : str
        An image field.
    index : int
        The sample.

    Returns
    -------
    uint8[height, width, 3]
        RGB.

    Raises
    ------
    DecodeError
        If its JPEG is damaged or has another size than the sample table says; names sample, field and file.
    """
    stored = reader.value(field, index)
    assert isinstance(stored, EncodedImage)
    shape = (stored.height, stored.width, 3)
    if stored.mode != 0:
        raw: npt.NDArray[np.uint8] = np.frombuffer(stored.data, np.uint8).reshape(shape)
        return raw
    try:
        pixels: npt.NDArray[np.uint8] = decode_jpeg(stored.data)
    except DecodeError as error:
        raise DecodeError(error.reason, sample=index, field=field, path=reader.path) from error
    if pixels.shape != shape:
        reason = f"the JPEG has {pixels.shape[1]}x{pixels.shape[0]} pixels, the sample table says {shape[1]}x{shape[0]}"
        raise DecodeError(reason, sample=index, field=field, path=reader.path)
    return pixels


def contact_sheet(reader: Reader, field: str, rows: int, columns: int) -> Image.Image:
    """Return a sheet of images spread evenly over the file, each with its index and class.

    Parameters
    ----------
    reader : Reader
        The file.
    field : str
        An image field.
    rows, columns : int
        Size of the sheet in images; a damaged image leaves a note in its place.
    """
    chosen = np.unique(np.linspace(0, reader.num_samples - 1, min(rows * columns, reader.num_samples)).astype(int))
    step, line = _CELL + _GAP, _CELL + _CAPTION + _GAP
    sheet = Image.new("RGB", (columns * step + _GAP, -(-len(chosen) // columns) * line + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default()
    for place, index in enumerate(map(int, chosen)):
        left, top = _GAP + place % columns * step, _GAP + place // columns * line
        try:
            picture = Image.fromarray(decode_sample(reader, field, index))
        except DecodeError as error:
            draw.rectangle((left, top, left + _CELL - 1, top + _CELL - 1), outline=_BAD)
            draw.multiline_text((left + 4, top + 4), _wrapped(error.reason), fill=_BAD, font=font)
        else:
            picture.thumbnail((_CELL, _CELL), Image.Resampling.LANCZOS)
            sheet.paste(picture, (left + (_CELL - picture.width) // 2, top + (_CELL - picture.height) // 2))
        caption = _fitting(draw, f"{index}  {_class_of(reader, index)}", font)
        draw.text((left + 2, top + _CELL + 2), caption, fill=_INK, font=font)
    return sheet


def _class_of(reader: Reader, index: int) -> str:
    field = label_field(reader)
    if field is None:
        return ""
    label = int(reader.column(field)[index])
    names = None if reader.extension is None else reader.extension.class_names
    return names[label] if names is not None and 0 <= label < len(names) else str(label)


def _fitting(draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    # Names of files need not be text: what cannot be drawn is shown escaped.
    text = text.encode("utf-8", "backslashreplace").decode()
    try:
        if draw.textlength(text, font=font) <= _CELL - 4:
            return text
        while text and draw.textlength(text + "...", font=font) > _CELL - 4:
            text = text[:-1]
    except UnicodeEncodeError:  # Pillow without FreeType draws Latin-1 only
        return _fitting(draw, text.encode("ascii", "backslashreplace").decode(), font)
    return text + "..."


def _wrapped(text: str, width: int = 24) -> str:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
