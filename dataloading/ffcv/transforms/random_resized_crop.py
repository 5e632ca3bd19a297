"""A random crop of decoded images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dataloading import transforms as T
from dataloading.ffcv.pipeline.state import State
from dataloading.ffcv.transforms.images import ImageOperation

__all__ = ["RandomResizedCrop"]


class RandomResizedCrop(ImageOperation):
    """Crop a random part and resize it to `size` by `size` pixels."""

    def __init__(self, scale: tuple[float, float], ratio: tuple[float, float], size: int) -> None:
        super().__init__()
        self.scale = scale
        self.ratio = ratio
        self.size = size

    def ours(self) -> list[Any]:
        """See ``ImageOperation``."""
        return [T.RandomResizedCrop(self.size, tuple(self.scale), tuple(self.ratio))]

    def after(self, state: State) -> State:
        """See ``EngineOperation``."""
        return replace(state, shape=(int(self.size), int(self.size), 3))
