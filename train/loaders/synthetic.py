"""One batch in memory: the upper limit of the harness, and the rate of a loader without cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from .base import LoaderSpec, wants_normalised
from .stored_images import open_images
from .whole_epochs import StreamLoader


class SyntheticBatches(StreamLoader):
    """Yields the same batch repeatedly: in training as it is, in benchmarks copied once, as every consumer must."""

    def __init__(self, spec: LoaderSpec) -> None:
        super().__init__(spec, name="synthetic", num_samples=len(spec.epoch_indices(len(open_images(spec.path)))))
        labels = open_images(spec.path).labels()
        self._labels = torch.from_numpy(np.resize(labels, spec.batch_size).astype(np.int64))
        generator = torch.Generator().manual_seed(spec.seed)
        shape = (spec.batch_size, 3, spec.image_size, spec.image_size)
        batch = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        self._batch = batch.float() if wants_normalised(spec) else batch
        self._out = torch.empty_like(self._batch)

    def labelled_batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield the batch endlessly."""
        while True:
            yield self._batch, self._labels

    def image_batches(self) -> Iterator[Any]:
        """Yield a hundred batches."""
        for _ in range(100):
            self._out.copy_(self._batch)
            yield self._out
