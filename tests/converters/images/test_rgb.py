"""Every kind of image file gives the pixels Pillow shows a person, or a reason why not."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageOps

from converters.images.pixels import pixels_of
from converters.images.policy import ImagePolicy
from converters.images.rgb import (
    is_jpeg,
    jpeg_orientation,
    open_pillow,
    read_jpeg,
    target_size,
    upright,
)
from converters.source import SampleFault
from dataloading import DecodeError
from tests.converters.making import encoded, photo, pillow_pixels

WHITE = (255, 255, 255)


def read(data: bytes, **options: Any) -> np.ndarray:
    return pixels_of(data, ImagePolicy(**options), to_rgb=True)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP", "GIF", "PPM"])
@pytest.mark.parametrize("size", [(1, 1), (17, 33), (64, 3)])
def test_lossless_formats_give_pillows_pixels(kind: str, size: tuple[int, int]) -> None:
    data = encoded(photo(*size), kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert not is_jpeg(data)
    np.testing.assert_array_equal(read(data), pillow_pixels(data))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_opaque_modes_give_pillows_pixels(mode: str) -> None:
    data = encoded(photo(31, 20).convert(mode), "PNG")
    np.testing.assert_array_equal(read(data), pillow_pixels(data))


def test_sixteen_bit_gray_is_scaled_not_clipped() -> None:
    levels = np.arange(0, 65536, 7, dtype=np.uint16)
    levels = levels[: len(levels) // 64 * 64].reshape(-1, 64)
    got = read(encoded(Image.fromarray(levels), "PNG"))
    expected = np.floor(levels / 257 + 0.5).astype(np.uint8)
    np.testing.assert_array_equal(got, np.repeat(expected[:, :, None], 3, axis=2))
    assert got.min() == 0
    assert got.max() >= 254


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_alpha_is_composited_on_the_background(mode: str) -> None:
    alpha = np.linspace(0, 255, 40 * 30).reshape(30, 40).round().astype(np.uint8)
    image = photo(40, 30).convert(mode[:-1])
    colours = np.asarray(image.convert("RGB")).astype(np.float64)
    image.putalpha(Image.fromarray(alpha))
    share = alpha[:, :, None] / 255
    for background in (WHITE, (0, 0, 0), (10, 200, 60)):
        expected = colours * share + np.array(background) * (1 - share)
        got = read(encoded(image, "PNG"), background=background)
        assert np.abs(got - expected).max() <= 1


def test_transparent_palette_entry_shows_the_background() -> None:
    image = Image.new("P", (4, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.putdata([0, 1, 2, 1])
    for kind in ("PNG", "GIF"):
        got = read(encoded(image, kind, transparency=1), background=(7, 8, 9))
        assert got[0].tolist() == [[255, 0, 0], [7, 8, 9], [0, 0, 255], [7, 8, 9]]


def test_transparent_level_of_gray_and_sixteen_bit_png_shows_the_background() -> None:
    gray = Image.fromarray(np.array([[0, 100, 200]], np.uint8))
    assert read(encoded(gray, "PNG", transparency=100), background=(1, 2, 3))[0].tolist() == [
        [0, 0, 0],
        [1, 2, 3],
        [200, 200, 200],
    ]


def test_animation_gives_its_first_frame() -> None:
    frames = [photo(20, 10, seed=seed).quantize(8) for seed in (1, 2, 3)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(read(data), np.asarray(frames[0].convert("RGB")))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_as_pillow_does(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = photo(30, 20)
    for kind in ("PNG", "TIFF"):
        data = encoded(image, kind, exif=exif)
        expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
        np.testing.assert_array_equal(read(data), expected)
        if kind == "PNG":  # libtiff's own reading order makes Pillow turn TIFF files itself
            np.testing.assert_array_equal(read(data, orient=False), np.asarray(image))
    jpeg = encoded(image, "JPEG", exif=exif)
    assert jpeg_orientation(jpeg) == orientation
    turned = upright(read_jpeg(jpeg, cmyk=False, to_srgb=False), orientation)
    np.testing.assert_array_equal(np.asarray(turned), np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(jpeg)))))


def test_jpeg_without_or_with_odd_metadata_is_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 77
    assert jpeg_orientation(encoded(photo(8, 8), "JPEG")) == 1
    assert jpeg_orientation(encoded(photo(8, 8), "JPEG", exif=exif)) == 1
    broken = encoded(photo(8, 8), "JPEG", exif=b"Exif\0\0garbage that is no TIFF header")
    assert jpeg_orientation(broken) == 1
    assert jpeg_orientation(b"\xff\xd8\xff") == 1


def test_cmyk_jpeg_gives_pillows_pixels() -> None:
    data = encoded(photo(33, 21).convert("CMYK"), "JPEG", quality=95)
    got = np.asarray(read_jpeg(data, cmyk=True, to_srgb=False))
    np.testing.assert_array_equal(got, pillow_pixels(data))


def test_cut_cmyk_jpeg_is_refused_although_pillow_might_pad_it() -> None:
    data = encoded(photo(80, 60).convert("CMYK"), "JPEG")
    with pytest.raises(DecodeError, match="early"):
        read_jpeg(data[: len(data) // 2], cmyk=True, to_srgb=False)


def test_colour_profile_is_converted_only_on_request() -> None:
    # A linear-light profile: the same numbers mean brighter colours than in sRGB.
    linear = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes()
    plain = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    image = photo(20, 20)
    assert (read(encoded(image, "PNG", icc_profile=plain)) == np.asarray(image)).all()
    same = read(encoded(image, "PNG", icc_profile=plain), to_srgb=True).astype(int)
    assert np.abs(same - np.asarray(image)).max() <= 1
    with pytest.raises(SampleFault, match="colour profile"):
        read(encoded(image, "PNG", icc_profile=linear[:200]), to_srgb=True)


def test_ranges_nobody_agrees_on_are_refused() -> None:
    floats = Image.fromarray(np.zeros((3, 3), np.float32))
    ints = Image.fromarray(np.full((3, 3), 70000, np.int32))
    with pytest.raises(SampleFault, match="32-bit gray"):
        read(encoded(ints, "TIFF"))
    with pytest.raises(SampleFault, match="floating-point"):
        read(encoded(floats, "TIFF"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", r"empty \(0 bytes\)"),
        (b"<html><body>404</body></html>", "<html><body>404"),
        (bytes(range(50)), "not an image"),
        (encoded(photo(50, 40), "PNG")[:-300], "cannot be decoded"),
        (encoded(photo(50, 40), "TIFF")[:2000], "cannot be decoded|not an image"),
        (encoded(photo(50, 40), "WEBP")[:100], "cannot be decoded|not an image"),
    ],
    ids=["empty", "html", "noise", "png", "tiff", "webp"],
)
def test_unreadable_data_gives_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(SampleFault, match=reason):
        open_pillow(data)


@given(st.integers(1, 70000), st.integers(1, 70000), st.integers(1, 65535))
def test_shrinking_keeps_the_longest_side_exact_and_the_other_at_least_one(width: int, height: int, limit: int) -> None:
    small = target_size((width, height), limit)
    if max(width, height) <= limit:
        assert small == (width, height)
        return
    assert max(small) == limit
    assert min(small) >= 1
    exact = min(width, height) * limit / max(width, height)
    assert min(small) == max(1, int(exact + 1e-9)) or abs(min(small) - exact) < 1
