"""The real FFCV 1.0.2.

Tuning, after its documentation ("Tuning guide", scenario: all data fits in memory): ``os_cache=True``, order RANDOM,
``batches_ahead=3`` (the default), its own decoder-with-crop, the transforms compiled by Numba. Output as its ImageNet
scripts have it (``ToTorchImage``: NCHW in channels_last memory). Its centre crop is by ratio, without resizing the
shorter side first: the pixels are nearly those of Resize + CenterCrop, and the work is less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from train.bench.contenders.base import Contender
from train.bench.spec import IMAGENET_MEAN, IMAGENET_STD, BenchSpec
from train.loaders.stored_images import FileImages

__all__ = ["FfcvContender"]


class FfcvContender(Contender):
    """`ffcv.loader.Loader` on a ``.beton`` file, whoever wrote it."""

    num_ahead = 4

    def __init__(self, spec: BenchSpec) -> None:
        from ffcv.fields.basics import IntDecoder
        from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
        from ffcv.loader import Loader, OrderOption
        from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage

        source = FileImages(spec.path)
        size = (spec.image_size, spec.image_size)
        if spec.training:
            image: list[Any] = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()]
        else:
            image = [CenterCropRGBImageDecoder(size, ratio=spec.image_size / spec.resize_size)]
        if spec.normalized:
            mean, std = (np.asarray(each, np.float32) * np.float32(255) for each in (IMAGENET_MEAN, IMAGENET_STD))
            image.append(NormalizeImage(mean, std, np.float32))
        image += [ToTensor(), ToTorchImage()]
        self._loader = Loader(
            spec.path,
            batch_size=spec.batch_size,
            num_workers=spec.num_workers,
            os_cache=True,
            order=OrderOption.RANDOM if spec.training else OrderOption.SEQUENTIAL,
            seed=spec.seed,
            indices=np.tile(np.arange(len(source), dtype=np.uint64), spec.repeats(len(source))),
            pipelines={source.image_field: image, source.label_field: [IntDecoder(), ToTensor()]},
            drop_last=True,
        )
        self._place = list(self._loader.pipeline_specs).index(source.image_field)

    def batches(self) -> Iterator[Any]:
        """Go through one epoch."""
        for batch in self._loader:
            yield batch[self._place]
