"""Our own kinds of fields: what goes in comes out, in the same type, and what does not fit is refused."""

from __future__ import annotations

import io
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from dataloading import decode_image
from dataloading.errors import DecodeError, FormatError, UsageError
from dataloading.format import (
    MODE_JPEG,
    MODE_PNG,
    MODE_RAW,
    BytesField,
    EncodedImage,
    Field,
    ImageField,
    IntField,
    MaskField,
    RasterField,
    Reader,
    TextField,
    VarArrayField,
    Writer,
    verify_file,
)
from dataloading.format.base import kind_arguments
from dataloading.tools import decode_jpeg
from tests.support.foreign import PAGE, descriptor, foreign_file

PNG_KINDS = {(1, "uint8"): "L", (2, "uint8"): "LA", (3, "uint8"): "RGB", (4, "uint8"): "RGBA", (1, "uint16"): "I;16"}


def png(pixels: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", **options)
    return buffer.getvalue()


def as_png(pixels: np.ndarray) -> EncodedImage:
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    return EncodedImage(MODE_PNG, pixels.shape[1], pixels.shape[0], png(pixels), channels, pixels.dtype.name)


def write(path: Path, field: Field, values: list[object], *, first: bool = True) -> Reader:
    """A file with one field of the kind, first or second; the first one also holds the locator."""
    fields = {"v": field, "n": IntField()} if first else {"n": IntField(), "pad": BytesField(), "v": field}
    with Writer(path, fields, num_samples=max(1, len(values)), overwrite=True) as writer:
        for n, value in enumerate(values):
            sample = {"v": value, "n": n} if first else {"n": n, "pad": b"x" * (n % 5), "v": value}
            writer.append(sample)
    reader = Reader(path)
    assert reader.extension is not None
    assert reader.fields["v"] == field and repr(reader.fields["v"]) == repr(field)
    assert hash(reader.fields["v"]) == hash(field)
    return reader


@st.composite
def rasters(draw: st.DrawFn) -> tuple[RasterField, list[np.ndarray]]:
    channels, dtype = draw(st.integers(1, 16)), draw(st.sampled_from(["uint8", "uint16"]))
    shape = st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(channels))
    return RasterField(channels, dtype), draw(st.lists(hnp.arrays(dtype, shape), min_size=1, max_size=4))


@settings(deadline=None)
@given(case=rasters(), first=st.booleans())
def test_images_of_any_channels_and_depth_come_back(
    case: tuple[RasterField, list[np.ndarray]], first: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    field, images = case
    path = tmp_path_factory.getbasetemp() / "rasters.beton"
    may_be_png = (field.channels, field.dtype.name) in PNG_KINDS
    values: list[object] = []
    for n, image in enumerate(images):
        flat = image[:, :, 0] if field.channels == 1 else image
        values.append(as_png(flat) if may_be_png and n % 2 else flat)
    with write(path, field, values, first=first) as reader:
        for n, image in enumerate(images):
            stored = reader.value("v", n)
            assert isinstance(stored, EncodedImage)
            assert (stored.channels, stored.dtype) == (field.channels, field.dtype.name)
            pixels = decode_image(stored)
            assert pixels.dtype == image.dtype
            np.testing.assert_array_equal(pixels.reshape(image.shape), image)
        assert verify_file(path, decode=decode_jpeg, decode_all=True).ok


@settings(deadline=None)
@given(
    dtype=st.sampled_from(["uint8", "uint16"]),
    data=st.data(),
    first=st.booleans(),
)
def test_label_maps_come_back(
    dtype: str, data: st.DataObject, first: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shape = st.tuples(st.integers(1, 12), st.integers(1, 12))
    masks = data.draw(st.lists(hnp.arrays(dtype, shape), min_size=1, max_size=4))
    path = tmp_path_factory.getbasetemp() / "masks.beton"
    values: list[object] = [as_png(mask) if n % 2 else mask for n, mask in enumerate(masks)]
    with write(path, MaskField(dtype), values, first=first) as reader:
        for n, mask in enumerate(masks):
            stored = reader.value("v", n)
            assert isinstance(stored, EncodedImage) and stored.mode == (MODE_PNG if n % 2 else MODE_RAW)
            pixels = decode_image(stored)
            assert pixels.dtype == mask.dtype
            np.testing.assert_array_equal(pixels, mask)


@settings(deadline=None)
@given(
    dtype=st.sampled_from(["bool", "<i4", "<i8", "<f4", "<f8", ">u2", "<U3", "S2", "<M8[s]", "<f2", "<c8"]),
    row=st.lists(st.integers(1, 4), max_size=3),
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=6),
    first=st.booleans(),
)
def test_arrays_of_any_length_come_back(
    dtype: str, row: list[int], lengths: list[int], first: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(len(lengths))
    kind = np.dtype(dtype)
    arrays = []
    for length in lengths:
        count = length * int(np.prod(row, dtype=int)) * kind.itemsize
        arrays.append(rng.integers(0, 2, count, np.uint8).view(kind).reshape(length, *row))
    path = tmp_path_factory.getbasetemp() / "arrays.beton"
    field = VarArrayField(dtype, (None, *row))
    with write(path, field, list(arrays), first=first) as reader:
        for n, array in enumerate(arrays):
            got = reader.value("v", n)
            little = array.dtype.newbyteorder("<")
            assert isinstance(got, np.ndarray) and got.dtype == little and got.shape == array.shape
            assert got.tobytes() == array.astype(little).tobytes() and got.flags.aligned and not got.flags.writeable


@settings(deadline=None)
@given(texts=st.lists(st.text(), min_size=1, max_size=8), first=st.booleans())
def test_texts_come_back_as_text(texts: list[str], first: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "texts.beton"
    with write(path, TextField(), list(texts), first=first) as reader:
        assert [reader.value("v", n) for n in range(len(texts))] == texts


GRAY, DEEP, MASK, BOXES = RasterField(), RasterField(1, "uint16"), MaskField(), VarArrayField("float32", (None, 4))
REFUSED = [
    (GRAY, np.zeros((4, 4), np.uint16), "uint8 array of shape .*got a uint16 array"),
    (GRAY, np.zeros((4, 4, 3), np.uint8), r"\(4, 4, 3\)"),
    (GRAY, EncodedImage(MODE_RAW, 2, 2, bytes(12)), "1 uint8 channel, got one of 3 uint8 channels"),
    (GRAY, EncodedImage(MODE_RAW, 2, 2, bytes(5), 1), "4 bytes, got 5"),
    (GRAY, EncodedImage(7, 2, 2, bytes(4), 1), "0 .JPEG. or 1 .raw. or 2 .PNG., got 7"),
    (RasterField(4), np.zeros((4, 4), np.uint8), r"\(height, width, 4\)"),
    (RasterField(4), EncodedImage(MODE_JPEG, 2, 2, b"jpeg", 4), "1 .raw. or 2 .PNG., got 0"),
    (RasterField(5), EncodedImage(MODE_PNG, 2, 2, b"png", 5), "is 1 .raw., got 2"),
    (DEEP, np.zeros((4, 4), np.int32), "uint16 .* got an int32"),
    (DEEP, EncodedImage(MODE_JPEG, 2, 2, b"jpeg", 1, "uint16"), "got 0"),
    (DEEP, as_png(np.zeros((4, 4), np.uint8)), "1 uint16 channel, got one of 1 uint8"),
    (MASK, np.zeros((4, 4), np.int64), "uint8 .* got an int64"),
    (MASK, np.zeros((0, 4), np.uint8), "height must be 1 to 65535"),
    (MASK, EncodedImage(MODE_JPEG, 2, 2, b"jpeg", 1), "1 .raw. or 2 .PNG., got 0"),
    (MASK, EncodedImage(MODE_PNG, 2, 2, b"no png", 1), "expected a PNG file"),
    (MASK, EncodedImage(MODE_PNG, 3, 4, png(np.zeros((4, 4), np.uint8)), 1), "header .* expected .3, 4, 8, 0"),
    (MASK, EncodedImage(MODE_PNG, 4, 4, png(np.zeros((4, 4, 3), np.uint8)), 1), "header .* is .4, 4, 8, 2"),
    (MASK, [[0, 1]], "an EncodedImage or a uint8 array"),
    (BOXES, np.zeros((3, 4)), r"a float32 array of shape \(None, 4\), got a float64 array of shape \(3, 4\)"),
    (BOXES, np.zeros((3, 5), np.float32), r"\(3, 5\)"),
    (BOXES, np.zeros(4, np.float32), r"\(4,\)"),
    (VarArrayField("float64"), np.arange(3), "float64 .* got an int64"),
    (BOXES, [[0.0] * 4], "list"),
    (TextField(), b"bytes", "text .str., got bytes"),
    (TextField(), "\ud800", "UTF-8"),
    (ImageField(), EncodedImage(MODE_PNG, 2, 2, b"png"), "0 .JPEG. or 1 .raw., got 2"),
    (ImageField(), EncodedImage(MODE_RAW, 2, 2, bytes(4), 1), "3 uint8 channels, got one of 1"),
]


@pytest.mark.parametrize(("field", "value", "message"), REFUSED)
def test_a_value_that_does_not_fit_is_refused_with_sample_and_field(
    field: Field, value: object, message: str, tmp_path: Path
) -> None:
    with Writer(tmp_path / "x.beton", {"id": IntField(), "v": field}, num_samples=3) as writer:
        with pytest.raises(UsageError, match=message) as caught:
            writer.append({"id": 0, "v": value})
        assert str(caught.value).startswith("sample 0, field 'v': ")
        writer.abort()


@pytest.mark.parametrize(
    "make",
    [
        lambda: RasterField(0),
        lambda: RasterField(17),
        lambda: RasterField(True),
        lambda: RasterField(1, "float32"),
        lambda: MaskField("int64"),
        lambda: MaskField("nonsense"),
        lambda: VarArrayField("float32", ()),
        lambda: VarArrayField("float32", (3, 4)),
        lambda: VarArrayField("float32", (None, None)),
        lambda: VarArrayField("float32", (None, 0)),
        lambda: VarArrayField("O", (None,)),
    ],
)
def test_impossible_fields_are_refused(make: object) -> None:
    with pytest.raises(UsageError):
        make()  # type: ignore[operator]


def test_big_endian_pixels_are_the_same_numbers(tmp_path: Path) -> None:
    pixels = np.arange(12, dtype=">u2").reshape(3, 4) * 1000
    with write(tmp_path / "x.beton", DEEP, [pixels]) as reader:
        stored = reader.value("v", 0)
    assert isinstance(stored, EncodedImage)
    np.testing.assert_array_equal(decode_image(stored), pixels)


def test_a_gray_field_takes_gray_jpegs_and_refuses_colour_ones() -> None:
    ramp = np.tile(np.arange(0, 240, 4, dtype=np.uint8), (30, 1))
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, "JPEG")
    pixels = decode_image(EncodedImage(MODE_JPEG, 60, 30, buffer.getvalue(), 1))
    np.testing.assert_array_equal(pixels, np.asarray(Image.open(buffer)))
    colour = io.BytesIO()
    Image.fromarray(np.dstack([ramp] * 3)).save(colour, "JPEG")
    with pytest.raises(DecodeError, match="3 colour components"):
        decode_image(EncodedImage(MODE_JPEG, 60, 30, colour.getvalue(), 1))
    with pytest.raises(DecodeError, match="the sample table says 61x30"):
        decode_image(EncodedImage(MODE_JPEG, 61, 30, buffer.getvalue(), 1))
    with pytest.raises(DecodeError, match="PNG"):
        decode_image(EncodedImage(MODE_PNG, 60, 30, buffer.getvalue(), 1))
    with pytest.raises(DecodeError, match="12 bytes, expected"):
        decode_image(EncodedImage(MODE_RAW, 60, 30, bytes(12), 1, "uint16"))


@pytest.mark.parametrize(
    ("type_id", "arguments", "message"),
    [
        (255, kind_arguments("hologram"), "kind 'hologram', which this library does not know"),
        (255, kind_arguments("text"), "has the type 3, this one says 255"),
        (3, kind_arguments("mask", dtype="uint8"), "has the type 255, this one says 3"),
        (255, kind_arguments("mask", dtype="float32"), "not usable"),
        (255, kind_arguments("raster", channels=0, dtype="uint8"), "not usable"),
        (255, kind_arguments("raster", channels=1, colour="blue"), "not usable"),
        (3, kind_arguments("vararray", dtype="|O", shape=[]), "not usable"),
        (3, kind_arguments("vararray", dtype="<f4", shape=[-1]), "not usable"),
        (3, kind_arguments("vararray", dtype="<f4", shape=7), "not usable"),
        (255, kind_arguments("mask")[:-3], "damaged"),
        (255, kind_arguments("mask").replace(b'"mask"', b"[1, 2]"), "damaged"),
    ],
)
def test_invalid_descriptions_are_refused(type_id: int, arguments: bytes, message: str, tmp_path: Path) -> None:
    path = foreign_file(
        tmp_path / "x.beton",
        descriptors=[descriptor(1, "label"), descriptor(type_id, "v", arguments)],
        records=[bytes(8 + 16)],
        allocations=[],
        pages=bytes(PAGE),
    )
    with pytest.raises(FormatError, match=f"field 'v': .*{message}"):
        Reader(path)


def damaged(path: Path, find: bytes, change: bytes) -> None:
    """Change stored bytes and forget the checksums, as a file of FFCV has none."""
    data = bytearray(path.read_bytes())
    place = data.index(find)
    data[place : place + len(change)] = change
    data[1001:1065] = bytes(64)
    path.write_bytes(data)


def test_verify_reads_pngs_texts_and_arrays(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 50), np.uint8)
    data = png(noise)
    middle = data[len(data) // 2 :][:8]
    cases: list[tuple[Field, object, bytes, bytes, str]] = [
        (MASK, as_png(noise), middle, bytes(8), "PNG's chunk b'IDAT' .* is damaged"),
        (MASK, as_png(noise), b"IEND", b"IENE", "PNG's chunk b'IENE' .* is damaged"),
        (TextField(), "find this text", b"find", b"\xff\xfe\xfd\xfc", "stored text is damaged"),
    ]
    for field, value, find, change, message in cases:
        path = tmp_path / "x.beton"
        write(path, field, [value], first=False).close()
        assert verify_file(path, decode=decode_jpeg, decode_all=True).ok
        damaged(path, find, change)
        report = verify_file(path, decode=decode_jpeg)
        assert not report.ok and report.samples == [0]
        assert re.search(message, str(report)), str(report)


def test_a_png_that_inflates_without_end_is_stopped(tmp_path: Path) -> None:
    from dataloading.format.png import check_png

    def chunk(kind: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")

    honest = png(np.zeros((4, 4), np.uint8))
    head = honest[:33]
    bomb = head + chunk(b"IDAT", zlib.compress(bytes(1 << 26))) + chunk(b"IEND", b"")
    with pytest.raises(FormatError, match="bytes of rows, expected 20"):
        check_png(np.frombuffer(bomb, np.uint8), 4, 4, 1, 1)
    check_png(np.frombuffer(honest, np.uint8), 4, 4, 1, 1)
    for cut in (len(honest) - 1, len(honest) - 13, 40, 20, 0):
        with pytest.raises(FormatError):
            check_png(np.frombuffer(honest[:cut], np.uint8), 4, 4, 1, 1)


def test_facts_count_the_values_of_each_mode(tmp_path: Path) -> None:
    mask = np.zeros((6, 8), np.uint8)
    with write(tmp_path / "x.beton", MASK, [mask, as_png(mask), as_png(mask)]) as reader:
        assert reader.extension is not None
        facts = reader.extension.facts["v"]
    assert (facts["num_png"], facts["num_raw"], facts["num_jpeg"]) == (2, 1, 0)
    assert facts["uniform_size"] == [8, 6]


def test_a_mode_that_the_field_does_not_allow_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.beton"
    write(path, MASK, [np.full((3, 4), 9, np.uint8)], first=False).close()
    damaged(path, b"\x01\x04\0\x03\0", b"\0")
    with (
        Reader(path) as reader,
        pytest.raises(FormatError, match=r"record .*mode, width, height, pointer. is \(0, 4, 3"),
    ):
        reader.locate("v", [0])
