"""Stored bytes in the system's page cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dataloading.ffcv.memory_managers.base import MemoryContext, MemoryManager
from dataloading.ffcv.pipeline.compiler import Compiler

__all__ = ["OSCacheContext", "OSCacheManager", "ProcessCacheManager"]


class OSCacheContext(MemoryContext):
    """The file, mapped."""

    def __init__(self, manager: MemoryManager) -> None:
        self.manager = manager

    @property
    def state(self) -> Any:
        """The file's bytes, where values begin, and their sizes."""
        return self.manager.reader.data, self.manager.ptrs, self.manager.sizes


class OSCacheManager(MemoryManager):
    """Finds stored bytes in the mapped file."""

    def schedule_epoch(self, batches: Sequence[Any]) -> MemoryContext:
        """See ``MemoryManager``."""
        return OSCacheContext(self)

    def compile_reader(self) -> Callable[..., Any]:
        """See ``MemoryManager``."""

        def read(address: Any, state: Any) -> Any:
            data, pointers, sizes = state
            place = np.searchsorted(pointers, address)
            if place == len(pointers) or pointers[place] != address:
                raise ValueError("no value begins at this position of the file")
            return data[address : address + sizes[place]]

        return Compiler.compile(read)


class ProcessCacheManager(OSCacheManager):
    """The same: ``Loader(os_cache=False)`` bounds the memory of the engine, not of decoders of your own."""
