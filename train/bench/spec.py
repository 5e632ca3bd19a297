"""What one contender is asked to do. Knows no loader and measures nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dataloading import UsageError

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "PIPELINES", "BenchSpec"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

PIPELINES = {
    "train": "RandomResizedCrop(224) + RandomHorizontalFlip, uint8",
    "train-normalized": "RandomResizedCrop(224) + RandomHorizontalFlip + Normalize, float32",
    "eval": "Resize(256) + CenterCrop(224), uint8",
}
"""The one definition of the work; every contender translates it. Defaults are torchvision's: scale 0.08..1, ratio
3/4..4/3, bilinear with antialiasing where the contender can, flip with probability 0.5."""


@dataclass(frozen=True, kw_only=True)
class BenchSpec:
    """One contender's task.

    Parameters
    ----------
    loader : str
        A name of `contenders.CONTENDERS`.
    path : str
        The ``.beton`` file whose stored images are used. Contenders with a format of their own get the same bytes
        in it, in `work_dir`.
    work_dir : str
        Where such copies are kept; a copy that exists for this file is used again.
    label : str
        Name in tables, by default the loader's.
    pipeline : str
        A key of `PIPELINES`.
    batch_size, num_workers : int
        Images a batch; threads or processes, as the contender has them.
    image_size, resize_size : int
        Side of the crop, shorter side before the centre crop (pixels).
    seed : int
        Of order and augmentation, where the contender takes one.
    epoch_images : int
        Images in an epoch at least: a small file is repeated so often, where the contender can, so that its borders
        weigh as little as those of a real data set.
    stop_between : bool
        Freeze the process while others are measured.

    Raises
    ------
    UsageError
        A value is out of range.
    """

    loader: str
    path: str
    work_dir: str
    label: str = ""
    pipeline: str = "train"
    batch_size: int = 128
    num_workers: int = 2
    image_size: int = 224
    resize_size: int = 256
    seed: int = 0
    epoch_images: int = 1
    stop_between: bool = True

    def __post_init__(self) -> None:
        if self.pipeline not in PIPELINES:
            raise UsageError(f"pipeline {self.pipeline!r} is not one of {', '.join(PIPELINES)}")
        for name in ("batch_size", "num_workers", "image_size", "resize_size", "epoch_images"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)} must be at least 1")
        if not self.label:
            object.__setattr__(self, "label", self.loader)

    @property
    def training(self) -> bool:
        """Shuffled with random crops, or in order with a centre crop."""
        return self.pipeline != "eval"

    @property
    def normalized(self) -> bool:
        """Whether images come out as normalised float32 instead of uint8."""
        return self.pipeline == "train-normalized"

    def repeats(self, num_samples: int) -> int:
        """Return how often a file of `num_samples` goes into an epoch."""
        return max(1, -(-self.epoch_images // max(1, num_samples)))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, JSON-able; ``BenchSpec(**...)`` takes them back."""
        return asdict(self)
