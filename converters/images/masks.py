"""Label maps: read exactly, then rotated and resized as their image."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from converters.images.encoding import Stored, as_png, as_raw, check_size
from converters.images.errors import not_an_image
from converters.images.geometry import Geometry
from converters.images.native_channels import deep_gray, open_unconverted
from converters.images.pillow_fixes import SCALED_FROM
from converters.images.pixels import Array, turned
from converters.images.policy import ImagePolicy
from converters.images.rgb import declared_orientation, is_jpeg, other_orientation, target_size
from converters.source import SampleFault
from dataloading import MaskField

__all__ = ["check_mask_size", "labels", "store_mask"]


def store_mask(image: object, field: MaskField, policy: ImagePolicy, follow: Geometry | None = None) -> Stored:
    """Return a label map as a mask field stores it, losslessly, and how it was stored.

    Parameters
    ----------
    image : bytes, PIL.Image.Image or numpy.ndarray
        The bytes of an image file, a Pillow image, or an array of the field's dtype and shape (height, width).
    field, policy
        See `converters.images.store.store_image`. Label maps are shrunk with nearest neighbours.
    follow : Geometry, optional
        How its image was changed: the mask is rotated and resized in the same way. A mask file with its own EXIF
        orientation is rotated by that only.

    Raises
    ------
    SampleFault
        If it cannot be read, its labels do not fit the field, or its size differs from its image's.
    """
    numbers, is_upright = _labels_of(image, field, policy)
    size = numbers.shape[1], numbers.shape[0]
    if follow is None:
        smaller = target_size(size, policy.max_resolution)
    else:
        is_upright = is_upright or follow.drawn_upright
        check_mask_size(size, follow.upright if is_upright else follow.size, follow)
        numbers = numbers if is_upright else turned(numbers, follow.orientation)
        size, smaller = follow.upright, follow.new_size
    if size != smaller:
        image = Image.fromarray(numbers.astype(np.int32)).resize(smaller, Image.Resampling.NEAREST)
        numbers = np.asarray(image).astype(numbers.dtype)
    check_size(smaller)
    return as_raw(numbers) if policy.mode == "raw" else as_png(numbers, field)


def check_mask_size(size: tuple[int, int], expected: tuple[int, int], follow: Geometry) -> None:
    """Refuse a label map whose (width, height) differs from its image's.

    Raises
    ------
    SampleFault
        With a hint about EXIF orientation if that may be the cause.
    """
    if size == expected:
        return
    image = f"{expected[0]}x{expected[1]}"
    if follow.upright != follow.size:
        image = "{}x{} as stored, {}x{} turned upright (EXIF orientation {})".format(
            *follow.size, *follow.upright, follow.orientation
        )
    way = "a mask has the size of its image"
    if follow.upright != follow.size and size == follow.upright:
        way = (
            "if masks and boxes are drawn on upright images, say --annotations upright; --orientation ignore turns none"
        )
    elif size == expected[::-1]:
        way = (
            "width and height are swapped: one was turned upright by its EXIF orientation and the other was not; "
            "--orientation ignore takes both as they are stored"
        )
    raise SampleFault(f"the mask is {size[0]}x{size[1]} pixels, its image {image}: {way}")


def _labels_of(image: object, field: MaskField, policy: ImagePolicy) -> tuple[Array, bool]:
    """Return the numbers of a label map, and whether its own EXIF orientation was applied."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        data = bytes(image)
        if is_jpeg(data):
            raise SampleFault("a JPEG cannot be a label map: its numbers are not those that were encoded; use PNG")
        opened = open_unconverted(data, max_pixels=policy.max_pixels)
        numbers = labels(opened, field.dtype)
        if opened.format == "TIFF":  # which Pillow has rotated already
            return numbers, declared_orientation(data) != 1
        orientation = other_orientation(opened) if policy.orient else 1
        return turned(numbers, orientation), orientation != 1
    if isinstance(image, Image.Image):
        return labels(image, field.dtype), False
    if isinstance(image, np.ndarray):
        flat = image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image
        if flat.dtype == field.dtype and flat.ndim == 2 and 0 not in flat.shape:
            return flat, False
        raise SampleFault(
            f"expected a label map as a {field.dtype} array of shape (height, width), got {image.dtype} of shape "
            f"{image.shape}; convert it first, nothing is cast silently"
        )
    raise not_an_image(image, "a label map as a file's bytes, a Pillow image or an array")


def labels(image: Image.Image, dtype: np.dtype[Any]) -> Array:
    """Return a label map's numbers: palette indices, gray levels of 8 or 16 bits, or 0 and 1.

    Raises
    ------
    SampleFault
        If the image holds no labels, or a number does not fit ``dtype``.

    Examples
    --------
    >>> labels(Image.new("P", (2, 1), 7), np.dtype("uint8")).tolist()
    [[7, 7]]
    """
    if SCALED_FROM in image.info:
        raise SampleFault(
            f"its levels go up to {image.info[SCALED_FROM]:,} and are read as parts of 255 or 65,535, so the labels' "
            "numbers are lost; write it with a highest level of 255 or 65535, or as PNG"
        )
    if image.mode in {"P", "L", "1"}:
        numbers: Array = np.asarray(image).astype(np.uint8)
    elif image.mode.startswith("I"):
        numbers = deep_gray(image)
    else:
        raise SampleFault(
            f"a label map has one number per pixel, got mode {image.mode}; turn colours into indices (a palette) first"
        )
    highest = int(numbers.max(initial=0))
    if highest > np.iinfo(dtype).max:
        raise SampleFault(f"label {highest} does not fit {dtype}; declare the field as a mask of uint16")
    return numbers.astype(dtype)
