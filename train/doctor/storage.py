"""Measure the disk under the files, past the page cache, and how much of the files is in it (Linux).

Reads go past the cache with ``O_DIRECT``, which neither uses nor changes it. Where the file system refuses that, only
parts that are not cached are read.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from .measurements import DiskRates

__all__ = ["Read", "cached_share", "measure_disk"]

Read = Callable[[str, int, int], int]
"""``read(path, offset, size)`` reads past the cache and returns how many bytes came; 0: not possible there."""

_BLOCK = 4096
_SEQUENTIAL_READ = 4 << 20
_MOST_READS = 20_000
_READS_AT_A_TIME = 64  # the Loader asks for whole batches, disks take some dozens of requests at once


def cached_share(path: str, starts: Sequence[int], sizes: Sequence[int]) -> float | None:
    """Return the share of some parts of a file that is in the page cache, by mincore(2); reads nothing.

    None where the system does not say: to those who neither own a file nor may write to it, Linux reports all of it as
    cached.

    Parameters
    ----------
    path : str
    starts, sizes : sequence of int
        Positions and lengths of the parts, in bytes.
    """
    if not os.access(path, os.W_OK) and os.stat(path).st_uid != os.geteuid():
        return None
    there = total = 0
    memory: np.ndarray = np.memmap(path, np.uint8, "r")
    for start, size in zip(starts, sizes, strict=True):
        flags = _resident(memory, start, size)
        if flags is None:
            return None
        there, total = there + int(flags.sum()), total + len(flags)
    return there / total if total else 1.0


def _resident(memory: np.ndarray, start: int, size: int) -> np.ndarray | None:
    """Return 1 for each cached page of a part of a mapped file; None where the system does not say."""
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    length = start + size - first
    flags: np.ndarray = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except AttributeError:
        return None
    place = ctypes.c_void_p(memory.ctypes.data + first)
    return None if mincore(place, ctypes.c_size_t(length), ctypes.c_void_p(flags.ctypes.data)) else flags & 1


def measure_disk(
    paths: Sequence[str],
    *,
    image_bytes: float,
    cached: float | None,
    num_readers: int = _READS_AT_A_TIME,
    seconds: float = 1.5,
    read: Read | None = None,
) -> DiskRates:
    """Measure reads in order, and reads of one image's size at random by several threads.

    Parameters
    ----------
    paths : sequence of str
        Local files.
    image_bytes : float
        Mean stored size of an image.
    cached : float or None
        Share of the images in the cache, for the result.
    num_readers : int
        Random reads at a time.
    seconds : float
        About how long each of the two takes.
    read : callable, optional
        Reads past the cache; by default with ``O_DIRECT``, else what is not cached.
    """
    method = "injected"
    if read is None:
        read, method = (_read_direct, "O_DIRECT") if _direct_works(paths[0]) else (_read_uncached, "uncached parts")
    largest = max(paths, key=os.path.getsize)
    return DiskRates(
        cached_share=cached,
        sequential_bytes_per_second=_sequential(largest, read, seconds),
        random_reads_per_second=_random(paths, read, max(1, round(image_bytes)), num_readers, seconds),
        method=method,
    )


def _sequential(path: str, read: Read, seconds: float) -> float | None:
    size, total, offset = os.path.getsize(path), 0, 0
    started = time.perf_counter()
    while offset < size:
        total += read(path, offset, min(_SEQUENTIAL_READ, size - offset))
        offset += _SEQUENTIAL_READ
        if time.perf_counter() - started > seconds:
            break
    return total / (time.perf_counter() - started) if total else None


def _random(paths: Sequence[str], read: Read, size: int, num_readers: int, seconds: float) -> float | None:
    sizes = np.array([os.path.getsize(path) for path in paths], np.float64)
    counts: list[int] = []
    started = time.perf_counter()

    def serve(number: int) -> None:
        draw = np.random.default_rng(number)
        done = tries = 0
        while tries < _MOST_READS:
            file = int(draw.choice(len(paths), p=sizes / sizes.sum()))
            offset = int(draw.integers(0, max(1, int(sizes[file]) - size))) // _BLOCK * _BLOCK
            done += read(paths[file], offset, min(size, int(sizes[file]) - offset)) > 0
            tries += 1
            if time.perf_counter() - started > seconds:
                break
        counts.append(done)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(num_readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started) if sum(counts) else None


def _direct_works(path: str) -> bool:
    try:
        return _read_direct(path, 0, _BLOCK) > 0
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise


def _read_direct(path: str, offset: int, size: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
    try:
        # Memory of a map begins at a page, as O_DIRECT requires.
        with mmap.mmap(-1, -(-size // _BLOCK) * _BLOCK) as memory:
            return os.preadv(descriptor, [memory], offset)
    finally:
        os.close(descriptor)


def _read_uncached(path: str, offset: int, size: int) -> int:
    flags = _resident(np.memmap(path, np.uint8, "r"), offset, size)
    if flags is None or flags.any():
        return 0
    with open(path, "rb", buffering=0) as file:
        return len(os.pread(file.fileno(), size, offset))
