"""Pixels as a file's own format means them, where Pillow leaves something undone; and colour profiles."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from converters.images.pixels import pixels_of
from converters.images.policy import ImagePolicy
from converters.images.store import store_image
from converters.source import SampleFault
from dataloading import MaskField, RasterField, decode_image
from tests.converters.making import encoded, photo, pillow_pixels

RAW = ImagePolicy(mode="raw")
KEEP = ImagePolicy(mode="raw", channels="keep")
SRGB = ImagePolicy(mode="raw", to_srgb=True)


def as_rgb(data: bytes, policy: ImagePolicy = RAW) -> np.ndarray:
    return decode_image(store_image(policy, data, 0)[0])


def png(size: tuple[int, int], depth: int, colour: int, rows: np.ndarray, **chunks: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = b"".join(b"\0" + row.tobytes() for row in rows)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, 0))
        + b"".join(chunk(kind.encode(), data) for kind, data in chunks.items())
        + chunk(b"IDAT", zlib.compress(pixels))
        + chunk(b"IEND", b"")
    )


def gray_tiff(width: int, height: int, bits: int, data: bytes, *, white_is_zero: bool = False) -> bytes:
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 0 if white_is_zero else 1, 273: 0, 277: 1, 278: height,
            279: len(data)}  # fmt: skip
    tags[273] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + data


def profile(space: bytes, gamma: float) -> bytes:
    """A small ICC profile of a display: Display P3's colours, or gray, with a pure gamma."""

    def fixed(*values: float) -> bytes:
        return b"".join(struct.pack(">i", round(value * 65536)) for value in values)

    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, int(gamma * 256))
    white = (0.9642, 1, 0.8249)
    tags = [(b"desc", b"desc" + bytes(4) + struct.pack(">I", 2) + b"x" + bytes(79)), (b"cprt", b"text" + bytes(8)),
            (b"wtpt", b"XYZ " + bytes(4) + fixed(*white))]  # fmt: skip
    if space == b"GRAY":
        tags.append((b"kTRC", curve))
    else:
        primaries = {b"r": (0.5151, 0.2412, -0.0011), b"g": (0.2920, 0.6922, 0.0419), b"b": (0.1571, 0.0666, 0.7841)}
        tags += [(name + b"XYZ", b"XYZ " + bytes(4) + fixed(*value)) for name, value in primaries.items()]
        tags += [(name + b"TRC", curve) for name in primaries]
    at = 132 + 12 * len(tags)
    table = body = b""
    for name, data in tags:
        padded = data + bytes(-len(data) % 4)
        table += struct.pack(">4sII", name, at + len(body), len(padded))
        body += padded
    head = struct.pack(">I4sI4s4s4s", at + len(body), b"lcms", 0x02400000, b"mntr", space, b"XYZ ")
    head += struct.pack(">6H", 2024, 1, 1, 0, 0, 0) + b"acsp" + bytes(28) + fixed(*white)
    return head + bytes(128 - len(head)) + struct.pack(">I", len(tags)) + table + body


P3, GRAY = profile(b"RGB ", 1.8), profile(b"GRAY", 1.0)


def in_srgb(image: Image.Image, icc: bytes) -> np.ndarray:
    converted = ImageCms.profileToProfile(
        image, ImageCms.ImageCmsProfile(io.BytesIO(icc)), ImageCms.createProfile("sRGB"), outputMode="RGB"
    )
    return np.asarray(converted)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_transparent_level_of_few_bits_is_transparent(bits: int) -> None:
    levels = np.arange(16, dtype=np.uint8).reshape(2, 8) % (1 << bits)
    packed = np.packbits(np.unpackbits(levels[:, :, None], axis=2)[:, :, -bits:].reshape(2, -1), axis=1)
    data = png((8, 2), bits, 0, packed, tRNS=struct.pack(">H", 1))
    gray = levels.astype(int) * 255 // ((1 << bits) - 1)
    blue = ImagePolicy(mode="raw", background=(0, 0, 255))
    expected = np.where((levels == 1)[..., None], (0, 0, 255), gray[..., None])
    np.testing.assert_array_equal(as_rgb(data, blue), expected)
    np.testing.assert_array_equal(pixels_of(data, KEEP), np.dstack([gray, np.where(levels == 1, 0, 255)]))


def test_a_transparent_level_of_16_bits_becomes_an_alpha_channel_of_16_bits() -> None:
    levels = np.array([[7, 8, 65535], [0, 7, 9]], ">u2")
    pixels = pixels_of(png((3, 2), 16, 0, levels, tRNS=struct.pack(">H", 7)), KEEP)
    assert pixels.dtype == np.uint16
    np.testing.assert_array_equal(pixels, np.dstack([levels, np.where(levels == 7, 0, 65535)]))


def test_a_transparent_colour_of_16_bits_is_refused_and_not_forgotten() -> None:
    colours = np.arange(18, dtype=">u2").reshape(2, 9)
    with pytest.raises(SampleFault, match="16-bit colours and one of them transparent"):
        as_rgb(png((3, 2), 16, 2, colours, tRNS=struct.pack(">HHH", 0, 1, 2)))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_metadata_that_cannot_be_read_does_not_keep_an_image_out(kind: str) -> None:
    image = photo(20, 10)
    data = encoded(image, kind, exif=b"Exif\0\0no such thing", **({"lossless": True} if kind == "WEBP" else {}))
    np.testing.assert_array_equal(as_rgb(data), np.asarray(image))


def test_12_bit_gray_uses_the_full_range() -> None:
    levels = np.array([[0, 1, 2048, 4095]])
    packed = int("".join(f"{level:012b}" for level in levels[0]), 2).to_bytes(6, "big")
    data = gray_tiff(4, 1, 12, packed)
    np.testing.assert_array_equal(as_rgb(data)[..., 0], [[0, 0, 128, 255]])
    np.testing.assert_array_equal(pixels_of(data, KEEP), np.rint(levels / 4095 * 65535))


def test_16_bit_gray_whose_zero_is_white_is_inverted() -> None:
    levels = np.array([[0, 1000, 65535]], "<u2")
    data = gray_tiff(3, 1, 16, levels.tobytes(), white_is_zero=True)
    np.testing.assert_array_equal(pixels_of(data, KEEP), 65535 - levels.astype(int))
    np.testing.assert_array_equal(as_rgb(data)[..., 0], [[255, 251, 0]])


def test_a_label_map_whose_numbers_are_scaled_on_reading_is_refused() -> None:
    with pytest.raises(SampleFault, match="levels go up to 20"):
        store_image(RAW, b"P5\n3 1\n20\n\x00\x01\x14", 0, MaskField())
    stored, _ = store_image(RAW, b"P5\n3 1\n255\n\x00\x01\x14", 0, MaskField())
    np.testing.assert_array_equal(decode_image(stored).reshape(-1), [0, 1, 20])


@pytest.mark.parametrize("size", [(65_501, 1), (1, 65_535)])
def test_a_side_that_no_jpeg_has_is_refused_with_the_way_out_or_stored_raw(size: tuple[int, int]) -> None:
    data = encoded(Image.new("RGB", size), "PNG")
    with pytest.raises(SampleFault, match=r"at most 65,500 a side; --max-resolution"):
        store_image(ImagePolicy(), data, 0)
    assert store_image(ImagePolicy(mode="smart"), data, 0)[1] == "raw"


# Colour profiles


def test_a_transparent_colour_stays_transparent_when_its_profile_is_converted() -> None:
    image = photo(20, 10)
    colour = image.getpixel((3, 4))
    shows = (np.asarray(image) != colour).any(axis=2)[..., None]
    expected = np.where(shows, in_srgb(image, P3), 255)
    assert (~shows).any()
    np.testing.assert_array_equal(as_rgb(encoded(image, "PNG", icc_profile=P3, transparency=colour), SRGB), expected)


def test_gray_with_alpha_is_converted_by_its_gray_profile() -> None:
    gray = photo(20, 10).convert("L")
    alpha = Image.fromarray(np.where(np.arange(200).reshape(10, 20) % 3, 255, 0).astype(np.uint8))
    both = gray.copy()
    both.putalpha(alpha)
    expected = np.where(np.asarray(alpha)[..., None], in_srgb(gray, GRAY), 255)
    np.testing.assert_array_equal(as_rgb(encoded(both, "PNG", icc_profile=GRAY), SRGB), expected)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("channels", ["rgb", "gray", "keep"])
def test_gray_is_converted_by_its_profile_whatever_the_file_and_the_channels(kind: str, channels: str) -> None:
    data = encoded(photo(20, 10).convert("L"), kind, icc_profile=GRAY)
    policy = ImagePolicy(mode="raw", to_srgb=True, channels=channels)
    pixels = decode_image(store_image(policy, data, 0, None if channels == "rgb" else RasterField(1))[0])
    expected = in_srgb(Image.open(io.BytesIO(data)), GRAY)
    np.testing.assert_array_equal(pixels, expected if channels == "rgb" else expected[..., 0])


def test_a_gray_jpeg_is_not_kept_where_its_profile_must_be_converted() -> None:
    data = encoded(photo(20, 10).convert("L"), "JPEG", icc_profile=GRAY)
    kinds = [
        store_image(ImagePolicy(channels="gray", to_srgb=wish), data, 0, RasterField(1))[1] for wish in (False, True)
    ]
    assert kinds == ["transcoded", "encoded"]


def test_16_bit_gray_is_converted_by_its_profile() -> None:
    levels = np.arange(200, dtype=np.uint16).reshape(10, 20) * 327
    data = encoded(Image.fromarray(levels), "PNG", icc_profile=GRAY)
    eight = Image.fromarray(((levels.astype(int) + 128) // 257).astype(np.uint8))
    np.testing.assert_array_equal(as_rgb(data, SRGB), in_srgb(eight, GRAY))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_gray_with_the_profile_of_a_colour_space_is_converted(kind: str) -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = encoded(photo(20, 10).convert("L"), kind, icc_profile=srgb)
    np.testing.assert_array_equal(as_rgb(data, SRGB), pillow_pixels(data))


@pytest.mark.parametrize("icc", [b"nonsense" * 20, GRAY])
def test_a_profile_that_is_broken_or_of_another_model_is_a_named_fault(icc: bytes) -> None:
    with pytest.raises(SampleFault, match="colour profile cannot be converted"):
        as_rgb(encoded(photo(20, 10), "PNG", icc_profile=icc), SRGB)


def test_colours_are_converted_where_channels_are_kept() -> None:
    image = photo(20, 10)
    policy = ImagePolicy(mode="raw", to_srgb=True, channels="keep")
    np.testing.assert_array_equal(pixels_of(encoded(image, "PNG", icc_profile=P3), policy), in_srgb(image, P3))
