"""A mask in the images of some samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading import transforms as T
from dataloading.ffcv.transforms.images import ImageOperation

__all__ = ["Poison"]


class Poison(ImageOperation):
    """Blend `mask` (H, W, 3), with the opacity `alpha` (H, W), into the samples `indices`."""

    def __init__(
        self,
        mask: npt.NDArray[Any],
        alpha: npt.NDArray[Any],
        indices: Sequence[int],
        clamp: tuple[float, float] = (0, 255),
    ) -> None:
        super().__init__()
        self.mask = mask
        self.alpha = alpha
        self.indices = np.sort(indices)
        self.clamp = clamp

    def ours(self) -> list[Any]:
        """See ``ImageOperation``."""
        return [T.Poison(self.mask, self.alpha, self.indices.tolist(), self.clamp)]
