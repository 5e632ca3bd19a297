"""A random crop of decoded images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.ffcv.pipeline.state import State
from dataloading.ffcv.transforms.images import ImageOperation
from dataloading.ffcv.transforms.views import SeededCropDecoder

__all__ = ["RandomResizedCrop"]


class RandomResizedCrop(ImageOperation):
    """Crop a random part and resize it to `size` by `size` pixels.

    ``RandomResizedCrop(output_size, scale, ratio, seed=)`` makes FFCV-SSL's decoder of that name.
    """

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Tell the two by the arguments."""
        if "second_seed" in options and options.pop("second_seed") is not None:
            raise UsageError(
                "RandomResizedCrop(second_seed=), a crop that does not meet another one, is not supported: take "
                "T.View and a transform of your own of dataloading.transforms"
            )
        if cls is RandomResizedCrop and len(args) < 3 and "size" not in options:
            return SeededCropDecoder(*args, **options)
        return super().__new__(cls)

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
