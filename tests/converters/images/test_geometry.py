"""What is drawn on an image stays where it is on it: masks, boxes and points follow turning and resizing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import converters
from converters.images.rgb import upright
from dataloading import (
    ConvertError,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    MaskField,
    NDArrayField,
    RasterField,
    Reader,
    UsageError,
    VarArrayField,
    Writer,
    decode_image,
    verify_file,
)
from dataloading.tools import moved_coordinates
from tests.converters.making import encoded
from tests.converters.sources.test_beton import beton

WIDTH, HEIGHT = 96, 64
LEFT, TOP, RIGHT, BOTTOM = 16, 8, 40, 24
FIELDS = {
    "mask": MaskField(),
    "xyxy": VarArrayField("float32", (None, 4), coordinates="xyxy"),
    "xywh": VarArrayField("float64", (None, 4), coordinates="xywh"),
    "centre": NDArrayField("float32", (4,), coordinates="cxcywh relative"),
    "points": VarArrayField("float32", (None, 2, 3), coordinates="points"),
    "image": ImageField(),
}


def marked() -> Image.Image:
    """A black image with one red block."""
    image = Image.new("RGB", (WIDTH, HEIGHT))
    image.paste((255, 0, 0), (LEFT, TOP, RIGHT, BOTTOM))
    return image


def file_of(image: Image.Image, orientation: int, kind: str = "PNG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    return encoded(image, kind, exif=exif, **options)


def sample(image: Any, mask: Any) -> dict[str, Any]:
    wide, high = RIGHT - LEFT, BOTTOM - TOP
    middle = (LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2
    return {
        "image": image,
        "mask": mask,
        "xyxy": np.array([[LEFT, TOP, RIGHT, BOTTOM]], np.float32),
        "xywh": np.array([[LEFT, TOP, wide, high]], np.float64),
        "centre": np.array([middle[0] / WIDTH, middle[1] / HEIGHT, wide / WIDTH, high / HEIGHT], np.float32),
        "points": np.array([[[*middle, 2], [0, 0, 0]]], np.float32),
    }


def extent(there: np.ndarray) -> list[int]:
    """The corners of a block: left, top, right, bottom."""
    rows, columns = np.flatnonzero(there.any(axis=1)), np.flatnonzero(there.any(axis=0))
    return [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]


@pytest.mark.parametrize("longest", [None, 31])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_a_marker_in_image_mask_boxes_and_points_stays_one_place(
    kind: str, orientation: int, longest: int | None, tmp_path: Path
) -> None:
    image, mask = marked(), Image.fromarray((np.asarray(marked())[:, :, 0] > 0).astype(np.uint8) * 7)
    samples = [
        sample(file_of(image, orientation, kind), encoded(mask, "PNG")),  # drawn on the pixels that are stored
        sample(file_of(image, orientation, kind), file_of(mask, orientation)),  # whose file says the same of turning
    ]
    out = tmp_path / "o.beton"
    converters.write(samples, out, FIELDS, num_workers=0, quiet=True, mode="raw", max_resolution=longest)
    with Reader(out) as reader:
        for index in range(2):
            pixels = decode_image(reader.value("image", index))  # type: ignore[arg-type]
            height, width = pixels.shape[:2]
            assert (height < width) == (orientation < 5)
            assert longest is None or max(height, width) == longest
            there = decode_image(reader.value("mask", index)).reshape(height, width) == 7  # type: ignore[arg-type]
            seen = extent(pixels[:, :, 0] > 127)
            assert np.abs(np.subtract(extent(there), seen)).max() <= 1
            [box] = np.asarray(reader.value("xyxy", index))
            np.testing.assert_allclose(box, seen, atol=0.01 if longest is None else 1)
            [[left, top, wide, high]] = np.asarray(reader.value("xywh", index))
            np.testing.assert_allclose([left, top, left + wide, top + high], box, atol=1e-4)
            centre = np.asarray(reader.value("centre", index)) * [width, height, width, height]
            np.testing.assert_allclose(centre, [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2, wide, high], atol=1e-3)
            [[point, nowhere]] = np.asarray(reader.value("points", index))
            np.testing.assert_allclose(point, [*centre[:2], 2], atol=1e-3)
            assert nowhere.tolist() == [0, 0, 0]
        assert reader.fields["xyxy"].coordinates == "xyxy"  # type: ignore[attr-defined]
    assert verify_file(out, geometry=True).ok


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_with_orientation_ignore_nothing_is_turned(orientation: int, tmp_path: Path) -> None:
    mask = Image.fromarray((np.asarray(marked())[:, :, 0] > 0).astype(np.uint8))
    given = sample(file_of(marked(), orientation), file_of(mask, orientation))
    converters.write([given], tmp_path / "o.beton", FIELDS, num_workers=0, quiet=True, mode="raw", orientation="ignore")
    with Reader(tmp_path / "o.beton") as reader:
        assert np.asarray(reader.value("xyxy", 0)).tolist() == [[LEFT, TOP, RIGHT, BOTTOM]]
        np.testing.assert_array_equal(
            decode_image(reader.value("mask", 0)).reshape(mask.height, mask.width), np.asarray(mask)
        )  # type: ignore[arg-type]


@pytest.mark.parametrize("orientation", [2, 3, 6])
def test_what_is_drawn_on_upright_images_is_only_resized_if_that_is_said(orientation: int, tmp_path: Path) -> None:
    turned = upright(marked(), orientation)
    mask = Image.fromarray((np.asarray(turned)[:, :, 0] > 0).astype(np.uint8))
    box = np.array([extent(np.asarray(mask) > 0)], np.float32)
    fields = {"image": ImageField(), "mask": MaskField(), "box": FIELDS["xyxy"]}
    given = [(file_of(marked(), orientation), encoded(mask, "PNG"), box)]
    converters.write(given, tmp_path / "o.beton", fields, num_workers=0, quiet=True, mode="raw", max_resolution=48,
                     annotations="upright")  # fmt: skip
    with Reader(tmp_path / "o.beton") as reader:
        there = decode_image(reader.value("mask", 0)).squeeze() > 0  # type: ignore[arg-type]
        np.testing.assert_array_equal(np.asarray(reader.value("box", 0)), box / 2)
        assert extent(there) == (box[0] / 2).tolist()
    if orientation == 6:
        words = r"96x64 as stored, 64x96 turned upright \(EXIF orientation 6\): .*--annotations upright; --orient"
        with pytest.raises(ConvertError, match=f"the mask is 64x96 pixels, its image {words}"):
            converters.write(given, tmp_path / "p.beton", fields, num_workers=0, quiet=True)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((HEIGHT, WIDTH), "swapped: one was turned upright by its EXIF.*--orientation ignore"),
        ((40, 30), "has the size of its"),
    ],
)
def test_a_mask_of_another_size_than_its_image_is_refused(size: tuple[int, int], words: str, tmp_path: Path) -> None:
    fields = {"image": ImageField(), "mask": MaskField()}
    for mask in (Image.new("L", size), np.zeros(size[::-1], np.uint8)):
        with pytest.raises(
            ConvertError, match=rf"field 'mask': the mask is {size[0]}x{size[1]} pixels, its image 96x64.*{words}"
        ):
            converters.write([(marked(), mask)], tmp_path / "o.beton", fields, num_workers=0, quiet=True)


def test_verify_names_masks_and_boxes_that_do_not_fit_their_image(tmp_path: Path) -> None:
    fields = {"image": ImageField(), "mask": MaskField(), "box": FIELDS["xyxy"]}
    black = {"image": np.zeros((30, 40, 3), np.uint8), "mask": np.zeros((30, 40), np.uint8),
             "box": np.array([[0, 0, 40, 30]], np.float32)}  # fmt: skip
    with Writer(tmp_path / "o.beton", fields, num_samples=4) as writer:
        writer.append(black)
        writer.append({**black, "mask": np.zeros((40, 30), np.uint8)})
        writer.append({**black, "box": np.array([[0, 0, 9, 9], [100, 100, 200, 200]], np.float32)})
        writer.append({**black, "box": np.zeros((0, 4), np.float32)})
    report = verify_file(tmp_path / "o.beton", geometry=True)
    assert list(report.samples) == [1, 2]
    assert "the mask is 30x40 pixels, its image 'image' 40x30; width and height are swapped" in str(report)
    assert "1 of 2 (xyxy) lie outside the image 'image' of 40x30 pixels" in str(report)
    assert verify_file(tmp_path / "o.beton").ok


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("things", VarArrayField("float32", (None, 4)), np.ones((1, 4), np.float32)),
        ("bbox", NDArrayField("int64", (4,)), np.ones(4, np.int64)),
        ("keypoints", VarArrayField("float32", (None, 17, 2)), np.ones((1, 17, 2), np.float32)),
        ("boxes", JSONField(), [[1, 2, 3, 4]]),
        ("xmin", FloatField(), 1.0),
        ("x_2", IntField(), 1),
    ],
)
def test_what_looks_like_places_and_does_not_say_so_stops_before_it_is_left_behind(
    name: str, field: Any, value: Any, tmp_path: Path
) -> None:
    fields = {"image": ImageField(), name: field}
    with pytest.raises(
        UsageError, match=rf"field '{name}' looks like coordinates .*coordinates=\"xyxy\".*--max-resolution"
    ):
        converters.write([(marked(), value)], tmp_path / "o.beton", fields, num_workers=0, max_resolution=40)
    turned = [(file_of(marked(), 6), value)]
    with pytest.raises(ConvertError, match=rf"field '{name}' looks like .*This image was turned upright \(EXIF orient"):
        converters.write(turned, tmp_path / "o.beton", fields, num_workers=0, quiet=True)
    # Where nothing moves nothing is asked, and "none" answers it.
    converters.write([(marked(), value)], tmp_path / "o.beton", fields, num_workers=0, quiet=True)
    if not isinstance(field, (VarArrayField, NDArrayField)):
        return
    said = type(field)(field.dtype, field.shape, coordinates="none")  # type: ignore[arg-type]
    converters.write(turned, tmp_path / "p.beton", {"image": ImageField(), name: said}, num_workers=0, quiet=True)
    with Reader(tmp_path / "p.beton") as reader:
        np.testing.assert_array_equal(np.asarray(reader.value(name, 0)), value)


def test_coordinates_of_several_images_ask_whose_they_are(tmp_path: Path) -> None:
    fields = {"left": ImageField(), "right": RasterField(3), "boxes": FIELDS["xyxy"]}
    with pytest.raises(UsageError, match="belong to one of several images: name that one 'image'"):
        converters.write([(marked(), marked(), np.zeros((0, 4), "f4"))], tmp_path / "o", fields, num_workers=0)


def test_whole_numbers_are_rounded_and_must_fit(tmp_path: Path) -> None:
    boxes = np.array([[15, 20, 25, 30]], np.int16)
    moved = moved_coordinates(boxes, "xyxy", size=(100, 50), orientation=1, new_size=(50, 25))
    assert (moved.tolist(), moved.dtype) == ([[8, 10, 12, 15]], np.int16)
    with pytest.raises(UsageError, match="a coordinate is -5: no uint16"):
        moved_coordinates(
            np.array([[0, 0, 105, 9]], np.uint16), "xyxy", size=(100, 50), orientation=2, new_size=(100, 50)
        )


@pytest.mark.parametrize(
    ("words", "shape", "reason"),
    [
        ("xxyy", (None, 4), "must be one of xyxy, xywh, cxcywh, points"),
        ("xyxy", (None, 5), "whose last length is 4"),
        ("points", (None, 4), "whose last length is 2 or 3"),
        ("relative", (None, 4), "must be one of"),
        (3, (None, 4), "must be one of"),
    ],
)
def test_coordinates_that_cannot_be_are_refused(words: Any, shape: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        VarArrayField("float32", shape, coordinates=words)
    with pytest.raises(UsageError, match="relative' need floats"):
        VarArrayField("int32", (None, 4), coordinates="xyxy relative")


def test_boxes_of_a_manifest_follow_and_stay_declared_in_later_files(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(file_of(marked(), 6, "JPEG"))
    row = {"image": "a.jpg", "boxes": [[LEFT, TOP, RIGHT, BOTTOM]], "feet": [[LEFT, BOTTOM]]}
    (tmp_path / "m.jsonl").write_text(json.dumps(row) + "\n")
    made, again, merged = (str(tmp_path / f"{name}.beton") for name in ("made", "again", "merged"))
    args = ["--field", "boxes=boxes", "feet=vararray:float32:?x2:points", "--num-workers", "0", "-q"]
    assert beton("convert", "manifest", str(tmp_path / "m.jsonl"), made, *args, "--max-resolution", "48") == 0
    assert beton("convert", "beton", made, again, "--max-resolution", "24", "--num-workers", "0", "-q") == 0
    assert beton("merge", merged, again, made) == 0
    for path, scale in ((made, 2), (again, 4), (merged, 4)):
        with Reader(path) as reader:
            expected = np.array([HEIGHT - BOTTOM, LEFT, HEIGHT - TOP, RIGHT]) / scale
            np.testing.assert_allclose(np.asarray(reader.value("boxes", 0)), [expected])
            np.testing.assert_allclose(np.asarray(reader.value("feet", 0)), [expected[:2]])
            assert reader.fields["feet"].coordinates == "points"  # type: ignore[attr-defined]


def test_files_whose_boxes_are_written_in_other_ways_are_not_taken_for_the_same(tmp_path: Path) -> None:
    from converters.engine.fingerprint import describe_fields
    from converters.tools.merge import merge

    def made(name: str, words: str) -> Path:
        fields = {"boxes": VarArrayField("float32", (None, 4), coordinates=words), "label": IntField()}
        converters.write([(np.ones((1, 4), np.float32), 0)], tmp_path / name, fields, num_workers=0, quiet=True)
        return tmp_path / name

    one, other = made("a.beton", "xyxy"), made("b.beton", "xywh")
    with pytest.raises(UsageError, match="'boxes' has coordinates xyxy in the first, xywh in the second"):
        merge(tmp_path / "c.beton", [one, other])
    with Reader(one) as first, Reader(other) as second:
        assert describe_fields(first.fields) != describe_fields(second.fields)
