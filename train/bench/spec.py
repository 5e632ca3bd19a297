"""What one loader is asked to do in a benchmark. Knows no loader and measures nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dataloading import UsageError

if TYPE_CHECKING:
    from train.loaders.base import LoaderSpec

__all__ = ["PIPELINES", "BenchSpec"]

PIPELINES = {
    "train": "RandomResizedCrop(224) + RandomHorizontalFlip, uint8",
    "train-normalized": "RandomResizedCrop(224) + RandomHorizontalFlip + Normalize, float32",
    "eval": "Resize(256) + CenterCrop(224), uint8",
}
"""The one definition of the work; every loader translates it. Defaults are torchvision's: scale 0.08..1, ratio
3/4..4/3, bilinear with antialiasing where the loader can, flip with probability 0.5."""


@dataclass(frozen=True, kw_only=True)
class BenchSpec:
    """One loader's task, JSON-able.

    Parameters
    ----------
    loader : str
        A name of `train.loaders.LOADERS`.
    path : str
        The ``.beton`` file whose stored images are used. Loaders with a format of their own get the same bytes in it,
        in `work_dir`.
    work_dir : str
        Where such copies are kept; a copy that exists for this file is used again.
    label : str
        Name in tables, by default the loader's.
    pipeline : str
        A key of `PIPELINES`.
    batch_size, num_workers : int
        Images a batch; threads or processes, as the loader has them.
    image_size, resize_size : int
        Side of the crop, shorter side before the centre crop (pixels).
    seed : int
        Of order and augmentation, where the loader takes one.
    epoch_images : int
        Smallest number of images in an epoch: a small file is repeated, where the loader can, so that the ends of
        epochs weigh as little as those of a real data set.
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

    def loader_spec(self) -> LoaderSpec:
        """Return what the loader itself is asked: this task, as one process of training would ask it."""
        from train.loaders.base import LoaderSpec

        return LoaderSpec(
            path=self.path,
            training=self.pipeline != "eval",
            normalised=self.pipeline == "train-normalized",
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            seed=self.seed,
            image_size=self.image_size,
            resize_size=self.resize_size,
            tail="drop",
            epoch_images=self.epoch_images,
            work_dir=self.work_dir,
            throughput_only=True,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, JSON-able; ``BenchSpec(**...)`` takes them back."""
        return asdict(self)
