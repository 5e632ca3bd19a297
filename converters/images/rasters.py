"""How images of our own kinds of fields are stored: gray, more channels, 16 bits, and label maps.

The part of the image policy that FFCV's image field does not need. Nothing is converted unless the policy says so:
an image that has other channels or another depth than its field is a fault that says both.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from converters.images.errors import plain_array, unfit
from converters.images.icc import has_profile, in_srgb
from converters.images.native_channels import (
    form_of,
    gray,
    labels,
    natural,
    open_whole,
    resized,
    resized_labels,
)
from converters.images.opened_files import FileImage
from converters.images.pillow_files import check_pixels, open_header, open_pillow
from converters.images.rgb import (
    declared_orientation,
    is_jpeg,
    jpeg_orientation,
    other_orientation,
    read_jpeg,
    target_size,
    upright,
)
from converters.source import SampleFault
from dataloading import EncodedImage, ImageField, MaskField, RasterField, UsageError, decode_image
from dataloading.tools import decode_jpeg, probe_jpeg, transcode_jpeg

if TYPE_CHECKING:
    from converters.images.geometry import Geometry
    from converters.images.policy import ImagePolicy

__all__ = [
    "PNG",
    "check_fit",
    "check_size",
    "encode_gray",
    "field_for",
    "kept_png",
    "pixels_of",
    "store_mask",
    "store_raster",
]

Array = npt.NDArray[Any]
JPEG_MODE, RAW_MODE, PNG_MODE = 0, 1, 2
LARGEST_SIDE = 65_535
# What became of an image; the other words are those of the policy.
PNG, RAW, RECODED, KEPT = "png", "raw", "encoded", "kept"


def field_for(pixels: Array, *, lossless: bool) -> ImageField:
    """Return the field that holds images of this form: FFCV's where it can.

    Parameters
    ----------
    pixels : uint8 or uint16 array, shape (height, width) or (height, width, channels)
        The form's example.
    lossless : bool
        Whether PNG is wanted, which FFCV's field has not.

    Examples
    --------
    >>> field_for(np.zeros((2, 3), np.uint16), lossless=False)
    RasterField(1, 'uint16')
    """
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    if channels == 3 and pixels.dtype == np.uint8 and not lossless:
        return ImageField()
    try:
        return RasterField(channels, pixels.dtype)
    except UsageError as error:
        raise SampleFault(str(error)) from error


def pixels_of(image: object, policy: ImagePolicy, notes: list[str] | None = None) -> Array:
    """Return an image's pixels, upright, in the form the policy's ``channels`` asks for.

    Parameters
    ----------
    image : bytes, PIL.Image.Image or numpy.ndarray
        As `ImagePolicy.store` takes it.
    policy : ImagePolicy
        ``channels`` "gray" converts, everything else keeps what the image has.
    notes : list of str, optional
        As `ImagePolicy.store`.

    Returns
    -------
    uint8 or uint16 array, shape (height, width) or (height, width, channels)

    Raises
    ------
    SampleFault
        If the image cannot be read or has no such form.
    """
    if isinstance(image, FileImage):
        image = image.image
    if isinstance(image, (bytes, bytearray, memoryview)):
        data = bytes(image)
        return _from_jpeg(data, policy, notes) if is_jpeg(data) else _from_file(data, policy)
    if isinstance(image, Image.Image):
        check_pixels(image.size, policy.max_pixels)
        try:
            image.load()
        except Exception as error:
            raise SampleFault(f"cannot be decoded: {error or type(error).__name__}") from error
        return _formed(image, policy)
    image = plain_array(image)
    if isinstance(image, np.ndarray):
        return _from_array(image, policy)
    raise unfit(image, "an image as a file's bytes, a Pillow image or an array")


def _from_jpeg(data: bytes, policy: ImagePolicy, notes: list[str] | None) -> Array:
    info = probe_jpeg(data)
    check_pixels((info.width, info.height), policy.max_pixels)
    cmyk = info.colour_space in {"cmyk", "ycck"}
    orientation = jpeg_orientation(data) if policy.orient else 1
    profiled = policy.to_srgb and b"ICC_PROFILE\0" in data
    if info.num_components == 1 and not profiled:
        return np.asarray(upright(Image.fromarray(decode_jpeg(data, notes=notes)[:, :, 0]), orientation))
    # RGB, its profile applied already where that is wished.
    image = upright(read_jpeg(data, cmyk=cmyk, to_srgb=profiled, notes=notes), orientation)
    return np.asarray(image.convert("L") if policy.channels == "gray" or info.num_components == 1 else image)


def _from_file(data: bytes, policy: ImagePolicy) -> Array:
    read = open_pillow if policy.channels == "gray" else open_whole
    image = read(data, max_pixels=policy.max_pixels)
    orientation = other_orientation(image) if policy.orient else 1
    pixels = _formed(image, policy)
    return _turned(pixels, orientation)


def _from_array(image: Array, policy: ImagePolicy) -> Array:
    if image.dtype not in (np.uint8, np.uint16) or image.ndim not in (2, 3) or 0 in image.shape:
        raise unfit(image, "an image as uint8 or uint16 of shape (height, width) or (height, width, channels)")
    pixels = image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image
    if policy.channels != "gray" or (pixels.ndim == 2 and pixels.dtype == np.uint8):
        return np.ascontiguousarray(pixels)
    if (pixels.ndim == 2) == (pixels.dtype == np.uint16) and (pixels.ndim == 2 or pixels.shape[2] in (3, 4)):
        return _formed(Image.fromarray(np.ascontiguousarray(pixels)), policy)
    raise SampleFault(f"there is no agreed way from {form_of(pixels)} to gray")


def _formed(image: Image.Image, policy: ImagePolicy) -> Array:
    if policy.channels == "gray":
        return gray(image, background=policy.background, to_srgb=policy.to_srgb)
    if policy.to_srgb and has_profile(image):
        if image.mode.startswith("I"):
            raise SampleFault("the profile of 16-bit gray cannot be converted to sRGB; leave out --to-srgb")
        image = in_srgb(image)
    return natural(image)


def _turned(pixels: Array, orientation: int) -> Array:
    """Turn an array of any form upright, as `upright` turns a Pillow image."""
    if orientation == 1:
        return pixels
    # Where each pixel comes from, turned by Pillow: so there is one table of EXIF's eight ways.
    height, width = pixels.shape[:2]
    places = Image.fromarray(np.arange(height * width, dtype=np.int32).reshape(height, width))
    order = np.asarray(upright(places, orientation))
    result: Array = pixels.reshape(height * width, -1)[order.reshape(-1)].reshape(*order.shape, *pixels.shape[2:])
    return result


def store_raster(
    image: object, index: int, field: ImageField, policy: ImagePolicy, notes: list[str] | None = None
) -> tuple[EncodedImage, str]:
    """Return an image as a raster field stores it, and what became of it.

    Parameters
    ----------
    image, index, notes
        As `ImagePolicy.store`.
    field : RasterField or ImageField
        What the image must be.
    policy : ImagePolicy

    Raises
    ------
    SampleFault
        If the image cannot be read, or is not of the field's form.
    """
    if isinstance(image, (bytes, bytearray, memoryview)) and is_jpeg(bytes(image[:3])):
        kept = _kept_gray(bytes(image), index, field, policy, notes)
        if kept is not None:
            return kept
    if policy.keep == "files" and isinstance(image, (bytes, bytearray, memoryview)):
        kept = kept_png(bytes(image), field, policy)
        if kept is not None:
            return kept
    pixels = pixels_of(image, policy, notes)
    _check_form(pixels, field, policy)
    height, width = pixels.shape[:2]
    size = target_size((width, height), policy.max_resolution)
    if size != (width, height):
        pixels = resized(pixels, size, Image.Resampling[policy.resample.upper()])
    check_size(size)
    if policy.wants_raw(index):
        return _raw(pixels)
    was_jpeg = isinstance(image, (bytes, bytearray, memoryview)) and is_jpeg(bytes(image[:3]))
    if JPEG_MODE not in field.modes or policy.mode == "png" or (policy.keep == "files" and not was_jpeg):
        return _smaller(pixels, field)
    data = policy.encode(pixels)
    if policy.mode == "smart" and not pixels.nbytes > policy.smart_threshold * len(data):
        return _raw(pixels)
    return EncodedImage(JPEG_MODE, *size, data, field.channels), RECODED


def kept_png(data: bytes, field: ImageField, policy: ImagePolicy) -> tuple[EncodedImage, str] | None:
    """Keep a PNG's very bytes where the field may hold them and nothing of it has to change; None otherwise.

    Raises
    ------
    DecodeError
        If it is damaged.
    """
    if PNG_MODE not in field.modes or not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return None
    header = open_header(data)
    check_pixels(header.size, policy.max_pixels)
    if "transparency" in header.info or getattr(header, "is_animated", False):
        return None
    if (policy.orient and other_orientation(header) != 1) or (policy.to_srgb and has_profile(header)):
        return None
    if target_size(header.size, policy.max_resolution) != header.size:
        return None
    check_size(header.size)
    stored = EncodedImage(PNG_MODE, *header.size, data, field.channels, field.dtype.name)
    try:
        field.encode(stored)
    except UsageError:  # a palette, interlaced, other channels or another depth than the field's
        return None
    decode_image(stored)
    return stored, KEPT


def _kept_gray(
    data: bytes, index: int, field: ImageField, policy: ImagePolicy, notes: list[str] | None
) -> tuple[EncodedImage, str] | None:
    """Keep a gray JPEG as the policy keeps colour ones; None where it must become pixels."""
    info = probe_jpeg(data)
    size = (info.width, info.height)
    check_pixels(size, policy.max_pixels)
    if (info.num_components, field.channels, field.dtype.itemsize) != (1, 1, 1) or policy.mode == "png":
        return None
    if policy.keep == "never" or policy.wants_raw(index) or target_size(size, policy.max_resolution) != size:
        return None
    if (policy.orient and jpeg_orientation(data) != 1) or (policy.to_srgb and b"ICC_PROFILE\0" in data):
        return None
    check_size(size)
    found: list[str] = []
    kept, label = policy.kept(data, found)
    if policy.mode == "smart" and not size[0] * size[1] > policy.smart_threshold * len(kept):
        return None
    if notes is not None:
        notes.extend(found)
    return EncodedImage(JPEG_MODE, *size, kept, 1), label


def store_mask(
    image: object, field: MaskField, policy: ImagePolicy, follow: Geometry | None = None
) -> tuple[EncodedImage, str]:
    """Return a label map as a mask field stores it, without loss, and what became of it.

    Parameters
    ----------
    image : bytes, PIL.Image.Image or numpy.ndarray
        A whole image file's bytes, a Pillow image, or an array of the field's dtype and shape (height, width).
    field : MaskField
    policy : ImagePolicy
        ``max_resolution`` (as images, but nearest), ``orient``, and whether ``mode`` is "raw".
    follow : Geometry, optional
        What became of its image: the mask is turned and resized alike. A file that declares an orientation of its own
        is turned by that, and not a second time.

    Raises
    ------
    SampleFault
        If it cannot be read, holds no labels that fit, or is no map of its image.
    """
    numbers, is_turned = _labels_of(image, field, policy)
    size = numbers.shape[1], numbers.shape[0]
    if follow is None:
        smaller = target_size(size, policy.max_resolution)
    else:
        is_upright = is_turned or follow.drawn_upright
        check_fit(size, follow.upright if is_upright else follow.size, follow)
        numbers = numbers if is_upright else _turned(numbers, follow.orientation)
        size, smaller = follow.upright, follow.new_size
    if size != smaller:
        numbers = resized_labels(numbers, smaller)
    check_size(smaller)
    return _raw(numbers) if policy.mode == "raw" else _smaller(numbers, field)


def check_fit(size: tuple[int, int], expected: tuple[int, int], follow: Geometry) -> None:
    """Refuse a label map of another size than its image; width and height each.

    Raises
    ------
    SampleFault
        Which says what EXIF has to do with it, where it may have.
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
    """Return the numbers of a label map, and whether they were turned upright as its own file says."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        data = bytes(image)
        if is_jpeg(data):
            raise SampleFault("a JPEG cannot be a label map: its numbers are not those that were encoded; use PNG")
        opened = open_whole(data, max_pixels=policy.max_pixels)
        numbers = labels(opened, field.dtype)
        if opened.format == "TIFF":  # which Pillow has turned already
            return numbers, declared_orientation(data) != 1
        orientation = other_orientation(opened) if policy.orient else 1
        return _turned(numbers, orientation), orientation != 1
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
    raise unfit(image, "a label map as a file's bytes, a Pillow image or an array")


def _check_form(pixels: Array, field: ImageField, policy: ImagePolicy) -> None:
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    if (channels, pixels.dtype) == (field.channels, field.dtype):
        return
    expected = form_of(np.empty((0, 0, field.channels), field.dtype))
    hint = "--channels gray or rgb converts all images to one form"
    if policy.channels == "keep":
        hint = f"the first image decides for all of them with --channels keep; {hint}"
    raise SampleFault(f"it has {form_of(pixels)}, its field {expected}; {hint}")


def _raw(pixels: Array) -> tuple[EncodedImage, str]:
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    data = np.ascontiguousarray(pixels, dtype=pixels.dtype.newbyteorder("<")).tobytes()
    return EncodedImage(RAW_MODE, pixels.shape[1], pixels.shape[0], data, channels, pixels.dtype.name), RAW


def _smaller(pixels: Array, field: ImageField) -> tuple[EncodedImage, str]:
    """Store as PNG where that is possible and smaller, else raw."""
    raw = _raw(pixels)
    if PNG_MODE not in field.modes:
        return raw
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
    data = buffer.getvalue()
    if len(data) >= pixels.nbytes:
        return raw
    stored = raw[0]
    return EncodedImage(PNG_MODE, stored.width, stored.height, data, stored.channels, stored.dtype), PNG


def encode_gray(pixels: Array, quality: int) -> bytes:
    """Return a gray JPEG with restart markers.

    Parameters
    ----------
    pixels : uint8 array, shape (height, width)
    quality : int
        1 to 100.
    """
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "JPEG", quality=quality)
    return transcode_jpeg(buffer.getvalue())


def check_size(size: tuple[int, int]) -> None:
    """Raise `SampleFault` for a (width, height) that no record holds."""
    if max(size) > LARGEST_SIDE:
        raise SampleFault(
            f"{size[0]}x{size[1]} pixels: a side may have at most {LARGEST_SIDE:,}; --max-resolution shrinks it"
        )
