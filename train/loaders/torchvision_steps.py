"""Translates our transforms to torchvision's v2 transforms, for the torch loaders.

The only place where recipes need torchvision: importing it takes more than a second, which other loaders save.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from dataloading import UsageError
from dataloading import transforms as T

from .recipes import three_values

__all__ = ["TimmPolicy", "torchvision_steps"]


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
            result += [
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(three_values(step.mean), three_values(step.std)),
            ]
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
