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
from dataloading.transforms.crops import FiveCrop, TenCrop
from dataloading.transforms.custom import AsList, Custom, PadBatch, transform
from dataloading.transforms.detection import (
    ClampBoundingBoxes,
    CropAroundBox,
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
from dataloading.transforms.poison import Poison
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
    "CropAroundBox",
    "Custom",
    "CutMix",
    "Cutout",
    "ElasticTransform",
    "FiveCrop",
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
    "Poison",
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
    "TenCrop",
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


_ARE_TENSORS = "leave it out: images arrive as tensors, (N, C, H, W)"
_NO_POINTS = (
    "fields with declared coordinates follow their image, and points outside of it stay in: look at their places"
)
_PASS_ITS_NAME = "pass its name, or torchvision's object: both are understood"

# What other libraries have, why it is not here, and what to write instead. docs/transforms.md has the same table.
_ELSEWHERE = {
    "ToTensor": f"{_ARE_TENSORS}; ToDtype('float32', scale=True) gives 0 to 1",
    "ToImage": _ARE_TENSORS,
    "PILToTensor": _ARE_TENSORS,
    "ToPILImage": _ARE_TENSORS,
    "ToTorchImage": _ARE_TENSORS,
    "ToPureTensor": _ARE_TENSORS,
    "ToDevice": "leave it out, and pass device= to the Loader",
    "Convert": "take ToDtype, or Normalize(mean, std, dtype=...)",
    "ConvertImageDtype": "take ToDtype(dtype, scale=True)",
    "NormalizeImage": "take Normalize(mean, std, dtype=...)",
    "RandomBrightness": "take ColorJitter(brightness=...)",
    "RandomContrast": "take ColorJitter(contrast=...)",
    "RandomSaturation": "take ColorJitter(saturation=...)",
    "LabelSmoothing": "take OneHot(num_classes, smoothing=0.1), or MixUp(num_classes=..., smoothing=0.1)",
    "ImageMixup": "take MixUp(num_classes=...), which mixes labels too",
    "LabelMixup": "take MixUp(num_classes=...), which mixes labels too",
    "MixupToOneHot": "leave it out: MixUp(num_classes=...) gives soft labels",
    "RandomMixupCutmix": "take RandomChoice([MixUp(num_classes=...), CutMix(num_classes=...)])",
    "Squeeze": "leave it out: labels arrive as int64 of shape (N,)",
    "Identity": "leave it out",
    "Lambda": "put the function itself into the list; it gets the whole batch, and PerSample(fn) each image",
    "ModuleWrapper": "put the module itself into the list; it gets the whole batch",
    "LinearTransformation": "put torchvision's own into the list, behind the others: it gets the whole batch",
    "RandomResize": "take RandomShortestSize(range(min_size, max_size, 32)), of at most 54 sizes",
    "SanitizeKeyPoints": _NO_POINTS,
    "ClampKeyPoints": _NO_POINTS,
    "ConvertBoundingBoxFormat": "boxes keep the form they are stored in: call torchvision.ops.box_convert on the batch",
    "SetClampingMode": "leave it out: boxes are clipped to their image whenever they move",
    "RGB": "images arrive with the channels they are stored with: make them RGB when converting",
    "UniformTemporalSubsample": "there are no videos: store the frames as images",
    "Transform": "write a function under @T.transform, or a torch module for the whole batch",
    "AutoAugmentPolicy": _PASS_ITS_NAME,
    "InterpolationMode": _PASS_ITS_NAME,
}


def _instead(name: str) -> str:
    """Say what there is in the place of a name that does not exist."""
    if name.startswith("__"):
        return ""
    if name in _ELSEWHERE:
        return f". There is no such transform; {_ELSEWHERE[name]}"
    known = [each for each in __all__ if each[0].isupper()]
    return f". {did_you_mean(name, [*__all__]) or 'There are ' + ', '.join(known)}"
