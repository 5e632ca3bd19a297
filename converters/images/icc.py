"""Embedded colour profiles: pixels as their profile means them -> sRGB, in the channels they have."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image, ImageCms

from converters.source import SampleFault

__all__ = ["has_profile", "in_srgb"]

_GRAY_MODES = frozenset({"1", "L", "LA", "La"})
_ALPHA_MODES = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})


def has_profile(image: Image.Image) -> bool:
    """Tell whether an image has a colour profile."""
    return bool(image.info.get("icc_profile"))


def in_srgb(image: Image.Image) -> Image.Image:
    """Return an image of 8 bits that has a profile in sRGB: mode L, LA, RGB or RGBA.

    Raises
    ------
    SampleFault
        If the profile cannot be read or is not made for such an image.
    """
    if image.mode == "La":  # Pillow takes premultiplied gray no further than LA
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
