"""Converts a source's image to upright pixels: RGB, gray, or with its own channels and depth."""

from __future__ import annotations

import numpy as np
from PIL import Image

from converters.images.errors import not_an_image, plain_array
from converters.images.native_channels import Array, describe_pixels, natural, open_unconverted
from converters.images.opened_files import FileImage
from converters.images.pillow_files import check_pixels, open_pillow
from converters.images.policy import ImagePolicy
from converters.images.rgb import (
    as_rgb,
    has_profile,
    in_srgb,
    is_jpeg,
    jpeg_orientation,
    other_orientation,
    read_jpeg,
    upright,
)
from converters.source import SampleFault
from dataloading.tools import decode_jpeg, probe_jpeg

__all__ = ["Array", "pixels_of", "turned"]


def pixels_of(image: object, policy: ImagePolicy, notes: list[str] | None = None, *, to_rgb: bool = False) -> Array:
    """Return an image's pixels, upright.

    Parameters
    ----------
    image : bytes, PIL.Image.Image, FileImage or numpy.ndarray
        See `converters.images.store.store_image`.
    policy : ImagePolicy
        ``channels`` "gray" converts; with every other value an image keeps its channels, unless ``to_rgb``.
    notes : list of str, optional
        See `converters.images.store.store_image`.
    to_rgb : bool
        Convert to 8-bit RGB, whatever ``channels`` says.

    Returns
    -------
    uint8 or uint16 array, shape (height, width) or (height, width, channels)

    Raises
    ------
    SampleFault
        If the image cannot be read or converted.
    """
    if isinstance(image, FileImage):
        image = image.image
    if isinstance(image, (bytes, bytearray, memoryview)):
        data = bytes(image)
        return _from_jpeg(data, policy, notes, to_rgb) if is_jpeg(data) else _from_file(data, policy, to_rgb)
    if isinstance(image, Image.Image):
        check_pixels(image.size, policy.max_pixels)
        try:
            image.load()
        except Exception as error:
            raise SampleFault(f"cannot be decoded: {error or type(error).__name__}") from error
        # Not rotated: the user's program passes the pixels it wants.
        return _converted(image, policy, to_rgb)
    image = plain_array(image)
    if isinstance(image, np.ndarray):
        return _from_array(image, policy, to_rgb)
    array = "a uint8 array (height, width, channels)" if to_rgb else "an array"
    raise not_an_image(image, f"an image as a file's bytes, a Pillow image or {array}")


def _from_jpeg(data: bytes, policy: ImagePolicy, notes: list[str] | None, to_rgb: bool) -> Array:
    info = probe_jpeg(data)
    check_pixels((info.width, info.height), policy.max_pixels)
    orientation = jpeg_orientation(data) if policy.orient else 1
    cmyk = info.colour_space in {"cmyk", "ycck"}
    profiled = policy.to_srgb and b"ICC_PROFILE\0" in data
    is_gray = info.num_components == 1 and not to_rgb
    if not (cmyk or profiled) and (is_gray or policy.channels != "gray"):
        pixels = decode_jpeg(data, notes=notes)
        return turned(pixels[:, :, 0] if is_gray else pixels, orientation)
    image = read_jpeg(data, cmyk=cmyk, to_srgb=profiled, notes=notes)
    if not to_rgb and (is_gray or policy.channels == "gray"):
        image = image.convert("L")
    return np.asarray(upright(image, orientation))


def _from_file(data: bytes, policy: ImagePolicy, to_rgb: bool) -> Array:
    read = open_pillow if to_rgb or policy.channels == "gray" else open_unconverted
    image = read(data, max_pixels=policy.max_pixels)
    orientation = other_orientation(image) if policy.orient else 1
    return turned(_converted(image, policy, to_rgb), orientation)


def _from_array(image: Array, policy: ImagePolicy, to_rgb: bool) -> Array:
    pixels = image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image
    if to_rgb:
        if image.dtype != np.uint8 or not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] in {1, 3, 4})):
            raise not_an_image(image, "an image as uint8 of shape (height, width) or (height, width, 1, 3 or 4)")
        if 0 in image.shape:
            raise SampleFault(f"an array of shape {image.shape} holds no pixels")
        return _converted(Image.fromarray(np.ascontiguousarray(pixels)), policy, to_rgb)
    if image.dtype not in (np.uint8, np.uint16) or image.ndim not in (2, 3) or 0 in image.shape:
        raise not_an_image(image, "an image as uint8 or uint16 of shape (height, width) or (height, width, channels)")
    if policy.channels != "gray" or (pixels.ndim == 2 and pixels.dtype == np.uint8):
        return np.ascontiguousarray(pixels)
    if (pixels.ndim == 2) == (pixels.dtype == np.uint16) and (pixels.ndim == 2 or pixels.shape[2] in (3, 4)):
        return _converted(Image.fromarray(np.ascontiguousarray(pixels)), policy, to_rgb)
    raise SampleFault(f"there is no agreed way from {describe_pixels((*pixels.shape, 1)[2], pixels.dtype)} to gray")


def _converted(image: Image.Image, policy: ImagePolicy, to_rgb: bool) -> Array:
    if to_rgb or policy.channels == "gray":
        rgb = as_rgb(image, background=policy.background, to_srgb=policy.to_srgb)
        return np.asarray(rgb if to_rgb else rgb.convert("L"))
    if policy.to_srgb and has_profile(image):
        if image.mode.startswith("I"):
            raise SampleFault("the profile of 16-bit gray cannot be converted to sRGB; leave out --to-srgb")
        image = in_srgb(image)
    return natural(image)


def turned(pixels: Array, orientation: int) -> Array:
    """Return an array of any channels and depth rotated upright, as `upright` does for Pillow images."""
    if orientation == 1:
        return pixels
    if pixels.dtype == np.uint8 and pixels.shape[2:] in {(), (3,), (4,)}:
        return np.asarray(upright(Image.fromarray(pixels), orientation))
    # Pillow cannot hold these pixels, but it can rotate their positions, so the orientations are defined only once.
    height, width = pixels.shape[:2]
    positions = Image.fromarray(np.arange(height * width, dtype=np.int32).reshape(height, width))
    order = np.asarray(upright(positions, orientation))
    result: Array = pixels.reshape(height * width, -1)[order.reshape(-1)].reshape(*order.shape, *pixels.shape[2:])
    return result
