"""FFCV's DatasetWriter on our Writer."""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from dataloading.errors import UsageError, WorkerError
from dataloading.ffcv.fields.base import Field, UserField
from dataloading.ffcv.reader import FIELDS
from dataloading.format import Field as StoredField
from dataloading.format import Writer
from dataloading.limits import num_cores

__all__ = ["MAX_PAGE_SIZE", "MIN_PAGE_SIZE", "DatasetWriter"]

MIN_PAGE_SIZE = 1 << 21
MAX_PAGE_SIZE = 1 << 32
"""Pages are smaller than this."""

_work: dict[str, Any] = {}

_ENGINE_FIELDS: set[Any] = set(FIELDS.values())


class DatasetWriter:
    """Write a dataset to a ``.beton`` file; it appears under its name once it is complete.

    Parameters
    ----------
    fname : str
    fields : mapping of str to Field
        In the order of a sample's values.
    page_size : int
    num_workers : int
        Processes that read and encode samples; below 1: as many as there are cores. The file does not depend on it.
    """

    def __init__(
        self,
        fname: str | os.PathLike[str],
        fields: Mapping[str, Field],
        page_size: int = 4 * MIN_PAGE_SIZE,
        num_workers: int = -1,
    ) -> None:
        for name, field in fields.items():
            if not isinstance(field, Field):
                raise UsageError(
                    f"field '{name}': expected a field of ffcv.fields, or of a class derived from Field, got {field!r}"
                )
        self.fname = os.fspath(fname)
        self.fields = dict(fields)
        self.page_size = page_size
        self.num_workers = num_workers if num_workers >= 1 else num_cores()

    def from_indexed_dataset(
        self,
        dataset: Any,
        indices: Sequence[int] | None = None,
        chunksize: int = 100,
        shuffle_indices: bool = False,
    ) -> None:
        """Write the samples ``dataset[index]``, tuples of one value for each field.

        Parameters
        ----------
        dataset : object with `__getitem__` and `__len__`
        indices : sequence of int, optional
        chunksize : int
            Samples that a process takes at a time.
        shuffle_indices : bool
            Draw the order from NumPy's global generator.
        """
        chosen = np.arange(len(dataset)) if indices is None else np.array(indices)
        if shuffle_indices:
            chosen = np.random.permutation(chosen)  # noqa: NPY002 (scripts seed it)
        places = range(0, len(chosen), chunksize)
        chunks = [(first, chosen[first : first + chunksize].tolist()) for first in places]
        with self._writer(len(chosen)) as writer:
            for encoded in self._encoded(dataset, chunks):
                for sample in encoded:
                    writer.append_encoded(sample)

    def from_webdataset(self, shards: Sequence[str], pipeline: Callable[[Any], Iterable[Any]]) -> None:
        """Write the samples that `pipeline` makes of the shards, one shard after the other.

        Parameters
        ----------
        shards : sequence of str
        pipeline : callable
            Given a ``webdataset.WebDataset``, returns it with the steps that make tuples of the fields' values.
        """
        num_samples = sum(1 for shard in shards for _ in _samples_of(shard, pipeline))
        with self._writer(num_samples) as writer:
            place = 0
            for shard in shards:
                for sample in _samples_of(shard, pipeline):
                    writer.append_encoded(_encode(self.fields, sample, place, f"sample {place} ({shard})"))
                    place += 1

    def _writer(self, num_samples: int) -> Writer:
        stored = {name: _stored(field) for name, field in self.fields.items()}
        page_size = None if self.page_size == 4 * MIN_PAGE_SIZE else self.page_size
        return Writer(self.fname, stored, num_samples=num_samples, page_size=page_size, overwrite=True)

    def _encoded(self, dataset: Any, chunks: Sequence[tuple[int, list[int]]]) -> Iterator[list[Any]]:
        """Encode chunks, in order, in this process or in others."""
        if self.num_workers == 1 or len(chunks) < 2:
            for first, indices in chunks:
                yield _encode_chunk(self.fields, dataset, first, indices)
            return
        # A forked process has the dataset without pickling it, as FFCV's scripts expect.
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("fork" if "fork" in methods else None)
        workers = concurrent.futures.ProcessPoolExecutor(
            min(self.num_workers, len(chunks)), context, _begin, (self.fields, dataset)
        )
        waiting: collections.deque[concurrent.futures.Future[list[Any]]] = collections.deque()
        try:
            for chunk in chunks:
                waiting.append(workers.submit(_work_on, *chunk))
                if len(waiting) > 2 * self.num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise WorkerError(
                f"{self.fname}: a process that reads the dataset ended without saying why (killed for memory?). Try "
                f"num_workers=1"
            ) from error
        finally:
            workers.shutdown(cancel_futures=True)


def _begin(fields: dict[str, Field], dataset: Any) -> None:
    _work.update(fields=fields, dataset=dataset)


def _work_on(first: int, indices: list[int]) -> list[Any]:
    return _encode_chunk(_work["fields"], _work["dataset"], first, indices)


def _encode_chunk(fields: dict[str, Field], dataset: Any, first: int, indices: list[int]) -> list[Any]:
    return [
        _encode(fields, dataset[index], place, f"sample {place} (dataset[{index}])")
        for place, index in enumerate(indices, first)
    ]


def _stored(field: Any) -> StoredField:
    """Return the field of ours that it is in the file. A class derived from one of FFCV's is a kind of its own."""
    return field.stored() if type(field) in _ENGINE_FIELDS else UserField(field)


def _encoded_value(field: Any, value: Any, place: int) -> Any:
    return _stored(field).encode(field.prepared(value, place) if type(field) in _ENGINE_FIELDS else value)


def _encode(fields: dict[str, Field], sample: Any, place: int, where: str) -> list[Any]:
    """Encode one sample's values for `Writer.append_encoded`."""
    if not isinstance(sample, (tuple, list)) or len(sample) != len(fields):
        got = f"{len(sample)} values" if isinstance(sample, (tuple, list)) else type(sample).__name__
        raise UsageError(f"{where}: expected a tuple with a value for each of {list(fields)}, got {got}")
    encoded = []
    for (name, field), value in zip(fields.items(), sample, strict=True):
        try:
            encoded.append(_encoded_value(field, value, place))
        except UsageError as error:
            raise UsageError(f"{where}, field '{name}': {error}") from error
    return encoded


def _samples_of(shard: str, pipeline: Callable[[Any], Iterable[Any]]) -> Iterable[Any]:
    try:
        from webdataset import WebDataset
    except ModuleNotFoundError:
        raise UsageError("from_webdataset() needs the package webdataset: pip install webdataset") from None
    samples = pipeline(WebDataset(shard, shardshuffle=False))
    if samples is None:
        raise UsageError("the pipeline returned None: it must return the dataset that it was given, with its steps")
    return samples
