"""How fast the kernels alone can go: hops 3 and 4 on threads, without the Loader around them. For benchmarks only.

The same samples go through the same decoder and pipeline, on as many threads, with the crops drawn beforehand: no
batches, no order, no ring, no hand-over. Images are written to as much memory as a loader's batches occupy; writing
again and again to what fits the processor's caches would be a ceiling that no loader could reach.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.checks import at_least
from dataloading.dataset.open_files import Paths, open_files
from dataloading.decode.decoders import ImageDecoder
from dataloading.errors import UsageError
from dataloading.format import ImageField
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.rng import sample_keys

__all__ = ["KernelCeiling", "KernelTimes"]

# One with the caller, three in the making or ready: what the Loader holds with a few workers.
_NUM_BATCHES = 4


@dataclass(frozen=True, kw_only=True)
class KernelTimes:
    """What one run of the kernels took.

    Parameters
    ----------
    num_samples : int
    seconds : float
        Wall time, from the first thread's start to the last one's end.
    view_seconds : float
        For finding the stored bytes and drawing the crops, before `seconds` begin.
    decode_seconds, transform_seconds : float
        In these hops, summed over threads.
    """

    num_samples: int
    seconds: float
    view_seconds: float
    decode_seconds: float
    transform_seconds: float

    @property
    def images_per_second(self) -> float:
        """Images per second of wall time."""
        return self.num_samples / self.seconds if self.seconds > 0 else 0.0


class KernelCeiling:
    """Run decoder and pipeline over random samples of a dataset, as fast as they go.

    Parameters
    ----------
    path : str, path-like or sequence of such
        The dataset, as the Loader's.
    transforms : sequence
        Of the image field, as for the Loader; batch-level ones are left out.
    num_workers : int
        Threads, at least 1.
    field : str, optional
        The image field, by default the first.
    group_size : int
        Samples per native call, as in the Loader.
    batch_size : int
        Rows per batch, at least 1: the memory of four batches is written in turns.
    seed : int
        Of the order and the crops.

    Raises
    ------
    UsageError
        The file has no image field, or the transforms cannot work.

    Examples
    --------
    >>> import numpy as np
    >>> from dataloading import ImageField, Writer, transforms as T
    >>> from dataloading.testing import KernelCeiling
    >>> with Writer("eight.beton", {"image": ImageField()}, num_samples=8, overwrite=True) as writer:
    ...     for _ in range(8):
    ...         writer.append({"image": np.zeros((40, 50, 3), np.uint8)})
    >>> ceiling = KernelCeiling("eight.beton", transforms=[T.RandomResizedCrop(16)], num_workers=2)
    >>> ceiling.run(1_000).images_per_second > 0
    True
    """

    def __init__(
        self,
        path: Paths,
        *,
        transforms: Sequence[object],
        num_workers: int,
        field: str | None = None,
        group_size: int = 32,
        batch_size: int = 128,
        seed: int = 0,
    ) -> None:
        num_workers, group_size = at_least("num_workers", num_workers, 1), at_least("group_size", group_size, 1)
        batch_size, seed = at_least("batch_size", batch_size, 1), at_least("seed", seed, 0)
        self._files = open_files(path)
        images = [name for name, kind in self._files.fields.items() if type(kind) is ImageField]
        name = field or (images[0] if images else None)
        if name not in images:
            raise UsageError(
                f"{self._files.path} has no image field {name or ''}; its fields: {list(self._files.fields)}"
            )
        self._decoder = ImageDecoder(self._files, name)
        self._pipeline = Pipeline(transforms, channels=3, source_size=self._decoder.common_size())
        self._num_workers = num_workers
        self._group_size = group_size
        num_groups = max(1, _NUM_BATCHES * batch_size // (num_workers * group_size))
        # Kept from run to run, as the Loader keeps its buffers: the cost of new memory is not the kernels'.
        self._memory: npt.NDArray[Any] = np.empty(
            (num_workers, num_groups, group_size, *self._pipeline.out_shape), self._pipeline.storage_dtype
        )
        self._seed = seed
        self._epoch = 0
        self._pipeline.warm_up()

    def run(self, num_samples: int) -> KernelTimes:
        """Make `num_samples` images (at least 1), in a new random order each time all have been used.

        Raises
        ------
        ValueError
            An image cannot be decoded.
        """
        started = time.perf_counter()
        order = self._order(num_samples)
        keys = sample_keys(self._seed, self._epoch, order)
        requests, _ = self._decoder.requests(order)
        self._pipeline.plan(keys, requests)
        view_seconds = time.perf_counter() - started
        work = list(range(0, num_samples, self._group_size))
        hops: list[tuple[float, float]] = []
        faults: list[BaseException] = []

        def serve(worker: int) -> None:
            try:
                hops.append(self._serve(order, keys, requests, work, self._memory[worker]))
            except BaseException as error:  # raised again below, in the caller's thread
                faults.append(error)

        threads = [threading.Thread(target=serve, args=(k,), name=f"kernels-{k}") for k in range(self._num_workers)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - started
        if faults:
            raise faults[0]
        return KernelTimes(
            num_samples=num_samples,
            seconds=seconds,
            view_seconds=view_seconds,
            decode_seconds=sum(decode for decode, _ in hops),
            transform_seconds=sum(transform for _, transform in hops),
        )

    def _order(self, num_samples: int) -> npt.NDArray[np.int64]:
        size = self._files.num_samples
        parts = []
        for _ in range(-(-num_samples // size)):
            parts.append(np.random.default_rng((self._seed, self._epoch)).permutation(size))
            self._epoch += 1
        return np.concatenate(parts)[:num_samples]

    def _serve(
        self,
        order: npt.NDArray[np.int64],
        keys: npt.NDArray[np.uint64],
        requests: npt.NDArray[np.void],
        work: list[int],
        memory: npt.NDArray[Any],
    ) -> tuple[float, float]:
        """Take groups from `work` until there are none; return the seconds in each hop."""
        pipeline, size = self._pipeline, self._group_size
        decoded: npt.NDArray[Any] = np.empty((size, *pipeline.decode_shape), pipeline.decode_dtype)
        group = 0
        decode = transform = 0.0
        while True:
            try:
                first = work.pop()  # atomic
            except IndexError:
                return decode, transform
            part = slice(first, first + size)
            num = len(order[part])
            out = memory[group]
            group = (group + 1) % len(memory)
            if pipeline.in_place:
                decoded = out
            t0 = time.perf_counter()
            failures = self._decoder.decode(requests[part], decoded[:num])
            if failures:
                row, reason = failures[0]
                raise ValueError(f"sample {int(order[first + row])} of {self._files.path}: {reason}")
            t1 = time.perf_counter()
            pipeline.run(decoded[:num], keys[part], out[:num], indices=order[part])
            t2 = time.perf_counter()
            decode, transform = decode + t1 - t0, transform + t2 - t1
