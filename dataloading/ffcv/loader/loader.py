"""FFCV's Loader on our engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto, unique
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

import dataloading.loader as engine
from dataloading.errors import UsageError
from dataloading.ffcv.loader.chain import Chain
from dataloading.ffcv.pipeline.compiler import Compiler
from dataloading.ffcv.pipeline.operation import BatchContext
from dataloading.ffcv.pipeline.pipeline_spec import PipelineSpec
from dataloading.ffcv.reader import Reader
from dataloading.ffcv.traversal_order.base import Listed, TraversalOrder
from dataloading.format import ImageField
from dataloading.transforms.view import View

__all__ = ["ORDER_TYPE", "EpochIterator", "Loader", "OrderOption"]


@unique
class OrderOption(Enum):
    """The order of samples."""

    SEQUENTIAL = auto()
    RANDOM = auto()
    QUASI_RANDOM = auto()


ORDER_TYPE: TypeAlias = "OrderOption | TraversalOrder | type[TraversalOrder]"

_SHUFFLES: dict[Any, Any] = {
    OrderOption.SEQUENTIAL: "none",
    OrderOption.RANDOM: "global",
    OrderOption.QUASI_RANDOM: "pages",
}


class Loader:
    """Iterate over a ``.beton`` file in tuples of tensors, one for each pipeline, in the order of the file's fields.

    Parameters
    ----------
    fname : str
    batch_size : int
    num_workers : int
        Threads; below 1: this process's share of the cores.
    os_cache : bool
        False: keep pages of the file in bounded memory of our own.
    order : OrderOption, or TraversalOrder
    distributed : bool
        Divide samples among the ranks of `torch.distributed`.
    seed : int, optional
        Of the order and of all transforms; by default one of NumPy's, or 0 if distributed.
    indices : sequence of int, optional
    pipelines : mapping of str to list of operations, PipelineSpec or None
        By field; None leaves a field out. Fields without a pipeline arrive as tensors.
    custom_fields : mapping
        Refused, if there are any.
    drop_last : bool
    batches_ahead : int
    recompile : bool
        Generate the code of operations of your own again for each epoch.
    """

    def __init__(
        self,
        fname: str | os.PathLike[str],
        batch_size: int,
        num_workers: int = -1,
        os_cache: bool = not int(os.environ.get("FFCV_DEFAULT_CACHE_PROCESS", "0")),
        order: Any = OrderOption.SEQUENTIAL,
        distributed: bool = False,
        seed: int | None = None,
        indices: Sequence[int] | npt.NDArray[Any] | None = None,
        pipelines: Mapping[str, Any] | None = None,
        custom_fields: Mapping[str, Any] | None = None,
        drop_last: bool = True,
        batches_ahead: int = 3,
        recompile: bool = False,
    ) -> None:
        if custom_fields:
            raise UsageError(
                f"custom_fields={list(custom_fields)} is not supported: store such values in NDArrayField, BytesField "
                f"or JSONField, and turn them into what you need with a torch module or Operation in their pipeline"
            )
        if seed is None:
            seed = 0 if distributed else int(np.random.randint(0, 2**31 - 1))  # noqa: NPY002 (scripts seed it)
        self._args = {
            "fname": fname, "batch_size": batch_size, "num_workers": num_workers, "os_cache": os_cache, "order": order,
            "distributed": distributed, "seed": seed, "indices": indices, "pipelines": pipelines,
            "drop_last": drop_last, "batches_ahead": batches_ahead, "recompile": recompile,
        }  # fmt: skip
        self.fname = os.fspath(fname)
        self.batch_size, self.batches_ahead, self.seed = batch_size, batches_ahead, seed
        self.drop_last, self.distributed, self.recompile = drop_last, distributed, recompile
        self.reader = Reader(self.fname)
        self.indices = np.arange(self.reader.num_samples) if indices is None else np.array(indices, np.int64)
        self.next_epoch = 0
        self._chains = _make_chains(self.reader, pipelines or {})
        self.traversal_order = self._order_of(order)
        self._device = next((each.device for each in self._chains.values() if each.device.type != "cpu"), None)
        self._engine = self._make_engine(num_workers, os_cache, order, given=indices is not None)
        self.num_workers = self._engine.num_workers
        Compiler.set_num_threads(self.num_workers)

    def _order_of(self, order: Any) -> Any:
        if isinstance(order, OrderOption):
            return None
        if isinstance(order, type) and issubclass(order, TraversalOrder):
            return order(self)
        if hasattr(order, "sample_order"):
            return order
        raise UsageError(f"order must be an OrderOption, or a class derived from TraversalOrder, got {order!r}")

    def _make_engine(self, num_workers: int, os_cache: bool, order: Any, *, given: bool) -> engine.Loader:
        rank, world_size = 0, 1
        if self.distributed:
            if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
                raise UsageError(
                    "distributed=True needs the ranks of torch.distributed: call init_process_group() before the Loader"
                )
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        options: dict[str, Any] = {}
        if self.traversal_order is None:
            options = {"shuffle": _SHUFFLES[order], "indices": self.indices if given else None}
        else:
            options, rank, world_size = {"sampler": Listed(self.traversal_order)}, 0, 1
        wants_rows = any(each.channels_last for each in self._chains.values())
        return engine.Loader(
            self.fname,
            batch_size=self.batch_size,
            seed=self.seed,
            transforms=self._transforms(),
            fields=list(self._chains),
            num_workers=num_workers if num_workers >= 1 else None,
            drop_last=self.drop_last,
            rank=rank,
            world_size=world_size,
            device=self._device or "cpu",
            memory_format="channels_last" if wants_rows else "contiguous",
            os_cache=bool(os_cache),
            prefetch_batches=max(1, self.batches_ahead),
            **options,
        )

    def _transforms(self) -> dict[str, Any]:
        return {
            name: chain.transforms if name == chain.source else View(chain.source, chain.transforms)
            for name, chain in self._chains.items()
            if isinstance(self.reader.handlers[chain.source], ImageField)
        }

    def next_traversal_order(self) -> npt.NDArray[np.int64]:
        """Return the samples of the next epoch on this rank, in order."""
        if self.traversal_order is not None:
            return np.asarray(self.traversal_order.sample_order(self.next_epoch), np.int64)
        steps: Any = self._engine.sampler
        order = steps.order(self.next_epoch)
        listed = [order.step(step).indices for step in range(len(order))]
        return np.concatenate(listed) if listed else np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._engine)

    def __iter__(self) -> EpochIterator:
        before = [chain.transforms for chain in self._chains.values()]
        if before != [chain.lower() for chain in self._chains.values()]:
            self._engine = self._engine.with_transforms(self._transforms())
        if self.recompile:
            self.generate_code()
        self._engine.set_epoch(self.next_epoch)
        self.next_epoch += 1
        return EpochIterator(iter(self._engine), self._chains, self.seed)

    def generate_code(self) -> None:
        """Generate the code of operations of the user's own again, at the next batch."""
        for chain in self._chains.values():
            chain.forget_code()

    def filter(self, field_name: str, condition: Callable[[Any], bool]) -> Loader:
        """Make a loader of those samples of this one for which `condition` of the field's value is true."""
        pipelines: dict[str, Any] = dict.fromkeys(self.reader.handlers)
        given = self._args["pipelines"] or {}
        if field_name not in pipelines or given.get(field_name, ()) is None:
            raise UsageError(f"filter(): there is no field '{field_name}' in this loader's batches")
        pipelines.pop(field_name)
        if field_name in given:
            pipelines[field_name] = given[field_name]
        changes = {"pipelines": pipelines, "order": OrderOption.SEQUENTIAL, "drop_last": False, "distributed": False}
        every = Loader(**{**self._args, **changes})
        iterator = iter(every)
        chosen = [
            index
            for (values,) in iterator
            for index, value in zip(iterator.indices.tolist(), values, strict=True)
            if condition(value)
        ]
        return Loader(**{**self._args, "indices": np.array(chosen, np.int64)})


class EpochIterator:
    """The batches of one epoch. It holds no memory of its own: leaving it early costs nothing.

    Attributes
    ----------
    indices : ndarray of int64
        The samples of the last batch.
    """

    def __init__(self, batches: Iterator[Any], chains: Mapping[str, Chain], seed: int) -> None:
        self._batches = batches
        self._chains = dict(chains)
        self._seed = seed
        self.indices = np.empty(0, np.int64)

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> tuple[Any, ...]:
        batch = next(self._batches)
        self.indices = batch.indices
        context = BatchContext(indices=batch.indices, seed=self._seed, epoch=batch.epoch, step=batch.step)
        return tuple(chain.finish(batch[name], context) for name, chain in self._chains.items())

    def close(self) -> None:
        """Nothing needs to be closed."""


def _make_chains(reader: Reader, pipelines: Mapping[str, Any]) -> dict[str, Chain]:
    """Make the outputs, in FFCV's order: the file's fields, then the other names."""
    names = [name for name in reader.handlers if pipelines.get(name, ()) is not None]
    names += [name for name in pipelines if name not in reader.handlers]
    chains = {}
    for name in names:
        given = pipelines.get(name)
        source = name
        if isinstance(given, PipelineSpec):
            if not isinstance(given.source, str):
                raise UsageError(
                    f"pipelines['{name}'] begins behind an operation of another pipeline, which is not supported: give "
                    f"it the name of a field as its source, and the operations up to there"
                )
            source = given.source
            operations = [*([] if given.decoder is None else [given.decoder]), *given.transforms]
            given = None if given.default_pipeline else operations
        elif given is not None and not isinstance(given, Sequence):
            raise UsageError(f"pipelines['{name}'] must be a list of operations, got {type(given).__name__}")
        if source not in reader.handlers:
            raise UsageError(
                f"pipelines['{name}']: there is no field '{source}' in {reader.file_name}: it has "
                f"{', '.join(reader.field_names)}"
            )
        if source != name and not isinstance(reader.handlers[source], ImageField):
            raise UsageError(
                f"pipelines['{name}'] is a second pipeline of '{source}', which is possible for images only: take the "
                f"values of '{source}' twice in your loop"
            )
        chains[name] = Chain(name, source, reader, given)
    return chains
