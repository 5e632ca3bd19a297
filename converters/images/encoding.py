"""Encodes pixels as raw, JPEG or PNG. ``store.py`` chooses which."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from converters.images.native_channels import Array
from converters.images.policy import LARGEST_SIDE, ImagePolicy
from converters.source import SampleFault
from dataloading import EncodedImage, ImageField
from dataloading.tools import MODE_JPEG, MODE_PNG, MODE_RAW, encode_jpeg, transcode_jpeg

__all__ = [
    "ENCODED", "KEPT", "LARGEST_JPEG", "PNG", "RAW", "TRANSCODED", "Stored", "as_jpeg", "as_png", "as_raw",
    "check_size",
]  # fmt: skip

# How an image was stored; reports count images by these words.
TRANSCODED, KEPT, ENCODED, RAW, PNG = "transcoded", "kept", "encoded", "raw", "png"
Stored = tuple[EncodedImage, str]
"""A stored image, and how it was stored."""
LARGEST_JPEG = 65_500
"""Pixels of a JPEG's side: libjpeg's own bound, below that of the format."""


def check_size(size: tuple[int, int]) -> None:
    """Raise `SampleFault` for a (width, height) that no file can record."""
    if max(size) > LARGEST_SIDE:
        raise SampleFault(
            f"{size[0]}x{size[1]} pixels: a side may have at most {LARGEST_SIDE:,}; --max-resolution shrinks it"
        )


def as_raw(pixels: Array) -> Stored:
    """Return uint8 or uint16 pixels of shape (height, width) or (height, width, channels) as they are."""
    height, width, channels = (*pixels.shape, 1)[:3]
    data = np.ascontiguousarray(pixels, dtype=pixels.dtype.newbyteorder("<")).tobytes()
    return EncodedImage(MODE_RAW, width, height, data, channels, pixels.dtype.name), RAW


def as_png(pixels: Array, field: ImageField) -> Stored:
    """Return pixels as a PNG, or raw if the field does not allow PNG or the PNG is not smaller."""
    stored, _ = raw = as_raw(pixels)
    if MODE_PNG not in field.modes:
        return raw
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
    data = buffer.getvalue()
    if len(data) >= pixels.nbytes:
        return raw
    return EncodedImage(MODE_PNG, stored.width, stored.height, data, stored.channels, stored.dtype), PNG


def as_jpeg(pixels: Array, field: ImageField, policy: ImagePolicy) -> Stored:
    """Return uint8 pixels, RGB or gray (no third axis), as a JPEG with restart markers."""
    height, width = pixels.shape[:2]
    if max(width, height) > LARGEST_JPEG:
        raise SampleFault(
            f"{width}x{height} pixels: a JPEG has at most {LARGEST_JPEG:,} a side; --max-resolution shrinks it, --mode "
            "raw stores it"
        )
    if pixels.ndim == 3:
        data = encode_jpeg(pixels, quality=policy.quality, subsampling=policy.subsampling)
    else:
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "JPEG", quality=policy.quality)
        data = transcode_jpeg(buffer.getvalue())
    return EncodedImage(MODE_JPEG, width, height, data, field.channels), ENCODED
