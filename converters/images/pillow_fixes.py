"""Corrections for files that Pillow reads with wrong pixels.

PNG         a transparent level of 2- or 4-bit gray is scaled as the pixels are
PNG         a transparent colour of 16 bits is refused: among 8-bit pixels it cannot be found
TIFF        16-bit gray whose zero is white is inverted, as Pillow inverts 8-bit gray
TIFF        12-bit gray is scaled to 16 bits
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from converters.source import SampleFault

__all__ = ["SCALED_FROM", "StoredMode", "corrected_pixels", "stored_mode"]

SCALED_FROM = "scaled_from"
"""Key of an image's ``info``: the file's highest level, if Pillow scales its pixels."""

StoredMode = tuple[str, int]
_WHITE_IS_ZERO, _PHOTOMETRIC = 0, 262
_SCALE = {"L;2": 85, "L;4": 17}


def stored_mode(image: Image.Image) -> StoredMode:
    """Return Pillow's raw mode of an image's file, and the highest level of a PPM; loading drops both."""
    tiles = getattr(image, "tile", None)
    args = tiles[0][3] if tiles else ()
    flat = args if isinstance(args, tuple) else (args,)
    word = next((item for item in flat if isinstance(item, str)), "")
    highest = flat[1] if image.format == "PPM" and len(flat) == 2 and isinstance(flat[1], int) else 0
    return word, highest


def corrected_pixels(image: Image.Image, stored: StoredMode) -> Image.Image:
    """Return a loaded image with the correct pixels and transparency.

    ``stored`` is what `stored_mode` returned before. Raises `SampleFault` if the transparency is lost.
    """
    word, highest = stored
    level = image.info.get("transparency")
    if image.format == "PNG" and level is not None:
        if word.startswith("RGB;16"):
            raise SampleFault(
                "it has 16-bit colours and one of them transparent, which is lost when they are read as 8 bits; "
                "convert the file first"
            )
        if word in _SCALE and isinstance(level, int):
            image.info["transparency"] = level * _SCALE[word]
    if highest not in {0, 255, 65535}:
        image.info[SCALED_FROM] = highest
    if image.format == "TIFF" and image.mode.startswith("I;16"):
        return _deep_tiff(image, word)
    return image


def _deep_tiff(image: Image.Image, word: str) -> Image.Image:
    is_12_bit = word.startswith("I;12")
    is_inverted = getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    if not (is_12_bit or is_inverted):
        return image
    levels = np.asarray(image).astype(np.uint32)
    if is_12_bit:
        image.info[SCALED_FROM] = 4095
        levels = (levels * 65535 + 2047) // 4095
    if is_inverted:
        levels = 65535 - levels
    # Pillow has already rotated a TIFF upright, so its metadata is no longer needed.
    fixed = Image.fromarray(levels.astype(np.uint16))
    fixed.info, fixed.format = image.info, image.format
    return fixed
