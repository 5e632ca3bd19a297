"""``--recipe``: the augmentation of a training run, for every loader that supports it.

Reads a recipe of `dataloading.transforms`; `torchvision_steps` translates it for the torch loaders. The trainer mixes
the images of a batch, for every loader.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    return TrainingRecipe(
        steps=tuple(steps), mixes=tuple(mixes), mean=three_values(last.mean), std=three_values(last.std)
    )


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


def three_values(values: Any) -> tuple[float, float, float]:
    """Return one value per channel, of one or three."""
    numbers = [float(value) for value in (values if isinstance(values, Sequence) else [values])]
    red, green, blue = numbers * 3 if len(numbers) == 1 else numbers
    return red, green, blue
