"""The task of one loader in a benchmark."""

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
"""The definition of the work, which every loader translates. Defaults are torchvision's: scale 0.08..1, ratio
3/4..4/3, bilinear with antialiasing if the loader supports it, flip with probability 0.5."""


@dataclass(frozen=True, kw_only=True)
class BenchSpec:
    """One loader's task, as JSON values.

    Parameters
    ----------
    loader : str
        A name of `train.loaders.LOADERS`.
    path : str
        The ``.beton`` file whose stored images are used. Loaders with a format of their own get the same bytes in it,
        in `work_dir`.
    work_dir : str
        Folder of these copies; an existing copy of the same file is reused.
    label : str
        Name in tables, by default the loader's.
    pipeline : str
        A key of `PIPELINES`.
    batch_size, num_workers : int
        Images per batch; threads or processes, depending on the loader.
    image_size, resize_size : int
        Side of the crop, shorter side before the centre crop (pixels).
    seed : int
        Of order and augmentation, if the loader accepts one.
    epoch_images : int
        Minimum number of images in an epoch: a small file is repeated, if the loader can, so that ends of epochs are as
        rare as with a real dataset.
    stop_between : bool
        Pause the process while others are measured.

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
        """Return the options of the loader, as in a single training process."""
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
        """Return the fields as JSON values; ``BenchSpec(**...)`` reverses it."""
        return asdict(self)
