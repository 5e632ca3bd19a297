"""Cutout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataloading import transforms as T
from dataloading.ffcv.transforms.images import ImageOperation

__all__ = ["Cutout"]


class Cutout(ImageOperation):
    """Overwrite a square of `crop_size` pixels at a random place with the colour `fill`."""

    def __init__(self, crop_size: int, fill: Sequence[int] = (0, 0, 0)) -> None:
        super().__init__()
        self.crop_size = crop_size
        self.fill = np.array(fill)

    def ours(self) -> list[Any]:
        """See ``ImageOperation``."""
        return [T.Cutout(int(self.crop_size), tuple(self.fill.tolist()))]
