"""The memory that an operation asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

__all__ = ["Allocation", "AllocationQuery", "allocate", "allocate_query"]


@dataclass(frozen=True)
class AllocationQuery:
    """Memory for one sample.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype or torch.dtype
    device : torch.device, optional
        For a dtype of torch's.
    """

    shape: Sequence[int]
    dtype: Any
    device: Any = None


Allocation: TypeAlias = "AllocationQuery | Sequence[AllocationQuery]"


def allocate(query: Any, rows: int) -> Any:
    """Make fresh memory for the rows of a batch, filled with zeros; a tuple for several queries."""
    if query is None:
        return None
    if not isinstance(query, AllocationQuery):
        return tuple(allocate(each, rows) for each in query)
    shape = (rows, *(int(side) for side in query.shape))
    if isinstance(query.dtype, torch.dtype):
        return torch.zeros(shape, dtype=query.dtype, device=query.device)
    return np.zeros(shape, query.dtype)


def allocate_query(memory_allocation: AllocationQuery, batch_size: int, batches_ahead: int) -> list[Any]:
    """Make memory for several batches."""
    return [allocate(memory_allocation, batch_size) for _ in range(batches_ahead)]
