"""One batch in the making: its memory, the hops its samples take, and what happens to samples that fail.

Knows neither the order of samples (it gets a `Step`) nor which thread runs it.
"""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading._native import BoxesOfSamples, Draws, interleave
from dataloading.batch import Batch
from dataloading.cache import PinnedPages
from dataloading.engine.annotations import Annotations
from dataloading.engine.outputs import Output
from dataloading.engine.plan import ImagePlan, Plan
from dataloading.engine.transfer import Sent, as_tensor
from dataloading.errors import DecodeError, SampleError, TransformError
from dataloading.sampling.random import child
from dataloading.sampling.slicing import Step
from dataloading.stats import Clock
from dataloading.transforms.device import BatchProgram
from dataloading.transforms.pipeline import Pipeline, PipelineFault
from dataloading.transforms.rng import batch_key, sample_keys

__all__ = ["BatchJob"]


class BatchJob:
    """One batch as the engine makes it.

    Workers run `run_group` for each group, and the last of them `finish`. The caller's thread runs `deliver`.

    Parameters
    ----------
    plan : Plan
    clock : Clock
    step : Step
        Which samples.
    epoch : int
        Part of every random key.
    pins : PinnedPages, optional
        Keep the stored bytes in the page cache until the batch is finished.
    """

    def __init__(self, plan: Plan, clock: Clock, step: Step, epoch: int, pins: PinnedPages | None = None) -> None:
        self.epoch = epoch
        self.consumed = step.consumed
        self.errors: list[SampleError] = []
        self._plan = plan
        self._clock = clock
        self._pins = pins
        self._indices = step.indices
        self._num_valid = step.num_valid
        self._global_size = step.global_size
        self._failures: dict[int, SampleError] = {}  # by row; assignment to a dict is atomic
        rows = len(step.indices)
        self.num_groups = max(-(-rows // plan.group_size), 1)
        self._values: dict[str, Any] = {name: decoder.allocate(rows) for name, decoder in plan.others.items()}
        for name in plan.columns:  # which are in the table that the requests below are made of
            plan.others[name].decode(step.indices, self._values[name], 0)
        self._results = {name: values.allocate(rows) for name, values in plan.values.items()}
        self._keys = _view_keys(plan.seed, epoch, step, 0) if plan.values else np.empty(0, np.uint64)
        self._sent: Sent | None = None
        self._params: dict[str, Any] = {}
        self._views: list[_View] = []
        self._left: dict[int, tuple[BatchProgram, Draws]] = {}  # what is left to do, by the value's place
        stored: dict[str, npt.NDArray[np.void]] = {}  # requests by field, without geometry
        unplanned = plan.num_views.copy()
        for image in plan.images.values():
            field = image.output.field
            seed = plan.seed if image.output.seed is None else image.output.seed
            with clock.measure("view"):
                if field not in stored:
                    stored[field], num_bytes = image.decoder.requests(step.indices)
                    clock.count_bytes(num_bytes)
                for place, number in enumerate(image.output.views):
                    unplanned[field] -= 1
                    view = _View(
                        image=image,
                        pipeline=image.pipeline_of(place),
                        place=place,
                        keys=_view_keys(seed, epoch, step, number),
                        requests=stored[field].copy() if unplanned[field] else stored[field],
                        values=image.lend(rows),
                    )
                    annotations = plan.annotations_read_by(image.output)
                    if annotations is not None:
                        view.boxes = self._read_boxes(annotations, view.requests)
                    self._views.append(view)
                    self._skip_failing(view.plan, 0, rows, image.output, place)
                    if plan.return_params and not image.is_mask:
                        view.params = view.pipeline.drawn(view.requests, view.keys, view.boxes, step.indices)
        self._together = _decoded_together(self._views)

    def _read_boxes(self, annotations: Annotations, requests: npt.NDArray[np.void]) -> BoxesOfSamples:
        """Read the stored boxes before the geometry is drawn that depends on them."""
        decoder = self._plan.reader(annotations)
        decoded = decoder.allocate(len(self._indices))
        failures = decoder.decode(self._indices, decoded, 0)
        values = list(decoded)
        for row, reason in failures:
            self._fail(DecodeError, reason, row, Output(name=annotations.reads, field=annotations.reads))
            values[row] = None
        return annotations.read(values, requests)

    # ---- workers

    def run_group(self, group: int) -> None:
        """Take the samples of one group through hops 3 and 4."""
        first = group * self._plan.group_size
        last = min(first + self._plan.group_size, len(self._indices))
        cpu, page_faults = _used_by_thread()
        started = time.perf_counter()
        for name, decoder in self._plan.others.items():
            if name not in self._plan.columns:
                for row, reason in decoder.decode(self._indices[first:last], self._values[name], first):
                    self._fail(DecodeError, reason, first + row, self._plan.outputs[name])
        transform = 0.0
        for views in self._together:
            transform += self._run_images(views, first, last)
        transform += self._run_values(first, last)  # labels of dropped boxes are gone by now
        decode = time.perf_counter() - started - transform
        cpu_after, page_faults_after = _used_by_thread()
        self._clock.add_group(decode, transform, cpu=cpu_after - cpu, page_faults=page_faults_after - page_faults)

    def _run_values(self, first: int, last: int) -> float:
        """Transform rows of fields that hold no images; return the seconds."""
        started = time.perf_counter()
        for name, values in self._plan.values.items():
            for low, high in self._good_runs(first, last):
                transform = functools.partial(
                    values.run,
                    self._values[name],
                    self._indices[low:high],
                    self._keys[low:high],
                    self._results[name],
                    low,
                )
                self._skip_failing(transform, low, high, self._plan.outputs[name], 0)
        return time.perf_counter() - started

    def _run_images(self, views: Sequence[_View], first: int, last: int) -> float:
        """Decode and transform rows of views that can be decoded together; return the seconds of the transforms."""
        if isinstance(views[0].values, list):
            self._run_one_by_one(views[0], views[0].values, first, last)
            return self._run_annotations(views[0], first, last)
        outs: list[Any] = [view.values[first:last] for view in views]
        memory = [view.image.scratch(out, view.place) for view, out in zip(views, outs, strict=True)]
        for low, high in self._good_runs(first, last):
            part = slice(low - first, high - first)
            pairs = [(view.requests[low:high], decoded[part]) for view, (decoded, _) in zip(views, memory, strict=True)]
            for view, failures in zip(views, views[0].image.decoder.decode_views(pairs), strict=True):
                for row, reason in failures:
                    self._fail(DecodeError, reason, low + row, view.image.output, view.place)
        started = time.perf_counter()
        for view, out, (decoded, planar) in zip(views, outs, memory, strict=True):
            for low, high in self._good_runs(first, last):
                part = slice(low - first, high - first)
                transform = functools.partial(
                    view.pipeline.run,
                    decoded[part],
                    view.keys[low:high],
                    planar[part],
                    indices=self._indices[low:high],
                )
                self._skip_failing(transform, low, high, view.image.output, view.place)
            if planar is not out:
                interleave(planar, out)
            self._run_annotations(view, first, last)
        return time.perf_counter() - started

    def _run_one_by_one(self, view: _View, values: list[Any], first: int, last: int) -> None:
        """Decode and transform rows of images of any size; the time counts as decoding."""
        output = view.image.output

        def work(row: int, start: int) -> None:
            one = slice(row, row + 1)
            found = view.image.one(view.pipeline, view.requests[one], view.keys[one], self._indices[one])
            if isinstance(found, str):
                self._fail(DecodeError, found, row, output, view.place)
            else:
                values[row] = found

        for low, high in self._good_runs(first, last):
            for row in range(low, high):
                self._skip_failing(functools.partial(work, row), row, row + 1, output, view.place)

    def _run_annotations(self, view: _View, first: int, last: int) -> float:
        """Move the boxes and points of rows with their images; return the seconds."""
        annotations = self._plan.annotations.get(view.image.output.name)
        if annotations is None or not annotations.moves or view.place != 0:
            return 0.0
        started = time.perf_counter()
        for low, high in self._good_runs(first, last):
            rows = slice(low, high)
            failures = annotations.move(
                self._values, rows, view.requests[rows], view.keys[rows], self._indices[rows], view.boxes
            )
            for row, reason in failures:
                self._fail(TransformError, reason, low + row, view.image.output)
        return time.perf_counter() - started

    def _good_runs(self, first: int, last: int) -> Sequence[tuple[int, int]]:
        """Cut rows `first` to `last` at those that have failed."""
        if not self._failures:
            return ((first, last),)
        runs = []
        start = first
        for row in sorted(row for row in list(self._failures) if first <= row < last):
            if row > start:
                runs.append((start, row))
            start = row + 1
        return [*runs, (start, last)] if start < last else runs

    def _skip_failing(self, work: Callable[..., None], first: int, last: int, output: Output, place: int) -> None:
        """Call ``work(start=0)`` for rows `first` to `last`, and again behind each row on which a transform raises."""
        start = 0
        while first + start < last:
            try:
                work(start=start)
                return
            except PipelineFault as fault:
                reason = f"{fault.transform} raised {type(fault.cause).__name__}: {fault.cause}"
                self._fail(TransformError, reason, first + fault.position, output, place, fault.cause)
                start = fault.position + 1

    def _fail(
        self,
        kind: type[SampleError],
        reason: str,
        row: int,
        output: Output,
        place: int = 0,
        cause: BaseException | None = None,
    ) -> None:
        if row not in self._failures:
            error = self._plan.error(kind, reason, int(self._indices[row]), output, output.view_text(place))
            error.__cause__ = cause
            self._failures[row] = error

    def finish(self) -> None:
        """Deal with the samples that failed, make tensors, and start their copy to the device (hop 5)."""
        if self._pins is not None:
            self._pins.release()
        self._values |= self._results
        if self._failures:
            self.errors = [self._failures[row] for row in sorted(self._failures)]
            if self._plan.on_error == "raise" or len(self.errors) == len(self._indices):
                raise self.errors[0]  # the first by row, whichever thread was fastest
            self._repair()
        values = self._tensors()
        with self._clock.measure("transfer"):
            self._sent = self._plan.transfer.send(values)
        self._params = self._drawn()
        self._values.clear()
        self._results.clear()
        self._views.clear()
        self._together.clear()

    def _repair(self) -> None:
        """Leave the failed rows out, or put the next good row of the batch in their place."""
        rows = np.arange(len(self._indices))
        good = np.setdiff1d(rows, list(self._failures))
        if self._plan.on_error == "skip":
            source = good
            self._num_valid = int(np.count_nonzero(good < self._num_valid))
        else:
            source = good[np.searchsorted(good, rows) % len(good)]
        for name, values in self._values.items():
            self._values[name] = _take_rows(values, source)
        for view in self._views:
            view.values, view.keys = _take_rows(view.values, source), view.keys[source]
            view.params = view.params and {name: drawn[source] for name, drawn in view.params.items()}
        self._indices = self._indices[source]

    def _tensors(self) -> list[Any]:
        """Return the values in the order of the outputs, each view by itself."""
        values: list[Any] = []
        sizes: list[Any] = []
        for name in self._plan.names:
            if name in self._values:
                values.append(_as_tensors(self._values[name]))
                continue
            for view in self._views:
                if view.image.output.name == name:
                    pipeline = view.pipeline
                    if pipeline.on_batch is not None:
                        self._left[len(values)] = pipeline.on_batch, pipeline.draw(view.keys, self._indices)
                    made, *size = view.tensors()
                    values.append(made)
                    sizes += size
        return values + sizes

    def _drawn(self) -> dict[str, Any]:
        """Return the params of each output as tensors; a list where there are several views."""
        params: dict[str, Any] = {}
        for view in self._views:
            if view.params is not None:
                output = view.image.output
                drawn = {name: as_tensor(values) for name, values in view.params.items()}
                params[output.name] = [*params.get(output.name, ()), drawn] if len(output.views) > 1 else drawn
        return params

    # ---- the caller

    def deliver(self, number: int) -> Batch:
        """Make the caller's batch, number `number` of its iteration, and run batch transforms on it."""
        assert self._sent is not None
        received = list(self._plan.transfer.receive(self._sent))
        for place, (program, draws) in self._left.items():
            received[place] = program.apply(received[place], draws)
        sent = iter(received)
        values: Sequence[Any] = [
            next(sent) if len(output.views) == 1 else [next(sent) for _ in output.views]
            for output in self._plan.outputs.values()
        ]
        if self._plan.batch_transforms:
            values = self._transformed(values)
        return Batch(
            [*values, *sent],
            names=self._plan.names + self._plan.sizes,
            indices=self._indices,
            num_valid=self._num_valid,
            global_size=self._global_size,
            params=self._params,
            epoch=self.epoch,
            step=number,
        )

    def _transformed(self, given: Sequence[Any]) -> Sequence[Any]:
        plan = self._plan
        values = dict(zip(plan.names, given, strict=True))
        # Ranks mix differently, and so do two transforms of one batch.
        key = batch_key(plan.seed, self.epoch, self.consumed * plan.ranks.world_size + plan.ranks.rank)
        for number, transform in enumerate(plan.batch_transforms):
            started = time.perf_counter()
            drawn = transform.apply(values, len(self._indices), child(key, number))
            if plan.return_params and drawn:
                params = self._params.setdefault(transform.output.name, {})
                params |= {name: as_tensor(each) for name, each in drawn.items()}
            self._clock.note_call(transform.name, time.perf_counter() - started)
        return list(values.values())


@dataclass(kw_only=True)
class _View:
    """The images of one view in a batch.

    Parameters
    ----------
    image : ImagePlan
    pipeline : Pipeline
        Its own of those of the `image`.
    place : int
        Among the views of its output.
    keys : ndarray of uint64, shape (rows,)
    requests : ndarray of REQUEST, shape (rows,)
    values : ndarray, shape (rows, ...), or list
        Memory of the results.
    params : dict of str to ndarray, length rows, optional
        What was drawn, where it is to be delivered.
    boxes : BoxesOfSamples, optional
        What the geometry reads.
    """

    image: ImagePlan
    pipeline: Pipeline
    place: int
    keys: npt.NDArray[np.uint64]
    requests: npt.NDArray[np.void]
    values: npt.NDArray[Any] | list[Any]
    params: dict[str, npt.NDArray[Any]] | None = None
    boxes: BoxesOfSamples | None = None

    def tensors(self) -> list[Any]:
        """Make what the batch holds; of padded images the sizes, too."""
        values = self.values
        return self.image.collated(values) if isinstance(values, list) else [self.image.tensor(values)]

    def plan(self, start: int = 0) -> None:
        """Draw the geometry; see `Pipeline.plan`."""
        self.pipeline.plan(self.keys, self.requests, start, self.boxes)


def _decoded_together(views: Sequence[_View]) -> list[list[_View]]:
    """Put views of one field together; images of any size are made one by one."""
    together: dict[object, list[_View]] = {}
    for view in views:
        alone = isinstance(view.values, list)
        together.setdefault(id(view) if alone else view.image.output.field, []).append(view)
    return list(together.values())


def _view_keys(seed: int, epoch: int, step: Step, number: int) -> npt.NDArray[np.uint64]:
    """Return the random keys of one view: those of its number, and of how often the sample has been drawn before."""
    views: int | npt.NDArray[np.int64] = number << 32
    return sample_keys(seed, epoch, step.indices, views if step.views is None else step.views + views)


def _take_rows(values: Any, source: npt.NDArray[np.int64]) -> Any:
    """Put the rows `source` of an array or list to its front, and return that.

    In place, as the memory is lent: what a row gets stands further down and has not been overwritten yet, or (behind
    the last good row) is the first good row, which "replace" leaves where it is.
    """
    for row, origin in enumerate(source.tolist()):
        if row != origin:
            values[row] = values[origin]
    return values[: len(source)]


def _as_tensors(values: Any) -> Any:
    if isinstance(values, list):
        return [as_tensor(value) if isinstance(value, np.ndarray) else value for value in values]
    return as_tensor(values)


def _used_by_thread() -> tuple[float, int]:
    """Return the calling thread's CPU seconds so far, and how often it waited for the system to read a file."""
    if not hasattr(resource, "RUSAGE_THREAD"):  # not Linux: as if there had been no waiting
        return time.perf_counter(), 0
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime + usage.ru_stime, usage.ru_majflt
