"""Brightness, contrast and saturation."""

from __future__ import annotations

from typing import Any, ClassVar

from dataloading import transforms as T
from dataloading.ffcv.transforms.images import ImageOperation

__all__ = ["RandomBrightness", "RandomContrast", "RandomSaturation"]


class _Adjustment(ImageOperation):
    """Multiply what `what` names by a factor from [max(0, 1 - magnitude), 1 + magnitude], with probability `p`."""

    what: ClassVar[str]

    def __init__(self, magnitude: float, p: float = 0.5) -> None:
        super().__init__()
        self.magnitude = magnitude
        self.p = p

    def ours(self) -> list[Any]:
        """See ``ImageOperation``."""
        return [T.RandomApply([T.ColorJitter(**{self.what: float(self.magnitude)})], p=float(self.p))]


class RandomBrightness(_Adjustment):
    """Change the brightness by a random factor, with probability `p`."""

    what = "brightness"


class RandomContrast(_Adjustment):
    """Change the contrast by a random factor, with probability `p`."""

    what = "contrast"


class RandomSaturation(_Adjustment):
    """Change the saturation by a random factor, with probability `p`."""

    what = "saturation"
