"""Whatever goes in comes out: random fields, values, page sizes; and the bytes depend on nothing else."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dataloading.format import (
    MODE_JPEG,
    MODE_RAW,
    BytesField,
    EncodedImage,
    Field,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    NDArrayField,
    Reader,
    Writer,
    verify_file,
)

DTYPES = st.sampled_from(["bool", "u1", "i8", "f4", "f8", "c8", ">i2", "S3"])
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def images(draw: st.DrawFn) -> EncodedImage | np.ndarray:
    width, height = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    if draw(st.booleans()):
        return EncodedImage(MODE_JPEG, width, height, draw(st.binary(min_size=1, max_size=40)))
    return draw(hnp.arrays(np.uint8, (height, width, 3)))


@st.composite
def columns(draw: st.DrawFn) -> tuple[Field, st.SearchStrategy[object]]:
    kind = draw(st.sampled_from(["float", "int", "image", "bytes", "json", "array"]))
    if kind == "array":
        dtype, shape = draw(DTYPES), draw(hnp.array_shapes(max_dims=3, max_side=4))
        return NDArrayField(dtype, shape), hnp.arrays(dtype, shape)
    field, values = {
        "float": (FloatField(), st.floats()),
        "int": (IntField(), st.integers(-(2**63), 2**63 - 1)),
        "image": (ImageField(), images()),
        "bytes": (BytesField(), st.binary(max_size=50)),
        "json": (JSONField(), JSON_VALUES),
    }[kind]
    return field, values


@st.composite
def datasets(draw: st.DrawFn) -> tuple[dict[str, Field], list[dict[str, object]]]:
    chosen = draw(st.lists(columns(), min_size=1, max_size=5))
    names = draw(
        st.lists(st.text("abc_09", min_size=1, max_size=16), min_size=len(chosen), max_size=len(chosen), unique=True)
    )
    samples = draw(st.lists(st.tuples(*(values for _, values in chosen)), min_size=1, max_size=12))
    return dict(zip(names, (field for field, _ in chosen), strict=True)), [
        dict(zip(names, sample, strict=True)) for sample in samples
    ]


def write(path: Path, fields: Mapping[str, Field], samples: list[dict[str, object]], **options: object) -> bytes:
    with Writer(path, fields, num_samples=len(samples), overwrite=True, **options) as writer:  # type: ignore[arg-type]
        for sample in samples:
            writer.append(sample)
    return path.read_bytes()


def assert_same(got: object, put: object) -> None:
    if isinstance(put, np.ndarray) and isinstance(got, EncodedImage):
        assert (got.mode, got.height, got.width) == (MODE_RAW, *put.shape[:2])
        assert bytes(got.data) == put.tobytes()
    elif isinstance(put, EncodedImage):
        assert isinstance(got, EncodedImage)
        assert (got.mode, got.width, got.height, bytes(got.data)) == (put.mode, put.width, put.height, put.data)
    elif isinstance(put, np.ndarray):
        native = put.astype(put.dtype.newbyteorder("="))  # values are kept, whatever order their bytes had
        assert isinstance(got, np.ndarray) and (got.dtype, got.shape) == (native.dtype, native.shape)
        assert got.tobytes() == native.tobytes()
    elif isinstance(put, float) and math.isnan(put):
        assert isinstance(got, float) and math.isnan(got)
    else:
        assert got == put


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    dataset=datasets(),
    page_size=st.sampled_from([1 << 21, 1 << 21, 1 << 22, None]),
    spare=st.integers(0, 5),
    names=st.none() | st.lists(st.text(), unique=True, max_size=3),
)
def test_samples_survive_the_round_trip(
    dataset: tuple[dict[str, Field], list[dict[str, object]]],
    page_size: int | None,
    spare: int,
    names: list[str] | None,
) -> None:
    fields, samples = dataset
    provenance = {"source": "ü", "options": [1, None]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.beton"
        options = {"page_size": page_size, "class_names": names, "provenance": provenance}
        first = write(path, fields, samples, **options)
        assert write(path, fields, samples, **options) == first, "equal input gave other bytes"
        with Reader(path) as reader:
            assert list(reader.fields) == list(fields)
            assert reader.num_samples == len(samples)
            assert reader.extension is not None
            assert reader.extension.class_names == (None if names is None else tuple(names))
            assert json.loads(json.dumps(reader.extension.provenance)) == provenance
            for index, sample in enumerate(samples):
                for name, put in sample.items():
                    assert_same(reader.value(name, index), put)
        report = verify_file(path, num_workers=1)
        assert report.ok and report.has_checksums, str(report)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=12), grow=st.booleans())
def test_a_samples_values_share_a_page_and_do_not_overlap(sizes: list[int], grow: bool) -> None:
    fields = {"a": BytesField(), "n": NDArrayField("f8", (3,)), "b": BytesField()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.beton"
        samples: list[dict[str, object]] = [
            {"a": bytes(size), "n": np.full(3, size, "f8"), "b": bytes([7]) * (size // 3)} for size in sizes
        ]
        if grow:
            samples.insert(len(samples) // 2, {"a": bytes(9 << 20), "n": np.zeros(3), "b": b"x"})
        write(path, fields, samples, page_size=None if grow else 1 << 21)
        reader = Reader(path)
        assert reader.page_size == (1 << 24 if grow else 1 << 21)
        table = reader.allocations
        assert table["sample_id"].tolist() == [index for index in range(len(samples)) for _ in range(3)]
        assert (np.diff(table["ptr"].astype(np.int64)) >= np.maximum(table["size"][:-1], 1).astype(np.int64)).all()
        ends = table["ptr"] + np.maximum(table["size"], 1) - 1
        for index in range(len(samples)):
            rows = table["sample_id"] == index
            pages = set(table["ptr"][rows] // reader.page_size) | set(ends[rows] // reader.page_size)
            assert len(pages) == 1, f"sample {index} lies in pages {pages}"
        for index, sample in enumerate(samples):
            assert all(pointer % 8 == 0 for pointer in reader.locate("n", [index])[0])
            assert reader.value("a", index) == sample["a"] and reader.value("b", index) == sample["b"]
        assert verify_file(path, num_workers=1).ok
