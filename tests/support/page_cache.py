"""What of a file is in the system's page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dataloading.format.mapping import map_file


def cached_pages(path: Path) -> npt.NDArray[np.bool_]:
    """Whether each of a file's pages is in the system's page cache, as mincore tells of an untouched map."""
    with path.open("rb") as file:
        data = map_file(file.fileno(), path.stat().st_size)
    there = np.zeros(-(-len(data) // mmap.PAGESIZE), np.uint8)
    address, size = ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(len(data))
    assert ctypes.CDLL(None).mincore(address, size, ctypes.c_void_p(there.ctypes.data)) == 0
    return (there & 1).astype(bool)


def drop_from_cache(path: Path) -> None:
    """Drop a file, which no process may have mapped, from the page cache."""
    with path.open("rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_pages(path).any():
        pytest.skip("this file system keeps all files in memory")
