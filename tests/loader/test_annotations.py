"""Boxes, points and masks that follow their image through what it draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dataloading import Loader
from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.format import ImageField, IntField, MaskField, VarArrayField, Writer
from tests.support.files import raw

NUM = 12


def write(path, coordinates="xyxy", dtype="float32", sizes=((90, 120), (100, 80), (70, 110))):
    """Images with a red, a green and a blue rectangle; each is a label of the mask, a box, and a point: its middle."""
    rng = np.random.default_rng(5)
    fields = {
        "image": ImageField(),
        "mask": MaskField(),
        "boxes": VarArrayField(dtype, (None, 4), coordinates=coordinates),
        "points": VarArrayField("float32", (None, 2), coordinates="points"),
        "category": VarArrayField("int64", (None,)),
        "label": IntField(),
    }
    with Writer(path, fields, num_samples=NUM) as writer:
        for number in range(NUM):
            height, width = sizes[number % len(sizes)]
            image, mask = np.zeros((height, width, 3), np.uint8), np.zeros((height, width), np.uint8)
            boxes = []
            for k in range(3):
                third = width // 3
                x, y = third * k + int(rng.integers(0, 4)), int(rng.integers(0, height - 40))
                w, h = int(rng.integers(14, third - 4)), int(rng.integers(14, 40))
                image[y : y + h, x : x + w, k] = 255
                mask[y : y + h, x : x + w] = k + 1
                boxes.append([x, y, x + w, y + h])
            corners = np.array(boxes, np.float64)
            middles = (corners[:, :2] + corners[:, 2:]) / 2
            sides = corners[:, 2:] - corners[:, :2]
            form = coordinates.split()[0]
            stored = {
                "xyxy": corners,
                "xywh": np.hstack([corners[:, :2], sides]),
                "cxcywh": np.hstack([middles, sides]),
            }[form]
            if "relative" in coordinates:
                stored = stored / [width, height, width, height]
            writer.append(
                {
                    "image": raw(image),
                    "mask": mask,
                    "boxes": stored.astype(dtype),
                    "points": middles.astype(np.float32),
                    "category": np.array([1, 2, 3]),
                    "label": number,
                }
            )
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("boxes") / "boxes.beton")


def load(path, transforms, **options):
    return list(Loader(path, batch_size=4, transforms=transforms, num_workers=2, **{"seed": 3, **options}))


def rows(batches):
    for batch in batches:
        for row in range(len(batch["label"])):
            yield {name: values[row] for name, values in batch.items()}


CHAINS = {
    "crop": [T.RandomResizedCrop(96), T.RandomHorizontalFlip()],
    "resize": [T.Resize((64, 80)), T.RandomVerticalFlip(), T.RandomHorizontalFlip()],
    "padding": [T.RandomCrop(100, padding=9, pad_if_needed=True), T.RandomHorizontalFlip()],
    "rotation": [T.Resize((96, 96)), T.RandomRotation(40), T.RandomHorizontalFlip()],
    "affine": [T.Resize((96, 96)), T.RandomAffine(20, translate=(0.1, 0.2), scale=(0.7, 1.3), shear=10)],
    "perspective": [T.Resize((96, 96)), T.ColorJitter(0.2), T.RandomPerspective(0.4, p=0.9)],
    "pixels": [
        T.Resize((90, 90)), T.ColorJitter(0.2), T.Pad((3, 5, 7, 2)), T.RandomCrop(80), T.RandomVerticalFlip(),
        T.RandomTranslate(6),
    ],
    "order": [T.Resize((90, 90)), T.RandomOrder([T.RandomRotation(15), T.RandomAffine(0, translate=(0.2, 0.2))])],
    "choice": [T.Resize((90, 90)), T.RandomChoice([T.RandomRotation(25), T.RandomPerspective(0.3, p=1.0)])],
    "zoom": [T.RandomZoomOut(fill=9), T.RandomHorizontalFlip(), T.Resize((150, 150))],
    "iou": [T.RandomZoomOut(side_range=(1, 2)), T.RandomIoUCrop(), T.Resize((150, 150)), T.RandomHorizontalFlip()],
    "jitter": [T.ScaleJitter((128, 128), (0.5, 2.0)), T.RandomCrop(128, pad_if_needed=True)],
    "lists": [T.RandomShortestSize([64, 80, 96], max_size=140), T.RandomRotation(20), T.AsList()],
    "around": [T.RandomHorizontalFlip(), T.CropAroundBox(64, pick="first", scale=(1.0, 1.6), shift=0.1)],
    "largest": [T.CropAroundBox((70, 50), pick="largest", scale=2), T.RandomVerticalFlip(), T.ColorJitter(0.2)],
    "iou around": [T.RandomIoUCrop(), T.CropAroundBox(64)],
    "zoom around": [T.RandomZoomOut(p=1.0, side_range=(1.2, 2)), T.CropAroundBox(64, scale=3)],
    "padded": [T.RandomIoUCrop(), T.RandomShortestSize([64, 90]), T.RandomHorizontalFlip(), T.PadBatch(32)],
}  # fmt: skip


@pytest.mark.parametrize("chain", list(CHAINS))
def test_markers_in_image_mask_boxes_and_points_stay_together(path, chain):
    seen = 0
    for seed in range(3):
        for row in rows(load(path, {"image": CHAINS[chain]}, seed=seed)):
            image, mask = row["image"].numpy(), row["mask"].numpy()
            height, width = mask.shape
            assert image.shape == (3, height, width)
            height, width = row.get("image_sizes", (height, width))
            for k, (box, (x, y)) in enumerate(zip(row["boxes"].tolist(), row["points"].tolist(), strict=True)):
                ys, xs = np.nonzero(mask == k + 1)
                left, top, right, bottom = box
                if len(xs) and box != [0, 0, 0, 0]:  # RandomIoUCrop marks those whose middle it cuts off
                    # A pixel more where nearest neighbours are far apart.
                    assert xs.min() + 2 >= left and xs.max() - 1 <= right
                    assert ys.min() + 2 >= top and ys.max() - 1 <= bottom
                    if chain not in ("rotation", "affine", "perspective", "order", "choice", "lists"):
                        assert abs(xs.min() - left) <= 1.5 and abs(xs.max() + 1 - right) <= 1.5
                        assert abs(ys.min() - top) <= 1.5 and abs(ys.max() + 1 - bottom) <= 1.5
                # In a corner that another operation has filled there is no marker.
                if (
                    2 <= x < width - 2
                    and 2 <= y < height - 2
                    and (mask == k + 1).sum() > 60
                    and k + 1 == mask[int(y), int(x)]
                ):
                    seen += 1
                    colour = image[:, int(y), int(x)]
                    assert colour[k] > 100 and colour.argmax() == k
                elif 2 <= x < width - 2 and 2 <= y < height - 2:
                    assert chain in ("pixels", "order", "choice") or (mask == k + 1).sum() <= 60
    assert seen > 30


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh", "xyxy relative", "cxcywh relative"])
def test_boxes_keep_the_form_they_are_stored_in(tmp_path, path, form):
    other = write(tmp_path / "other.beton", form)
    ops = {"image": [T.RandomResizedCrop(96), T.RandomHorizontalFlip(), T.RandomRotation(20)]}
    for ours, corners in zip(rows(load(other, ops)), rows(load(path, ops)), strict=True):
        boxes = ours["boxes"].double() * (96 if "relative" in form else 1)
        assert ours["boxes"].dtype == torch.float32
        if form.startswith("cxcywh"):
            boxes = torch.cat([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)
        elif form == "xywh":
            boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
        torch.testing.assert_close(boxes, corners["boxes"].double(), atol=1e-3, rtol=0)


def test_whole_numbers_are_rounded(tmp_path):
    path = write(tmp_path / "whole.beton", dtype="int32", sizes=((60, 100),))
    (batch, *_) = load(path, {"image": [T.Resize((30, 40))]})
    stored = load(path, {"image": [T.Resize((30, 40))], "boxes": []})[0]["boxes"][0].numpy()
    assert batch["boxes"][0].dtype == torch.int32
    np.testing.assert_array_equal(batch["boxes"][0].numpy(), np.rint(stored * [0.4, 0.5, 0.4, 0.5]))


def test_boxes_with_a_list_of_their_own_come_as_they_are_stored(path):
    moved = load(path, {"image": [T.Resize((30, 40))]})[0]["boxes"][0]
    stored = load(path, {"image": [T.Resize((30, 40))], "boxes": []})[0]["boxes"][0]
    alone = load(path, {}, fields=["boxes"])[0]["boxes"][0]
    assert torch.equal(stored, alone) and not torch.equal(stored, moved)


def test_a_dropped_box_takes_its_label_along(path):
    ops = [T.RandomResizedCrop(64, scale=(0.1, 0.3))]
    plain = list(rows(load(path, {"image": ops})))
    clean = list(rows(load(path, {"image": [*ops, T.SanitizeBoundingBoxes(min_size=4)]})))
    dropped = 0
    for before, after in zip(plain, clean, strict=True):
        sides = before["boxes"][:, 2:] - before["boxes"][:, :2]
        keep = (sides >= 4).all(1)
        dropped += int((~keep).sum())
        assert torch.equal(after["boxes"], before["boxes"][keep])
        assert torch.equal(after["category"], before["category"][keep])
        assert len(after["points"]) == 3
    assert dropped > 5


def test_the_same_boxes_are_dropped_by_torchvision(path):
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    ops = [T.RandomIoUCrop(), T.Resize((50, 50))]
    plain = list(rows(load(path, {"image": ops})))
    clean = rows(load(path, {"image": [*ops, T.SanitizeBoundingBoxes(min_size=3, min_area=30)]}))
    for before, after in zip(plain, clean, strict=True):
        boxes = tv_tensors.BoundingBoxes(before["boxes"], format="XYXY", canvas_size=(50, 50))
        given = {"boxes": boxes, "labels": before["category"]}
        expected = v2.SanitizeBoundingBoxes(min_size=3, min_area=30)(given)
        assert torch.equal(after["boxes"], torch.as_tensor(expected["boxes"]).as_subclass(torch.Tensor))
        assert torch.equal(after["category"], expected["labels"])


def test_rows_of_several_fields_can_go_with_their_box(path):
    op = T.SanitizeBoundingBoxes(min_size=40, labels_getter=("category", "points"))
    found = list(rows(load(path, {"image": [T.Resize((90, 90)), op]})))
    assert any(len(row["boxes"]) < 3 for row in found)
    for row in found:
        assert len(row["boxes"]) == len(row["points"]) == len(row["category"])


def test_batches_do_not_depend_on_workers_or_batch_size(path):
    ops = {"image": CHAINS["iou"]}
    one = list(rows(load(path, ops)))
    other = list(rows(Loader(path, batch_size=5, transforms=ops, num_workers=1, seed=3)))
    for left, right in zip(one, other, strict=True):
        assert all(torch.equal(left[name], right[name]) for name in ("image", "mask", "boxes", "points"))


def test_images_of_any_size_equal_those_of_one_size(path):
    ops = [T.RandomShortestSize([64, 80]), T.RandomHorizontalFlip(), T.ColorJitter(0.3), T.Normalize(0.5, 0.25)]
    for row in rows(load(path, {"image": [*ops, T.AsList()]}, fields=["image", "label"])):
        height, width = row["image"].shape[1:]
        assert min(height, width) in (64, 80) and row["image"].dtype == torch.float32
    fixed = [T.RandomResizedCrop(48), T.ColorJitter(0.3), T.Normalize(0.5, 0.25, dtype="bfloat16")]
    stacked = load(path, {"image": fixed})
    for left, right in zip(stacked, load(path, {"image": [*fixed, T.AsList()]}), strict=True):
        assert isinstance(right["image"], list) and torch.equal(left["image"], torch.stack(right["image"]))


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_a_padded_batch_holds_the_images_of_the_list_and_their_sizes(path, memory_format):
    ops = [T.RandomShortestSize([64, 80]), T.RandomRotation(10), T.Normalize(0.5, 0.25, dtype="float16")]
    lists = load(path, {"image": [*ops, T.AsList()]})
    padded = load(path, {"image": [*ops, T.PadBatch(32, fill=-1.0, mask_fill=255)]}, memory_format=memory_format)
    for left, right in zip(lists, padded, strict=True):
        images, sizes, masks = right["image"], right["image_sizes"], right["mask"]
        assert images.shape[2] % 32 == images.shape[3] % 32 == 0
        assert images.dtype == torch.float16 and masks.shape == (len(images), *images.shape[2:])
        assert images.is_contiguous(
            memory_format=torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
        )
        assert right.names[-1] == "image_sizes"
        for row, image in enumerate(left["image"]):
            height, width = image.shape[1:]
            assert sizes[row].tolist() == [height, width]
            assert torch.equal(images[row, :, :height, :width], image)
            assert torch.equal(masks[row, :height, :width], left["mask"][row])
            assert (images[row, :, height:] == -1).all() and (masks[row, :, width:] == 255).all()


def test_the_box_that_is_cropped_around_fills_the_image(path):
    crop = T.CropAroundBox((48, 48), pick="first", scale=1.0)
    batches = load(path, {"image": [crop]}, return_params=True)
    for batch in batches:
        parts = batch.params["image"]["0.CropAroundBox"]
        for box, image, part in zip(batch["boxes"], batch["image"], parts, strict=True):
            left, top, right, bottom = box[0].tolist()
            assert max(right - left, bottom - top) == pytest.approx(48, abs=2)  # red, and from border to border
            assert image[0, int(top + bottom) // 2, int(left + right) // 2] > 200
            assert part[2] == part[3] <= 40
    # In views, from a field that is not delivered, and as it is stored: the same parts.
    views = {"image": T.View("image", [crop]), "pair": T.View("image", [crop], repeat=2)}
    other = load(path, views, fields=["pair", "image", "label"])
    stored = load(path, {"image": [crop], "boxes": []})
    for one, two, three in zip(batches, other, stored, strict=True):
        assert torch.equal(one["image"], two["image"]) and torch.equal(one["image"], two["pair"][1])
        assert torch.equal(one["image"], three["image"])


def test_a_mask_with_a_list_of_its_own_reads_the_boxes_too(path):
    ops = [T.CropAroundBox(48, scale=(1, 2), shift=0.2)]
    follows, own = load(path, {"image": ops}), load(path, {"image": ops, "mask": ops})
    assert all(torch.equal(one["mask"], two["mask"]) for one, two in zip(follows, own, strict=True))


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        ([T.CropAroundBox(9, field="box")], "field='box' is no field of boxes.* Did you mean 'boxes'"),
        ([T.CropAroundBox(9, field="points")], "field='points' is no field of boxes"),
        ([T.CropAroundBox(9), T.CropAroundBox(9)], "would resize an image that an earlier transform has already"),
        ([T.Resize((9, 9)), T.ColorJitter(0.1), T.CropAroundBox(9)], "CropAroundBox after a transform that changes"),
    ],
)
def test_crops_around_what_is_no_box_are_refused(path, ops, words):
    with pytest.raises(UsageError, match=words):
        Loader(path, batch_size=4, transforms={"image": ops})


def test_a_crop_around_a_box_needs_a_file():
    with pytest.raises(UsageError, match="reads the boxes of stored samples: put it into a Loader's list"):
        T.CropAroundBox(9)(np.zeros((3, 20, 20), np.uint8))


def darkened(image, key):
    image[:] = image // 2


def to_half(image, rng):
    return (image // 2).astype(np.uint8)


def test_masks_and_boxes_follow_past_functions_that_are_said_to_leave_pixels_in_their_places(path):
    crop, flip = T.RandomResizedCrop(64), T.RandomHorizontalFlip()
    plain = load(path, {"image": [crop, T.RandomInvert(0.0), flip]})
    own = [T.Custom(darkened, moves_pixels=False), T.transform(moves_pixels=False)(to_half)]
    for op in [*own, T.PerSample(lambda image: image // 2, moves_pixels=False)]:
        for before, after in zip(plain, load(path, {"image": [crop, op, flip]}), strict=True):
            assert torch.equal(after["image"], before["image"] // 2)
            assert torch.equal(after["mask"], before["mask"])
            assert all(map(torch.equal, after["boxes"], before["boxes"]))
    with pytest.raises(UsageError, match=r"Custom\(darkened\) may move .* a mask .* say so: moves_pixels=False"):
        Loader(path, batch_size=4, transforms={"image": [crop, T.Custom(darkened)]})


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        ([T.Resize((64, 64)), T.ElasticTransform()], "ElasticTransform moves pixels in a way that the boxes"),
        ([T.Resize((64, 64)), T.RandAugment()], r"transform 1 \(RandAugment\) may move pixels"),
        ([T.Resize((64, 64)), T.PerSample(np.flipud)], "PerSample.* may move pixels"),
        (
            [T.Resize((64, 64)), T.RandomApply([T.Custom(darkened)])],
            r"transform 1 \(RandomApply\) may move .* that the boxes of 'boxes'.* cannot follow",
        ),
        ([T.Resize((64, 64)), T.Custom(darkened)], "every pixel stays in its place, say so: moves_pixels=False"),
        ([T.Resize((64, 64)), T.Custom(darkened, moves_pixels=True)], "cannot follow. Leave it out, leave the field"),
        ([T.SanitizeBoundingBoxes(), T.Resize((64, 64))], "put it behind Resize"),
        ([T.Resize((64, 64)), T.SanitizeBoundingBoxes(labels_getter="klass")], "there is no field 'klass'"),
        ([T.RandomResizedCrop(64), T.CutMix(num_classes=5)], "would no longer fit"),
        ([T.AsList(), T.Resize((64, 64))], "must be the last of the list"),
    ],
)
def test_what_cannot_work_is_refused_with_its_name(path, ops, words):
    fields = ["image", "boxes", "points", "category", "label"]
    with pytest.raises(UsageError, match=words):
        Loader(path, batch_size=4, transforms={"image": ops}, fields=fields)


def test_transforms_of_boxes_need_boxes(path):
    for op in (T.RandomIoUCrop(), T.SanitizeBoundingBoxes(), T.ClampBoundingBoxes()):
        with pytest.raises(UsageError, match=f"{op.name} needs boxes"):
            Loader(path, batch_size=4, transforms={"image": [op, T.Resize((9, 9))]}, fields=["image", "label"])


def test_labels_of_another_number_are_an_error_of_the_sample(tmp_path):
    fields = {
        "image": ImageField(),
        "boxes": VarArrayField("float32", (None, 4), coordinates="xyxy"),
        "labels": VarArrayField("int64", (None,)),
    }
    with Writer(tmp_path / "x.beton", fields, num_samples=2) as writer:
        for count in (2, 1):
            writer.append(
                {
                    "image": raw(np.zeros((20, 20, 3), np.uint8)),
                    "boxes": np.tile(np.array([[2, 2, 9, 9]], np.float32), (2, 1)),
                    "labels": np.zeros(count, np.int64),
                }
            )
    ops = {"image": [T.Resize((10, 10)), T.SanitizeBoundingBoxes()]}
    loader = Loader(tmp_path / "x.beton", batch_size=2, transforms=ops, on_error="skip")
    (batch,) = loader
    assert [len(each) for each in batch["labels"]] == [2]
    assert "'labels' has 1 rows and 'boxes' 2" in str(loader.errors[0])
