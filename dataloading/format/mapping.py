"""A file's bytes as an array, without keeping the file open.

`mmap.mmap` keeps a file descriptor of its own for as long as the map lives (until Python 3.13), so that a process may
have about a thousand files mapped and no other open. The system needs none: this asks it directly. Linux and BSDs.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref

import numpy as np
import numpy.typing as npt

__all__ = ["map_file"]


def map_file(descriptor: int, num_bytes: int) -> npt.NDArray[np.uint8]:
    """Map a file for reading; the descriptor can be closed, the map goes with its last view.

    Parameters
    ----------
    descriptor : int
        Of a file open for reading.
    num_bytes : int
        How much of it, from the start; at least 1.

    Returns
    -------
    uint8 array, shape (num_bytes,)
        Read-only. Shared with all processes that map the file, and survives a fork.

    Raises
    ------
    OSError
        If the system refuses.
    """
    library = _libc()
    address = library.mmap(None, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {num_bytes} bytes: {os.strerror(code)}")
    owner = _Memory(address, num_bytes)
    # Not at exit: threads may still read, and the system takes the map back with the process.
    weakref.finalize(owner, library.munmap, address, num_bytes).atexit = False
    return np.asarray(owner)


class _Memory:
    """What NumPy needs to know of some memory; an array made of it keeps this object alive."""

    def __init__(self, address: int, num_bytes: int) -> None:
        is_read_only = True
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (num_bytes,),
            "data": (address, is_read_only),
        }


@functools.cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library
