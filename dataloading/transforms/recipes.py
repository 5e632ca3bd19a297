"""Augmentations of well-known trainings, ready for a `Loader`: ``transforms=T.recipes.deit(num_classes=10)``.

Each function returns a fresh mapping of fields to lists of transforms, to be passed on or changed. Its docstring names
the paper and the script whose numbers are the defaults. `load` and `dump` keep recipes in YAML files; `find` takes the
name of one of these functions or of a file.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.messages import did_you_mean
from dataloading.transforms.base import check_options
from dataloading.transforms.recipe_files import dump, load

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "NAMES",
    "deit",
    "detection",
    "dino",
    "dump",
    "find",
    "imagenet_eval",
    "imagenet_train",
    "load",
    "simclr",
    "trivial",
]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_Numbers = Sequence[float]
Recipe = dict[str, Any]
_Options = ParamSpec("_Options")


def _recipe(function: Callable[_Options, Recipe]) -> Callable[_Options, Recipe]:
    """Answer a misspelt option of a recipe with the nearest name."""

    @functools.wraps(function)
    def checked(*args: _Options.args, **options: _Options.kwargs) -> Recipe:
        check_options(function.__name__, options, inspect.signature(function))
        return function(*args, **options)

    return checked


@_recipe
def imagenet_train(
    *,
    size: int = 224,
    scale: _Numbers = (0.08, 1.0),
    interpolation: str = "bilinear",
    mean: _Numbers = IMAGENET_MEAN,
    std: _Numbers = IMAGENET_STD,
    dtype: str = "float32",
    field: str = "image",
) -> Recipe:
    """Return the basic augmentation of ImageNet: a random crop and a flip.

    As in torchvision's reference script for classification (Szegedy et al., https://arxiv.org/abs/1409.4842).

    Parameters
    ----------
    size : int
        Side of the crop in pixels.
    scale : (float, float)
        Least and greatest share of the image's area in the crop.
    interpolation, mean, std, dtype
        Of `RandomResizedCrop` and `Normalize`.
    field : str
        The image field.

    Examples
    --------
    >>> imagenet_train()["image"][:2]  # doctest: +ELLIPSIS
    [RandomResizedCrop(size=(224, 224), ...), RandomHorizontalFlip(p=0.5)]
    """
    crop = T.RandomResizedCrop(size, scale=scale, interpolation=interpolation)
    return {field: [crop, T.RandomHorizontalFlip(), T.Normalize(mean, std, dtype=dtype)]}


@_recipe
def imagenet_eval(
    *,
    size: int = 224,
    resize: int = 256,
    interpolation: str = "bilinear",
    mean: _Numbers = IMAGENET_MEAN,
    std: _Numbers = IMAGENET_STD,
    dtype: str = "float32",
    field: str = "image",
) -> Recipe:
    """Return what goes with `imagenet_train` for evaluation: the shorter side resized, and the centre of it.

    Parameters
    ----------
    size : int
        Side of the crop in pixels.
    resize : int
        Shorter side before the crop.
    interpolation, mean, std, dtype, field
        See `imagenet_train`.

    Examples
    --------
    >>> imagenet_eval(size=64, resize=72)["image"][1]
    CenterCrop(size=(64, 64))
    """
    steps = [T.Resize(resize, interpolation=interpolation), T.CenterCrop(size), T.Normalize(mean, std, dtype=dtype)]
    return {field: steps}


@_recipe
def simclr(
    *,
    size: int = 224,
    views: int = 2,
    strength: float = 1.0,
    scale: _Numbers = (0.08, 1.0),
    mean: _Numbers = IMAGENET_MEAN,
    std: _Numbers = IMAGENET_STD,
    dtype: str = "float32",
    field: str = "image",
) -> Recipe:
    """Return SimCLR's: views of one image under ``"views"``, a list of tensors.

    As in appendix A of Chen et al., https://arxiv.org/abs/2002.05709: crop and flip, colour jitter in 80 % of images,
    gray in 20 %, blur in half of them, over a tenth of the image's side.

    Parameters
    ----------
    size : int
        Side of a view in pixels.
    views : int
        Views of an image.
    strength : float
        Of the colour jitter; the paper has 1.0 for ImageNet and 0.5 for CIFAR-10, there without blur.
    scale, mean, std, dtype, field
        See `imagenet_train`. The paper does not normalise.

    Examples
    --------
    >>> simclr(views=4)["views"].repeat
    4
    """
    steps = [
        T.RandomResizedCrop(size, scale=scale),
        T.RandomHorizontalFlip(),
        _colours(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength),
        T.RandomGrayscale(0.2),
        T.RandomApply([T.GaussianBlur(max(3, size // 10 // 2 * 2 + 1))], p=0.5),
        T.Normalize(mean, std, dtype=dtype),
    ]
    return {"views": T.View(field, steps, repeat=views)}


@_recipe
def dino(
    *,
    global_size: int = 224,
    local_size: int = 96,
    num_local: int = 8,
    global_scale: _Numbers = (0.4, 1.0),
    local_scale: _Numbers = (0.05, 0.4),
    mean: _Numbers = IMAGENET_MEAN,
    std: _Numbers = IMAGENET_STD,
    dtype: str = "float32",
    field: str = "image",
) -> Recipe:
    """Return DINO's: two global views, ``"global_1"`` and ``"global_2"``, and a list of small ones, ``"local"``.

    As in the script of Caron et al., https://arxiv.org/abs/2104.14294: the first global view is always blurred, the
    second one rarely and solarised in 20 % of images, the local ones half of the times.

    Parameters
    ----------
    global_size, local_size : int
        Sides of the views in pixels.
    num_local : int
        Local views of an image.
    global_scale, local_scale : (float, float)
        Shares of the image's area in the crops. The paper has 0.25 as the border between them with 10 local views.
    mean, std, dtype, field
        See `imagenet_train`.

    Examples
    --------
    >>> dino(num_local=6)["local"].repeat
    6
    """

    def view(size: int, scale: _Numbers, blur: float, repeat: int = 1, solarize: float = 0.0) -> Any:
        steps = [
            T.RandomResizedCrop(size, scale=scale, interpolation="bicubic"),
            T.RandomHorizontalFlip(),
            _colours(0.4, 0.4, 0.2, 0.1),
            T.RandomGrayscale(0.2),
            # Sigma is at most 2: 13 pixels are three of them to each side.
            T.RandomApply([T.GaussianBlur(13, sigma=(0.1, 2.0))], p=blur),
            *([T.RandomSolarize(128, p=solarize)] if solarize else []),
            T.Normalize(mean, std, dtype=dtype),
        ]
        return T.View(field, steps, repeat=repeat)

    return {
        "global_1": view(global_size, global_scale, 1.0),
        "global_2": view(global_size, global_scale, 0.1, solarize=0.2),
        "local": view(local_size, local_scale, 0.5, repeat=num_local),
    }


@_recipe
def deit(
    *,
    size: int = 224,
    num_classes: int = 1000,
    policy: str = "rand-m9-mstd0.5-inc1",
    erasing: float = 0.25,
    mixup: float = 0.8,
    cutmix: float = 1.0,
    mean: _Numbers = IMAGENET_MEAN,
    std: _Numbers = IMAGENET_STD,
    dtype: str = "float32",
    field: str = "image",
) -> Recipe:
    """Return DeiT's: RandAugment, erasing, and MixUp or CutMix of each batch.

    As in the script of Touvron et al., https://arxiv.org/abs/2012.12877, which takes timm's transforms: a bicubic
    crop, RandAugment by timm's string, erasing by noise in a quarter of the images, MixUp or CutMix half of the times
    each. Label smoothing (0.1 there) is the loss's.

    Parameters
    ----------
    size : int
        Side of the crop in pixels.
    num_classes : int
        Of the labels, which become soft ones.
    policy : str
        See `TimmRandAugment`.
    erasing : float
        Probability of `RandomErasing`.
    mixup, cutmix : float
        Alphas of `MixUp` and `CutMix`; 0 leaves one out.
    mean, std, dtype, field
        See `imagenet_train`.

    Examples
    --------
    >>> len(deit(num_classes=10)["image"]), len(deit(mixup=0, cutmix=0)["image"])
    (6, 5)
    """
    return {
        field: [
            T.RandomResizedCrop(size, interpolation="bicubic"),
            T.RandomHorizontalFlip(),
            T.TimmRandAugment(policy),
            T.Normalize(mean, std, dtype=dtype),
            T.RandomErasing(erasing, scale=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3), value="random"),
            *_mixing(mixup, cutmix, num_classes),
        ]
    }


@_recipe
def trivial(
    *,
    size: int = 176,
    num_classes: int = 1000,
    erasing: float = 0.1,
    mixup: float = 0.2,
    cutmix: float = 1.0,
    mean: _Numbers = IMAGENET_MEAN,
    std: _Numbers = IMAGENET_STD,
    dtype: str = "float32",
    field: str = "image",
) -> Recipe:
    """Return TrivialAugment with erasing and MixUp or CutMix: torchvision's recipe for its second set of weights.

    As its reference script for classification has it for ResNet-50 (176 pixels for training, 224 for evaluation, label
    smoothing 0.1); the policy is that of Müller and Hutter, https://arxiv.org/abs/2103.10158.

    Parameters
    ----------
    size : int
        Side of the crop in pixels.
    num_classes, erasing, mixup, cutmix, mean, std, dtype, field
        See `deit`.

    Examples
    --------
    >>> trivial(mixup=0, cutmix=0)["image"][2]
    TrivialAugmentWide(num_magnitude_bins=31, interpolation='bilinear', fill=None)
    """
    return {
        field: [
            T.RandomResizedCrop(size),
            T.RandomHorizontalFlip(),
            T.TrivialAugmentWide(interpolation="bilinear"),
            T.Normalize(mean, std, dtype=dtype),
            T.RandomErasing(erasing),
            *_mixing(mixup, cutmix, num_classes),
        ]
    }


@_recipe
def detection(
    *,
    size: int = 300,
    zoom_out: float = 0.5,
    fill: Sequence[int] = (123, 117, 104),
    mean: _Numbers = IMAGENET_MEAN,
    std: _Numbers = IMAGENET_STD,
    dtype: str = "float32",
    field: str = "image",
) -> Recipe:
    """Return SSD's for detection: boxes follow the image, and those that are cut away are dropped with their labels.

    As in torchvision's reference script for SSD300, after Liu et al., https://arxiv.org/abs/1512.02325: zoom out onto
    the mean colour, a crop that keeps some overlap with a box, a flip, photometric distortion. The distortion comes
    last here, so that all geometry is one resampling of the decoded pixels.

    Parameters
    ----------
    size : int
        Side of the image in pixels; the sides are scaled each by itself.
    zoom_out : float
        Probability of zooming out.
    fill : sequence of float
        Colour around an image that is zoomed out.
    mean, std, dtype, field
        See `imagenet_train`.

    Examples
    --------
    >>> detection(size=320)["image"][3].size
    (320, 320)
    """
    return {
        field: [
            T.RandomZoomOut(fill=fill, p=zoom_out),
            T.RandomIoUCrop(),
            T.RandomHorizontalFlip(),
            T.Resize((size, size)),
            T.SanitizeBoundingBoxes(),
            T.RandomPhotometricDistort(),
            T.Normalize(mean, std, dtype=dtype),
        ]
    }


NAMES: dict[str, Callable[..., Recipe]] = {
    each.__name__: each for each in (imagenet_train, imagenet_eval, simclr, dino, deit, trivial, detection)
}
"""The recipes by name."""


def find(name: str | os.PathLike[str], **options: Any) -> Recipe:
    """Return the recipe of this name, or of this YAML file.

    Parameters
    ----------
    name : str or os.PathLike
        One of `NAMES`, or the path of a file for `load`.
    **options
        For the function of that name; one that it does not have is left out, as are all for a file.

    Raises
    ------
    UsageError
        There is neither.

    Examples
    --------
    >>> find("deit", size=64, resize=72)["image"][0].size
    (64, 64)
    """
    function = NAMES.get(os.fspath(name).replace("-", "_"))
    if function is None:
        path = Path(name)
        if path.suffix in (".yaml", ".yml") or path.exists():
            return load(path)
        guess = did_you_mean(str(name), NAMES) or f"There are {', '.join(NAMES)}."
        raise UsageError(f"no recipe is called {str(name)!r}, and no YAML file either. {guess}")
    known = inspect.signature(function).parameters
    return function(**{option: value for option, value in options.items() if option in known})


def _colours(brightness: float, contrast: float, saturation: float, hue: float) -> T.RandomApply:
    return T.RandomApply([T.ColorJitter(brightness, contrast, saturation, hue)], p=0.8)


def _mixing(mixup: float, cutmix: float, num_classes: int) -> list[Any]:
    mixes = [
        kind(alpha=alpha, num_classes=num_classes) for kind, alpha in ((T.MixUp, mixup), (T.CutMix, cutmix)) if alpha
    ]
    return [T.RandomChoice(mixes)] if len(mixes) == 2 else mixes
