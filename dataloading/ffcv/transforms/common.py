"""Axes of length 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dataloading.ffcv.pipeline.operation import BatchContext, EngineOperation
from dataloading.ffcv.pipeline.state import State

__all__ = ["Squeeze"]


class Squeeze(EngineOperation):
    """Remove axes of length 1, never the batch's own.

    Parameters
    ----------
    *dims : int
        Which ones, counted with the batch axis; by default all.
    """

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def lowered(self, state: State) -> list[Any] | None:
        """See ``EngineOperation``."""
        return [] if len(state.shape or ()) == 1 else None

    def after(self, state: State) -> State:
        """See ``EngineOperation``."""
        sides = state.shape or ()
        gone = {dim % (len(sides) + 1) - 1 for dim in self.dims} if self.dims else set(range(len(sides)))
        return replace(state, shape=tuple(side for axis, side in enumerate(sides) if side != 1 or axis not in gone))

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``."""
        chosen = {dim % values.ndim for dim in self.dims} if self.dims else set(range(values.ndim))
        sides = [side for axis, side in enumerate(values.shape) if axis == 0 or side != 1 or axis not in chosen]
        return values.reshape(sides)
