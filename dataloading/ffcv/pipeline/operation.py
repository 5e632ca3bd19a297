"""The base of what stands in a pipeline: the user's own operations, and those that our engine knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.errors import UsageError
from dataloading.ffcv.pipeline.allocation_query import AllocationQuery
from dataloading.ffcv.pipeline.state import State

__all__ = ["BatchContext", "EngineOperation", "Operation", "engine_does"]

_CODE = {"generate_code", "declare_state_and_memory", "get_crop_generator", "dtype"}


class Operation(ABC):
    """One step of a pipeline, written as FFCV's documentation has it.

    It runs in the caller's thread on the whole batch, in fresh memory, so results may be kept.
    """

    def __init__(self) -> None:
        self.metadata: Any = None
        self.memory_read: Any = None

    def accept_field(self, field: Any) -> None:
        """Take the field at whose pipeline this stands."""
        self.field = field

    def accept_globals(self, metadata: Any, memory_read: Any) -> None:
        """Take the field's column of the sample table."""
        self.metadata = metadata
        self.memory_read = memory_read

    @abstractmethod
    def generate_code(self) -> Callable[..., Any]:
        """Return a function of the values, the allocated memory and, if it has ``with_indices``, the samples."""

    def declare_shared_memory(self, previous_state: State) -> Any:
        """Say which memory the pipelines that hold this operation share."""
        return None

    def generate_code_for_shared_state(self) -> Callable[..., Any] | None:
        """Return a function that fills the shared memory once a batch."""
        return None

    @abstractmethod
    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        """Return what comes out, and the memory that is needed."""


@dataclass
class BatchContext:
    """What operations may know of the batch they are given.

    Parameters
    ----------
    indices : ndarray of int64, shape (rows,)
        The samples.
    seed, epoch, step : int
        What random numbers depend on besides the sample.
    place : int
        The operation's position in its pipeline.
    shared : dict
        Memory that operations share between pipelines.
    behind : dict
        Values behind operations at which other pipelines begin, by the operation's id.
    """

    indices: npt.NDArray[np.int64]
    seed: int
    epoch: int
    step: int
    place: int = 0
    shared: dict[int, Any] = field(default_factory=dict)
    behind: dict[int, Any] = field(default_factory=dict)


class EngineOperation(Operation):
    """An operation of FFCV's that our engine does, as part of its own pipeline where that is possible."""

    def lowered(self, state: State) -> list[Any] | None:
        """Return the transforms of ours that do the same on the workers; None: it is done on the batch."""
        return None

    def after(self, state: State) -> State:
        """Return what comes out."""
        return state

    @abstractmethod
    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """Do it on the values of a batch, arrays (N, H, W, C) or tensors."""

    def generate_code(self) -> Callable[..., Any]:
        """Refuse: the engine has no such function."""
        name = type(self).__name__
        raise UsageError(
            f"{name} has no generate_code() here, the engine does its work: put a {name}(...) of its own into the "
            f"pipeline instead of calling its code"
        )

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery | None]:
        """See ``Operation``."""
        return self.after(previous_state), None


def engine_does(operation: Operation) -> bool:
    """Return whether our engine does what an operation is for: not where a class of the user's own has code for it."""
    for kind in type(operation).__mro__:
        if kind.__module__.startswith(__name__.partition(".pipeline")[0]):
            return issubclass(kind, EngineOperation)
        if not _CODE.isdisjoint(vars(kind)):
            return False
    return False
