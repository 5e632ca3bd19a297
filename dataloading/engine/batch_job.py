"""One batch in the making: memory, the hops its samples take, and what becomes of those that fail.

`Recipe` holds what all batches of a loader share; `BatchJob` is one batch as the engine's unit of work.
Knows neither the order of samples (that comes as a `Step`) nor threads (it is told which one runs it).
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dataloading.cache.page_supply import Pins, Supply
from dataloading.dataset.files import FileSet
from dataloading.decode.decoders import Decoder, ImageDecoder, interleave
from dataloading.engine.transfer import Sent, Transfer, as_tensor
from dataloading.engine.workers import Ring
from dataloading.errors import DecodeError, SampleError, TransformError
from dataloading.sampling.sampler import EpochOrder, Step
from dataloading.stats import Clock
from dataloading.transforms.pipeline import Pipeline, PipelineFault
from dataloading.transforms.rng import sample_keys

__all__ = ["BatchJob", "ImagePlan", "OnError", "Recipe"]

OnError = Literal["raise", "skip", "replace"]

_ADVICE = {
    DecodeError: "Run 'beton verify {path}' to list damaged samples, or pass on_error=\"skip\"",
    TransformError: 'Fix the transform, or pass on_error="skip"',
}


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """How the images of one field are made, and where they go.

    Parameters
    ----------
    decoder : ImageDecoder
    pipeline : Pipeline
    ring : Ring
        Lends memory for the images of one batch.
    interleaved : bool
        Lay out the batch as NHWC (the tensor is still (N, C, H, W), in channels_last format).
    squeezed : bool
        Deliver (N, H, W): label maps have no channels.
    """

    decoder: ImageDecoder
    pipeline: Pipeline
    ring: Ring
    interleaved: bool
    squeezed: bool = False

    def lend(self, rows: int) -> npt.NDArray[Any]:
        """Lend an array of shape (rows, channels, height, width), or (rows, height, width, channels)."""
        channels, height, width = self.pipeline.out_shape
        shape = (height, width, channels) if self.interleaved else (channels, height, width)
        storage = np.dtype(self.pipeline.storage_dtype)
        num_bytes = rows * channels * height * width * storage.itemsize
        # A loader of indices that repeat may have more rows a batch than the one whose ring it shares.
        fits = num_bytes <= self.ring.num_bytes
        memory = self.ring.lend()[:num_bytes] if fits else np.empty(num_bytes, np.uint8)
        return memory.view(storage).reshape(rows, *shape)


class Recipe:
    """What all batches of one loader share.

    Parameters
    ----------
    files : FileSet
        Where samples come from, for messages.
    names : tuple of str
        Fields to deliver, in order.
    images, others : mappings
        Field name to how it is made.
    seed : int
        Of the random keys.
    group_size : int
        Samples a worker takes at a time.
    on_error : {"raise", "skip", "replace"}
    transfer : Transfer
    clock : Clock
    """

    def __init__(
        self,
        *,
        files: FileSet,
        names: tuple[str, ...],
        images: Mapping[str, ImagePlan],
        others: Mapping[str, Decoder],
        seed: int,
        group_size: int,
        on_error: OnError,
        transfer: Transfer,
        clock: Clock,
    ) -> None:
        self.files = files
        self.names = names
        self.images = images
        self.others = others
        self.seed = seed
        self.group_size = group_size
        self.on_error = on_error
        self.transfer = transfer
        self.clock = clock
        # By thread, not by a worker's number: two iterators of one loader have workers of equal numbers.
        self._scratch = threading.local()

    def jobs(self, order: EpochOrder, epoch: int, supply: Supply | None = None) -> Iterator[BatchJob]:
        """Make the jobs of one epoch, one a step; with a supply of pages, when a step's pages are there."""
        if supply is not None:
            steps = supply.steps(order)
            while True:
                with self.clock.measure("view"):  # waiting for pages included
                    supplied = next(steps, None)
                if supplied is None:
                    return
                yield BatchJob(self, supplied[0], epoch, supplied[1])
        readers = self.files.readers
        for number in range(len(order)):
            # One file a batch, in turn: it costs a microsecond, and on some network storage much more.
            readers[number % len(readers)].check_size()
            with self.clock.measure("sampler"):
                step = order.step(number)
            yield BatchJob(self, step, epoch)

    def scratch(self, purpose: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Give the calling thread's own array for one purpose, made once."""
        arrays: dict[str, npt.NDArray[Any]] = self._scratch.__dict__
        if purpose not in arrays:
            arrays[purpose] = np.empty((self.group_size, *shape), dtype)
        return arrays[purpose]

    def error(self, kind: type[SampleError], reason: str, sample: int, field: str) -> SampleError:
        """Make the error for one sample, with the advice that fits."""
        file, place = self.files.place(sample)
        path = self.files.paths[file]
        index = None if len(self.files) == 1 else sample
        advice = _ADVICE[kind].format(path=path)
        return kind(reason, sample=place, field=field, path=path, advice=advice, index=index)


class BatchJob:
    """One batch as the engine runs it: `run_group` from any thread, then `finish` from the last one.

    Parameters
    ----------
    recipe : Recipe
    step : Step
        Which samples.
    epoch : int
        Part of every random key.
    pins : Pins, optional
        Hold the stored bytes where they are until the batch is finished.
    """

    def __init__(self, recipe: Recipe, step: Step, epoch: int, pins: Pins | None = None) -> None:
        self.step = step
        self._pins = pins
        self.epoch = epoch
        self.indices = step.indices
        self.num_valid = step.num_valid
        self.errors: list[SampleError] = []
        self.sent: Sent | None = None
        self._recipe = recipe
        self._seconds: list[float] = []  # of each group, for fields that are not images
        self._failures: dict[int, SampleError] = {}  # by row; assignment to a dict is atomic
        rows = len(step.indices)
        self.num_groups = max(-(-rows // recipe.group_size), 1)
        self._values: dict[str, Any] = {name: decoder.allocate(rows) for name, decoder in recipe.others.items()}
        self._requests: dict[str, npt.NDArray[np.void]] = {}
        self._keys = sample_keys(recipe.seed, epoch, step.indices, 0 if step.views is None else step.views)
        for name, image in recipe.images.items():
            self._values[name] = image.lend(rows)
            with recipe.clock.measure("view"):
                requests = image.decoder.requests(step.indices)
                recipe.clock.count_bytes(int(requests["src_bytes"].sum()))
            self._requests[name] = requests
            self._plan(name, image.pipeline, requests)

    def _plan(self, name: str, pipeline: Pipeline, requests: npt.NDArray[np.void]) -> None:
        start = 0
        while start < len(requests):
            try:
                pipeline.plan(requests["src_width"], requests["src_height"], self._keys, requests, start=start)
                return
            except PipelineFault as fault:
                self._fail_transform(fault, 0, name)
                start = fault.position + 1

    def run_group(self, group: int, worker: int) -> None:
        """Take the samples of one group through decoding and transforms."""
        size = self._recipe.group_size
        first, last = group * size, min((group + 1) * size, len(self.indices))
        started = time.perf_counter()
        for name, decoder in self._recipe.others.items():
            for row, reason in decoder.decode(self.indices[first:last], self._values[name], first):
                self._fail(DecodeError, reason, first + row, name)
        self._seconds.append(time.perf_counter() - started)
        for name, image in self._recipe.images.items():
            self._run_images(name, image, first, last)

    def _run_images(self, name: str, image: ImagePlan, first: int, last: int) -> None:
        recipe, pipeline, num = self._recipe, image.pipeline, last - first
        out = self._values[name][first:last]
        planar = out
        if image.interleaved:
            dtype = np.dtype(pipeline.storage_dtype)
            planar = recipe.scratch(f"{name} planar", pipeline.out_shape, dtype)[:num]
        decoded = planar
        if not pipeline.in_place:
            decoded = recipe.scratch(f"{name} decoded", pipeline.decode_shape, np.uint8)[:num]
        cpu, page_faults = _used_by_thread()
        started = time.perf_counter()
        for run_first, run_last in self._good_runs(first, last):
            requests = self._requests[name][run_first:run_last]
            for row, reason in image.decoder.decode(requests, decoded[run_first - first : run_last - first]):
                self._fail(DecodeError, reason, run_first + row, name)
        decoded_at = time.perf_counter()
        for run_first, run_last in self._good_runs(first, last):
            part = slice(run_first - first, run_last - first)
            self._transform(name, pipeline, decoded[part], self._keys[run_first:run_last], planar[part], run_first)
        if image.interleaved:
            interleave(planar, out)
        transformed_at = time.perf_counter()
        cpu_after, page_faults_after = _used_by_thread()
        recipe.clock.add_group(
            decoded_at - started,
            transformed_at - decoded_at,
            cpu=cpu_after - cpu,
            page_faults=page_faults_after - page_faults,
        )

    def _transform(
        self,
        name: str,
        pipeline: Pipeline,
        decoded_NCHW: npt.NDArray[np.uint8],
        keys: npt.NDArray[np.uint64],
        out_NCHW: npt.NDArray[Any],
        first_row: int,
    ) -> None:
        start = 0
        while start < len(keys):
            try:
                pipeline.run(decoded_NCHW, keys, out_NCHW, start=start)
                return
            except PipelineFault as fault:
                self._fail_transform(fault, first_row, name)
                start = fault.position + 1

    def _good_runs(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Cut rows `first` to `last` at those that have failed."""
        if not self._failures:
            yield first, last
            return
        start = first
        for row in sorted(row for row in list(self._failures) if first <= row < last):
            if row > start:
                yield start, row
            start = row + 1
        if start < last:
            yield start, last

    def _fail(
        self, kind: type[SampleError], reason: str, row: int, field: str, cause: BaseException | None = None
    ) -> None:
        if row not in self._failures:
            error = self._recipe.error(kind, reason, int(self.indices[row]), field)
            error.__cause__ = cause
            self._failures[row] = error

    def _fail_transform(self, fault: PipelineFault, first_row: int, field: str) -> None:
        reason = f"{fault.transform} raised {type(fault.cause).__name__}: {fault.cause}"
        self._fail(TransformError, reason, first_row + fault.position, field, fault.cause)

    def finish(self) -> None:
        """Deal with the samples that failed, make tensors, and start their way to the device."""
        self._recipe.clock.add("decode", sum(self._seconds))
        if self._pins is not None:
            self._pins.release()
        self.errors = [self._failures[row] for row in sorted(self._failures)]
        if self.errors:
            if self._recipe.on_error == "raise" or len(self.errors) == len(self.indices):
                raise self.errors[0]  # the first by row, whichever thread was fastest
            with self._recipe.clock.measure("decode"):
                self._repair()
        tensors = [self._tensor(name) for name in self._recipe.names]
        with self._recipe.clock.measure("transfer"):
            self.sent = self._recipe.transfer.send(tensors)
        self._values.clear()
        self._requests.clear()

    def _repair(self) -> None:
        """Leave the failed rows out, or put the next good row of the batch in their place."""
        rows = np.arange(len(self.indices))
        good = np.setdiff1d(rows, list(self._failures))
        if self._recipe.on_error == "skip":
            source = good
            self.num_valid = int(np.count_nonzero(good < self.step.num_valid))
        else:
            source = good[np.searchsorted(good, rows) % len(good)]
        for name, values in self._values.items():
            if isinstance(values, list):
                self._values[name] = [values[row] for row in source]
            elif self._recipe.on_error == "skip":
                # Good rows move up one by one, in place: memory is lent for this batch and no other.
                for row, origin in enumerate(source.tolist()):
                    if row != origin:
                        values[row] = values[origin]
                self._values[name] = values[: len(source)]
            else:
                for row in self._failures:
                    values[row] = values[source[row]]
        self.indices = self.indices[source]

    def _tensor(self, name: str) -> Any:
        values = self._values[name]
        if isinstance(values, list):
            return [as_tensor(value) if isinstance(value, np.ndarray) else value for value in values]
        image = self._recipe.images.get(name)
        if image is None:
            return as_tensor(values)
        tensor = as_tensor(values, image.pipeline.out_dtype)
        if image.squeezed:
            return tensor[:, 0]
        return tensor.permute(0, 3, 1, 2) if image.interleaved else tensor


def _used_by_thread() -> tuple[float, int]:
    """Return the calling thread's seconds on a core so far, and how often it waited for the system to read a file."""
    if not hasattr(resource, "RUSAGE_THREAD"):  # not Linux: as if there had been no waiting
        return time.perf_counter(), 0
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime + usage.ru_stime, usage.ru_majflt
