"""Grain: random access, worker processes, NumPy batches.

Tuning, after its documentation: the ``MapDataset`` API, a global shuffle, ``mp_prefetch`` with one process per worker
(Python transforms are CPU-bound), few reader threads in each (the default of 16 would compete for two cores), batches
made in the workers and passed in shared memory. Grain has no image decoder: it uses ``torchvision.io.decode_image``
with v2 on tensors, one torch thread per worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain
import torch

from .base import LoaderSpec, MeasuredLoader
from .stock import DecodeAndCrop
from .stored_images import FileImages, StoredImage

_AHEAD = 4


class _Decode:
    """Return NumPy arrays, which Grain passes in shared memory."""

    def __init__(self, spec: LoaderSpec) -> None:
        self._decode = DecodeAndCrop(spec)

    def __call__(self, image: StoredImage) -> tuple[Any, int]:
        return self._decode(image).numpy(), image.label


def _one_thread(_worker: int, _num_workers: int) -> None:
    torch.set_num_threads(1)


class GrainLoader(MeasuredLoader):
    """`grain.MapDataset` over the file, read by worker processes."""

    def __init__(self, spec: LoaderSpec) -> None:
        dataset = grain.MapDataset.source(FileImages(spec.path)).seed(spec.seed)
        if spec.training:
            dataset = dataset.shuffle()
        dataset = dataset.repeat().map(_Decode(spec))
        reading = grain.ReadOptions(num_threads=2, prefetch_buffer_size=2 * spec.batch_size)
        batches = dataset.to_iter_dataset(reading).batch(spec.batch_size, drop_remainder=True)
        workers = grain.MultiprocessingOptions(num_workers=spec.num_workers, per_worker_buffer_size=_AHEAD)
        self._dataset = batches.mp_prefetch(workers, worker_init_fn=_one_thread)
        self.num_ahead = (_AHEAD + 3) * spec.num_workers

    def image_batches(self) -> Iterator[Any]:
        """Yield batches endlessly."""
        for images, _labels in self._dataset:
            yield images
