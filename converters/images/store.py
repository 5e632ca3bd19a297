"""Converts a source's image to stored bytes: its own bytes if they can be kept, else newly encoded ones.

A JPEG that needs no change is never decoded and encoded again: its coefficients are copied (same pixels, usually fewer
bytes) into a baseline JPEG with restart markers, of which the loader decodes only the crop. What is stored depends on
the image, its field, the policy and the sample's index alone.
"""

from __future__ import annotations

import dataclasses

from PIL import Image

from converters.images.encoding import (
    ENCODED,
    KEPT,
    LARGEST_JPEG,
    TRANSCODED,
    Stored,
    as_jpeg,
    as_png,
    as_raw,
    check_size,
)
from converters.images.errors import plain_array
from converters.images.geometry import Geometry
from converters.images.masks import check_mask_size, store_mask
from converters.images.native_channels import describe_pixels, resized
from converters.images.opened_files import FileImage
from converters.images.pillow_files import DamagedImage, check_pixels, open_header, open_pillow
from converters.images.pixels import Array, pixels_of
from converters.images.policy import ImagePolicy
from converters.images.rgb import has_profile, is_jpeg, jpeg_orientation, other_orientation, target_size, upright
from converters.source import SampleFault
from dataloading import DecodeError, EncodedImage, ImageField, MaskField, RasterField, UsageError, decode_image
from dataloading.tools import MODE_JPEG, MODE_PNG, check_jpeg, decode_jpeg, probe_jpeg, reencode_jpeg, transcode_jpeg

__all__ = ["decode_damaged", "store_image"]

# The subsamplings that TurboJPEG, FFCV's decoder, reads. JPEGs with others are encoded again.
_READABLE_SUBSAMPLING = frozenset({"4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "4:0:0"})
_FFCV_FIELD = ImageField()


def store_image(
    policy: ImagePolicy,
    image: object,
    index: int,
    field: ImageField | None = None,
    *,
    notes: list[str] | None = None,
    follow: Geometry | None = None,
) -> Stored:
    """Return a stored image, and how it was stored ("transcoded", "kept", "encoded", "raw" or "png").

    Parameters
    ----------
    policy : ImagePolicy
        The options.
    image : bytes, PIL.Image.Image, FileImage, numpy.ndarray or EncodedImage
        The bytes of an image file, a Pillow image, one whose file is known, pixels of shape (height, width) or
        (height, width, channels), or an image that is encoded already and stays as it is.
    index : int
        Index of the sample in its source; decides mode "mix".
    field : ImageField, optional
        The field of the image; by default FFCV's kind, which holds RGB.
    notes : list of str, optional
        Gets a line for each oddity of a JPEG that leaves its pixels intact, such as stray bytes.
    follow : Geometry, optional
        For a label map, how its image was changed: the map is rotated and resized in the same way.

    Raises
    ------
    SampleFault
        If the image cannot be read or stored, with the reason.
    """
    field = field or _FFCV_FIELD
    if isinstance(image, EncodedImage):
        if follow is not None and isinstance(field, MaskField):
            check_mask_size((image.width, image.height), follow.new_size, follow)
        return image, KEPT
    if isinstance(image, FileImage):
        # Not rotated: the user's program passes the pixels it wants.
        policy = dataclasses.replace(policy, orient=False)
        image = _file_or_pixels(policy, image, field)
    try:
        if isinstance(field, MaskField):
            return store_mask(plain_array(image), field, policy, follow)
        return _store(policy, image, index, field, notes)
    except DecodeError as error:
        raise DamagedImage(error.reason) from error


def _file_or_pixels(policy: ImagePolicy, image: FileImage, field: ImageField) -> object:
    """Return the image's file if its bytes may be stored, else the image, which has the same pixels."""
    is_rgb = type(field) is ImageField and policy.channels == "rgb"
    has_same_channels = is_rgb or (image.has_mode_of_file and not isinstance(field, MaskField))
    may_stay = is_jpeg(image.data) or policy.keep == "files"
    return image.data if has_same_channels and may_stay else image.image


def _store(policy: ImagePolicy, image: object, index: int, field: ImageField, notes: list[str] | None) -> Stored:
    if type(field) is ImageField and policy.mode == "png":
        raise SampleFault("FFCV's image field holds no PNG; mode 'png' needs --channels keep or gray")
    # Any image becomes RGB for these fields. For others it must have their channels and depth.
    to_rgb = policy.channels == "rgb" and (
        type(field) is ImageField or (policy.keep == "files" and field == RasterField(3))
    )
    may_be_jpeg = MODE_JPEG in field.modes and (to_rgb or policy.mode != "png")
    was_jpeg = False
    if isinstance(image, (bytes, bytearray, memoryview)):
        image = bytes(image)
        was_jpeg = is_jpeg(image)
        kept = None
        if was_jpeg and may_be_jpeg:
            kept = _kept_jpeg(policy, image, index, field, to_rgb, notes)
        elif not was_jpeg and policy.keep == "files":
            kept = _kept_png(policy, image, field)
        if kept is not None:
            return kept
    pixels = pixels_of(image, policy, notes, to_rgb=to_rgb)
    _check_channels(pixels, field, policy)
    height, width = pixels.shape[:2]
    size = target_size((width, height), policy.max_resolution)
    if size != (width, height):
        pixels = resized(pixels, size, policy.resample)
    check_size(size)
    if policy.wants_raw(index):
        return as_raw(pixels)
    if not may_be_jpeg or (policy.keep == "files" and MODE_PNG in field.modes and not was_jpeg):
        return as_png(pixels, field)
    if policy.mode == "smart" and max(size) > LARGEST_JPEG:
        return as_raw(pixels)
    jpeg = as_jpeg(pixels, field, policy)
    return as_raw(pixels) if policy.prefers_raw(pixels.nbytes, len(jpeg[0].data)) else jpeg


def _kept_jpeg(
    policy: ImagePolicy, data: bytes, index: int, field: ImageField, to_rgb: bool, notes: list[str] | None
) -> Stored | None:
    """Return a JPEG losslessly, or as `reencode_jpeg` does, or None if its pixels must be encoded."""
    info = probe_jpeg(data)
    size = (info.width, info.height)
    check_pixels(size, policy.max_pixels)
    is_gray = info.num_components == 1
    if not to_rgb and (is_gray != (field.channels == 1) or (policy.channels == "gray" and not is_gray)):
        return None
    if (
        policy.wants_raw(index)
        or target_size(size, policy.max_resolution) != size
        or info.colour_space in {"cmyk", "ycck"}
        or info.subsampling not in _READABLE_SUBSAMPLING
        or (policy.to_srgb and b"ICC_PROFILE\0" in data)
        or (policy.orient and jpeg_orientation(data) != 1)
    ):
        return None
    check_size(size)
    found: list[str] = []
    # Both ways read all data, so damage is found now and not in training.
    if policy.keep in ("bytes", "files"):
        check_jpeg(data, notes=found)
        found = [f"{note}, kept with the file's other bytes" for note in found]
        kept, became = data, KEPT
    elif policy.keep == "never":
        again = reencode_jpeg(data, quality=policy.quality, subsampling=policy.subsampling, notes=found)
        if again is None:
            return None
        kept, became = again, ENCODED
    else:
        kept, became = transcode_jpeg(data, notes=found), TRANSCODED
    if policy.prefers_raw(size[0] * size[1] * field.channels, len(kept)):
        if field.channels == 1:
            return None
        stored, became = as_raw(decode_jpeg(data))
    else:
        stored = EncodedImage(MODE_JPEG, *size, kept, field.channels)
    if notes is not None:
        notes += found
    return stored, became


def _kept_png(policy: ImagePolicy, data: bytes, field: ImageField) -> Stored | None:
    """Return a PNG's exact bytes if the field may hold them and nothing must change, else None."""
    if MODE_PNG not in field.modes or not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return None
    header = open_header(data)
    check_pixels(header.size, policy.max_pixels)
    if (
        "transparency" in header.info
        or getattr(header, "is_animated", False)
        or (policy.orient and other_orientation(header) != 1)
        or (policy.to_srgb and has_profile(header))
        or target_size(header.size, policy.max_resolution) != header.size
    ):
        return None
    check_size(header.size)
    stored = EncodedImage(MODE_PNG, *header.size, data, field.channels, field.dtype.name)
    try:
        field.encode(stored)
    except UsageError:  # a palette, interlaced, or other channels or another depth than the field's
        return None
    decode_image(stored)  # raises where it is damaged
    return stored, KEPT


def _check_channels(pixels: Array, field: ImageField, policy: ImagePolicy) -> None:
    num_channels = (*pixels.shape, 1)[2]
    if (num_channels, pixels.dtype) != (field.channels, field.dtype):
        got = describe_pixels(num_channels, pixels.dtype)
        expected = describe_pixels(field.channels, field.dtype)
        hint = "--channels gray or rgb converts all images to one form"
        if policy.channels == "keep":
            hint = f"the first image decides for all of them with --channels keep; {hint}"
        raise SampleFault(f"it has {got}, its field {expected}; {hint}")


def decode_damaged(policy: ImagePolicy, data: bytes) -> Image.Image:
    """Return the upright part of a damaged file that Pillow reads with ``LOAD_TRUNCATED_IMAGES``.

    Raises
    ------
    SampleFault
        If nothing can be read.
    """
    image = open_pillow(data, max_pixels=policy.max_pixels, as_shown=True)
    return upright(image, other_orientation(image) if policy.orient else 1)
