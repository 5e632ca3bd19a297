"""The options for storing images, checked. ``store.py`` applies them."""

from __future__ import annotations

import dataclasses
from typing import Literal

from PIL import ImageColor

from converters.images.native_channels import Resample
from converters.images.pillow_files import MAX_PIXELS
from converters.options import check_numbers, check_words
from converters.sample_random import sample_uniform
from dataloading import UsageError
from dataloading.checks import as_integer

__all__ = ["LARGEST_SIDE", "ImagePolicy", "colour"]

LARGEST_SIDE = 65_535
"""Largest side in pixels that a file can record."""


def colour(text: str) -> tuple[int, int, int]:
    """Return the levels of a colour: a name, #rrggbb or R,G,B.

    Raises
    ------
    UsageError
        If it is not a colour.

    Examples
    --------
    >>> colour("white"), colour("#808080"), colour("1,2,3")
    ((255, 255, 255), (128, 128, 128), (1, 2, 3))
    """
    try:
        levels = tuple(int(word) for word in text.split(",")) if "," in text else ImageColor.getrgb(text)[:3]
    except ValueError:
        levels = ()
    if len(levels) != 3 or not all(0 <= level <= 255 for level in levels):
        raise UsageError(f"{text!r} is not a colour; write white, #808080 or 128,128,128")
    return levels[0], levels[1], levels[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagePolicy:
    """How images are stored.

    Parameters
    ----------
    mode : {"jpg", "raw", "mix", "smart", "png"}
        JPEG; RGB pixels; JPEG for a random fraction of the samples and pixels for the rest; for each image whichever
        ``smart_threshold`` prefers; or, in raster fields, without loss: PNG, or pixels where they are smaller. What
        JPEG cannot hold (16 bits, 2 or more than 3 channels, labels) is stored without loss in every mode.
    mix_fraction : float
        Fraction stored as JPEG in mode "mix", 0 to 1.
    smart_threshold : float
        In mode "smart" an image becomes a JPEG if its pixels take more than this many times the JPEG's bytes.
    max_resolution : int, optional
        Longest side in pixels. Larger images are shrunk.
    quality : int
        JPEG quality, 1 to 100, of images that are encoded. JPEGs that are kept keep theirs.
    subsampling : {"4:2:0", "4:2:2", "4:4:4"}
        Chroma subsampling of images that are encoded.
    keep : {"pixels", "bytes", "files", "never"}
        What is kept of a JPEG that needs no change: its pixels (coefficients copied losslessly into a baseline JPEG
        with restart markers), its exact bytes, or nothing (decoded and encoded at ``quality``, as FFCV does). "files"
        keeps the exact bytes of PNGs too, in a raster field, and stores images of other formats without loss.
    resample : {"box", "bilinear", "bicubic", "lanczos"}
        Pillow's antialiased filter for shrinking.
    background : tuple of int
        RGB, 0 to 255, behind transparent pixels.
    orient : bool
        Rotate images upright by EXIF or XMP orientation.
    annotations : {"stored", "upright"}
        Whether masks, boxes and points are drawn on images as their files store them, and are turned with them, or on
        upright images.
    to_srgb : bool
        Convert embedded colour profiles to sRGB.
    channels : {"rgb", "gray", "keep"}
        What images become: RGB; one channel of luma (ITU-R 601-2); or unchanged, with alpha and 16 bits. With "keep"
        all images of a field must be alike, and the first one decides.
    seed : int
        Seed of mode "mix".
    max_pixels : int
        An image with more pixels is refused before it is decoded: a small PNG or TIFF may decode to gigabytes. A JPEG
        may have at most 2**28 in any case.

    Raises
    ------
    UsageError
        If a value is out of range.
    """

    mode: Literal["jpg", "raw", "mix", "smart", "png"] = "jpg"
    mix_fraction: float = 0.5
    smart_threshold: float = 1.0
    max_resolution: int | None = None
    quality: int = 90
    subsampling: Literal["4:2:0", "4:2:2", "4:4:4"] = "4:2:0"
    keep: Literal["pixels", "bytes", "files", "never"] = "pixels"
    resample: Resample = "lanczos"
    background: tuple[int, int, int] = (255, 255, 255)
    orient: bool = True
    annotations: Literal["stored", "upright"] = "stored"
    to_srgb: bool = False
    channels: Literal["rgb", "gray", "keep"] = "rgb"
    seed: int = 0
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        check_words(self)
        check_numbers(self, quality=(1, 100), max_resolution=(1, LARGEST_SIDE), max_pixels=(1, None))
        if self.keep == "files" and self.mode not in ("jpg", "png"):
            raise UsageError(
                f"keep 'files' stores each file as it is, and mode {self.mode!r} does not; give one of them"
            )
        if not _is_number(self.mix_fraction) or not 0 <= self.mix_fraction <= 1:
            raise UsageError(f"mix_fraction must be from 0 to 1, got {self.mix_fraction!r}")
        if not _is_number(self.smart_threshold) or not self.smart_threshold > 0:
            raise UsageError(f"smart_threshold must be above 0, got {self.smart_threshold!r}")
        levels = self.background if isinstance(self.background, tuple) else ()
        if len(levels) != 3 or any((level := as_integer(each)) is None or not 0 <= level <= 255 for each in levels):
            raise UsageError(f"background must be three levels from 0 to 255, got {self.background!r}")

    def provenance(self) -> dict[str, object]:
        """Return the options as JSON values, for the file's provenance."""
        options = {**dataclasses.asdict(self), "background": list(self.background)}
        # Older files lack these, so they are recorded only if they differ from the default.
        for name in ("annotations", "channels", "max_pixels"):
            if options[name] == getattr(ImagePolicy, name):
                del options[name]
        return options

    def wants_raw(self, index: int) -> bool:
        """Return whether mode "raw" or "mix" stores sample ``index`` as raw pixels."""
        return self.mode == "raw" or (self.mode == "mix" and sample_uniform(self.seed, index) >= self.mix_fraction)

    def prefers_raw(self, raw_bytes: int, jpeg_bytes: int) -> bool:
        """Return whether mode "smart" stores an image raw, given its sizes raw and as a JPEG."""
        return self.mode == "smart" and not raw_bytes > self.smart_threshold * jpeg_bytes


def _is_number(value: object) -> bool:
    return isinstance(value, float) or as_integer(value) is not None
