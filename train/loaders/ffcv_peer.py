"""The real FFCV 1.0.2.

Tuning, after its documentation ("Tuning guide", scenario: all data fits in memory): ``os_cache=True``, order RANDOM,
``batches_ahead=3`` (the default) unless set, its own decoder with crop, the transforms compiled by Numba. Output as in
its ImageNet scripts (``ToTorchImage``: NCHW in channels_last memory).

FFCV sets torch's thread count for the whole process when it is imported, built and iterated; the count is restored each
time. FFCV's limits remain: it cannot resume within an epoch, its augmentation is not seeded, and it makes centre crops
by ratio without resizing the shorter side first: nearly the pixels of Resize and CenterCrop, for less work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dataloading import UsageError
from train.batch_shares import Shares

from .base import LoaderSpec, TrainBatch
from .stored_images import FileImages
from .whole_epochs import WholeEpochLoader


@contextmanager
def _thread_count_kept() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


class FfcvLoader(WholeEpochLoader):
    """`ffcv.loader.Loader` on a ``.beton`` file of FFCV's or of ours.

    Raises
    ------
    UsageError
        ffcv is not installed.
    """

    num_ahead = 4

    def __init__(self, spec: LoaderSpec) -> None:
        source = FileImages(spec.path)
        self._indices = spec.epoch_indices(len(source))
        # FFCV supports no other tail than padding; only incomplete batches can be dropped.
        self._shares = Shares(
            num_samples=len(self._indices),
            rank=spec.rank,
            world_size=spec.world_size,
            batch_size=spec.batch_size,
            drop_last=False,
        )
        whole = self._shares.per_rank // spec.batch_size
        super().__init__(
            spec,
            name="ffcv",
            num_samples=len(self._indices),
            num_batches=whole if spec.tail == "drop" else len(self._shares),
        )
        self._fields = source.image_field, source.label_field
        with _thread_count_kept():
            self._loader = self._build(spec)

    def _build(self, spec: LoaderSpec) -> Any:
        try:
            from ffcv.fields.basics import IntDecoder
            from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
            from ffcv.loader import Loader, OrderOption
            from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToDevice, ToTensor, ToTorchImage
        except ImportError as error:
            raise UsageError(f"--loader ffcv needs the real ffcv ({error}); pip install 'beton[ffcv]'") from error

        size = (spec.image_size, spec.image_size)
        if spec.training:
            image: list[Any] = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()]
        else:
            image = [CenterCropRGBImageDecoder(size, ratio=spec.image_size / spec.resize_size)]
        if self.normalised:
            mean, std = (np.asarray(each, np.float32) * np.float32(255) for each in (spec.mean, spec.std))
            image.append(NormalizeImage(mean, std, np.float32))
        on_device = [ToDevice(spec.device, non_blocking=True)] if spec.device.type == "cuda" else []
        return Loader(
            spec.path,
            batch_size=spec.batch_size,
            num_workers=max(1, spec.num_workers),
            order=OrderOption.RANDOM if spec.training else OrderOption.SEQUENTIAL,
            distributed=spec.world_size > 1,
            seed=spec.seed,
            indices=self._indices.astype(np.uint64),
            os_cache=True,
            pipelines={
                self._fields[0]: [*image, ToTensor(), *on_device, ToTorchImage()],
                self._fields[1]: [IntDecoder(), ToTensor(), *on_device],
            },
            drop_last=spec.tail == "drop",
            batches_ahead=3 if spec.prefetch is None else spec.prefetch * max(1, spec.num_workers),
        )

    def epoch_batches(self) -> Iterator[TrainBatch]:
        """Go through the epoch."""
        self._loader.next_epoch = self._epoch
        with _thread_count_kept():
            batches = iter(self._loader)
        names = list(self._loader.pipeline_specs)
        image, label = (names.index(name) for name in self._fields)
        for number in range(self._length):
            with _thread_count_kept():
                batch = next(batches)
            labels = batch[label].reshape(-1).long()
            shares = self._shares
            yield TrainBatch(batch[image], labels, shares.num_valid(number), shares.global_size(number))

    def close(self) -> None:
        """Drop the loader; FFCV cannot stop its threads."""
        del self._loader
