"""``--recipe``: the same augmentation with every loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from dataloading import UsageError
from dataloading import transforms as T
from tests.train.conftest import SMALL
from train.loaders import make_loader
from train.loaders.base import LoaderSpec
from train.loaders.recipes import training_recipe
from train.loaders.torchvision_steps import TimmPolicy, torchvision_steps
from train.metrics import read_log
from train.mixing import mix_by_recipe
from train.options import make_options
from train.trainer import run_training

LOADERS = ("beton", "torch", "torch-fast")
FIXED = """
image:
- CenterCrop: 24
- RandomInvert: 1.0
- RandomApply: {transforms: [RandomSolarize: {threshold: 100, p: 1.0}], p: 1.0}
- Normalize: {mean: 0.4, std: 0.2, dtype: float16}
"""
MIXED = """
image:
- RandomResizedCrop: 24
- RandAugment: {num_ops: 1}
- Normalize: {mean: [0.4, 0.5, 0.6], std: 0.2}
- RandomErasing
- MixUp: {alpha: 0.5}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("loader", LOADERS)
def test_each_loader_gives_what_the_recipe_says(beton: Path, recipe: Any, loader: str) -> None:
    wanted = training_recipe(recipe(FIXED), field="image", size=24, num_classes=3)
    spec = LoaderSpec(path=str(beton), training=True, batch_size=9, num_workers=1, seed=0, steps=wanted.steps)
    loaded = make_loader(loader, spec)
    assert loaded.normalised
    batch = next(iter(loaded))
    assert batch.images.dtype == torch.float32
    assert batch.images.shape == (9, 3, 24, 24)
    from dataloading import Reader, decode_image

    with Reader(str(beton)) as reader:
        for row, index in enumerate(batch.indices):
            pixels = torch.from_numpy(decode_image(reader.value("image", int(index))).copy()).permute(2, 0, 1)
            inverted = 255 - v2.functional.center_crop(pixels, [24, 24]).int()
            solarized = torch.where(inverted >= 100, 255 - inverted, inverted).float()
            expected = (solarized / 255 - 0.4) / 0.2
            # Decoders differ by a level, and about the threshold that is much.
            assert (batch.images[row] - expected).abs().median() <= 1.5 / 255 / 0.2
    loaded.close()


@pytest.mark.parametrize("loader", LOADERS)
def test_a_run_with_a_recipe_trains_mixes_and_validates(beton: Path, recipe: Any, loader: str, tmp_path: Path) -> None:
    options = make_options(**{
        **SMALL, "loader": loader, "data": str(beton), "val_fraction": 0.3, "recipe": recipe(MIXED), "epochs": 1,
        "image_size": 24, "resize_size": 28, "output": str(tmp_path / "out"),
    })  # fmt: skip
    assert run_training(options) == 0
    records = read_log(tmp_path / "out" / "log.jsonl")
    assert all(np.isfinite(record["loss"]) for record in records if "loss" in record)
    assert any("top1" in str(record) for record in records)


def test_labels_that_the_recipe_smooths_are_not_smoothed_again_by_the_loss(
    beton: Path, recipe: Any, tmp_path: Path
) -> None:
    mixing = "- RandomChoice: {transforms: [MixUp: {smoothing: 0.2}, CutMix: {smoothing: 0.2}]}"
    losses = {}
    for text in (MIXED, MIXED.replace("- MixUp: {alpha: 0.5}", mixing)):
        for smoothing in (0.0, 0.5):
            output = tmp_path / f"{len(losses)}"
            options = make_options(**{
                **SMALL, "data": str(beton), "val_fraction": 0.3, "recipe": recipe(text), "epochs": 1,
                "image_size": 24, "resize_size": 28, "output": str(output), "label_smoothing": smoothing,
            })  # fmt: skip
            assert run_training(options) == 0
            records = read_log(output / "log.jsonl")
            losses[text, smoothing] = [record["loss"] for record in records if "loss" in record]
    (_, plain), (_, smoothed), (_, once), (_, twice) = losses.items()
    assert plain and plain != smoothed
    assert once == twice


@pytest.mark.parametrize(
    ("changes", "text", "message"),
    [
        ({"loader": "ffcv"}, FIXED, "FFCV lacks most transforms; take beton, torch or torch-fast"),
        ({"mixup": 0.2}, MIXED, "mixes images itself; leave out --mixup and --cutmix"),
        ({}, "image: [CenterCrop: 24, Cutout: 4]", "the torch loaders have no Cutout.* Take --loader beton"),
        ({}, "imgae: [CenterCrop: 24]", "is about 'imgae', and the trainer takes a list for 'image' alone.* 'imgae'"),
        ({}, "image: [CenterCrop: 24, Normalize: {mean: 0, std: 1}, MixUp: {num_classes: 9}]", "the network has 3 out"),
        ({}, "image: [CutMix, CenterCrop: 24]", r"transform 1 \(CenterCrop\) is none of single images"),
        ({}, "image: [CenterCorp: 24]", "line 1: 'CenterCorp' is no transform"),
    ],
)
def test_a_recipe_that_cannot_be_trained_with_is_refused(
    beton: Path, recipe: Any, changes: dict[str, Any], text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run_training(make_options(**{**SMALL, "data": str(beton), "recipe": recipe(text), **changes}))


def test_a_misspelt_recipe_is_refused_with_the_nearest(beton: Path) -> None:
    with pytest.raises(UsageError, match=r"no recipe is called 'deti'.* Did you mean 'deit'"):
        make_options(data=str(beton), recipe="deti")


def test_torchvision_gets_the_options_of_ours() -> None:
    crop, jitter, normalise = (
        T.RandomResizedCrop(24, scale=(0.3, 0.9), interpolation="bicubic"),
        T.ColorJitter(0.4, (0.5, 1.2), hue=0.1),
        T.Normalize(0.4, 0.2),
    )
    steps = [crop, T.RandomApply([jitter], p=0.8), T.AutoAugment("svhn"), normalise, T.RandomErasing(0.3)]
    theirs = torchvision_steps(steps, pillow=True)
    assert [type(each).__name__ for each in theirs] == [
        "RandomResizedCrop", "RandomApply", "AutoAugment", "PILToTensor", "ToDtype", "Normalize", "RandomErasing",
    ]  # fmt: skip
    first: Any = theirs[0]
    assert (list(first.size), list(first.scale), first.interpolation.value) == ([24, 24], [0.3, 0.9], "bicubic")
    second: Any = theirs[1]
    expected = v2.ColorJitter(0.4, (0.5, 1.2), hue=0.1)
    assert second.p == 0.8
    for what in ("brightness", "contrast", "saturation", "hue"):
        given, wanted = getattr(second.transforms[0], what), getattr(expected, what)
        assert given is wanted is None or tuple(given) == pytest.approx(tuple(wanted))
    third: Any = theirs[2]
    assert third.policy == v2.AutoAugmentPolicy.SVHN
    assert len(torchvision_steps(steps, pillow=False)) == 6


def test_timms_policy_is_drawn_with_the_numbers_of_ours() -> None:
    policy = TimmPolicy(T.TimmRandAugment("rand-m9-n3-p1"))
    pixels = torch.randint(0, 256, (3, 20, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    results = []
    with torch.random.fork_rng(devices=[]):
        for seed in range(20):
            torch.manual_seed(seed)
            results.append(policy(pixels))
            torch.manual_seed(seed)
            assert policy(Image.fromarray(pixels.permute(1, 2, 0).numpy())).size == (30, 20)
    assert {(each.dtype, each.shape) for each in results} == {(torch.uint8, (3, 20, 30))}
    assert len({each.numpy().tobytes() for each in results}) > 15
    applied = policy._applied(pixels, "SolarizeAdd", 50.0)
    assert torch.equal(applied, torch.where(pixels < 128, pixels + 50, pixels))
    pillow = policy._applied(Image.fromarray(pixels.permute(1, 2, 0).numpy()), "SolarizeAdd", 50.0)
    assert np.array_equal(np.moveaxis(np.asarray(pillow), -1, 0), applied.numpy())
    doubled = policy._applied(pixels, "Brightness", 1.5)
    assert torch.equal(doubled, v2.functional.adjust_brightness(pixels, 1.5))


def test_mixing_as_the_recipe_says_depends_on_the_key_alone() -> None:
    images = torch.rand((6, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6)
    mixes = (T.MixUp(num_classes=6),)
    mixed, targets = mix_by_recipe(images, labels, mixes, key=(1, 2, 0, 0))
    again, _ = mix_by_recipe(images, labels, mixes, key=(1, 2, 0, 0))
    other, _ = mix_by_recipe(images, labels, mixes, key=(1, 3, 0, 0))
    assert torch.equal(mixed, again)
    assert not torch.equal(mixed, other)
    share = targets[0, 0]
    assert torch.allclose(mixed[0], share * images[0] + (1 - share) * images[5], atol=1e-6)
