"""`--field` words declare fields, and each kind reads typed values, text and files' bytes exactly or says why not."""

from __future__ import annotations

import io
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converters.fields import KINDS, parse_field, parse_fields
from converters.source import SampleFault
from dataloading import (
    BytesField,
    Field,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    MaskField,
    NDArrayField,
    RasterField,
    TextField,
    UsageError,
    VarArrayField,
)


@pytest.mark.parametrize(
    ("text", "kind", "column"),
    [
        ("label=int", IntField, "label"),
        ("weight=float", FloatField, "weight"),
        ("caption=text", TextField, "caption"),
        ("meta=json", JSONField, "meta"),
        ("raw=bytes", BytesField, "raw"),
        ("emb=array:float32:512", NDArrayField, "emb"),
        ("image=image", ImageField, "image"),
        ("title=text@the title = @ all", TextField, "the title = @ all"),
    ],
)
def test_every_kind_is_declared_by_its_word(text, kind, column):
    spec = parse_field(text)
    assert isinstance(spec.field, kind)
    assert (spec.name, spec.column) == (text.partition("=")[0], column)
    copy = pickle.loads(pickle.dumps(spec))
    assert (copy.name, copy.kind, copy.column, type(copy.field)) == (spec.name, spec.kind, column, type(spec.field))


def test_an_array_has_dtype_and_shape():
    assert parse_field("emb=array:float32:8x64").field == NDArrayField("float32", (8, 64))
    assert parse_field("emb=array:uint8:3").field == NDArrayField("uint8", (3,))


@pytest.mark.parametrize("example", [kind.example for kind in KINDS.values()])
def test_every_kinds_example_can_be_read(example):
    assert parse_field(example).name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("label", "write NAME=KIND"),
        ("=int", "write NAME=KIND"),
        ("a=", "write NAME=KIND"),
        ("a=int@", "write NAME=KIND"),
        ("a=integer", "did you mean 'int'"),
        ("a=complex128", "there is no kind"),
        ("a=int:64", "nothing may follow it, got '64'"),
        ("a=array", "an array needs dtype and shape; write it as emb=array:float32:8x64"),
        ("a=array:float32", "dtype and shape"),
        ("a=array:float32:8xx", "'8xx' is no shape"),
        ("a=array:float33:8", "float33"),
        ("a=array:float32:0", "positive"),
    ],
)
def test_other_words_are_refused_with_an_example(text, words):
    with pytest.raises(UsageError) as caught:
        parse_field(text)
    assert words in str(caught.value)


def test_a_name_is_declared_once():
    assert list(parse_fields(["b=int", "a=text"])) == ["b", "a"]
    with pytest.raises(UsageError, match="'a' is declared twice"):
        parse_fields(["a=int", "a=text"])


@given(st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers_come_through_text_and_bytes(number):
    spec = parse_field("n=int")
    assert spec.from_text(str(number)) == spec.from_bytes(f"{number}\n".encode()) == spec.from_value(number) == number


@given(st.floats(allow_nan=False))
def test_numbers_come_through_text(number):
    spec = parse_field("n=float")
    assert spec.from_text(repr(number)) == spec.from_value(number) == number


@given(st.text())
def test_texts_become_utf_8(text):
    spec = parse_field("t=text")
    assert spec.from_text(text) == spec.from_value(text) == spec.from_bytes(text.encode()) == text


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=5))
def test_json_is_parsed_from_text_and_taken_as_it_is_from_values(value):
    spec = parse_field("j=json")
    assert spec.from_text(json.dumps(value)) == spec.from_bytes(json.dumps(value).encode()) == value
    if value is not None:
        assert spec.from_value(value) == value


def test_arrays_come_from_lists_npy_files_arrays_and_tensors():
    import torch

    spec = parse_field("a=array:float32:2x2")
    array = np.array([[1, 2], [3, 0.1]], np.float32)
    buffer = io.BytesIO()
    np.save(buffer, array)
    for got in (
        spec.from_value([[1, 2], [3, 0.1]]),
        spec.from_text("[[1, 2], [3, 0.1]]"),
        spec.from_bytes(b"[[1, 2], [3, 0.1]]"),
        spec.from_bytes(buffer.getvalue()),
        spec.from_value(array),
        spec.from_value(torch.from_numpy(array)),
    ):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize(
    ("declared", "value", "words"),
    [
        ("n=int", 1.0, "expected int, got float 1.0"),
        ("n=int", None, "expected int, got nothing (null)"),
        ("n=int", "3", "text is no number"),
        ("n=int", 2**63, "does not fit 64 bits"),
        ("n=float", "0.5", "expected float, got str '0.5'"),
        ("n=float", 2**53 + 1, "no exact float64"),
        ("n=text", 3, "expected text, got int 3: it is not text"),
        ("n=text", b"\xff", "expected text, got bytes"),
        ("n=bytes", "x", "it is not bytes"),
        ("n=json", {1, 2}, "expected a JSON value"),
        ("n=array:int8:2", [1, 128], "128 does not fit int8"),
        ("n=array:uint8:2", [1, -1], "-1 does not fit uint8"),
        ("n=array:int64:2", [1.5, 2.0], "expected array int64 of shape (2,), got list [1.5, 2.0]"),
        ("n=array:int64:2", [1, 2, 3], "its shape is (3,)"),
        ("n=array:int64:2", [[1], [2, 3]], "array int64 of shape (2,)"),
        ("n=array:int64:2", ["a", "b"], "<U1"),
        ("n=array:float32:1", [1e60], "does not fit float32"),
        ("n=array:float32:2", np.zeros(2), "its dtype is float64, and nothing is cast"),
        ("n=array:float32:2", np.zeros(3, np.float32), "got a float32 array of shape (3,)"),
        ("n=image", "cat.jpg", "text is no image"),
    ],
)
def test_values_that_do_not_fit_say_field_expected_and_got(declared, value, words):
    with pytest.raises(SampleFault) as caught:
        parse_field(declared).from_value(value)
    assert str(caught.value).startswith("field 'n': ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ("n=int", "1.5"), ("n=int", ""), ("n=int", "1_000"), ("n=int", "0x10"), ("n=float", "1_0.5"),
        ("n=float", "one"), ("n=json", "{"), ("n=array:int8:2", "1,2"), ("n=text", "\udcff"), ("n=image", "a.jpg"),
    ],
)  # fmt: skip
def test_text_that_does_not_fit_names_the_field(declared, text):
    with pytest.raises(SampleFault, match=r"^field 'n': expected .*, got str"):
        parse_field(declared).from_text(text)


@pytest.mark.parametrize(
    ("declared", "data"), [("n=int", b"\xff"), ("n=json", b"\xff{}"), ("n=array:int8:1", b"\x93NUMPY?")]
)
def test_bytes_that_do_not_fit_name_the_field(declared, data):
    with pytest.raises(SampleFault, match=r"^field 'n': expected .*, got bytes"):
        parse_field(declared).from_bytes(data)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("mask=mask", MaskField()),
        ("mask=mask:uint16", MaskField("uint16")),
        ("boxes=boxes", VarArrayField("float32", (None, 4))),
        ("boxes=boxes:int32", VarArrayField("int32", (None, 4))),
        ("tokens=vararray:int64:?", VarArrayField("int64", (None,))),
        ("points=vararray:float32:?x17x3", VarArrayField("float32", (None, 17, 3))),
        ("caption=text", TextField()),
        ("image=image:gray", RasterField()),
        ("image=image:uint16:1", RasterField(1, "uint16")),
        ("image=image:uint8:4", RasterField(4)),
    ],
)
def test_fields_of_our_own_kinds_can_be_declared(text: str, field: Field) -> None:
    assert parse_field(text).field == field


@pytest.mark.parametrize(
    "text",
    [
        "mask=mask:int64", "mask=mask:uint8:2", "boxes=boxes:float32:4", "boxes=boxes:words", "t=vararray:int64",
        "t=vararray:int64:4", "t=vararray:int64:?x?", "t=vararray:int64:?x0", "image=image:rgb", "image=image:uint8:0",
        "image=image:uint8:99", "image=image:float32:3", "image=image:uint16", "caption=text:utf8",
    ],
)  # fmt: skip
def test_declarations_that_make_no_sense_say_how_to_write_them(text: str) -> None:
    with pytest.raises(UsageError, match="write it as"):
        parse_field(text)


def test_boxes_come_from_lists_text_and_files_exactly() -> None:
    spec = parse_field("boxes=boxes")
    boxes = np.array([[0.5, 1, 2, 3], [4, 5, 6, 7]], np.float32)
    buffer = io.BytesIO()
    np.save(buffer, boxes)
    for got in (
        spec.from_value(boxes), spec.from_value(boxes.tolist()), spec.from_text(json.dumps(boxes.tolist())),
        spec.from_bytes(buffer.getvalue()),
    ):  # fmt: skip
        np.testing.assert_array_equal(got, boxes)  # type: ignore[call-overload]
    assert spec.from_value([]).shape == (0, 4)  # type: ignore[attr-defined]
    for value, reason in (
        (boxes.astype(np.float64), "dtype is float64"),
        ([[1, 2, 3]], r"shape is \(1, 3\)"),
        ([1, 2, 3, 4], r"shape is \(4,\)"),
        ([["a", "b", "c", "d"]], "values make a <U1"),
    ):
        with pytest.raises(SampleFault, match=rf"field 'boxes': expected boxes float32 of shape \(None, 4\).*{reason}"):
            spec.from_value(value)
