"""Real FFCV is the judge of the format: it iterates our files, and we read its, with equal values."""

from __future__ import annotations

import io
import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dataloading.format import (
    MODE_JPEG,
    MODE_RAW,
    BytesField,
    EncodedImage,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    MaskField,
    NDArrayField,
    RasterField,
    Reader,
    TextField,
    TorchTensorField,
    VarArrayField,
    Writer,
    verify_file,
)
from dataloading.format.images import IMAGE_RECORD

pytestmark = [pytest.mark.ffcv, pytest.mark.slow]

HEIGHT, WIDTH = 20, 30


def pixels(index: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Smooth, so that a JPEG is close to it."""
    rows = np.linspace(0, 255, height)[:, None, None] * np.array([1.0, 0.5, 0.2])
    return (rows + np.linspace(0, index % 100, width)[None, :, None]).clip(0, 255).astype(np.uint8)


def jpeg(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def unjpeg(data: object) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(bytes(data))))  # type: ignore[call-overload]


def sample(index: int) -> dict[str, object]:
    """Every kind of value as a function of the index; equal shapes, which FFCV's default decoder needs."""
    return {
        "image": pixels(index),
        "label": index * 10**12 - 3,
        "weight": index / 7,
        "text": np.frombuffer(f"bytes of {index}".encode() * (index % 4), np.uint8),
        "box": np.arange(6, dtype=np.float32).reshape(2, 3) * index,
        "wide": np.array([index, -index], np.int64),
        "meta": {"index": index, "name": "ü" * (index % 3)},
    }


def our_value(name: str, value: object, index: int) -> object:
    if name == "image" and index % 2:
        return EncodedImage(MODE_JPEG, WIDTH, HEIGHT, jpeg(np.asarray(value)))
    return value


FIELDS = {
    "image": ImageField(),
    "label": IntField(),
    "weight": FloatField(),
    "text": BytesField(),
    "box": NDArrayField("float32", (2, 3)),
    "wide": TorchTensorField("int64", (2,)),
    "meta": JSONField(),
}


def iterate(path: Path, names: list[str] | None = None, **options: object) -> list[dict[str, np.ndarray]]:
    """Every sample as FFCV's own Loader gives it."""
    from ffcv.loader import Loader, OrderOption

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = Loader(
            str(path), batch_size=7, num_workers=2, order=OrderOption.SEQUENTIAL, drop_last=False, **options
        )
        names = names or list(loader.reader.field_names)
        result = []
        for batch in loader:
            arrays = [column.numpy().copy() for column in batch]
            result += [dict(zip(names, values, strict=True)) for values in zip(*arrays, strict=True)]
    return result


class Skipped:
    """What docs/format.md shows: as much of a custom field as FFCV needs to leave it alone."""

    metadata_type = IMAGE_RECORD

    @classmethod
    def from_binary(cls, arguments: object) -> Skipped:
        return cls()


def in_own_process(path: Path, names: list[str] | None = None, **options: object) -> list[dict[str, np.ndarray]]:
    """`iterate` elsewhere: what FFCV compiled for other fields stumbles over its own clean-up in one process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(iterate, path, names, **options).result(timeout=200)


@pytest.mark.parametrize(
    ("page_size", "os_cache"), [(1 << 21, True), (None, False)], ids=["small pages, mapped", "grown pages, own cache"]
)
def test_ffcv_reads_our_file(page_size: int | None, os_cache: bool, tmp_path: Path) -> None:
    """Over several pages; the second file's pages grow in the middle, and FFCV reads whole pages by itself."""
    from ffcv.fields import JSONField as FFCVJSONField

    fields = {**FIELDS, "bulk": BytesField()}
    sizes = [200_000] * 25 if page_size else [1000, 1000, 9_000_000, 1000, 5_000_000, 1000]
    path = tmp_path / "ours.beton"
    with Writer(
        path, fields, num_samples=len(sizes) + 3, page_size=page_size, class_names=["a"], provenance={"x": "y" * 5000}
    ) as writer:
        for index, size in enumerate(sizes):
            values = {name: our_value(name, value, index) for name, value in sample(index).items()}
            writer.append({**values, "bulk": bytes([index]) * size})
    assert verify_file(path).ok
    rows = iterate(path, os_cache=os_cache)
    assert len(rows) == len(sizes)
    for index, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        expected = sample(index)
        image = pixels(index) if index % 2 == 0 else unjpeg(jpeg(pixels(index)))
        difference = np.abs(row["image"].astype(int) - image)
        # FFCV decodes with the fast, less exact cosine transform.
        assert difference.max() <= (0 if index % 2 == 0 else 6)
        assert row["label"][0] == expected["label"] and row["weight"][0] == expected["weight"]
        text = np.asarray(expected["text"])
        assert row["text"][: len(text)].tobytes() == text.tobytes()
        assert np.array_equal(row["box"], expected["box"]) and np.array_equal(row["wide"], expected["wide"])  # type: ignore[arg-type]
        assert FFCVJSONField.unpack(row["meta"]) == expected["meta"]
        assert row["bulk"][:size].tobytes() == bytes([index]) * size


class Samples:
    """An indexable dataset in the order of the fields; FFCV wants tensors for tensor fields."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[object, ...]:
        import torch

        values = sample(int(index))
        values["image"] = pixels(int(index), HEIGHT + int(index) % 5, WIDTH + int(index) % 3)
        values["wide"] = torch.from_numpy(values["wide"])
        return tuple(values.values())


@pytest.mark.parametrize(
    ("mode", "workers", "page_size", "count"),
    [("jpg", 1, 1 << 21, 60), ("raw", 3, 1 << 22, 3000), ("proportion", 2, 1 << 23, 250)],
)
def test_we_read_the_file_of_ffcv(mode: str, workers: int, page_size: int, count: int, tmp_path: Path) -> None:
    """With several workers the samples and the allocation table lie in any order."""
    import torch
    from ffcv import fields as ffcv_fields
    from ffcv.writer import DatasetWriter

    path = tmp_path / "theirs.beton"
    fields = {
        "image": ffcv_fields.RGBImageField(write_mode=mode, jpeg_quality=95),
        "label": ffcv_fields.IntField(),
        "weight": ffcv_fields.FloatField(),
        "text": ffcv_fields.BytesField(),
        "box": ffcv_fields.NDArrayField(np.dtype("float32"), (2, 3)),
        "wide": ffcv_fields.TorchTensorField(torch.int64, (2,)),
        "meta": ffcv_fields.JSONField(),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = DatasetWriter(str(path), fields, page_size=page_size, num_workers=workers)
        writer.from_indexed_dataset(Samples(count), chunksize=10)
    reader = Reader(path)
    assert reader.extension is None and reader.num_samples == count and reader.page_size == page_size
    assert {name: type(field) for name, field in reader.fields.items()} == {
        name: type(field) for name, field in FIELDS.items()
    }
    assert reader.fields["box"] == FIELDS["box"] and reader.fields["wide"] == FIELDS["wide"]
    modes = set()
    for index in range(0, count, max(1, count // 100)):
        expected = sample(index)
        image = reader.value("image", index)
        assert isinstance(image, EncodedImage)
        original = pixels(index, HEIGHT + index % 5, WIDTH + index % 3)
        assert (image.height, image.width) == original.shape[:2]
        modes.add(image.mode)
        if image.mode == MODE_RAW:
            assert bytes(image.data) == original.tobytes()
        else:
            assert np.abs(unjpeg(image.data).astype(int) - original).max() < 20
        for name in ("label", "weight", "meta"):
            assert reader.value(name, index) == expected[name]
        assert reader.value("text", index) == np.asarray(expected["text"]).tobytes()
        assert np.array_equal(reader.value("box", index), expected["box"])  # type: ignore[arg-type]
        assert np.array_equal(reader.value("wide", index), expected["wide"])  # type: ignore[arg-type]
    assert modes == {"jpg": {MODE_JPEG}, "raw": {MODE_RAW}, "proportion": {MODE_JPEG, MODE_RAW}}[mode]
    report = verify_file(path, decode=unjpeg)
    assert report.ok, str(report)
    assert report.num_decoded == count if mode == "jpg" else report.num_decoded < count


def test_ffcv_reads_text_and_boxes_as_bytes(tmp_path: Path) -> None:
    """The two kinds of ours that claim to be readable; also as field 0, whose arguments hold the locator as well."""
    path = tmp_path / "ours.beton"
    fields = {"caption": TextField(), "boxes": VarArrayField("float32", (None, 4)), "label": IntField()}
    boxes = [np.arange(4 * n, dtype=np.float32).reshape(n, 4) + n for n in (0, 3, 1, 5)]
    captions = ["schön", "", "x" * 40, "\N{SNOWMAN}"]
    with Writer(path, fields, num_samples=4) as writer:
        for n in range(4):
            writer.append({"caption": captions[n], "boxes": boxes[n], "label": n})
    rows = in_own_process(path)
    assert len(rows) == 4
    for n, row in enumerate(rows):
        stored = boxes[n].nbytes
        assert row["label"][0] == n
        assert row["boxes"][:stored].tobytes() == boxes[n].tobytes()
        caption = captions[n].encode()
        assert row["caption"][: len(caption)].tobytes() == caption


def test_ffcv_skips_masks_and_rasters_when_told_their_record(tmp_path: Path) -> None:
    from ffcv.reader import Reader as FFCVReader

    path = tmp_path / "ours.beton"
    fields = {"mask": MaskField(), "image": ImageField(), "depth": RasterField(1, "uint16"), "label": IntField()}
    with Writer(path, fields, num_samples=9) as writer:
        for n in range(9):
            mask = np.full((HEIGHT, WIDTH), n, np.uint8)
            depth = np.full((HEIGHT, WIDTH), 1000 * n, np.uint16)
            writer.append({"mask": mask, "image": pixels(n), "depth": depth, "label": n})
    with pytest.raises(ValueError, match="custom"):
        FFCVReader(str(path))  # refused by FFCV itself, rather than misread
    skip = {"mask": Skipped, "depth": Skipped}
    rows = in_own_process(path, ["image", "label"], custom_fields=skip, pipelines={"mask": None, "depth": None})
    assert len(rows) == 9
    for n, row in enumerate(rows):
        assert row["label"][0] == n
        assert np.array_equal(row["image"], pixels(n))


def test_structures_equal_those_in_the_code_of_ffcv() -> None:
    """Sizes and offsets, compared with the dtypes FFCV itself parses files with."""
    from ffcv import fields as ffcv_fields
    from ffcv.types import ALLOC_TABLE_TYPE, FieldDescType, HeaderType, get_metadata_type

    from dataloading.format import layout

    for own, theirs in (
        (layout.HEADER, HeaderType),
        (layout.DESCRIPTOR, FieldDescType),
        (layout.ALLOCATION, ALLOC_TABLE_TYPE),
    ):
        assert own.itemsize == theirs.itemsize and own.names == theirs.names
        assert own.fields is not None
        assert [own.fields[name][:2] for name in own.names or ()] == [theirs.fields[name][:2] for name in theirs.names]
    theirs_fields = [
        ffcv_fields.BytesField(),
        ffcv_fields.RGBImageField(),
        ffcv_fields.IntField(),
        ffcv_fields.RGBImageField(),
        ffcv_fields.JSONField(),
        ffcv_fields.FloatField(),
        ffcv_fields.NDArrayField(np.dtype("u1"), (3,)),
    ]
    own_fields = [
        BytesField(),
        ImageField(),
        IntField(),
        ImageField(),
        JSONField(),
        FloatField(),
        NDArrayField("u1", (3,)),
    ]
    own, theirs = layout.record_dtype([field.record for field in own_fields]), get_metadata_type(theirs_fields)
    assert own == theirs
    assert bytes(theirs_fields[-1].to_binary()[0]) == own_fields[-1].arguments().ljust(1024, b"\0")
