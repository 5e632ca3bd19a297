"""A ring of shared memory through which a worker hands large arrays to the parent: one copy, no system calls.

The worker puts bytes, and sends their position through its pipe; the parent gets views of them. A view's memory is free
again when nobody refers to it any more, so results may be kept as long as anybody likes. When the ring is full, or the
system has no anonymous shared files, the bytes go through the pipe.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

import numpy as np

__all__ = ["SharedBytes"]

RING_BYTES = 8 << 20
_HEAD_BYTES = 64  # the number of bytes that the parent has freed so far
_STEP = 64  # blocks begin at multiples of it, as arrays should


class SharedBytes:
    """One worker's ring.

    Parameters
    ----------
    descriptor : int
        An anonymous file; closed with this object.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, _HEAD_BYTES + RING_BYTES)
        self._freed = ctypes.c_uint64.from_buffer(self._map)
        self._end = 0  # worker: behind the newest block
        # Parent: blocks in use, oldest first, with the position behind each, and whether it can be freed.
        self._blocks: dict[int, tuple[int, bool]] = {}

    @classmethod
    def create(cls) -> SharedBytes | None:
        """Return a new ring, or None where the system offers none."""
        try:
            descriptor = os.memfd_create("beton-results", os.MFD_CLOEXEC)
        except (AttributeError, OSError):
            return None
        os.ftruncate(descriptor, _HEAD_BYTES + RING_BYTES)
        return cls(descriptor)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _attached, (reduction.DupFd(self._descriptor),)

    def put(self, data: memoryview) -> int | None:
        """Copy bytes into the ring; return their position, or None if there is no room."""
        start = self._end
        if start % RING_BYTES + data.nbytes > RING_BYTES:
            start += RING_BYTES - start % RING_BYTES
        end = start + -(-data.nbytes // _STEP) * _STEP
        if end - self._freed.value > RING_BYTES:
            return None
        place = _HEAD_BYTES + start % RING_BYTES
        self._map[place : place + data.nbytes] = data
        self._end = end
        return start

    def get(self, position: int, size: int) -> memoryview:
        """Return the bytes at a position; each block once, in the order of `put`."""
        block = np.frombuffer(self._map, np.uint8, size, _HEAD_BYTES + position % RING_BYTES)
        self._blocks[position] = position + -(-size // _STEP) * _STEP, False
        weakref.finalize(block, self._free, position).atexit = False
        return block.data.toreadonly()

    def _free(self, position: int) -> None:
        self._blocks[position] = self._blocks[position][0], True
        while self._blocks:
            oldest, (end, is_free) = next(iter(self._blocks.items()))
            if not is_free:
                return
            del self._blocks[oldest]
            self._freed.value = end

    def close(self) -> None:
        """Release the file; views stay valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def _attached(descriptor: Any) -> SharedBytes:
    return SharedBytes(descriptor.detach())
