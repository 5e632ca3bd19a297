"""Shared writable maps of files, which keep no file open, and the holes punched into them. Linux."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref

import numpy as np
import numpy.typing as npt

__all__ = ["give_back", "map_shared", "read_no_neighbours"]

Bytes = npt.NDArray[np.uint8]


def map_shared(descriptor: int, num_bytes: int) -> Bytes:
    """Map a file for reading and writing, so that all who map it see the same bytes.

    Parameters
    ----------
    descriptor : int
        Of a file open for both; can be closed afterwards.
    num_bytes : int
        How much of it, from the start; at least 1.

    Returns
    -------
    uint8 array, shape (num_bytes,)
        Writable; the map goes with its last view. A child of a fork shares it.

    Raises
    ------
    OSError
        If the system refuses.
    """
    library = _libc()
    # Python's own mmap would keep a copy of the descriptor: thousands of files, and locks that outlive their owner.
    address = library.mmap(None, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {num_bytes} bytes: {os.strerror(code)}")
    block = (ctypes.c_uint8 * num_bytes).from_address(address)
    # Not at exit: threads may still read, and the system takes the map back with the process.
    weakref.finalize(block, library.munmap, address, num_bytes).atexit = False
    return np.frombuffer(memoryview(block), np.uint8)


def give_back(part: Bytes) -> None:
    """Punch a hole into the file behind a part of a map: it takes no room any more and reads as zeros.

    Parameters
    ----------
    part : uint8 array
        Begins at a multiple of the system's page size; whole pages are given back.

    Raises
    ------
    OSError
        The file system cannot.
    """
    if _libc().madvise(part.ctypes.data, part.nbytes, mmap.MADV_REMOVE):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot give back {part.nbytes} bytes: {os.strerror(code)}")


def read_no_neighbours(part: Bytes) -> None:
    """Tell the system that a map is read here and there: what lies beside a page that is touched is not read as well.

    Parameters
    ----------
    part : uint8 array
        A whole map of a file.
    """
    _libc().madvise(part.ctypes.data, part.nbytes, mmap.MADV_RANDOM)


@functools.cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
