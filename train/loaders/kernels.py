"""Our decoder and pipeline on the same number of threads, without the Loader: the Loader's upper limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .base import LoaderSpec, MeasuredLoader
from .ours import our_transforms


class Kernels(MeasuredLoader):
    """Yields no batches: `measure` runs the kernels for some time."""

    def __init__(self, spec: LoaderSpec) -> None:
        from dataloading.testing import KernelCeiling

        self._ceiling = KernelCeiling(
            spec.path,
            transforms=our_transforms(spec),
            num_workers=spec.num_workers,
            batch_size=spec.batch_size,
            seed=spec.seed,
        )
        self._batch_size = spec.batch_size
        self._rate = 0.0

    def measure(self, seconds: float) -> tuple[int, float]:
        """Return ``(images, seconds)`` of a run that takes about `seconds`."""
        if not self._rate:
            self._rate = self._ceiling.run(4 * self._batch_size).images_per_second
        times = self._ceiling.run(max(self._batch_size, int(self._rate * seconds)))
        self._rate = times.images_per_second
        return times.num_samples, times.seconds

    def image_batches(self) -> Iterator[Any]:
        """Run the kernels once, for the time of the first batch; yields an empty batch."""
        self._ceiling.run(self._batch_size)
        yield np.zeros((0,))
