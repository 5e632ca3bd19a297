"""Colour transforms beyond ``color.py``: equalised histograms, and the distortions of object detectors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from dataloading.transforms.base import IMAGE_DTYPES, ImageState, PixelOp, check_range
from dataloading.transforms.color import adjustment, equalization
from dataloading.transforms.frame import channel_permutation
from dataloading.transforms.operation import Node, Operation, uniform

__all__ = ["RandomEqualize", "RandomPhotometricDistort"]

_ADJUSTMENTS = ("brightness", "contrast", "saturation", "hue")


@dataclasses.dataclass(frozen=True)
class RandomEqualize(PixelOp):
    """Spread the values of each channel so that all are about equally frequent, with probability ``p``.

    Of images deeper than uint8, 256 levels are left, as in torchvision.

    Examples
    --------
    >>> RandomEqualize()
    RandomEqualize(p=0.5)
    """

    mirrors: ClassVar[bool] = True
    any_channels: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES

    p: float = 0.5

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        return equalization(state, p=self.p)


@dataclasses.dataclass(frozen=True)
class RandomPhotometricDistort(PixelOp):
    """Change brightness, contrast, saturation and hue, and permute the channels, each with probability ``p``.

    In this order, but that contrast comes behind the hue half of the times (Liu et al.,
    https://arxiv.org/abs/1512.02325).

    Parameters
    ----------
    brightness, contrast, saturation : (float, float)
        Range of the factor.
    hue : (float, float)
        Range of the turn, within [-0.5, 0.5]; 1 is a full circle.
    p : float

    Examples
    --------
    >>> RandomPhotometricDistort(p=0.3).contrast
    (0.5, 1.5)
    """

    mirrors: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES

    brightness: Sequence[float] = (0.875, 1.125)
    contrast: Sequence[float] = (0.5, 1.5)
    saturation: Sequence[float] = (0.5, 1.5)
    hue: Sequence[float] = (-0.05, 0.05)
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in _ADJUSTMENTS:
            low, high = (-0.5, 0.5) if what == "hue" else (0.0, math.inf)
            object.__setattr__(self, what, check_range(self.name, what, getattr(self, what), low, high))

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        self.check_images(state)
        orders = []
        for name, order in (("contrast first", (1, 2, 3)), ("contrast last", (2, 3, 1))):
            children = tuple(self._adjustment(number, state) for number in order)
            orders.append(Node("sequence", name, state, state, children=children))
        middle = Node("choice", "order", state, state, children=tuple(orders), place=4)
        operation = channel_permutation(state, self.p)
        permutation = Node("leaf", "channels", state, state, operation=operation, p=self.p, place=5)
        return Node(
            "sequence", self.name, state, state, children=(self._adjustment(0, state), middle, permutation), place=place
        )

    def _adjustment(self, number: int, state: ImageState) -> Node:
        what = _ADJUSTMENTS[number]
        return adjustment(what, uniform(*getattr(self, what)), state, p=self.p, place=number)
