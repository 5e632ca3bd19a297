"""Memory maps that need no open file.

Before Python 3.13 `mmap.mmap` keeps a file descriptor open for the life of the map, which limits a process to about a
thousand mapped files. This module calls the system's mmap directly, which needs no open descriptor. Linux and BSDs.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref

import numpy as np
import numpy.typing as npt

__all__ = ["Memory", "map_file"]


def map_file(descriptor: int, num_bytes: int, *, writable: bool = False) -> npt.NDArray[np.uint8]:
    """Map a file. The descriptor may then be closed; the map is removed with its last view.

    Parameters
    ----------
    descriptor : int
        A file open for reading, and for writing if `writable`.
    num_bytes : int
        Length of the map, from the file's start; at least 1.
    writable : bool
        Whether writes to the array go to the file.

    Returns
    -------
    uint8 array, shape (num_bytes,)
        Read-only unless `writable`. Shared with all processes that map the file; survives a fork.

    Raises
    ------
    OSError
        If the system refuses.
    """
    library = _libc()
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = library.mmap(None, num_bytes, access, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {num_bytes} bytes: {os.strerror(code)}")
    owner = Memory(address, num_bytes, read_only=not writable)
    # No cleanup at exit: threads may still read, and the system removes the map with the process.
    # The weak reference dies with its object. Arrays hide the object from the garbage collector, so no cycle has it.
    owner.note = weakref.ref(owner, functools.partial(library.munmap, address, num_bytes))
    return np.asarray(owner)


class Memory:
    """Lets ``numpy.asarray`` make an array of a memory range; the array keeps this object alive.

    Parameters
    ----------
    address : int
        Of the first element.
    num : int
        Elements.
    typestr : str
        An element's type, as in NumPy's array interface.
    stride : int
        Bytes from one element to the next.
    read_only : bool
        Whether the array is read-only.
    """

    def __init__(
        self, address: int, num: int, *, typestr: str = "|u1", stride: int = 1, read_only: bool = True
    ) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": typestr,
            "shape": (num,),
            "strides": (stride,),
            "data": (address, read_only),
        }
        self.note: object = None


@functools.cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.py_object]  # which it ignores
    return library
