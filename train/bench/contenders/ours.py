"""Our Loader, and our kernels without it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from train.bench.contenders.base import Contender
from train.bench.spec import IMAGENET_MEAN, IMAGENET_STD, BenchSpec
from train.loaders.stored_images import FileImages

__all__ = ["BetonContender", "KernelsContender", "our_transforms"]


def our_transforms(spec: BenchSpec) -> list[Any]:
    """Return the pipeline in our words."""
    from dataloading import transforms as T

    if spec.training:
        steps: list[Any] = [T.RandomResizedCrop(spec.image_size), T.RandomHorizontalFlip()]
    else:
        steps = [T.Resize(spec.resize_size), T.CenterCrop(spec.image_size)]
    if spec.normalized:
        steps.append(T.Normalize(IMAGENET_MEAN, IMAGENET_STD, dtype="float32"))
    return steps


class BetonContender(Contender):
    """`dataloading.Loader` with its defaults: nothing needs tuning, and nothing is."""

    def __init__(self, spec: BenchSpec) -> None:
        from dataloading import Loader

        source = FileImages(spec.path)
        repeats = spec.repeats(len(source))
        self._loader = Loader(
            spec.path,
            batch_size=spec.batch_size,
            shuffle="global" if spec.training else "none",
            seed=spec.seed,
            transforms={source.image_field: our_transforms(spec)},
            fields=[source.image_field, source.label_field],
            num_workers=spec.num_workers,
            indices=np.tile(np.arange(len(source)), repeats) if repeats > 1 else None,
            drop_last=True,
            rank=0,
            world_size=1,
        )
        self.num_ahead = self._loader.prefetch_batches
        self._image_field = source.image_field
        self._timed: Any = None

    def batches(self) -> Iterator[Any]:
        """Go through one epoch."""
        for batch in self._loader:
            yield batch[self._image_field]

    def window(self, opens: bool) -> None:
        """Keep the statistics of timed rounds apart from those of warming up and of standing still."""
        stats = self._loader.stats(reset=True)
        if not opens:
            self._timed = stats if self._timed is None else _plus(self._timed, stats)

    def report(self) -> dict[str, Any]:
        """Return seconds per hop and the verdict."""
        if self._timed is None:
            return {}
        return {
            "num_samples": self._timed.num_samples,
            "num_batches": self._timed.num_batches,
            "hop_seconds": self._timed.hop_seconds,
            "data_wait_fraction": self._timed.data_wait_fraction,
            "verdict": self._timed.verdict,
        }

    def close(self) -> None:
        """End the threads."""
        self._loader.close()


def _plus(total: Any, more: Any) -> Any:
    """Add the sums of two windows; whatever is no sum is the same in both."""
    sums = {
        field.name: getattr(total, field.name) + getattr(more, field.name)
        for field in dataclasses.fields(total)
        if field.name.startswith("num_") or field.name.endswith("_seconds")
        if field.name not in ("num_workers", "num_cores", "compile_seconds", "hop_seconds", "callable_seconds")
    }
    hops = {hop: seconds + more.hop_seconds[hop] for hop, seconds in total.hop_seconds.items()}
    return dataclasses.replace(total, hop_seconds=hops, epochs=(), **sums)


class KernelsContender(Contender):
    """Decoder and pipeline on as many threads, with no Loader around them: what the Loader is measured against.

    Not a stream of batches: `measure` runs the kernels for a while.
    """

    num_ahead = 0

    def __init__(self, spec: BenchSpec) -> None:
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

    def batches(self) -> Iterator[Any]:
        """Run the kernels once, for the time of the first batch; there is nothing to look at."""
        started = time.perf_counter()
        self._ceiling.run(self._batch_size)
        self._rate = 0.0
        yield np.zeros((0,)) if time.perf_counter() > started else None
