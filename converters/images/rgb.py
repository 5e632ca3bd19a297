"""Converts images of any kind to upright 8-bit RGB.

====================  ==================================================================================
JPEG                  decoded strictly by the native core (same pixels as Pillow); damage is an error
CMYK, YCCK JPEG       decoded by Pillow after the native core has found the data whole
gray, bilevel         replicated to three channels (bilevel: 0 and 255)
16-bit gray           scaled, ``round(v / 257)``, never clipped
16-bit colour         the high byte, as Pillow reads it
palette               its colours
alpha, transparency   composited on the background colour
animation             first frame
orientation           applied (EXIF or XMP), unless ``orient`` is off
colour profile        ignored, as every common training pipeline does, or converted to sRGB if asked
32-bit gray, float    refused: their range is unknown
====================  ==================================================================================
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from converters.images.native_channels import deep_gray
from converters.images.pillow_files import open_header, open_pillow
from converters.source import SampleFault
from dataloading.tools import check_jpeg, decode_jpeg

__all__ = [
    "as_rgb", "declared_orientation", "has_profile", "in_srgb", "is_jpeg", "jpeg_orientation", "other_orientation",
    "read_jpeg", "target_size", "upright",
]  # fmt: skip

# Value of the EXIF tag 0x0112 -> the operation that makes the stored image upright (CIPA DC-008, 4.6.5).
_ORIENTATION = 0x0112
_TURN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_GRAY_MODES = frozenset({"1", "L", "LA", "La"})
_ALPHA_MODES = frozenset({"LA", "PA", "La", "RGBA", "RGBa"})


def is_jpeg(data: bytes) -> bool:
    """Return whether ``data`` is a JPEG file."""
    return data[:2] == b"\xff\xd8"


def jpeg_orientation(data: bytes) -> int:
    """Return the orientation (1..8) a JPEG file declares in EXIF or XMP; 1 where it declares none that can be read."""
    # Pillow takes 0.1 ms to parse metadata, and finding that there is none takes a few microseconds.
    return declared_orientation(data) if _may_have_metadata(data) else 1


def _may_have_metadata(data: bytes) -> bool:
    """Return whether a JPEG may have a segment of EXIF or XMP (APP1) before its first scan."""
    position = 2
    while len(data) > position + 3 and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xDA:  # the scan, where Pillow stops as well
            return False
        if marker == 0xE1 or marker < 0xC0 or 0xD0 <= marker <= 0xD9 or marker == 0xFF:
            break
        position += 2 + (data[position + 2] << 8 | data[position + 3])
    # Found, or an odd header, which Pillow may read in its own way.
    return b"\xff\xe1" in data


def declared_orientation(data: bytes) -> int:
    """Return the orientation (1..8) that an image file of any format declares; 1 where none can be read."""
    try:
        return other_orientation(open_header(data))
    except Exception:  # if Pillow cannot read the header, decoding will raise the error
        return 1


def other_orientation(image: Image.Image) -> int:
    """Return the orientation (1..8) that an opened image declares; 1 where it declares none that can be read."""
    try:
        with warnings.catch_warnings():  # Pillow warns about odd metadata
            warnings.simplefilter("ignore")
            value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # metadata may be damaged in any way
        return 1
    return value if isinstance(value, int) and value in _TURN else 1


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """Return ``image`` made upright, given its EXIF ``orientation`` (1..8); lossless."""
    turn = _TURN.get(orientation)
    return image if turn is None else image.transpose(turn)


def read_jpeg(data: bytes, *, cmyk: bool, to_srgb: bool, notes: list[str] | None = None) -> Image.Image:
    """Decode a JPEG file to RGB, strictly: damage that libjpeg merely warns of is an error.

    ``cmyk`` says that its colours are CMYK or YCCK; ``to_srgb`` converts an embedded colour profile.

    Raises
    ------
    DecodeError
        If the data is damaged.
    SampleFault
        If Pillow cannot decode it.
    """
    if cmyk or to_srgb:
        # Pillow decodes damaged entropy-coded data silently.
        check_jpeg(data, notes=notes)
        return as_rgb(open_pillow(data), background=(0, 0, 0), to_srgb=to_srgb)
    return Image.fromarray(decode_jpeg(data, notes=notes))


def as_rgb(image: Image.Image, *, background: tuple[int, int, int], to_srgb: bool = False) -> Image.Image:
    """Return a loaded Pillow image of any mode as 8-bit RGB, transparent pixels on ``background``.

    Raises
    ------
    SampleFault
        If the mode has no defined conversion to RGB.

    Examples
    --------
    >>> as_rgb(Image.new("RGBA", (1, 1), (255, 0, 0, 0)), background=(0, 0, 255)).getpixel((0, 0))
    (0, 0, 255)
    """
    if image.mode == "F":
        raise SampleFault("floating-point pixels have no agreed range; convert the file to 8 or 16 bits first")
    if image.mode.startswith("I;16") or image.mode == "I":
        image = _gray16(image)
    if image.mode == "La":  # Pillow converts premultiplied gray only to this mode
        image = image.convert("LA")
    try:
        if to_srgb and has_profile(image):
            image = in_srgb(image)
        if image.mode in _ALPHA_MODES or "transparency" in image.info:
            canvas = Image.new("RGBA", image.size, (*background, 255))
            canvas.alpha_composite(image.convert("RGBA"))
            image = canvas
        return image if image.mode == "RGB" else image.convert("RGB")
    except (ValueError, OSError, KeyError) as error:
        raise SampleFault(f"pixels of mode {image.mode} cannot be turned into RGB: {error}") from error


def _gray16(image: Image.Image) -> Image.Image:
    samples = deep_gray(image).astype(np.uint32)
    # Full scale to full scale: 65535 / 255 = 257 exactly.
    gray = ((samples + 128) // 257).astype(np.uint8)
    flat = Image.fromarray(gray)
    if "icc_profile" in image.info:
        flat.info["icc_profile"] = image.info["icc_profile"]
    level = image.info.get("transparency")
    if isinstance(level, int):  # PNG's tRNS chunk names one 16-bit level as transparent; it must match before scaling
        alpha = np.where(samples == level, 0, 255).astype(np.uint8)
        flat.putalpha(Image.fromarray(alpha))
    return flat


def target_size(size: tuple[int, int], longest: int | None) -> tuple[int, int]:
    """Return (width, height) after shrinking to a longest side of ``longest`` pixels.

    Examples
    --------
    >>> target_size((3000, 7), 400)
    (400, 1)
    >>> target_size((320, 240), 400)
    (320, 240)
    """
    width, height = size
    side = max(width, height)
    if longest is None or side <= longest:
        return width, height
    # Integers: FFCV's float ratio sometimes leaves the longest side one pixel short.
    return max(1, width * longest // side), max(1, height * longest // side)


def has_profile(image: Image.Image) -> bool:
    """Return whether an image has a colour profile."""
    return bool(image.info.get("icc_profile"))


def in_srgb(image: Image.Image) -> Image.Image:
    """Return an image of 8 bits that has a profile in sRGB: mode L, LA, RGB or RGBA.

    Raises
    ------
    SampleFault
        If the profile cannot be read or does not suit the image.
    """
    if image.mode == "La":  # Pillow converts premultiplied gray only to LA
        image = image.convert("LA")
    transparent = image.mode in _ALPHA_MODES or "transparency" in image.info
    # Before the colours change: a transparent colour is found by its stored value.
    alpha = image.convert("RGBA").getchannel("A") if transparent else None
    is_gray = image.mode in _GRAY_MODES
    try:
        profile: Any = ImageCms.ImageCmsProfile(io.BytesIO(image.info["icc_profile"]))
        space = str(profile.profile.xcolor_space).strip()
        # Gray files often carry the profile of the RGB space that their levels were made in.
        converted = ImageCms.profileToProfile(
            _plain(image, is_gray=is_gray and space == "GRAY"), profile, _srgb(), outputMode="RGB"
        )
    except (ImageCms.PyCMSError, OSError, ValueError) as error:
        raise SampleFault(f"its colour profile cannot be converted to sRGB: {error}") from error
    assert converted is not None
    result = converted.convert("L") if is_gray else converted
    if alpha is not None:
        result.putalpha(alpha)
    return result


def _plain(image: Image.Image, *, is_gray: bool) -> Image.Image:
    """Return the colours without alpha, in the colour model of the profile."""
    if image.mode in {"CMYK", "LAB", "RGB"}:
        return image
    colours = image.convert("RGBA").convert("RGB") if image.mode in _ALPHA_MODES else image.convert("RGB")
    return colours.convert("L") if is_gray else colours


def _srgb() -> Any:
    return ImageCms.createProfile("sRGB")
