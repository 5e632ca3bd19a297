"""madvise calls for file maps: free a part, disable read-ahead. Linux."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os

import numpy as np
import numpy.typing as npt

__all__ = ["give_back", "read_no_neighbours"]

Bytes = npt.NDArray[np.uint8]


def give_back(part: Bytes) -> None:
    """Punch a hole into the file under a part of a map: its space is freed, and it reads as zeros.

    Parameters
    ----------
    part : uint8 array
        Starts at a multiple of the system's page size; whole pages are freed.

    Raises
    ------
    OSError
        The file system does not support it.
    """
    if _libc().madvise(part.ctypes.data, part.nbytes, mmap.MADV_REMOVE):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot give back {part.nbytes} bytes: {os.strerror(code)}")


def read_no_neighbours(part: Bytes) -> None:
    """Disable the system's read-ahead for a map.

    Parameters
    ----------
    part : uint8 array
        A whole map of a file.
    """
    _libc().madvise(part.ctypes.data, part.nbytes, mmap.MADV_RANDOM)


@functools.cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
