"""Recipes by name and as YAML, and what `repr` gives."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from dataloading import UsageError
from dataloading import transforms as T
from tests.support.loading import MEAN, STD

# One of each transform, with options that are not its defaults.
EACH = {
    "AsList": T.AsList(),
    "AugMix": T.AugMix(severity=2, mixture_width=2),
    "AutoAugment": T.AutoAugment("svhn", fill=(1, 2, 3)),
    "CenterCrop": T.CenterCrop((20, 30)),
    "ClampBoundingBoxes": T.ClampBoundingBoxes("hard"),
    "ColorJitter": T.ColorJitter(0.4, (0.5, 1.5), 0.1, 0.1),
    "Compose": T.Compose([T.RandomInvert(), T.Grayscale(3)]),
    "CropAroundBox": T.CropAroundBox(20, field="faces", scale=(1, 2), shift=0.1, pick="largest"),
    "CutMix": T.CutMix(alpha=0.5, num_classes=7),
    "Cutout": T.Cutout(8, fill=(1, 2, 3), p=0.5),
    "ElasticTransform": T.ElasticTransform(40.0, 4.0),
    "FiveCrop": T.FiveCrop((20, 30)),
    "TenCrop": T.TenCrop(20, vertical_flip=True),
    "GaussianBlur": T.GaussianBlur((3, 5), sigma=1.5),
    "GaussianNoise": T.GaussianNoise(0.1, 0.2, clip=False),
    "Grayscale": T.Grayscale(3),
    "JPEG": T.JPEG((20, 80)),
    "MapLabels": T.MapLabels({3: 0, 7: 1}, default=2),
    "OneHot": T.OneHot(7, smoothing=0.1),
    "ReplaceLabel": T.ReplaceLabel([3, 5], 1),
    "MixUp": T.MixUp(alpha=0.2, num_classes=7),
    "Mixup": T.Mixup(num_classes=7),
    "Normalize": T.Normalize(MEAN, STD, dtype="float16"),
    "Pad": T.Pad([1, 2], padding_mode="reflect"),
    "PadBatch": T.PadBatch(),
    "RandAugment": T.RandAugment(3, 7, interpolation="bilinear"),
    "RandomAdjustSharpness": T.RandomAdjustSharpness(2.0, p=0.3),
    "RandomAffine": T.RandomAffine(10, translate=(0.1, 0.2), scale=(0.9, 1.1), shear=5),
    "RandomApply": T.RandomApply([T.ColorJitter(0.4), T.RandomInvert()], p=0.8),
    "RandomAutocontrast": T.RandomAutocontrast(0.3),
    "RandomChannelPermutation": T.RandomChannelPermutation(),
    "RandomChoice": T.RandomChoice([T.RandomInvert(), T.RandomEqualize()], p=[1, 3]),
    "RandomCrop": T.RandomCrop(20, padding=4, pad_if_needed=True, fill=(1, 2, 3)),
    "RandomEqualize": T.RandomEqualize(0.2),
    "RandomErasing": T.RandomErasing(0.2, value="random"),
    "RandomGrayscale": T.RandomGrayscale(0.2),
    "RandomHorizontalFlip": T.RandomHorizontalFlip(0.2),
    "RandomInvert": T.RandomInvert(0.2),
    "RandomIoUCrop": T.RandomIoUCrop(trials=20),
    "RandomOrder": T.RandomOrder([T.RandomApply([T.RandomInvert()]), T.RandomPosterize(4)]),
    "RandomPerspective": T.RandomPerspective(0.3, p=0.2, fill=5),
    "RandomPhotometricDistort": T.RandomPhotometricDistort(hue=(-0.1, 0.1)),
    "RandomPosterize": T.RandomPosterize(3),
    "RandomResizedCrop": T.RandomResizedCrop((20, 30), scale=(0.2, 1), interpolation="bicubic"),
    "RandomRotation": T.RandomRotation((-10, 20), expand=False, center=(3, 4)),
    "RandomShortestSize": T.RandomShortestSize([20, 30], max_size=50),
    "RandomSolarize": T.RandomSolarize(100, p=0.2),
    "RandomTranslate": T.RandomTranslate(4, fill=(1, 2, 3)),
    "RandomVerticalFlip": T.RandomVerticalFlip(0.2),
    "RandomZoomOut": T.RandomZoomOut(fill=(1, 2, 3), p=0.3),
    "Resize": T.Resize(30, max_size=60),
    "SanitizeBoundingBoxes": T.SanitizeBoundingBoxes(2.0, labels_getter=("category", "iscrowd")),
    "ScaleJitter": T.ScaleJitter((40, 50), scale_range=(0.2, 1.5)),
    "ThreeAugment": T.ThreeAugment(),
    "TimmRandAugment": T.TimmRandAugment("rand-m7-n3", fill=0),
    "ToDtype": T.ToDtype("float16", scale=True),
    "TrivialAugmentWide": T.TrivialAugmentWide(15),
    "View": T.View("image", [T.RandomInvert()], repeat=2),
}
# These hold what has no text: a function, or a mask.
WITH_FUNCTIONS = {
    "Custom": T.Custom(lambda image, key: None),
    "PerSample": T.PerSample(lambda image: image),
    "Poison": T.Poison(np.zeros((4, 4)), 0.5, [1]),
}
PUBLIC = [name for name in T.__all__ if isinstance(getattr(T, name), type)]


def test_the_examples_below_are_of_all_public_transforms():
    assert set(EACH) | set(WITH_FUNCTIONS) == set(PUBLIC)


@pytest.mark.parametrize("name", EACH)
def test_repr_evaluates_to_an_equal_transform(name):
    names = {each: getattr(T, each) for each in PUBLIC}
    assert eval(repr(EACH[name]), names) == EACH[name]


@pytest.mark.parametrize("name", EACH)
def test_copies_and_pickles_are_equal(name):
    assert copy.copy(EACH[name]) == EACH[name]
    assert pickle.loads(pickle.dumps(EACH[name])) == EACH[name]


@pytest.mark.parametrize("name", EACH)
def test_yaml_gives_each_transform_back(name, tmp_path):
    recipe = {"image": [EACH[name]]}
    text = T.recipes.dump(recipe, tmp_path / "one.yaml")
    assert (tmp_path / "one.yaml").read_text() == text
    assert T.recipes.load(tmp_path / "one.yaml") == recipe


@pytest.mark.parametrize(
    "name", [name for name in T.recipes.NAMES if hasattr(T, "View") or name not in ("simclr", "dino")]
)
def test_yaml_gives_each_recipe_back(name, tmp_path):
    recipe = T.recipes.find(name)
    T.recipes.dump(recipe, tmp_path / "r.yaml")
    assert T.recipes.load(str(tmp_path / "r.yaml")) == recipe
    assert T.recipes.find(tmp_path / "r.yaml", size=64) == recipe


def read(tmp_path, text):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    return T.recipes.load(path)


def test_yaml_gives_a_choice_of_mixing_back(tmp_path):
    mixes = [T.MixUp(alpha=0.2, num_classes=7), T.CutMix(num_classes=7)]
    recipe = {"image": [T.RandomChoice(mixes, p=[1, 3]), T.RandomApply(mixes, p=0.3)]}
    text = T.recipes.dump(recipe, tmp_path / "r.yaml")
    assert T.recipes.load(tmp_path / "r.yaml") == recipe
    assert "RandomChoice" in text
    assert "RandomApply" in text


def test_a_recipe_is_as_short_in_yaml_as_in_python(tmp_path):
    text = """
image:
  - RandomResizedCrop: {size: 224, scale: [0.2, 1]}
  - RandomHorizontalFlip
  - RandomApply: {transforms: [ColorJitter: {brightness: 0.4}, RandomInvert], p: 0.8}
  - RandomOrder:
    - RandomPosterize: 4
    - RandomGrayscale:
small:
  - CenterCrop: 64
"""
    assert read(tmp_path, text) == {
        "image": [
            T.RandomResizedCrop(224, scale=(0.2, 1)),
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.4), T.RandomInvert()], p=0.8),
            T.RandomOrder([T.RandomPosterize(4), T.RandomGrayscale()]),
        ],
        "small": [T.CenterCrop(64)],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a recipe is a mapping"),
        ("- RandomInvert", "a recipe is a mapping"),
        ("image: RandomInvert", "line 1: expected a list of transforms, each behind a dash"),
        ("image:\n- RandomInvrt", r"line 2: 'RandomInvrt' is no transform. Did you mean 'RandomInvert'"),
        ("image:\n- ToTensor", "line 2: 'ToTensor' is no transform. There is no such transform; leave it out"),
        ("image:\n- normal", "line 2: 'normal' is no transform"),
        ("image:\n- 3", "line 2: 3 is no transform"),
        ("image:\n- CenterCrop: {sizes: 3}", "line 2: CenterCrop has no option 'sizes'. Did you mean 'size'?"),
        ("image:\n- CenterCrop", "line 2: CenterCrop needs size"),
        ("image:\n- CenterCrop: {size: no}", "line 2: CenterCrop: size must be an integer"),
        ("image:\n- CenterCrop: {size: 3, size: 4}", "line 2: 'size' is given twice"),
        ("image:\n- RandomInvert\nimage:\n- RandomInvert", "line 3: 'image' is given twice"),
        ("image:\n- {RandomInvert: {}, RandomEqualize: {}}", "line 2: expected one transform"),
        ("image:\n- RandomApply:\n    transforms:\n    - Foo", "line 4: 'Foo' is no transform"),
        ("image:\n- RandomApply: {p: 0.3}", "line 2: RandomApply needs transforms"),
        ("image:\n- RandomApply: {transforms: 3}", "line 2: expected a list of transforms"),
        ("image:\n- RandomChannelPermutation: 3", "line 2: RandomChannelPermutation has no options"),
        ("image:\n- Custom: {fn: print}", "line 2: Custom takes a function, which YAML cannot hold"),
        ("image:\n- RandomInvert: !!python/name:os.system {}", "line 2: the tag .*os.system has no meaning"),
        ("image:\n- CenterCrop: !!python/name:os.system x", "line 2: .*constructor for the tag"),
        ("image:\n- [", "line 2: this is no YAML that a recipe may hold"),
        ("image: &a\n- RandomOrder: {transforms: *a}", "line 1: transforms inside transforms, more than 20 deep"),
        ("image:\n- CenterCrop: &a [*a]", "line 2: this is no YAML that a recipe may hold"),
        ("3: [RandomInvert]", "line 1: the name of a field must be a word, got 3"),
    ],
)
def test_a_faulty_recipe_is_refused_with_file_and_line(tmp_path, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "r.yaml") in str(caught.value)


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "r.yaml").write_bytes(b"\xff\xfe\xfa")
    for path in ("r.yaml", "none.yaml", "."):
        with pytest.raises(UsageError, match="cannot read the recipe"):
            T.recipes.load(tmp_path / path)


def test_a_name_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(
        UsageError, match=r"no recipe is called 'imagenet-trian', and no .* Did you mean 'imagenet_train'"
    ):
        T.recipes.find("imagenet-trian")
    with pytest.raises(UsageError, match=r"There are imagenet_train, .*trivial"):
        T.recipes.find("qqq")


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (WITH_FUNCTIONS["Poison"], r"image\[1\]: Poison holds arrays"),
        (WITH_FUNCTIONS["Custom"], r"image\[1\]: Custom holds a function"),
        (T.RandomApply([WITH_FUNCTIONS["Custom"]]), r"image\[1\]: RandomApply: transforms\[0\]: Custom holds"),
        (print, r"image\[1\]: a recipe file holds transforms of dataloading.transforms only, got <built-in"),
    ],
)
def test_functions_are_refused_when_a_recipe_is_written(transform, message):
    with pytest.raises(UsageError, match=message):
        T.recipes.dump({"image": [T.RandomInvert(), transform]})


@pytest.mark.parametrize("size", [30, (30, 30), (20, 30)])
def test_a_size_means_the_same_after_writing(size, tmp_path):
    # One number is the shorter side for Resize and a square for the others.
    recipe = {"image": [T.Resize(size), T.CenterCrop(size)]}
    text = T.recipes.dump(recipe, tmp_path / "r.yaml")
    assert T.recipes.load(tmp_path / "r.yaml") == recipe
    assert ("CenterCrop: {size: 30}" in text) == (size != (20, 30))
