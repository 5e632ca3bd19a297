"""Which modules and callables may stand in a list of transforms: those that draw nothing."""

from __future__ import annotations

import functools

import pytest
import torch
import torchvision
import torchvision.transforms as v1
from torch import nn
from torchvision.transforms import v2

from dataloading import Loader, UsageError
from dataloading import transforms as T
from dataloading.transforms.foreign import check_callable

FLIP = v2.RandomHorizontalFlip()


class Holder:
    """A user's own callable, not a torch module."""

    def __init__(self) -> None:
        self.steps = {"first": [v2.Compose([FLIP])]}

    def __call__(self, images):
        return images


class OwnRandom(v2.Transform):
    """Draws as torchvision's own transforms do; its name says nothing."""

    def make_params(self, flat_inputs):
        return {"shift": torch.rand(())}

    def transform(self, inpt, params):
        return inpt


def of_library(name: str, module: str, *bases: type, **attributes: object) -> object:
    """An object that looks as if it came from a library that is not installed."""
    kind = type(name, bases, {"__module__": module, "__call__": lambda self, images: images})
    made = kind()
    vars(made).update(attributes)
    return made


KORNIA = type("_BasicAugmentationBase", (), {"__module__": "kornia.augmentation.base"})


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (FLIP, r"transform 1 \(RandomHorizontalFlip\) is random, .* Use T.RandomHorizontalFlip of .* for each image"),
        (v1.RandomHorizontalFlip(), "Use T.RandomHorizontalFlip"),
        (v2.RandomHorizontalFlip(p=1), "is random"),
        (v2.RandomResizedCrop(8), "Use T.RandomResizedCrop"),
        (v1.RandomErasing(), "Use T.RandomErasing"),
        (v2.ColorJitter(0.4), "Use T.ColorJitter"),
        (v2.RandAugment(), "Use T.RandAugment of dataloading.transforms"),
        (v1.AutoAugment(), "Use T.AutoAugment"),
        (v2.RandomZoomOut(), "Use T.RandomZoomOut"),
        (v2.RandomResize(8, 9), "has no RandomResize: take T.ColorJitter"),
        (v2.GaussianNoise(), "Use T.GaussianNoise"),
        (v2.GaussianBlur(3, sigma=(0.1, 2.0)), "Use T.GaussianBlur"),
        (v2.JPEG((20, 90)), "Use T.JPEG"),
        (v2.MixUp(num_classes=3), r"Use T.MixUp\(num_classes=...\)"),
        (v2.CutMix(num_classes=3), r"Use T.CutMix\(num_classes=...\)"),
        (OwnRandom(), r"\(OwnRandom\) is random"),
        (nn.Dropout(), "Call .eval"),
        (nn.Sequential(nn.Conv2d(3, 3, 1), nn.Dropout2d(0.1)), "holds Dropout2d, which .* make it part of the model"),
        (nn.LSTM(3, 3, num_layers=2, dropout=0.5), r"\(LSTM\) is random"),
        (torchvision.ops.StochasticDepth(0.1, "row"), "Call .eval"),
        (functools.partial(nn.functional.dropout, p=0.1), "holds dropout"),
        (
            nn.Sequential(nn.Identity(), nn.Sequential(FLIP)),
            r"\(Sequential\) holds RandomHorizontalFlip, which is random",
        ),
        (nn.ModuleList([FLIP]), "holds RandomHorizontalFlip"),
        (v2.Compose([v2.Compose([FLIP])]), "holds RandomHorizontalFlip"),
        (v1.Compose([v1.RandomRotation(9)]), "holds RandomRotation"),
        (v2.RandomApply([nn.Identity()]), r"\(RandomApply\) is random"),
        (v1.RandomChoice([nn.Identity()]), r"\(RandomChoice\) is random"),
        (v2.RandomOrder([nn.Identity()]), r"\(RandomOrder\) is random"),
        (v2.Lambda(FLIP), "holds RandomHorizontalFlip"),
        (functools.partial(FLIP), "holds RandomHorizontalFlip"),
        (functools.partial(map, [FLIP]), "holds RandomHorizontalFlip"),
        (FLIP.forward, r"\(RandomHorizontalFlip.forward\) holds RandomHorizontalFlip"),
        (Holder(), r"\(Holder\) holds RandomHorizontalFlip"),
        (Holder().__call__, "holds RandomHorizontalFlip"),
        (
            of_library("HorizontalFlip", "albumentations.augmentations.flip"),
            "single NumPy images.*T.RandomHorizontalFlip",
        ),
        (of_library("Normalize", "albumentations.augmentations.pixel"), "cannot take the batch"),
        (of_library("RandomErasing", "timm.data.random_erasing"), "Use T.RandomErasing"),
        (of_library("RandAugment", "timm.data.auto_augment"), "is random"),
        (of_library("AutoAugment", "timm.data.auto_augment"), "is random"),
        (of_library("AugMixAugment", "timm.data.auto_augment"), "is random"),
        (of_library("DropPath", "timm.layers.drop", drop_prob=0.1, training=True), "Call .eval"),
        (of_library("ColorJiggle", "kornia.augmentation", KORNIA, p=1.0), "Use T.ColorJitter"),
        (of_library("Normalize", "kornia.augmentation", KORNIA, p=0.5), "is random"),
        (of_library("RandomMixUpV2", "kornia.augmentation", KORNIA, p=1.0), "Use T.MixUp"),
        (of_library("ImageSequential", "kornia.augmentation", random_apply=2), "is random"),
        (of_library("ToTensor", "ffcv.transforms.ops"), "is FFCV's ToTensor. Leave out ToTensor"),
        (nn.Identity, r"is the class Identity, not an instance. Write Identity\(...\)"),
        ("flip", "must be a transform .* got str: 'flip'"),
        ([FLIP], "must be a transform .* got list"),
    ],
)
def test_what_is_random_is_refused_with_ours_in_its_place(op, words):
    with pytest.raises(UsageError, match=words):
        check_callable(op, 1)


@pytest.mark.parametrize(
    "op",
    [
        v2.Normalize([0.5], [0.5]),
        v2.ToDtype(torch.float32, scale=True),
        v2.Resize(8),
        v2.CenterCrop(8),
        v2.Grayscale(3),
        v2.Identity(),
        v2.GaussianBlur(3, sigma=1.0),
        v1.GaussianBlur(3, sigma=(0.5, 0.5)),
        v2.JPEG(50),
        v2.Compose([v2.Resize(8), v2.Normalize([0.5], [0.5])]),
        v1.Compose([v1.Resize(8)]),
        v2.functional.horizontal_flip,
        functools.partial(v2.functional.gaussian_blur, kernel_size=3),
        nn.Identity(),
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Dropout(0.0)),
        nn.Dropout(0.5).eval(),
        nn.Sequential(nn.Dropout(0.5)).eval(),
        lambda batch: FLIP(batch),
        torch.flip,
        of_library("Normalize", "kornia.augmentation", KORNIA, p=1.0),
        of_library("CenterCropOrPad", "timm.data.transforms"),
    ],
    ids=lambda op: getattr(op, "__name__", type(op).__name__),
)
def test_what_draws_nothing_is_used(op):
    check_callable(op, 0)


def test_a_loader_refuses_a_random_module_in_the_list_of_any_field(photos_file):
    crop = T.CenterCrop(8)
    with pytest.raises(
        UsageError, match=r"transforms\['image'\]: transform 1 \(Sequential\) holds RandomHorizontalFlip"
    ):
        Loader(photos_file, batch_size=4, transforms={"image": [crop, nn.Sequential(FLIP)]})
    with pytest.raises(UsageError, match=r"transforms\['label'\]: transform 1 \(Dropout\) is random"):
        Loader(photos_file, batch_size=4, transforms={"image": [crop], "label": [torch.flip, nn.Dropout()]})


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (v2.ColorJitter(0.4, hue=0.1), r"Use T.ColorJitter\(brightness=\(0.6, 1.4\), hue=\(-0.1, 0.1\)\) of"),
        (v1.RandomHorizontalFlip(0.1), r"Use T.RandomHorizontalFlip\(p=0.1\) of"),
        (v2.RandomErasing(), r"Use T.RandomErasing of"),
        (v2.RandomRotation(15, expand=False), r"Use T.RandomRotation\(degrees=\(-15.0, 15.0\)\) of"),
        (v2.RandomApply([FLIP]), r"Use T.RandomApply of"),
        (v2.RandomResize(8, 9), r"keep it: T.PerSample\(RandomResize\(...\)\), among .* for each image"),
        (FLIP, r"Or keep it: T.PerSample\(RandomHorizontalFlip\(...\)\)"),
    ],
)
def test_the_advice_has_their_arguments_and_the_way_to_keep_it(op, words):
    with pytest.raises(UsageError, match=words):
        check_callable(op, 1)
