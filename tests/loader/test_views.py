"""`T.View`: several images of one stored image; `return_params`: what was drawn for each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from dataloading import ImageField, IntField, Loader, MaskField, Writer
from dataloading import transforms as T
from dataloading.errors import DecodeError, TransformError, UsageError

CROPS = [T.RandomCrop(24), T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
NUM = 13


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of random pixels and sizes, each with a mask that is its red plane."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("views") / "views.beton"
    fields = {"image": ImageField(), "mask": MaskField(), "label": IntField()}
    with Writer(path, fields, num_samples=NUM) as writer:
        for label in range(NUM):
            height, width = rng.integers(30, 60, 2)
            image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            writer.append({"image": image, "mask": image[:, :, 0].copy(), "label": label})
    return path


def loader(file: Path, transforms: dict[str, Any], **options: Any) -> Loader:
    given: dict[str, Any] = {"batch_size": 5, "seed": 7, "num_workers": 2, "fields": [*transforms, "label"]}
    return Loader(file, transforms=transforms, **(given | options))


def by_sample(made: Loader, name: str) -> dict[int, list[bytes]]:
    """Return the bytes of each view of each sample of an epoch."""
    found: dict[int, list[bytes]] = {}
    for batch in made:
        views = batch[name] if isinstance(batch[name], list) else [batch[name]]
        for row, index in enumerate(batch.indices.tolist()):
            found[index] = [view[row].numpy().tobytes() for view in views]
    return found


def test_views_are_tensors_or_lists_of_tensors_in_the_order_of_the_dictionary(file: Path) -> None:
    views = {"global": T.View("image", CROPS, repeat=2), "one": T.View("image", [T.RandomResizedCrop(8)])}
    batch = next(iter(Loader(file, batch_size=4, transforms={**views, "mask": CROPS}, num_workers=1)))
    assert batch.names == ("global", "one", "mask", "label")
    pair, one, _, label = batch
    assert isinstance(pair, list) and [each.shape for each in pair] == [(4, 3, 24, 24)] * 2
    assert one.shape == (4, 3, 8, 8) and label.tolist() == batch.indices.tolist() == [0, 1, 2, 3]


def test_a_list_beside_views_keeps_its_field_and_its_pixels(file: Path) -> None:
    alone = by_sample(loader(file, {"image": CROPS}), "image")
    both = Loader(file, batch_size=5, seed=7, transforms={"two": T.View("image", CROPS, repeat=2), "image": CROPS,
                                                         "mask": CROPS})  # fmt: skip
    assert next(iter(both)).names == ("image", "two", "mask", "label")
    both.set_epoch(0)
    assert by_sample(both, "image") == alone


def test_each_view_draws_for_itself(file: Path) -> None:
    views = {"a": T.View("image", CROPS, repeat=3), "b": T.View("image", CROPS, repeat=3)}
    made = loader(file, {"image": CROPS, **views}, fields=["image", "a", "b"])
    for images in zip(*(by_sample(made, name).values() for name in ("image", "a", "b")), strict=True):
        flat = [view for views_of_name in images for view in views_of_name]
        assert len(set(flat)) >= 6  # of 7 crops with two flips of images this small, two may be equal


def test_a_view_does_not_depend_on_workers_batch_size_rank_or_resume(file: Path) -> None:
    transforms = {"two": T.View("image", [*CROPS, T.ColorJitter(0.4)], repeat=2)}
    expected = by_sample(loader(file, transforms), "two")
    assert by_sample(loader(file, transforms, batch_size=3, num_workers=1, shuffle="global"), "two") == expected
    ranks = [by_sample(loader(file, transforms, rank=rank, world_size=2), "two") for rank in range(2)]
    assert ranks[0] | ranks[1] == expected
    first = loader(file, transforms)
    next(iter(first))
    second = loader(file, transforms)
    second.load_state_dict(first.state_dict())
    rest = by_sample(second, "two")
    assert sorted(rest) == list(range(5, NUM))
    assert rest == {index: expected[index] for index in rest}


def test_a_view_does_not_depend_on_those_behind_it(file: Path) -> None:
    one = {"a": T.View("image", CROPS)}
    more = {**one, "b": T.View("image", [T.RandomResizedCrop(8)], repeat=4)}
    assert by_sample(loader(file, one), "a") == by_sample(loader(file, more), "a")


def test_views_that_share_the_decode_of_a_jpeg_have_the_pixels_of_one_alone(photos_file: Path) -> None:
    ops = [T.RandomResizedCrop(32, scale=(0.3, 1)), T.RandomHorizontalFlip(), T.ColorJitter(0.4)]
    small = T.View("image", [T.RandomResizedCrop(16, scale=(0.05, 0.4))], repeat=4)
    alone = by_sample(loader(photos_file, {"a": T.View("image", ops)}, num_workers=1), "a")
    many = {"a": T.View("image", ops, repeat=2), "b": small}
    for options in ({}, {"memory_format": "channels_last"}):
        for batch in loader(photos_file, many, batch_size=8, **options):
            for row, index in enumerate(batch.indices.tolist()):
                assert [batch["a"][0][row].contiguous().numpy().tobytes()] == alone[index]


def test_samples_drawn_twice_in_an_epoch_have_new_views(file: Path) -> None:
    made = loader(file, {"two": T.View("image", CROPS, repeat=2)}, indices=[3] * 8, batch_size=8)
    batch = next(iter(made))
    assert len({each.numpy().tobytes() for view in batch["two"] for each in view}) > 10


@pytest.mark.parametrize("mask", [{"m": T.View("mask", like="two")}, {}])
def test_a_mask_follows_the_views_of_its_image(file: Path, mask: dict[str, Any]) -> None:
    transforms = {"two": T.View("image", [*CROPS, T.RandomInvert(p=0)], repeat=2), **mask}
    fields = ["two", *(mask or ["mask"])]
    for batch in Loader(file, batch_size=5, transforms=transforms, fields=fields, num_workers=2):
        assert len(batch[1]) == 2
        for image, labels in zip(batch[0], batch[1], strict=True):
            assert torch.equal(image[:, 0].long(), labels)


def test_like_draws_the_same_for_another_list(file: Path) -> None:
    transforms = {"a": T.View("image", CROPS, repeat=2), "b": T.View("image", [*CROPS, T.RandomInvert(p=1)], like="a")}
    batch = next(iter(loader(file, transforms)))
    for plain, inverted in zip(batch["a"], batch["b"], strict=True):
        assert torch.equal(255 - plain, inverted)


def test_views_in_channels_last_hold_the_same_pixels(file: Path) -> None:
    transforms = {"two": T.View("image", CROPS, repeat=2)}
    expected = next(iter(loader(file, transforms)))["two"]
    for plain, other in zip(expected, next(iter(loader(file, transforms, memory_format="channels_last")))["two"],
                            strict=True):  # fmt: skip
        assert other.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(plain, other)


def test_callables_get_each_view_by_itself(file: Path) -> None:
    transforms = {"two": T.View("image", [T.CenterCrop(8), lambda images: images.float() + 0.5], repeat=2)}
    for view in next(iter(loader(file, transforms)))["two"]:
        assert view.shape == (5, 3, 8, 8) and view.dtype == torch.float32
    wrong = {"two": T.View("image", [T.CenterCrop(8), lambda images: images[:2]], repeat=2)}
    with pytest.raises(TransformError, match=r"field 'image', view 'two\[0\]', transform 1 \(<lambda>\)"):
        next(iter(loader(file, wrong)))


@pytest.mark.parametrize(("on_error", "rows"), [("skip", [0, 1, 3, 4]), ("replace", [0, 1, 3, 3, 4])])
def test_a_sample_that_fails_in_one_view_fails_in_all(file: Path, on_error: Any, rows: list[int]) -> None:
    small = next(n for n, size in enumerate(sizes(file)) if min(size) < 45)
    indices = [*(n for n, size in enumerate(sizes(file)) if min(size) >= 45)][:4]
    indices.insert(2, small)
    transforms = {"a": T.View("image", [T.CenterCrop(8)]), "b": T.View("image", [T.RandomCrop(45)], repeat=2)}
    made = loader(file, transforms, indices=indices, on_error=on_error, batch_size=5)
    batch = next(iter(made))
    assert batch.indices.tolist() == [indices[row] for row in rows]
    assert [len(batch["a"]), *map(len, batch["b"])] == [len(rows)] * 3
    assert [error.view for error in made.errors] == ["b[0]"]
    with pytest.raises(TransformError, match=rf"sample {small}, field 'image', view 'b\[0\]' of .*RandomCrop"):
        next(iter(loader(file, transforms, indices=indices)))


def sizes(file: Path) -> list[tuple[int, int]]:
    batch = next(iter(Loader(file, batch_size=NUM, transforms={"image": [T.AsList()]}, fields=["image"])))
    return [tuple(image.shape[1:]) for image in batch["image"]]


def test_a_damaged_image_names_its_view(file: Path, tmp_path: Path) -> None:
    from dataloading.format import EncodedImage

    path = tmp_path / "damaged.beton"
    with Writer(path, {"image": ImageField()}, num_samples=1) as writer:
        writer.append({"image": EncodedImage(0, 20, 20, b"\xff\xd8no picture\xff\xd9", channels=3)})
    made = Loader(path, batch_size=1, transforms={"v": T.View("image", [T.RandomResizedCrop(8)])}, num_workers=1)
    with pytest.raises(DecodeError, match="sample 0, field 'image', view 'v' of"):
        next(iter(made))


@pytest.mark.parametrize(
    ("transforms", "options", "message"),
    [
        ({"v": T.View("imge", CROPS)}, {}, r"transforms\['v'\]: there is no field 'imge' in .*did you mean 'image'"),
        ({"v": T.View("label", CROPS)}, {}, r"a View is made of images, but 'label' is of kind IntField"),
        ({"label": T.View("image", CROPS)}, {}, r"cannot be called 'label', as another field is"),
        ({"v": T.View("image", CROPS)}, {"fields": ["label"]}, r"a view 'v', which fields=\['label'\] leaves out"),
        ({"v": T.View("image", CROPS)}, {"fields": ["w"]}, r"there is no field 'w'.*'v'"),
        ({"v": T.View("image", CROPS, like="w")}, {}, r"like='w' must name another view of this dictionary"),
        ({"v": T.View("image", CROPS, repeat=2), "w": T.View("image", CROPS, repeat=3, like="v")}, {},
         r"repeat=3, but view 'v' has repeat=2"),
        ({"v": T.View("image", [T.AsList()])}, {}, r"AsList\(\) delivers images as they are stored, .* every view"),
        ({"v": T.View("image", CROPS), "w": T.View("image", CROPS)}, {"fields": ["v", "w", "mask"]},
         r"field 'mask' would follow its image 'image', of which there are 2 views"),
        ({"v": T.View("image", [T.RandomCrop(8), T.CutMix(num_classes=13)], repeat=2)}, {"fields": ["v", "label"]},
         r"transforms\['v'\]: CutMix mixes labels too, of which the 2 views have only one set"),
    ],
)  # fmt: skip
def test_views_that_cannot_be_made_are_refused(
    file: Path, transforms: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Loader(file, batch_size=2, transforms=transforms, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.View([T.CenterCrop(2)]), r"the field's name comes first, got list"),  # type: ignore[arg-type]
        (lambda: T.View("image", T.CenterCrop(2)), r"transforms must be a list, got CenterCrop"),  # type: ignore[arg-type]
        (lambda: T.View("image", CROPS, repeat=0), r"repeat=0 must be an integer of at least 1"),
    ],
)
def test_a_view_checks_its_arguments(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_mixing_works_behind_a_single_view(file: Path) -> None:
    transforms = {"v": T.View("image", [T.RandomCrop(8), T.CutMix(num_classes=NUM)])}
    batch = next(iter(loader(file, transforms)))
    assert batch["v"].shape == (5, 3, 8, 8) and batch["label"].shape == (5, NUM)


def test_five_crops_of_images_and_their_masks_are_lists_that_show_the_corners(file: Path) -> None:
    whole = next(iter(Loader(file, batch_size=NUM, transforms={"image": [T.AsList()], "mask": [T.AsList()]})))
    batch = next(iter(loader(file, {"image": [T.FiveCrop(24)]}, batch_size=NUM, fields=["image", "mask"])))
    assert [tuple(each.shape) for each in batch["image"]] == [(NUM, 3, 24, 24)] * 5
    for row in range(NUM):
        expected = F.five_crop(whole["image"][row], [24, 24])
        masks = F.five_crop(whole["mask"][row][None], [24, 24])
        for k in range(5):
            assert torch.equal(batch["image"][k][row], expected[k])
            assert torch.equal(batch["mask"][k][row], masks[k][0])


def test_all_crops_of_an_image_draw_the_same(file: Path) -> None:
    ops = [T.RandomInvert(0.5), T.TenCrop(20), T.RandomHorizontalFlip(), T.ColorJitter(brightness=0.5)]
    transforms = {"v": T.View("image", [T.CenterCrop(30), *ops], repeat=2)}
    made = loader(file, transforms, batch_size=NUM, return_params=True)
    batch = next(iter(made))
    assert len(batch["v"]) == 20
    factors = [drawn["4.ColorJitter.brightness"].tolist() for drawn in batch.params["v"]]
    assert factors[:10] == factors[:1] * 10 and factors[10:] == factors[10:11] * 10 and factors[0] != factors[10]
    flips = [drawn["3.RandomHorizontalFlip"].tolist() for drawn in batch.params["v"]]
    assert flips[:10] == flips[:1] * 10
    found = by_sample(loader(file, transforms), "v")
    assert found == by_sample(loader(file, transforms, num_workers=1, batch_size=4), "v")


def test_crops_are_on_the_device_what_they_are_on_the_workers(file: Path) -> None:
    ops = [T.RandomCrop(30), T.RandomHorizontalFlip(), T.RandomInvert(0.5), T.FiveCrop(20), T.Normalize(0.5, 0.5)]
    host, device = (next(iter(loader(file, {"image": ops}, place=place)))["image"] for place in ("workers", "device"))
    assert all(torch.equal(a, b) for a, b in zip(host, device, strict=True))


def test_an_image_too_small_for_its_crops_is_an_error_of_the_sample(file: Path) -> None:
    with pytest.raises(TransformError, match=r"image\[0\].*transform 0 \(FiveCrop\).*58x58"):
        next(iter(loader(file, {"image": [T.FiveCrop(58)]}, batch_size=NUM)))


def test_params_of_mixing_are_in_the_batch(file: Path) -> None:
    ops = [T.RandomCrop(8), T.RandomHorizontalFlip(), T.CutMix(num_classes=NUM)]
    first, again = (next(iter(loader(file, {"image": ops}, return_params=True, num_workers=n))) for n in (1, 2))
    drawn = first.params["image"]
    assert [name for name in drawn if "CutMix" in name] == ["2.CutMix.lambda", "2.CutMix.partner", "2.CutMix.box"]
    assert drawn["2.CutMix.partner"].tolist() == [4, 0, 1, 2, 3] and drawn["2.CutMix.box"].shape == (5, 4)
    own = first["label"][range(5), first.indices]
    assert torch.allclose(own, drawn["2.CutMix.lambda"].float())
    assert torch.equal(drawn["2.CutMix.box"], again.params["image"]["2.CutMix.box"])


def test_params_of_images_of_any_size_are_in_the_batch(file: Path) -> None:
    ops = [T.RandomShortestSize([30, 36]), T.RandomHorizontalFlip(), T.ColorJitter(brightness=0.5), T.AsList()]
    batch = next(iter(loader(file, {"image": ops}, return_params=True, batch_size=NUM)))
    drawn = batch.params["image"]
    assert [list(image.shape[1:]) for image in batch["image"]] == drawn["0.RandomShortestSize"].tolist()
    assert drawn["1.RandomHorizontalFlip"].dtype == torch.bool
    factors = drawn["2.ColorJitter.brightness"]
    assert ((factors >= 0.5) & (factors <= 1.5)).all()


def test_params_of_crops_and_flips_give_the_pixels_back(file: Path) -> None:
    whole = next(iter(Loader(file, batch_size=NUM, transforms={"image": [T.AsList()]}, fields=["image"])))["image"]
    for batch in loader(file, {"image": CROPS}, return_params=True):
        drawn = batch.params["image"]
        assert list(drawn) == ["0.RandomCrop", "1.RandomHorizontalFlip", "2.RandomVerticalFlip"]
        for row, index in enumerate(batch.indices.tolist()):
            image = F.crop(whole[index], *drawn["0.RandomCrop"][row].tolist())
            image = F.horizontal_flip(image) if drawn["1.RandomHorizontalFlip"][row] else image
            image = F.vertical_flip(image) if drawn["2.RandomVerticalFlip"][row] else image
            assert torch.equal(image, batch["image"][row])


def test_params_of_views_are_lists_and_those_of_pixels_nan_where_nothing_happened(file: Path) -> None:
    ops = [T.RandomResizedCrop(16), T.RandomErasing(p=0.5), T.RandomInvert(p=0.5), T.ColorJitter(brightness=0.5)]
    transforms = {"two": T.View("image", ops, repeat=2)}
    made = loader(file, transforms, batch_size=NUM, return_params=True)
    plain = loader(file, transforms, batch_size=NUM)
    batch = next(iter(made))
    assert next(iter(plain)).params == {}
    assert by_sample(made, "two") == by_sample(plain, "two")
    first, second = batch.params["two"]
    assert first["0.RandomResizedCrop"].shape == (NUM, 4)
    assert not torch.equal(first["0.RandomResizedCrop"], second["0.RandomResizedCrop"])
    for row, (height, width) in enumerate(sizes(file)):
        top, left, box_height, box_width = first["0.RandomResizedCrop"][row].tolist()
        assert 0 <= top <= height - box_height and 0 <= left <= width - box_width
    assert first["2.RandomInvert"].dtype == torch.bool and 0 < first["2.RandomInvert"].sum() < NUM
    erased = first["1.RandomErasing.top"].isnan()
    assert 0 < erased.sum() < NUM
    factor = next(values for name, values in first.items() if name.startswith("3.") and "brightness" in name)
    assert ((factor >= 0.5) & (factor <= 1.5)).all()


def test_params_and_views_are_the_same_on_the_device(file: Path) -> None:
    ops = [T.RandomResizedCrop(16), T.ColorJitter(0.5), T.RandomErasing(p=0.5), T.Normalize(0.5, 0.5)]
    options: dict[str, Any] = {"return_params": True, "batch_size": NUM}
    host, device = (
        next(iter(loader(file, {"two": T.View("image", ops, repeat=2)}, place=place, **options)))
        for place in ("workers", "device")
    )
    for k in range(2):
        assert host.params["two"][k].keys() == device.params["two"][k].keys()
        for name, values in host.params["two"][k].items():
            assert torch.equal(values.nan_to_num(-9), device.params["two"][k][name].nan_to_num(-9))
        assert (host["two"][k] - device["two"][k]).abs().mean() < 1 / 127.5


def test_params_keep_to_their_rows_when_samples_are_skipped(file: Path) -> None:
    transforms = {"image": [T.RandomCrop(45), T.RandomHorizontalFlip()]}
    all_rows = {}
    for batch in loader(file, {"image": [T.RandomCrop(45, pad_if_needed=True), T.RandomHorizontalFlip()]},
                        return_params=True):  # fmt: skip
        flips = batch.params["image"]["1.RandomHorizontalFlip"]
        all_rows |= dict(zip(batch.indices.tolist(), flips.tolist(), strict=True))
    made = loader(file, transforms, return_params=True, on_error="skip", batch_size=NUM)
    count = 0
    for batch in made:
        flips = batch.params["image"]["1.RandomHorizontalFlip"].tolist()
        assert flips == [all_rows[index] for index in batch.indices.tolist()]
        count += len(flips)
    assert 0 < len(made.errors) == NUM - count


def test_moving_a_batch_moves_lists_of_views(file: Path) -> None:
    batch = next(iter(loader(file, {"two": T.View("image", CROPS, repeat=2)}, return_params=True)))
    moved = batch.to("meta")
    assert [view.device.type for view in moved["two"]] == ["meta", "meta"]
    assert moved.params is batch.params
