"""A batch that is in memory already: what the harness itself could take, and a free loader's rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from train.bench.contenders.base import Contender
from train.bench.spec import BenchSpec

__all__ = ["SyntheticContender"]


class SyntheticContender(Contender):
    """The same batch again and again, copied once as a consumer would at least."""

    num_ahead = 0

    def __init__(self, spec: BenchSpec) -> None:
        generator = torch.Generator().manual_seed(spec.seed)
        shape = (spec.batch_size, 3, spec.image_size, spec.image_size)
        batch = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        self._batch = batch.float() if spec.normalized else batch
        self._out = torch.empty_like(self._batch)

    def batches(self) -> Iterator[Any]:
        """Give a hundred batches."""
        for _ in range(100):
            self._out.copy_(self._batch)
            yield self._out
