"""What is known of images before any is seen, and how dtypes are stored. Knows no transform."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FLOAT_DTYPES", "IMAGE_DTYPES", "STORAGE_DTYPES", "ImageState", "random_image"]

FLOAT_DTYPES = ("float32", "float16", "bfloat16")
IMAGE_DTYPES = ("uint8", "uint16", "float32")  # of images with black and white: 0 and 255, 65535 or 1.0
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

    def like(self, shape: Sequence[int], dtype: str) -> ImageState:
        """Return what is known of images of this shape and dtype that are made of these in a way nobody knows."""
        bound = self.bound if dtype == self.dtype else {"uint8": 255.0, "uint16": 65535.0}.get(dtype)
        channels, height, width = shape
        return self.replace(channels=channels, height=height, width=width, dtype=dtype, bound=bound)

    @property
    def size_text(self) -> str:
        """The size as words, for messages."""
        if self.height is None or self.width is None:
            return f"sizes that differ (at least {self.min_side})" if self.min_side > 1 else "sizes that differ"
        return f"{self.height}x{self.width}"


def random_image(state: ImageState) -> npt.NDArray[Any]:
    """Return an image of random values, always the same, on which to try what nobody knows."""
    assert state.height is not None and state.width is not None
    generator, shape = np.random.default_rng(0), (state.channels, state.height, state.width)
    if state.dtype in ("uint8", "uint16"):
        return generator.integers(0, int(state.bound or 255) + 1, shape).astype(state.dtype)
    if state.dtype == "float32":
        return generator.random(shape, np.float32)
    return np.zeros(shape, STORAGE_DTYPES[state.dtype])
