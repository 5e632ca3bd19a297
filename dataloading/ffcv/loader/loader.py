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
from dataloading.ffcv.loader.chains import make_chains
from dataloading.ffcv.memory_managers import MemoryManager, OSCacheManager, ProcessCacheManager
from dataloading.ffcv.pipeline.compiler import Compiler
from dataloading.ffcv.pipeline.operation import BatchContext
from dataloading.ffcv.reader import Reader
from dataloading.ffcv.traversal_order import QuasiRandom, Random, Sequential, SequentialContiguous
from dataloading.ffcv.traversal_order.base import EngineOrder, Listed, TraversalOrder
from dataloading.transforms.view import View

__all__ = ["ORDER_MAP", "ORDER_TYPE", "EpochIterator", "Loader", "OrderOption"]


@unique
class OrderOption(Enum):
    """The order of samples."""

    SEQUENTIAL = auto()
    RANDOM = auto()
    QUASI_RANDOM = auto()
    SEQUENTIAL_CONTIGUOUS = auto()
    """FFCV-SSL's: each rank has one run of samples."""


ORDER_TYPE: TypeAlias = "OrderOption | TraversalOrder | type[TraversalOrder]"

ORDER_MAP: dict[OrderOption, type[TraversalOrder]] = {
    OrderOption.SEQUENTIAL: Sequential,
    OrderOption.RANDOM: Random,
    OrderOption.QUASI_RANDOM: QuasiRandom,
    OrderOption.SEQUENTIAL_CONTIGUOUS: SequentialContiguous,
}

# These classes give the same samples as the options.
_OPTIONS: dict[Any, OrderOption] = {Sequential: OrderOption.SEQUENTIAL, QuasiRandom: OrderOption.QUASI_RANDOM}

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
    custom_fields : mapping of str to class
        The class of each field of your own, by name.
    drop_last : bool
    batches_ahead : int
    recompile : bool
        Generate the code of operations of your own again for each epoch.
    order_kwargs : mapping
        Arguments of the class `order` besides the loader.
    custom_field_mapper : mapping of str to str
        FFCV-SSL's: further names of fields, which `pipelines` may give pipelines of their own.
    path : str
        FFCV-SSL's name of `fname`.
    """

    def __init__(
        self,
        fname: str | os.PathLike[str] | None = None,
        batch_size: int | None = None,
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
        order_kwargs: Mapping[str, Any] | None = None,
        custom_field_mapper: Mapping[str, str] | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        fname = path if fname is None else fname
        if fname is None or batch_size is None:
            raise UsageError("a Loader needs fname and batch_size")
        if seed is None:
            seed = 0 if distributed else int(np.random.randint(0, 2**31 - 1))  # noqa: NPY002 (scripts seed it)
        self._args = {
            "fname": fname, "batch_size": batch_size, "num_workers": num_workers, "os_cache": os_cache, "order": order,
            "distributed": distributed, "seed": seed, "indices": indices, "pipelines": pipelines,
            "drop_last": drop_last, "batches_ahead": batches_ahead, "recompile": recompile,
            "custom_fields": custom_fields, "order_kwargs": order_kwargs, "custom_field_mapper": custom_field_mapper,
        }  # fmt: skip
        self.fname = os.fspath(fname)
        self.batch_size, self.batches_ahead, self.seed = batch_size, batches_ahead, seed
        self.drop_last, self.distributed, self.recompile = drop_last, distributed, recompile
        self.reader = Reader(self.fname, custom_fields)
        self.memory_manager: MemoryManager = (OSCacheManager if os_cache else ProcessCacheManager)(self.reader)
        self.indices = np.arange(self.reader.num_samples) if indices is None else np.array(indices, np.int64)
        self.next_epoch = 0
        self._chains, self._by_parent = make_chains(self.memory_manager, pipelines or {}, custom_field_mapper or {})
        self._device = next((each.device for each in self._chains.values() if each.device.type != "cpu"), None)
        if order is OrderOption.SEQUENTIAL_CONTIGUOUS:
            order = ORDER_MAP[order]
        order = _OPTIONS.get(order, order)
        if isinstance(order, OrderOption):
            given = None if indices is None else self.indices
            self._engine = self._make_engine(shuffle=_SHUFFLES[order], indices=given)
            self._traversal_order: Any = EngineOrder(self, self._engine.sampler)
        else:
            self.traversal_order = self._order_of(order, order_kwargs or {})
        self.num_workers = self._engine.num_workers
        self.code = [chain.code for chain in self._chains.values()]
        """The compiled code of the operations of your own; new for each epoch with `recompile`."""
        Compiler.set_num_threads(self.num_workers)

    def _order_of(self, order: Any, options: Mapping[str, Any]) -> Any:
        if isinstance(order, type) and issubclass(order, TraversalOrder):
            return order(self, **options)
        if hasattr(order, "sample_order"):
            return order
        raise UsageError(f"order must be an OrderOption, or a class derived from TraversalOrder, got {order!r}")

    @property
    def traversal_order(self) -> Any:
        """What gives the samples of an epoch; assign another `TraversalOrder` to go on with that."""
        return self._traversal_order

    @traversal_order.setter
    def traversal_order(self, order: Any) -> None:
        self._traversal_order = order
        self._engine = self._make_engine(sampler=Listed(order), alone=True)

    def sampler(self, shuffle: str) -> Any:
        """Return the engine's sampler of this loader's samples, on this rank, in an order of ours."""
        options: dict[str, Any] = {"fields": [], "transforms": {}, "drop_last": False}
        return self._make_engine(shuffle=shuffle, indices=self.indices, **options).sampler

    def _ranks(self) -> dict[str, int]:
        if not self.distributed:
            return {"rank": 0, "world_size": 1}
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise UsageError(
                "distributed=True needs the ranks of torch.distributed: call init_process_group() before the Loader"
            )
        return {"rank": torch.distributed.get_rank(), "world_size": torch.distributed.get_world_size()}

    def _make_engine(self, *, alone: bool = False, **options: Any) -> engine.Loader:
        """Make our Loader; `alone`: its sampler knows the ranks."""
        num_workers = self._args["num_workers"]
        wants_rows = any(each.channels_last for each in self._chains.values())
        delivered = [name if chain.holds_images else chain.source for name, chain in self._engine_chains().items()]
        given: dict[str, Any] = {
            "batch_size": self.batch_size,
            "seed": self.seed,
            "transforms": self._transforms(),
            "fields": list(dict.fromkeys(delivered)),
            "num_workers": num_workers if num_workers >= 1 else None,
            "drop_last": self.drop_last,
            "device": self._device or "cpu",
            "place": "workers" if self._device is None else "device",
            "memory_format": "channels_last" if wants_rows else "contiguous",
            "os_cache": bool(self._args["os_cache"]),
            "prefetch_batches": max(1, self.batches_ahead),
            "custom_records": self.reader.custom_records,
            **({"rank": 0, "world_size": 1} if alone else self._ranks()),
        }
        return engine.Loader(self.fname, **(given | options))

    def _engine_chains(self) -> dict[str, Chain]:
        return {name: chain for name, chain in self._chains.items() if chain.is_engines}

    def _transforms(self) -> dict[str, Any]:
        return {
            name: chain.transforms
            if name == chain.source and chain.seed is None
            else View(chain.source, chain.transforms, seed=chain.seed)
            for name, chain in self._chains.items()
            if chain.holds_images
        }

    def next_traversal_order(self) -> npt.NDArray[np.int64]:
        """Return the samples of the next epoch on this rank, in order."""
        return np.asarray(self.traversal_order.sample_order(self.next_epoch), np.int64)

    def __len__(self) -> int:
        return len(self._engine)

    def __iter__(self) -> EpochIterator:
        changed = [chain.has_changed() for chain in self._by_parent]
        if any(changed):
            self._engine = self._engine.with_transforms(self._transforms())
            self.generate_code()
        elif self.recompile:
            self.generate_code()
        self._engine.set_epoch(self.next_epoch)
        self.next_epoch += 1
        return EpochIterator(iter(self._engine), self._chains, self._by_parent, self.seed)

    def generate_code(self) -> None:
        """Generate the code of operations of the user's own again."""
        for chain in self._by_parent:
            chain.generate_code()
        self.code = [chain.code for chain in self._chains.values()]

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

    def __init__(
        self, batches: Iterator[Any], chains: Mapping[str, Chain], by_parent: Sequence[Chain], seed: int
    ) -> None:
        self._batches = batches
        self._names = list(chains)
        self._by_parent = by_parent
        self._seed = seed
        self.indices = np.empty(0, np.int64)

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> tuple[Any, ...]:
        batch = next(self._batches)
        self.indices = batch.indices
        context = BatchContext(indices=batch.indices, seed=self._seed, epoch=batch.epoch, step=batch.step)
        made = {chain.name: chain.finish(batch, context) for chain in self._by_parent}
        return tuple(made[name] for name in self._names)

    def close(self) -> None:
        """Nothing needs to be closed."""
