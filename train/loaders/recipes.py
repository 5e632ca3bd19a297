"""``--recipe``: the augmentation of a training run, for every loader that supports it.

Reads a recipe of `dataloading.transforms` (`training_recipe`), and translates it to torchvision's v2 transforms for the
torch loaders (`torchvision_steps`). The trainer mixes the images of a batch, for every loader.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from dataloading import UsageError
from dataloading import transforms as T
from dataloading.messages import did_you_mean
from dataloading.transforms.base import BatchOp, ImageTransform

from .base import IMAGENET_MEAN, IMAGENET_STD


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """A recipe, as the trainer uses it.

    Parameters
    ----------
    steps : tuple
        Transforms of single images; the last ones normalise, as float32.
    mixes : tuple
        Transforms of a batch: `MixUp`, `CutMix`, or a `RandomChoice` of them.
    mean, std : tuple of float
        Of the normalisation, for evaluation too.
    """

    steps: tuple[Any, ...]
    mixes: tuple[Any, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def training_recipe(name: str, *, field: str, size: int, num_classes: int) -> TrainingRecipe:
    """Read a recipe by name or from a file.

    Parameters
    ----------
    name : str
        See `dataloading.transforms.recipes.find`.
    field : str
        The image field.
    size : int
        Side of the crop, for a recipe by name.
    num_classes : int
        Outputs of the network.

    Raises
    ------
    UsageError
        There is no such recipe, or it does not suit training a classifier.
    """
    recipe = T.recipes.find(name, field=field, size=size, num_classes=num_classes)
    if set(recipe) != {field} or hasattr(recipe[field], "repeat"):
        guess = did_you_mean(field, recipe)
        raise UsageError(
            f"--recipe {name} is about {', '.join(map(repr, recipe))}, and the trainer takes a list for {field!r} "
            f"alone: one image a sample. {guess}".rstrip()
        )
    steps: list[Any] = []
    mixes: list[Any] = []
    for place, step in enumerate(recipe[field]):
        if _mixes(step):
            mixes.append(_with_classes(step, num_classes, name))
        elif mixes or not isinstance(step, ImageTransform):
            raise UsageError(
                f"--recipe {name}: transform {place} ({type(step).__name__}) is none of single images; only MixUp and "
                f"CutMix may follow those"
            )
        else:
            steps.append(dataclasses.replace(step, dtype="float32") if isinstance(step, T.Normalize) else step)
    last = next((step for step in steps if isinstance(step, T.Normalize)), None)
    if last is None:
        last = T.Normalize(IMAGENET_MEAN, IMAGENET_STD)
        steps.append(last)
    return TrainingRecipe(steps=tuple(steps), mixes=tuple(mixes), mean=_three(last.mean), std=_three(last.std))


def _mixes(step: Any) -> bool:
    inside = getattr(step, "transforms", ())
    return isinstance(step, BatchOp) or (bool(inside) and all(isinstance(each, BatchOp) for each in inside))


def _with_classes(step: Any, num_classes: int, name: str) -> Any:
    if hasattr(step, "transforms"):
        inside = tuple(_with_classes(each, num_classes, name) for each in step.transforms)
        return dataclasses.replace(step, transforms=inside)
    if step.num_classes not in (None, num_classes):
        raise UsageError(
            f"--recipe {name}: {type(step).__name__} has num_classes={step.num_classes}, but the network has "
            f"{num_classes} outputs. Leave num_classes out"
        )
    return dataclasses.replace(step, num_classes=num_classes)


def _three(values: Any) -> tuple[float, float, float]:
    numbers = [float(value) for value in (values if isinstance(values, Sequence) else [values])]
    red, green, blue = numbers * 3 if len(numbers) == 1 else numbers
    return red, green, blue


def torchvision_steps(steps: Sequence[Any], *, pillow: bool) -> list[torch.nn.Module]:
    """Return the equivalent transforms of torchvision.

    Parameters
    ----------
    steps : sequence
        Our image transforms.
    pillow : bool
        Whether they get Pillow images, which are converted to tensors before the first transform that needs tensors.

    Raises
    ------
    UsageError
        torchvision has no equivalent.
    """
    result: list[torch.nn.Module] = []
    for step in steps:
        if pillow and isinstance(step, _OF_TENSORS):
            result.append(v2.PILToTensor())
            pillow = False
        if isinstance(step, T.Normalize):
            result += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(_three(step.mean), _three(step.std))]
        else:
            result.append(_torchvision(step))
    return result


_OF_TENSORS = (T.Normalize, T.ToDtype, T.GaussianNoise, T.RandomErasing, T.RandomChannelPermutation, T.JPEG)


def _torchvision(step: Any) -> torch.nn.Module:
    kind = type(step).__name__
    if kind == "TimmRandAugment":
        return TimmPolicy(step)
    theirs = getattr(v2, kind, None)
    if theirs is None:
        raise UsageError(f"the torch loaders have no {kind}: torchvision has no such transform. Take --loader beton")
    options = {name: _value(name, getattr(step, name)) for name in inspect.signature(theirs).parameters
               if hasattr(step, name)}  # fmt: skip
    module: torch.nn.Module = theirs(**options)
    return module


def _value(name: str, value: Any) -> Any:
    if name == "transforms":
        return [_torchvision(each) for each in value]
    if name == "interpolation":
        return InterpolationMode(value)
    if name == "policy":
        return v2.AutoAugmentPolicy(value)
    if name == "dtype":
        return getattr(torch, value)
    return list(value) if isinstance(value, tuple) else value


class TimmPolicy(v2.RandAugment):  # type: ignore[misc]
    """timm's RandAugment, made of torchvision's operations, with our parameters."""

    def __init__(self, policy: Any) -> None:
        fill = list(policy.fill) if isinstance(policy.fill, tuple) else policy.fill
        super().__init__(interpolation=InterpolationMode(policy.interpolation), fill=fill)
        self._policy = policy

    def forward(self, *inputs: Any) -> Any:
        """Apply the operations to a Pillow image or a tensor."""
        (image,) = inputs
        width, height = image.size if isinstance(image, Image.Image) else (image.shape[-1], image.shape[-2])
        count, probability, operations = self._policy.operations(height, width)
        for _ in range(count):
            what, numbers = list(operations.items())[int(torch.randint(len(operations), ()))]
            if float(torch.rand(())) < probability:
                number = numbers[int(torch.randint(len(numbers), ()))] if numbers else 0.0
                image = self._applied(image, what, number)
        return image

    def _applied(self, image: Any, what: str, number: float) -> Any:
        if what == "SolarizeAdd":
            table = [min(255, value + int(number)) if value < 128 else value for value in range(256)]
            if isinstance(image, Image.Image):
                return image.point(table * len(image.getbands()))
            return torch.tensor(table, dtype=torch.uint8)[image.long()]
        # torchvision's enhancement factors start at 1, and its thresholds are fractions of white.
        if what in ("Brightness", "Color", "Contrast", "Sharpness"):
            number -= 1.0
        elif what == "Solarize":
            number /= 255.0
        return self._apply_image_or_video_transform(
            image, what, number, interpolation=self.interpolation, fill=self._fill
        )
