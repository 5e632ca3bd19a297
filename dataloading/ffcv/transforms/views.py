"""FFCV-SSL's transforms of images, by ours: they draw by torchvision's laws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dataloading import transforms as T
from dataloading.ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
from dataloading.ffcv.transforms.images import ImageOperation

__all__ = [
    "CenterCrop",
    "GaussianBlur",
    "RandomColorJitter",
    "RandomErasing",
    "RandomGrayscale",
    "RandomSolarization",
    "Rotate",
    "SeededCropDecoder",
]


class SeededCropDecoder(RandomResizedCropRGBImageDecoder):
    """FFCV-SSL's ``RandomResizedCrop``, which is a decoder."""

    def __init__(
        self,
        output_size: Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (0.75, 4 / 3),
        seed: int | None = None,
    ) -> None:
        super().__init__(output_size, scale, ratio)
        self.seed = seed


class CenterCrop(CenterCropRGBImageDecoder):
    """The square in the middle, with `ratio` of the shorter side; a decoder."""


class RandomColorJitter(ImageOperation):
    """Change brightness, contrast, saturation and hue, with probability `jitter_prob`."""

    def __init__(
        self,
        jitter_prob: float = 0.5,
        brightness: Any = 0.8,
        contrast: Any = 0.4,
        saturation: Any = 0.4,
        hue: Any = 0.2,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        self.jitter_prob = jitter_prob
        self.factors = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}

    def ours(self) -> list[Any]:
        """See ``ImageOperation``."""
        return [T.RandomApply([T.ColorJitter(**self.factors)], p=float(self.jitter_prob))]


class RandomGrayscale(ImageOperation):
    """Make images gray with probability `gray_prob`."""

    def __init__(self, gray_prob: float = 0.2, seed: int | None = None) -> None:
        super().__init__(seed)
        self.gray_prob = gray_prob

    def ours(self) -> list[Any]:
        """See ``ImageOperation``."""
        return [T.RandomGrayscale(float(self.gray_prob))]


class RandomSolarization(ImageOperation):
    """Invert what is at least `threshold`, with probability `solarization_prob`."""

    def __init__(self, solarization_prob: float = 0.5, threshold: float = 128, seed: int | None = None) -> None:
        super().__init__(seed)
        self.solarization_prob = solarization_prob
        self.threshold = threshold

    def ours(self) -> list[Any]:
        """See ``ImageOperation``."""
        return [T.RandomSolarize(float(self.threshold), p=float(self.solarization_prob))]


class GaussianBlur(ImageOperation):
    """Blur with a random sigma, with probability `blur_prob`."""

    def __init__(
        self,
        blur_prob: float,
        kernel_size: int = 5,
        sigma: Sequence[float] = (0.1, 2.0),
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        self.blur_prob = blur_prob
        self.kernel_size = kernel_size
        self.sigma = sigma

    def ours(self) -> list[Any]:
        """See ``ImageOperation``."""
        return [T.RandomApply([T.GaussianBlur(self.kernel_size, tuple(self.sigma))], p=float(self.blur_prob))]


class RandomErasing(ImageOperation):
    """Overwrite a random rectangle with the colour `mean`, with probability `erase_prob`."""

    def __init__(
        self,
        erase_prob: float = 0.5,
        scale: Sequence[float] = (0.08, 0.4),
        ratio: Sequence[float] = (0.3, 3),
        mean: Sequence[float] = (128, 128, 128),
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        self.erase_prob = erase_prob
        self.scale = scale
        self.ratio = ratio
        self.mean = mean

    def ours(self) -> list[Any]:
        """See ``ImageOperation``."""
        return [T.RandomErasing(float(self.erase_prob), tuple(self.scale), tuple(self.ratio), tuple(self.mean))]


class Rotate(ImageOperation):
    """Rotate by up to `angle`, in radians, in both directions, with probability `rotate_prob`."""

    def __init__(self, rotate_prob: float = 0.5, angle: float = 0.2, seed: int | None = None) -> None:
        super().__init__(seed)
        self.rotate_prob = rotate_prob
        self.angle = angle

    def ours(self) -> list[Any]:
        """See ``ImageOperation``."""
        return [T.RandomApply([T.RandomRotation(math.degrees(self.angle))], p=float(self.rotate_prob))]
