"""Images that are not to become RGB: gray, as they are, label maps; Pillow is the judge, or a fault says why."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

import converters
from converters.cli import convert
from converters.images.channels import stored_fields
from converters.images.masks import labels
from converters.images.native_channels import natural, resized
from converters.images.policy import ImagePolicy
from converters.images.store import store_image
from converters.source import SampleFault
from converters.tools.info import info
from converters.tools.verify import verify
from dataloading import (
    ConvertError,
    EncodedImage,
    Field,
    ImageField,
    IntField,
    MaskField,
    RasterField,
    Reader,
    TextField,
    UsageError,
    VarArrayField,
    decode_image,
)
from dataloading.tools import probe_jpeg
from tests.converters.making import encoded, photo

GRAY, KEEP = ImagePolicy(channels="gray", mode="png"), ImagePolicy(channels="keep", mode="png")


def palette(transparent: bool) -> bytes:
    image = photo(21, 13).quantize(30)
    return encoded(image, "PNG", **({"transparency": bytes([0, 128])} if transparent else {}))


def deep(width: int = 21, height: int = 13) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 1 << 16, (height, width), np.uint16))


def turned(image: Image.Image, kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, kind, exif=exif)


RGB, L = photo(21, 13), photo(21, 13).convert("L")
RGBA = Image.merge("RGBA", (*RGB.split(), photo(21, 13, 5).convert("L")))
FILES: dict[str, bytes] = {
    "gray jpeg": encoded(L, "JPEG", quality=95),
    "colour jpeg": encoded(RGB, "JPEG", quality=95),
    "progressive gray jpeg": encoded(L, "JPEG", progressive=True),
    "cmyk jpeg": encoded(RGB.convert("CMYK"), "JPEG"),
    "bilevel": encoded(L.convert("1"), "PNG"),
    "gray png": encoded(L, "PNG"),
    "16-bit gray": encoded(deep(), "PNG"),
    "16-bit tiff": encoded(deep(), "TIFF"),
    "gray with alpha": encoded(RGBA.convert("LA"), "PNG"),
    "rgb": encoded(RGB, "PNG"),
    "rgba": encoded(RGBA, "PNG"),
    "one transparent colour": encoded(RGB, "PNG", transparency=RGB.getpixel((3, 3))),
    "one transparent level": encoded(L, "PNG", transparency=L.getpixel((3, 3))),
    "palette": palette(False),
    "transparent palette": palette(True),
    "bmp": encoded(RGB, "BMP"),
    "gif": encoded(RGB, "GIF"),
    "webp": encoded(RGBA, "WEBP", lossless=True),
    "pgm": encoded(L, "PPM"),
    **{f"gray jpeg turned {k}": turned(L, "JPEG", k) for k in range(2, 9)},
    **{f"16-bit png turned {k}": turned(deep(), "PNG", k) for k in (3, 6)},
    **{f"rgba png turned {k}": turned(RGBA, "PNG", k) for k in (5, 8)},
}


def upright(data: bytes) -> Image.Image:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert image is not None
    return image


def expected_gray(data: bytes) -> np.ndarray:
    """What Pillow makes of it, step by step: upright, on white, 16 bits scaled, luma."""
    image = upright(data)
    if image.mode.startswith("I"):
        return np.rint(np.asarray(image) / 257).astype(np.uint8)
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white.convert("RGB")
    return np.asarray((image.convert("RGB") if image.mode == "CMYK" else image).convert("L"))


def expected_natural(data: bytes) -> np.ndarray:
    image = upright(data)
    if image.mode.startswith("I"):
        return np.asarray(image).astype(np.uint16)
    if image.has_transparency_data:
        return np.asarray(image.convert("LA" if image.mode in ("L", "LA") else "RGBA"))
    return np.asarray(image.convert("L" if image.mode in ("L", "1") else "RGB"))


def field_of(pixels: np.ndarray) -> RasterField:
    return RasterField(1 if pixels.ndim == 2 else pixels.shape[2], pixels.dtype)


@pytest.mark.parametrize("kind", FILES)
def test_gray_is_pillows_luma_of_every_kind_of_file(kind: str) -> None:
    stored, _ = store_image(GRAY, FILES[kind], 0, RasterField())
    np.testing.assert_array_equal(decode_image(stored), expected_gray(FILES[kind]))
    RasterField().encode(stored)


@pytest.mark.parametrize("kind", FILES)
def test_kept_images_have_the_channels_depth_and_pixels_of_their_file(kind: str) -> None:
    expected = expected_natural(FILES[kind])
    field = field_of(expected)
    for mode in ("png", "raw"):
        stored, _ = store_image(ImagePolicy(channels="keep", mode=mode), FILES[kind], 0, field)
        got = decode_image(stored)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
        field.encode(stored)
    other = RasterField(5)
    with pytest.raises(SampleFault, match="its field 5 channels of uint8"):
        store_image(KEEP, FILES[kind], 0, other)


@pytest.mark.parametrize("kind", ["gray jpeg", "progressive gray jpeg"])
def test_gray_jpegs_stay_jpegs_with_their_pixels(kind: str) -> None:
    for channels in ("gray", "keep"):
        stored, label = store_image(ImagePolicy(channels=channels), FILES[kind], 0, RasterField())
        assert (label, stored.mode, stored.channels) == ("transcoded", 0, 1)
        assert probe_jpeg(stored.data).num_components == 1
        np.testing.assert_array_equal(decode_image(stored), expected_natural(FILES[kind]))
        stored, label = store_image(ImagePolicy(channels=channels, keep="bytes"), FILES[kind], 0, RasterField())
        assert (label, bytes(stored.data)) == ("kept", FILES[kind])


def test_what_must_be_encoded_becomes_a_gray_jpeg_near_the_original() -> None:
    stored, label = store_image(ImagePolicy(channels="gray", quality=95), FILES["rgb"], 0, RasterField())
    info = probe_jpeg(stored.data)
    assert (label, info.num_components, info.baseline) == ("encoded", 1, True)
    assert np.abs(decode_image(stored).astype(int) - expected_gray(FILES["rgb"])).mean() < 4
    small, _ = store_image(ImagePolicy(channels="gray", max_resolution=10), FILES["gray jpeg"], 0, RasterField())
    assert (small.width, small.height) == (10, 6)


def test_mode_smart_stores_gray_pixels_where_they_are_smaller() -> None:
    policy = ImagePolicy(channels="gray", mode="smart")
    tiny = encoded(Image.new("L", (4, 4), 9), "PNG")
    assert store_image(policy, tiny, 0, RasterField())[0].mode == 1
    assert store_image(policy, encoded(photo(200, 150), "JPEG"), 0, RasterField())[0].mode == 0


def test_a_colour_jpeg_keeps_its_bytes_where_three_channels_are_kept() -> None:
    data = FILES["colour jpeg"]
    for field in (ImageField(), RasterField(3)):
        stored, label = store_image(ImagePolicy(channels="keep", keep="bytes"), data, 0, field)
        assert (label, bytes(stored.data)) == ("kept", data)
    with pytest.raises(SampleFault, match="1 channel of uint8, its field 3 channels of uint8"):
        store_image(ImagePolicy(channels="keep"), FILES["gray jpeg"], 0, ImageField())


@pytest.mark.parametrize("policy", [GRAY, KEEP], ids=["gray", "keep"])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"<html>", "not an image"),
        (FILES["gray jpeg"][:300], "ends early"),
        (FILES["gray jpeg"][:-200], "ends early"),
        (FILES["16-bit gray"][:200], "cannot be decoded"),
        (encoded(Image.fromarray(np.zeros((3, 4), np.float32)), "TIFF"), "floating-point"),
        (encoded(Image.fromarray(np.zeros((3, 4), np.int32)), "TIFF"), "32-bit gray"),
    ],
)
def test_what_cannot_be_read_is_a_fault_with_its_reason(policy: ImagePolicy, data: bytes, reason: str) -> None:
    for mode in ("png", "jpg", "raw"):
        with pytest.raises(SampleFault, match=reason):
            store_image(ImagePolicy(channels=policy.channels, mode=mode), data, 0, RasterField())


def png_of_16_bit_rgb() -> bytes:
    """By hand: Pillow cannot write one."""
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")

    head = (4).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes([16, 2, 0, 0, 0])
    rows = b"".join(b"\0" + bytes(range(24)) for _ in range(3))
    png = b"\x89PNG\r\n\x1a\n"
    return png + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_colours_of_16_bits_are_refused_rather_than_halved() -> None:
    for data in (png_of_16_bit_rgb(), b"P6 2 1 65535\n" + bytes(12)):
        with pytest.raises(SampleFault, match="16 bits, of which only the high bytes"):
            store_image(KEEP, data, 0, RasterField(3, "uint16"))
        assert store_image(GRAY, data, 0, RasterField())[0].channels == 1  # luma has 8 bits anyhow


def test_python_images_are_taken_as_they_are() -> None:
    for image in (L, RGBA, RGBA.convert("LA"), deep()):
        expected = natural(image)
        field = field_of(expected)
        for value in (image, expected):
            stored, _ = store_image(ImagePolicy(mode="png"), value, 0, field)
            np.testing.assert_array_equal(decode_image(stored), expected)
    many = np.random.default_rng(0).integers(0, 1 << 16, (5, 6, 7), np.uint16)
    np.testing.assert_array_equal(decode_image(store_image(ImagePolicy(), many, 0, RasterField(7, "uint16"))[0]), many)
    with pytest.raises(SampleFault, match=r"it has 1 channel of uint8, its field 1 channel of uint16"):
        store_image(ImagePolicy(), L, 0, RasterField(1, "uint16"))
    with pytest.raises(SampleFault, match=r"uint8 or uint16 of shape .*, got a float32 array"):
        store_image(ImagePolicy(), np.zeros((3, 4), np.float32), 0, RasterField())
    with pytest.raises(SampleFault, match=r"got int \d"):
        store_image(ImagePolicy(), 3, 0, RasterField())
    with pytest.raises(SampleFault, match="no agreed way from 7 channels of uint16 to gray"):
        store_image(GRAY, many, 0, RasterField())


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(["L", "RGB", "LA"]))
def test_shrinking_is_pillows(width: int, height: int, mode: str) -> None:
    image = photo(60, 50).convert(mode)
    got = resized(np.asarray(image), (width, height), "lanczos")
    np.testing.assert_array_equal(got, np.asarray(image.resize((width, height), Image.Resampling.LANCZOS)))


def test_16_bit_images_shrink_in_floats_and_never_wrap() -> None:
    edges = np.where(np.arange(400).reshape(20, 20) % 7 < 3, 0, 0xFFFF).astype(np.uint16)
    got = resized(edges, (9, 9), "lanczos")
    exact = np.asarray(Image.fromarray(edges.astype(np.float32)).resize((9, 9), Image.Resampling.LANCZOS))
    assert exact.max() > 0xFFFF and exact.min() < 0  # the filter overshoots here
    np.testing.assert_array_equal(got, np.rint(exact.clip(0, 0xFFFF)).astype(np.uint16))


# ---- label maps


def test_masks_keep_indices_levels_and_bits() -> None:
    indices = np.random.default_rng(0).integers(0, 20, (13, 21), np.uint8)
    with_colours = Image.fromarray(indices)
    with_colours.putpalette(np.random.default_rng(1).integers(0, 256, 768, np.uint8).tobytes())
    assert with_colours.mode == "P"
    for value in (encoded(with_colours, "PNG"), with_colours, encoded(Image.fromarray(indices), "PNG"), indices):
        stored, label = store_image(ImagePolicy(), value, 0, MaskField())
        np.testing.assert_array_equal(decode_image(stored), indices)
        assert label in ("png", "raw") and len(stored.data) <= indices.size
    bits = encoded(L.convert("1"), "PNG")
    assert set(np.unique(decode_image(store_image(ImagePolicy(), bits, 0, MaskField())[0]))) == {0, 1}
    stored, label = store_image(ImagePolicy(mode="raw"), indices, 0, MaskField())
    assert (label, stored.mode) == ("raw", 1)


def test_masks_of_16_bits_need_a_field_of_16_bits_where_their_numbers_do() -> None:
    numbers = np.full((4, 5), 300, np.uint16)
    data = encoded(Image.fromarray(numbers), "PNG")
    np.testing.assert_array_equal(decode_image(store_image(ImagePolicy(), data, 0, MaskField("uint16"))[0]), numbers)
    with pytest.raises(SampleFault, match="label 300 does not fit uint8"):
        store_image(ImagePolicy(), data, 0, MaskField())
    narrow = encoded(Image.fromarray(numbers // 100), "PNG")
    assert decode_image(store_image(ImagePolicy(), narrow, 0, MaskField())[0]).tolist() == [[3] * 5] * 4


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (FILES["gray jpeg"], "a JPEG cannot be a label map"),
        (FILES["rgb"], "one number per pixel, got mode RGB"),
        (FILES["gray with alpha"], "got mode LA"),
        (b"nothing", "not an image"),
        (np.zeros((3, 4), np.int64), "a uint8 array .*, got int64"),
        (np.zeros((3, 4, 3), np.uint8), r"\(3, 4, 3\)"),
        (7, r"got int 7"),
    ],
)
def test_what_is_no_label_map_is_a_fault_with_its_reason(value: object, reason: str) -> None:
    with pytest.raises(SampleFault, match=reason):
        store_image(ImagePolicy(), value, 0, MaskField())


def test_masks_shrink_with_their_images_and_gain_no_label() -> None:
    numbers = (np.add.outer(np.arange(60), np.arange(90)) // 7 % 5 * 50).astype(np.uint8)
    policy = ImagePolicy(max_resolution=37)
    image, _ = store_image(policy, encoded(photo(90, 60), "JPEG"), 0, ImageField())
    mask, _ = store_image(policy, encoded(Image.fromarray(numbers), "PNG"), 0, MaskField())
    assert (mask.width, mask.height) == (image.width, image.height)
    expected = np.asarray(Image.fromarray(numbers).resize((mask.width, mask.height), Image.Resampling.NEAREST))
    np.testing.assert_array_equal(decode_image(mask), expected)
    assert set(np.unique(decode_image(mask))) <= set(np.unique(numbers))
    deep_mask, _ = store_image(policy, numbers.astype(np.uint16), 0, MaskField("uint16"))
    np.testing.assert_array_equal(decode_image(deep_mask), expected)


def test_labels_of_a_masks_turned_file_are_turned() -> None:
    numbers = np.arange(12, dtype=np.uint8).reshape(3, 4)
    data = turned(Image.fromarray(numbers), "PNG", 6)
    np.testing.assert_array_equal(
        decode_image(store_image(ImagePolicy(), data, 0, MaskField())[0]), np.rot90(numbers, -1)
    )
    np.testing.assert_array_equal(
        decode_image(store_image(ImagePolicy(orient=False), data, 0, MaskField())[0]), numbers
    )
    assert labels(Image.new("P", (1, 1), 9), np.dtype(np.uint16)).dtype == np.uint16


# ---- whole conversions


def folder(root: Path, *kinds: str) -> Path:
    (root / "a").mkdir(parents=True)
    for number, kind in enumerate(kinds):
        ending = "jpg" if "jpeg" in kind else "png"
        (root / "a" / f"{number}.{ending}").write_bytes(FILES.get(kind, b""))
    return root


def run(command: Any, *words: object) -> Any:
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


def test_the_command_line_makes_gray_files(tmp_path: Path) -> None:
    kinds = ["rgba", "gray jpeg", "16-bit gray", "palette"]
    src = folder(tmp_path / "src", *kinds)
    out = tmp_path / "x.beton"
    done = run(convert, "imagefolder", src, out, "--channels", "gray", "--mode", "png", "--num-workers", 0, "--quiet")
    assert done.exit_code == 0, done.output
    with Reader(out) as reader:
        assert reader.fields["image"] == RasterField()
        for number, kind in enumerate(kinds):
            stored = reader.value("image", number)
            assert isinstance(stored, EncodedImage)
            np.testing.assert_array_equal(decode_image(stored), expected_gray(FILES[kind]))
    assert run(verify, out).exit_code == 0
    described = run(info, out, "--json")
    assert json.loads(described.output)["fields"]["image"]["kind"] == "RasterField"
    again = tmp_path / "y.beton"
    done = run(convert, "beton", out, again, "--mode", "png", "--num-workers", 0, "--quiet")
    assert done.exit_code == 0, done.output
    with Reader(out) as one, Reader(again) as two:
        assert one.fields["image"] == two.fields["image"]
        for number in range(4):
            pixels = [decode_image(reader.value("image", number)) for reader in (one, two)]  # type: ignore[arg-type]
            np.testing.assert_array_equal(*pixels)


@pytest.mark.parametrize(
    ("kinds", "field"),
    [
        (("16-bit gray", "16-bit gray"), RasterField(1, "uint16")),
        (("gray jpeg", "gray png"), RasterField()),
        (("rgba", "webp"), RasterField(4)),
        (("rgb", "colour jpeg"), ImageField()),
        (("nothing", "rgba"), RasterField(4)),
    ],
)
def test_the_first_readable_image_decides_what_is_kept(kinds: tuple[str, ...], field: Field, tmp_path: Path) -> None:
    source = converters.ImageFolder(folder(tmp_path / "src", *kinds))
    policy = ImagePolicy(channels="keep")
    assert stored_fields(source, policy, range(2)) == {"image": field, "label": IntField()}
    report = converters.convert(
        source, tmp_path / "x.beton", policy=policy, options=converters.Options(on_error="skip")
    )
    assert report.num_samples == 2 - kinds.count("nothing")
    with Reader(tmp_path / "x.beton") as reader:
        assert reader.fields["image"] == field


def test_another_form_than_the_firsts_names_its_file(tmp_path: Path) -> None:
    source = converters.ImageFolder(folder(tmp_path / "src", "gray jpeg", "rgb"))
    with pytest.raises(
        ConvertError, match=r"a/1\.png.*3 channels of uint8, its field 1 channel .*the first image decides"
    ):
        converters.convert(
            source, tmp_path / "x.beton", policy=ImagePolicy(channels="keep"), options=converters.Options()
        )
    assert not (tmp_path / "x.beton").exists()


def test_pngs_for_ffcvs_field_are_refused_before_any_work(tmp_path: Path) -> None:
    source = converters.ImageFolder(folder(tmp_path / "src", "rgb"))
    with pytest.raises(UsageError, match=r"'image' is of FFCV's kind, which holds no PNG.*--channels"):
        converters.convert(source, tmp_path / "x.beton", policy=ImagePolicy(mode="png"), options=converters.Options())
    kept = ImagePolicy(channels="keep", mode="png")
    assert stored_fields(source, kept, range(1))["image"] == RasterField(3)


def test_nothing_readable_decides_nothing(tmp_path: Path) -> None:
    source = converters.ImageFolder(folder(tmp_path / "src", "nothing", "nothing"))
    with pytest.raises(ConvertError, match=r"none of the first 2 samples.*a/0\.png: the file is empty"):
        stored_fields(source, ImagePolicy(channels="keep"), range(2))


def test_a_python_dataset_of_images_masks_boxes_and_captions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [
        {
            "image": photo(40, 30, n), "mask": rng.integers(0, 9, (30, 40), np.uint8), "depth": deep(40, 30),
            "boxes": rng.random((n, 4), np.float32), "caption": "ü" * n,
        }
        for n in range(5)
    ]  # fmt: skip
    fields = {
        "image": ImageField(), "mask": MaskField(), "depth": RasterField(1, "uint16"),
        "boxes": VarArrayField("float32", (None, 4)), "caption": TextField(),
    }  # fmt: skip
    for workers in (0, 2):
        out = tmp_path / f"{workers}.beton"
        converters.write(samples, out, fields, num_workers=workers, quiet=True)
    assert (tmp_path / "0.beton").read_bytes() == (tmp_path / "2.beton").read_bytes()
    with Reader(tmp_path / "0.beton") as reader:
        for n, sample in enumerate(samples):
            np.testing.assert_array_equal(decode_image(reader.value("mask", n)), sample["mask"])  # type: ignore[arg-type]
            np.testing.assert_array_equal(decode_image(reader.value("depth", n)), natural(sample["depth"]))  # type: ignore[arg-type]
            np.testing.assert_array_equal(reader.value("boxes", n), sample["boxes"])  # type: ignore[call-overload]
            assert reader.value("caption", n) == sample["caption"]


def test_a_value_that_does_not_fit_names_sample_field_expected_and_got(tmp_path: Path) -> None:
    fields = {"image": ImageField(), "mask": MaskField(), "boxes": VarArrayField("float64", (None, 4))}
    good = {"image": photo(8, 6), "mask": np.zeros((6, 8), np.uint8), "boxes": np.zeros((1, 4))}
    for name, value, reason in (
        (
            "boxes",
            np.zeros((2, 4), np.int64),
            r"float64 array of shape \(None, 4\), got an int64 array of shape \(2, 4\)",
        ),
        ("mask", np.zeros((6, 8), np.int64), "a uint8 array .* got int64"),
        ("image", 3, r"got int 3"),
    ):
        samples = [good, {**good, name: value}]
        with pytest.raises(ConvertError, match=rf"sample 1 .*field '{name}': .*{reason}"):
            converters.write(samples, tmp_path / "x.beton", fields, num_workers=0, quiet=True)


def test_placeholders_have_the_form_of_their_field(tmp_path: Path) -> None:
    fields = {"image": RasterField(1, "uint16"), "mask": MaskField(), "n": IntField()}
    samples = [{"image": b"broken", "mask": np.ones((3, 4), np.uint8), "n": 7}]
    converters.write(samples, tmp_path / "x.beton", fields, num_workers=0, quiet=True, on_error="placeholder")
    with Reader(tmp_path / "x.beton") as reader:
        image, mask = (decode_image(reader.value(name, 0)) for name in ("image", "mask"))  # type: ignore[arg-type]
        assert reader.value("n", 0) == 7
    assert image.shape == mask.shape and image.dtype == np.uint16 and not mask.any()
