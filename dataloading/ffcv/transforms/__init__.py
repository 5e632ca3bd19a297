"""FFCV's transforms, done by our engine, and FFCV-SSL's."""

from __future__ import annotations

from typing import Any

from dataloading.errors import UsageError

from .color_jitter import RandomBrightness, RandomContrast, RandomSaturation
from .common import Squeeze
from .cutout import Cutout
from .flip import RandomHorizontalFlip
from .mixup import ImageMixup, LabelMixup, MixupToOneHot
from .module import ModuleWrapper
from .normalize import NormalizeImage
from .ops import Convert, ToDevice, ToTensor, ToTorchImage, View
from .poisoning import Poison
from .random_resized_crop import RandomResizedCrop
from .replace_label import ReplaceLabel
from .translate import RandomTranslate
from .views import (
    CenterCrop,
    GaussianBlur,
    RandomColorJitter,
    RandomErasing,
    RandomGrayscale,
    RandomSolarization,
    Rotate,
)

__all__ = [
    "CenterCrop",
    "Convert",
    "Cutout",
    "GaussianBlur",
    "ImageMixup",
    "LabelMixup",
    "MixupToOneHot",
    "ModuleWrapper",
    "NormalizeImage",
    "Poison",
    "RandomBrightness",
    "RandomColorJitter",
    "RandomContrast",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomSaturation",
    "RandomSolarization",
    "RandomTranslate",
    "ReplaceLabel",
    "Rotate",
    "Squeeze",
    "ToDevice",
    "ToTensor",
    "ToTorchImage",
    "View",
]

_LABELS = "dataloading.Loader(return_params=True), which delivers what was drawn for each image in batch.params"
_INSTEAD = {
    "CornerCrop": "CenterCrop, or a decoder of your own with get_crop_generator",
    "PadRGBImageDecoder": "dataloading.Loader with transforms={'image': [T.Pad(...)]} or [T.PadBatch()]",
    "LabelColorJitter": _LABELS,
    "LabelGaussianBlur": _LABELS,
    "LabelGrayscale": _LABELS,
    "LabelRandomHorizontalFlip": _LABELS,
    "LabelRandomResizedCrop": _LABELS,
    "LabelSolarization": _LABELS,
    "LabelTranslate": _LABELS,
}


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        raise UsageError(f"ffcv.transforms.{name} is not supported. Take {_INSTEAD[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
