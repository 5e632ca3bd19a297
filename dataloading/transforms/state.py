"""What is known of images before any is seen, and how dtypes are stored. Knows no transform."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

__all__ = ["FLOAT_DTYPES", "STORAGE_DTYPES", "ImageState"]

FLOAT_DTYPES = ("float32", "float16", "bfloat16")
# bfloat16 has no NumPy dtype, and Numba has no float16 arithmetic: both travel as their bits.
STORAGE_DTYPES = {"uint8": np.uint8, "float32": np.float32, "float16": np.uint16, "bfloat16": np.uint16,
                  "uint16": np.uint16, "int64": np.int64}  # fmt: skip  # the last two: deep images, labels


@dataclasses.dataclass(frozen=True)
class ImageState:
    """What is known about every image between two transforms, before any image is seen.

    Parameters
    ----------
    channels : int
        1 to 16.
    height, width : int or None
        Exact, where all images have it; None while it differs from image to image.
    min_side : int
        No image is smaller than this in either direction (1: nothing known).
    dtype : str
        "uint8", "float32", "float16" or "bfloat16"; "uint16" of deep images and "int64" of label maps, which only
        geometry changes.
    resized, cropped, padded : bool
        What the decoder's request already holds: a resize; after it a crop that may be a strict part; padding.
    zoomed_out : bool
        It holds padding that can still be cropped and resized.
    written : bool
        The image is in its output slot, so that only changes in place can follow.
    bound : float or None
        The value of white: 255 of uint8, 65535 of uint16, 1.0 of floats from 0 to 1. None where values have no bounds,
        as behind Normalize.
    """

    channels: int
    height: int | None = None
    width: int | None = None
    min_side: int = 1
    dtype: str = "uint8"
    resized: bool = False
    cropped: bool = False
    padded: bool = False
    zoomed_out: bool = False
    written: bool = False
    bound: float | None = 255.0

    def replace(self, **changes: Any) -> ImageState:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    @property
    def size_text(self) -> str:
        """The size as words, for messages."""
        if self.height is None or self.width is None:
            return f"sizes that differ (at least {self.min_side})" if self.min_side > 1 else "sizes that differ"
        return f"{self.height}x{self.width}"
