"""One batch in memory: the upper limit of the harness, and the rate of a loader without cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .base import LoaderSpec, MeasuredLoader, wants_normalised


class SyntheticBatches(MeasuredLoader):
    """Yields the same batch repeatedly, copied once, as every consumer must."""

    def __init__(self, spec: LoaderSpec) -> None:
        generator = torch.Generator().manual_seed(spec.seed)
        shape = (spec.batch_size, 3, spec.image_size, spec.image_size)
        batch = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        self._batch = batch.float() if wants_normalised(spec) else batch
        self._out = torch.empty_like(self._batch)

    def image_batches(self) -> Iterator[Any]:
        """Yield a hundred batches."""
        for _ in range(100):
            self._out.copy_(self._batch)
            yield self._out
