"""timm's ``create_loader`` on class folders.

Tuning, after its training script: ``use_prefetcher`` (worker processes collate uint8, `fast_collate`), persistent
workers, bilinear interpolation as in the common pipeline, no colour jitter. Its prefetcher normalises on the device, so
uint8 batches are taken from the DataLoader inside it. ``use_multi_epochs_loader`` keeps workers across epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from timm.data import ImageDataset, create_loader

from .base import LoaderSpec, MeasuredLoader, wants_normalised
from .copies import image_folder


class TimmLoader(MeasuredLoader):
    """`timm.data.create_loader`."""

    def __init__(self, spec: LoaderSpec) -> None:
        dataset = ImageDataset(str(image_folder(spec)))
        dataset.reader.samples *= spec.repeats(len(dataset))
        loader = create_loader(
            dataset,
            input_size=(3, spec.image_size, spec.image_size),
            batch_size=spec.batch_size,
            is_training=spec.training,
            hflip=0.5 if spec.training else 0.0,
            color_jitter=None,
            interpolation="bilinear",
            mean=spec.mean,
            std=spec.std,
            crop_pct=spec.image_size / spec.resize_size,
            num_workers=spec.num_workers,
            device=torch.device("cpu"),
            use_multi_epochs_loader=True,
        )
        self._loader = loader if wants_normalised(spec) else loader.loader
        self.num_ahead = 2 * spec.num_workers
        self._batch_size = spec.batch_size

    def image_batches(self) -> Iterator[Any]:
        """Yield one epoch, without the smaller last batch in evaluation."""
        for images, _labels in self._loader:
            if len(images) == self._batch_size:
                yield images
