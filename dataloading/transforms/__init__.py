"""Augmentations, written as a list of plain values: ``from dataloading import transforms as T``.

Names, parameters and defaults are those of ``torchvision.transforms.v2`` where it has the transform.
Importing this package imports neither Numba nor torch; a pipeline does when it compiles.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dataloading.messages import did_you_mean
from dataloading.transforms.color import (
    ColorJitter,
    Grayscale,
    RandomAutocontrast,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from dataloading.transforms.compose import Compose, RandomApply, RandomChoice, RandomOrder
from dataloading.transforms.custom import AsList, Custom, PadBatch, transform
from dataloading.transforms.detection import (
    ClampBoundingBoxes,
    RandomIoUCrop,
    RandomShortestSize,
    RandomZoomOut,
    SanitizeBoundingBoxes,
    ScaleJitter,
)
from dataloading.transforms.erase import Cutout, RandomErasing
from dataloading.transforms.filters import JPEG, GaussianBlur, GaussianNoise, RandomAdjustSharpness
from dataloading.transforms.frame import Pad, RandomChannelPermutation
from dataloading.transforms.geometry import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomTranslate,
    RandomVerticalFlip,
    Resize,
)
from dataloading.transforms.labels import MapLabels, OneHot, ReplaceLabel
from dataloading.transforms.mix import CutMix, MixUp, Mixup
from dataloading.transforms.normalize import Normalize, ToDtype
from dataloading.transforms.per_sample import PerSample
from dataloading.transforms.photometric import RandomEqualize, RandomPhotometricDistort
from dataloading.transforms.policies import AugMix, AutoAugment, RandAugment, ThreeAugment, TrivialAugmentWide
from dataloading.transforms.timm import TimmRandAugment
from dataloading.transforms.view import View
from dataloading.transforms.warp import ElasticTransform, RandomAffine, RandomPerspective, RandomRotation

if TYPE_CHECKING:
    from dataloading.transforms import recipes
    from dataloading.transforms.kernels.rng import normal, randint, uniform

__all__ = [
    "JPEG",
    "AsList",
    "AugMix",
    "AutoAugment",
    "CenterCrop",
    "ClampBoundingBoxes",
    "ColorJitter",
    "Compose",
    "Custom",
    "CutMix",
    "Cutout",
    "ElasticTransform",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "MapLabels",
    "MixUp",
    "Mixup",
    "Normalize",
    "OneHot",
    "Pad",
    "PadBatch",
    "PerSample",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomTranslate",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "ReplaceLabel",
    "Resize",
    "SanitizeBoundingBoxes",
    "ScaleJitter",
    "ThreeAugment",
    "TimmRandAugment",
    "ToDtype",
    "TrivialAugmentWide",
    "View",
    "normal",
    "randint",
    "recipes",
    "transform",
    "uniform",
]


def __getattr__(name: str) -> Any:
    # Random numbers for users' own kernels; compiled functions, so they are looked up only when asked for.
    if name in ("normal", "randint", "uniform"):
        from dataloading.transforms.kernels import rng

        return getattr(rng, name)
    if name == "recipes":  # they are written with what this module has
        return importlib.import_module("dataloading.transforms.recipes")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_instead(name)}")


_NO_POINTS = (
    "fields with declared coordinates follow their image, and points outside of it stay in: look at their places"
)

# What other libraries have, and what to write here.
_ELSEWHERE = {
    "ToTensor": "leave it out: images arrive as tensors, (N, C, H, W); ToDtype('float32', scale=True) gives 0 to 1",
    "ToImage": "leave it out: images arrive as tensors, (N, C, H, W)",
    "PILToTensor": "leave it out: images arrive as tensors, (N, C, H, W)",
    "ToPILImage": "leave it out: images arrive as tensors, (N, C, H, W)",
    "ToTorchImage": "leave it out: images arrive as tensors, (N, C, H, W)",
    "ToDevice": "leave it out, and pass device= to the Loader",
    "Convert": "take ToDtype, or Normalize(mean, std, dtype=...)",
    "ConvertImageDtype": "take ToDtype(dtype, scale=True)",
    "NormalizeImage": "take Normalize(mean, std, dtype=...)",
    "LabelSmoothing": "take OneHot(num_classes, smoothing=0.1), or MixUp(num_classes=..., smoothing=0.1)",
    "RandomMixupCutmix": "take RandomChoice([MixUp(num_classes=...), CutMix(num_classes=...)])",
    "Squeeze": "leave it out: labels arrive as int64 of shape (N,)",
    "Identity": "leave it out",
    "Lambda": "put the function itself into the list; it gets the whole batch, and PerSample(fn) each image",
    "FiveCrop": "take CenterCrop, or put a function behind the others that returns a tuple of views",
    "TenCrop": "take CenterCrop, or put a function behind the others that returns a tuple of views",
    "RandomResize": "take RandomShortestSize(range(low, high))",
    "SanitizeKeyPoints": _NO_POINTS,
    "ClampKeyPoints": _NO_POINTS,
    "ConvertBoundingBoxFormat": "boxes keep the form they are stored in: put a function into the list of their field",
    "SetClampingMode": "boxes are clipped to their image whenever they move",
    "RGB": "images arrive with the channels they are stored with: make them RGB when converting",
    "LinearTransformation": "put torchvision's own into the list, behind the others: it gets the whole batch",
    "UniformTemporalSubsample": "there are no videos",
    "ToPureTensor": "leave it out: images arrive as plain tensors",
    "Transform": "write a function under @T.transform, or a torch module for the whole batch",
    "AutoAugmentPolicy": "pass its name, AutoAugment('imagenet'), or torchvision's",
    "InterpolationMode": "pass its name, interpolation='bilinear', or torchvision's",
}


def _instead(name: str) -> str:
    """Say what there is in the place of a name that does not exist."""
    if name.startswith("__"):
        return ""
    if name in _ELSEWHERE:
        return f". There is no such transform; {_ELSEWHERE[name]}"
    known = [each for each in __all__ if each[0].isupper()]
    return f". {did_you_mean(name, [*__all__]) or 'There are ' + ', '.join(known)}"
