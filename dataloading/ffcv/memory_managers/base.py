"""What a memory manager is."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from dataloading.ffcv.reader import Reader

__all__ = ["MemoryContext", "MemoryManager"]


class MemoryContext(AbstractContextManager["MemoryContext"], ABC):
    """The memory of one epoch."""

    @property
    @abstractmethod
    def state(self) -> Any:
        """What the function of ``MemoryManager.compile_reader`` needs."""

    def start_batch(self, batch: int) -> None:
        """Hear that a batch begins."""

    def __exit__(self, *error: object) -> None:
        """Nothing needs to be closed."""


class MemoryManager(ABC):
    """Finds the stored bytes of a file by their position."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    @functools.cached_property
    def read(self) -> Callable[..., Any]:
        """The function that `compile_reader` returns."""
        return self.compile_reader()

    @functools.cached_property
    def _sorted(self) -> Any:
        table = self.reader.alloc_table
        # Of entries with the same position, all but the last are empty values, as FFCV writes them.
        order = np.lexsort((table["size"], table["ptr"]))
        last = np.ones(len(order), bool)
        pointers = table["ptr"][order]
        last[:-1] = pointers[1:] != pointers[:-1]
        return pointers[last], table["size"][order][last]

    @property
    def ptrs(self) -> Any:
        """Positions at which values begin, in order."""
        return self._sorted[0]

    @property
    def sizes(self) -> Any:
        """Numbers of bytes of these values."""
        return self._sorted[1]

    @functools.cached_property
    def page_to_samples(self) -> dict[int, set[int]]:
        """The samples that have values in a page, by the page's number."""
        return self._grouped("ptr", "sample_id")

    @functools.cached_property
    def sample_to_pages(self) -> dict[int, set[int]]:
        """The pages in which a sample has values."""
        return self._grouped("sample_id", "ptr")

    def _grouped(self, key: str, value: str) -> dict[int, set[int]]:
        table = self.reader.alloc_table
        numbers = {"ptr": table["ptr"] // np.uint64(self.reader.page_size), "sample_id": table["sample_id"]}
        pairs = np.unique(np.stack([numbers[key], numbers[value]], axis=1), axis=0)
        keys, starts = np.unique(pairs[:, 0], return_index=True)
        groups = np.split(pairs[:, 1], starts[1:])
        return {int(each): set(group.tolist()) for each, group in zip(keys, groups, strict=True)}

    @abstractmethod
    def schedule_epoch(self, batches: Sequence[Any]) -> MemoryContext:
        """Return the memory of an epoch."""

    @abstractmethod
    def compile_reader(self) -> Callable[..., Any]:
        """Return a function of a position and a context's `state`, which gives the bytes stored there."""
