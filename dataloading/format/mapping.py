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

__all__ = ["Memory", "map_file"]


def map_file(descriptor: int, num_bytes: int, *, writable: bool = False) -> npt.NDArray[np.uint8]:
    """Map a file; the descriptor can be closed, the map goes with its last view.

    Parameters
    ----------
    descriptor : int
        Of a file open for reading, and for writing where the map is to be writable.
    num_bytes : int
        How much of it, from the start; at least 1.
    writable : bool
        Whether what is written to the array is written to the file.

    Returns
    -------
    uint8 array, shape (num_bytes,)
        Read-only unless `writable`. Shared with all processes that map the file, and survives a fork.

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
    # Threads may still read at exit, and the system takes the map back with the process.
    # The note goes with its object: arrays hide the object from the garbage collector, so it is in no cycle.
    owner.note = weakref.ref(owner, functools.partial(library.munmap, address, num_bytes))
    return np.asarray(owner)


class Memory:
    """What ``numpy.asarray`` needs to make an array of some memory; the array keeps this object alive.

    Parameters
    ----------
    address : int
        Of the first element.
    num : int
        Elements.
    typestr : str
        An element's type, in the words of NumPy's array interface.
    stride : int
        Bytes from one element to the next.
    read_only : bool
        Whether NumPy refuses to write there.
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
