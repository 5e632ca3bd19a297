"""Flips."""

from __future__ import annotations

from typing import Any

from dataloading import transforms as T
from dataloading.ffcv.transforms.images import ImageOperation

__all__ = ["RandomHorizontalFlip"]


class RandomHorizontalFlip(ImageOperation):
    """Mirror left and right with probability `flip_prob`."""

    def __init__(self, flip_prob: float = 0.5, seed: int | None = None) -> None:
        super().__init__(seed)
        self.flip_prob = flip_prob

    def ours(self) -> list[Any]:
        """See ``ImageOperation``."""
        return [T.RandomHorizontalFlip(float(self.flip_prob))]
