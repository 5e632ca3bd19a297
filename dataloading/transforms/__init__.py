"""Augmentations, written as a list of plain values: ``from dataloading import transforms as T``.

Names, parameters and defaults are those of ``torchvision.transforms.v2`` where it has the transform.
Importing this package imports neither Numba nor torch; a pipeline does when it compiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataloading.transforms.color import (
    ColorJitter,
    Grayscale,
    RandomAutocontrast,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from dataloading.transforms.custom import AsList, Custom
from dataloading.transforms.erase import Cutout, RandomErasing
from dataloading.transforms.geometry import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomTranslate,
    RandomVerticalFlip,
    Resize,
)
from dataloading.transforms.mix import CutMix, MixUp, Mixup
from dataloading.transforms.normalize import Normalize, ToDtype

if TYPE_CHECKING:
    from dataloading.transforms.kernels.rng import normal, randint, uniform

__all__ = [
    "AsList",
    "CenterCrop",
    "ColorJitter",
    "Custom",
    "CutMix",
    "Cutout",
    "Grayscale",
    "MixUp",
    "Mixup",
    "Normalize",
    "RandomAutocontrast",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomSolarize",
    "RandomTranslate",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "normal",
    "randint",
    "uniform",
]


def __getattr__(name: str) -> Any:
    # Random numbers for users' own kernels; compiled functions, so they are looked up only when asked for.
    if name in ("normal", "randint", "uniform"):
        from dataloading.transforms.kernels import rng

        return getattr(rng, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
