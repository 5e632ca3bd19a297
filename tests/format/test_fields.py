"""Values are stored exactly or refused with expected against got; nothing is cast."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloading.errors import FormatError, UsageError
from dataloading.format import (
    MODE_JPEG,
    MODE_RAW,
    BytesField,
    CustomField,
    EncodedImage,
    Field,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    MaskField,
    NDArrayField,
    RasterField,
    Reader,
    TorchTensorField,
    VarArrayField,
    Writer,
)
from tests.support.foreign import PAGE, array_arguments, descriptor, foreign_file

REFUSED = [
    (FloatField(), "1.0", "real number"),
    (FloatField(), None, "real number"),
    (FloatField(), 1j, "real number"),
    (FloatField(), True, "real number"),
    (FloatField(), np.zeros(2), "real number"),
    (FloatField(), 2**53 + 1, "no exact float64"),
    (FloatField(), 10**400, "no exact float64"),
    (IntField(), 1.0, "whole number"),
    (IntField(), np.float32(1), "whole number"),
    (IntField(), "1", "whole number"),
    (IntField(), np.zeros(1), "whole number"),
    (IntField(), 2**63, "64 bits"),
    (IntField(), -(2**63) - 1, "64 bits"),
    (ImageField(), np.zeros((4, 4), np.uint8), r"\(4, 4\)"),
    (ImageField(), np.zeros((4, 4, 4), np.uint8), r"\(4, 4, 4\)"),
    (ImageField(), np.zeros((4, 4, 3), np.float32), "float32"),
    (ImageField(), np.zeros((0, 4, 3), np.uint8), "height must be 1 to 65535 pixels, got 0"),
    (ImageField(), np.zeros((1, 65536, 3), np.uint8), "width must be 1 to 65535 pixels, got 65536"),
    (ImageField(), np.zeros((65536, 1, 3), np.uint8), "height must be 1 to 65535 pixels, got 65536"),
    (ImageField(), EncodedImage(MODE_JPEG, 65536, 1, b"x"), "width"),
    (ImageField(), EncodedImage(MODE_JPEG, 1, 1, b""), "JPEG"),
    (ImageField(), EncodedImage(MODE_RAW, 2, 2, bytes(11)), "12 bytes, got 11"),
    (ImageField(), EncodedImage(2, 2, 2, bytes(12)), "mode"),
    (ImageField(), b"jpeg", "EncodedImage"),
    (BytesField(), "text", "str 'text'"),
    (BytesField(), np.zeros(3, np.int64), "int64"),
    (BytesField(), np.zeros((3, 1), np.uint8), r"\(3, 1\)"),
    (JSONField(), {1, 2}, "set"),
    (JSONField(), float("nan"), "JSON"),
    (NDArrayField("float64", (3,)), np.arange(3), "a float64 array of shape .* got an int64 array"),
    (NDArrayField("float32", (3,)), np.zeros(3), "float32 .* got a float64"),
    (NDArrayField("int64", (3,)), np.zeros(3), "int64 .* got a float64"),
    (NDArrayField("float32", (2, 3)), np.zeros((3, 2), np.float32), r"\(2, 3\), got .* \(3, 2\)"),
    (NDArrayField("float32", (6,)), np.zeros((2, 3), np.float32), r"\(6,\), got .* \(2, 3\)"),
    (NDArrayField("uint8", (8,)), np.zeros(1), "uint8 .* got a float64"),
    (NDArrayField("float32", (3,)), [0.0, 0.0, 0.0], "list"),
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
    ("field", "value", "stored"),
    [
        (FloatField(), np.float32(0.1), float(np.float32(0.1))),
        (FloatField(), -math.inf, -math.inf),
        (FloatField(), 2**53, float(2**53)),
        (FloatField(), np.float16(0.5), 0.5),
        (IntField(), np.uint8(200), 200),
        (IntField(), -(2**63), -(2**63)),
        (IntField(), 2**63 - 1, 2**63 - 1),
        (BytesField(), b"", b""),
        (BytesField(), bytearray(b"ab"), b"ab"),
        (BytesField(), memoryview(b"abcdef")[::2], b"ace"),
        (BytesField(), np.array([1, 2, 3], np.uint8)[::-1], b"\x03\x02\x01"),
        (JSONField(), {"ключ": [1, None, True, "\0"]}, {"ключ": [1, None, True, "\0"]}),
    ],
)
def test_a_value_comes_back_as_its_python_type(field: Field, value: object, stored: object, tmp_path: Path) -> None:
    with Writer(tmp_path / "x.beton", {"v": field}, num_samples=1) as writer:
        writer.append({"v": value})
    got = Reader(tmp_path / "x.beton").value("v", 0)
    assert got == stored and type(got) is type(stored)


@pytest.mark.parametrize("dtype", ["bool", "i1", "u2", "<i4", ">f4", "f2", "f8", "c16", "S5", "U3", "M8[s]", "V7"])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (1,) * 32, (2, 1)])
def test_arrays_of_any_plain_dtype_survive(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    field = NDArrayField(dtype, shape)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    array = np.random.default_rng(0).integers(0, 2, size, np.uint8).view(dtype).reshape(shape)
    with Writer(tmp_path / "x.beton", {"pad": BytesField(), "v": field}, num_samples=1) as writer:
        writer.append({"pad": b"123", "v": array})
    reader = Reader(tmp_path / "x.beton")
    got = reader.value("v", 0)
    # Stored are the values, little-endian, and not the bytes in the order they happen to come in.
    assert isinstance(got, np.ndarray) and got.dtype == array.dtype.newbyteorder("<") and got.shape == shape
    assert got.tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes() and not got.flags.writeable
    assert got.flags.aligned
    assert reader.fields["v"] == field


VALUES = np.array([[1, 2, 3], [4, 5, 250]])


@pytest.mark.parametrize("kind", [">i4", "<i4", ">u2", ">f2", ">f8", ">c8", "?", ">U4", "S3", ">M8[s]", ">m8[D]"])
@pytest.mark.parametrize("make", [np.asarray, np.asfortranarray, lambda a: a[:, ::-1][:, ::-1], np.ma.array])
def test_an_array_of_any_byte_order_and_layout_is_stored_by_value(kind: str, make: Any, tmp_path: Path) -> None:
    array = make(VALUES.astype(kind))
    array.flags.writeable = False
    declared = np.dtype(kind)
    fields: dict[str, Field] = {
        "a": NDArrayField(declared, (2, 3)),
        "b": NDArrayField(declared.newbyteorder("<"), (2, 3)),
        "c": VarArrayField(declared, (None, 3)),
        "d": VarArrayField(declared.newbyteorder("<"), (None, 3)),
        "e": TorchTensorField(declared, (2, 3)),
    }
    with Writer(tmp_path / "x.beton", fields, num_samples=1) as writer:
        writer.append(dict.fromkeys(fields, array))
    reader = Reader(tmp_path / "x.beton")
    for name in fields:
        got = reader.value(name, 0)
        assert isinstance(got, np.ndarray) and got.dtype.isnative
        np.testing.assert_array_equal(got, VALUES.astype(kind))


@pytest.mark.parametrize("dtype", ["uint8", ">u2", "<u2"])
def test_pixels_of_any_byte_order_are_stored_by_value(dtype: str, tmp_path: Path) -> None:
    pixels = (np.arange(12).reshape(3, 4) * 21).astype(dtype)
    plain = np.dtype(dtype).newbyteorder("=")
    with Writer(tmp_path / "x.beton", {"i": RasterField(1, plain), "m": MaskField(plain)}, num_samples=1) as writer:
        writer.append({"i": pixels, "m": np.asfortranarray(pixels)})
    reader = Reader(tmp_path / "x.beton")
    for name in "im":
        stored = reader.value(name, 0)
        assert isinstance(stored, EncodedImage)
        assert np.frombuffer(stored.data, plain.newbyteorder("<")).reshape(3, 4).tolist() == pixels.tolist()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (NDArrayField("f4", (3,)), np.ma.array(np.zeros(3, "f4"), mask=[0, 1, 0])),
        (VarArrayField("f4"), np.ma.array(np.zeros(3, "f4"), mask=[0, 1, 0])),
        (BytesField(), np.ma.array(np.zeros(3, np.uint8), mask=[0, 1, 0])),
        (FloatField(), np.ma.masked),
        (IntField(), np.ma.array(3, mask=True)),
        (ImageField(), np.ma.array(np.zeros((1, 1, 3), np.uint8), mask=[[[0, 1, 0]]])),
    ],
)
def test_a_masked_element_is_refused_and_the_value_below_the_mask_is_not_stored(field: Field, value: object) -> None:
    with pytest.raises(UsageError, match=r"1 of . elements? of .* masked.*fill"):
        field.encode(value)


def test_a_refused_scalar_comes_with_how_to_make_an_array_of_one() -> None:
    with pytest.raises(UsageError, match=r"shape \(1,\), got .*\(reshape\(1,\)\)"):
        NDArrayField("f4", (1,)).encode(np.array(3, "f4"))
    assert NDArrayField("f4", (1,)).encode(np.array(3, "f4").reshape(1))[1].view("<f4").tolist() == [3.0]  # type: ignore[union-attr]


def test_big_endian_elements_of_ffcv_are_read_by_value(tmp_path: Path) -> None:
    path = foreign_file(
        tmp_path / "x.beton", descriptors=[descriptor(1, "label"), descriptor(4, "v", array_arguments(">f4", (3,)))],
        records=[bytes(8) + PAGE.to_bytes(8, "little")], allocations=[(0, PAGE, 12)],
        pages=np.array([1, 2, 3], ">f4").tobytes().ljust(PAGE, b"\0"),
    )  # fmt: skip
    reader = Reader(path)
    got = reader.value("v", 0)
    assert isinstance(got, np.ndarray) and got.tolist() == [1, 2, 3]
    # Who copies stored bytes must describe them as they are.
    assert reader.fields["v"] != NDArrayField("f4", (3,))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("O", (1,)),
        ([("a", "i4")], (1,)),
        ("(2,)f4", (1,)),
        ("f4", ()),
        ("f4", (0,)),
        ("f4", (3, -1)),
        ("f4", (1,) * 33),
        ("f4", (1.5,)),
        ("S0", (1,)),
        ("nonsense", (1,)),
    ],
)
def test_impossible_array_fields_are_refused(dtype: object, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        NDArrayField(dtype, shape)  # type: ignore[arg-type]


def test_torch_dtypes_and_tensors_are_accepted() -> None:
    import torch

    field = TorchTensorField(torch.float16, (2, 2))
    assert field == TorchTensorField("float16", (2, 2)) and field != NDArrayField("float16", (2, 2))
    tensor = torch.arange(4, dtype=torch.float16).reshape(2, 2)
    payload = field.encode(tensor.T)[1]
    assert payload is not None and payload.tobytes() == tensor.T.contiguous().numpy().tobytes()
    with pytest.raises(UsageError, match=r"float16 .* got a float32"):
        field.encode(tensor.float())
    with pytest.raises(UsageError, match="bfloat16"):
        TorchTensorField(torch.bfloat16, (1,))
    with pytest.raises(UsageError, match="bfloat16"):
        field.encode(tensor.bfloat16())


def test_the_format_needs_no_torch() -> None:
    import subprocess

    code = "import dataloading.format, sys; assert not {'torch', 'numba', 'PIL'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_an_image_array_is_stored_raw_whatever_its_strides(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    with Writer(tmp_path / "x.beton", {"i": ImageField()}, num_samples=1) as writer:
        writer.append({"i": pixels.transpose(1, 0, 2)[::-1]})
    image = Reader(tmp_path / "x.beton").value("i", 0)
    assert isinstance(image, EncodedImage) and (image.mode, image.width, image.height) == (MODE_RAW, 5, 7)
    assert bytes(image.data) == pixels.transpose(1, 0, 2)[::-1].tobytes()


def test_a_custom_field_needs_its_record_and_is_opaque(tmp_path: Path) -> None:
    descriptors = [descriptor(255, "mine", b"\1" * 1024), descriptor(1, "label")]
    records = [bytes([1, 2, 3, 4]) + bytes(4) + bytes([7]) + bytes(7)]
    path = foreign_file(
        tmp_path / "x.beton", descriptors=descriptors, records=records, allocations=[(0, PAGE, 5)], pages=bytes(PAGE)
    )
    with pytest.raises(FormatError, match="custom_records"):
        Reader(path)
    reader = Reader(path, custom_records={"mine": "u1, u1, u1, u1"})
    assert reader.value("label", 0) == 7
    assert reader.value("mine", 0).item() == (1, 2, 3, 4)  # type: ignore[attr-defined]
    field = reader.fields["mine"]
    assert isinstance(field, CustomField) and field.stored_arguments == b"\1" * 1024
    with pytest.raises(UsageError):
        Writer(tmp_path / "y.beton", {"mine": field}, num_samples=1)


@pytest.mark.parametrize(
    "arguments",
    [
        array_arguments("|O", (1,)),
        array_arguments("nonsense", (1,)),
        array_arguments("<f4", ()),
        array_arguments("<f4", (2**63, 2**63)),
        array_arguments("<f4", (3,))[:264],
        array_arguments("<f4", (3,))[:264] + b"[[" * 100,
        b"\xff" * 1024,
        bytes(1024),
    ],
)
def test_invalid_array_descriptors_are_refused(arguments: bytes, tmp_path: Path) -> None:
    path = foreign_file(
        tmp_path / "x.beton",
        descriptors=[descriptor(1, "label"), descriptor(4, "v", arguments)],
        records=[bytes(8) + PAGE.to_bytes(8, "little")],
        allocations=[(0, PAGE, 12)],
        pages=bytes(PAGE),
    )
    with pytest.raises(FormatError, match="'v'"):
        Reader(path)
