"""Translation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataloading import transforms as T
from dataloading.ffcv.transforms.images import ImageOperation

__all__ = ["RandomTranslate"]


class RandomTranslate(ImageOperation):
    """Move the image by up to `padding` pixels in each direction; what comes in has the colour `fill`."""

    def __init__(self, padding: int, fill: Sequence[int] = (0, 0, 0), seed: int | None = None) -> None:
        super().__init__(seed)
        self.padding = padding
        self.fill = np.array(fill)

    def ours(self) -> list[Any]:
        """See ``ImageOperation``."""
        return [T.RandomTranslate(int(self.padding), tuple(self.fill.tolist()))]
