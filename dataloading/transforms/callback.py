"""A Python function as a kernel: the runner calls it by an address, as it does compiled ones.

The call takes the GIL, and the caller's thread is one of Python's, so any number of threads may run such programs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Callback"]

# How Numba passes an array of three dimensions (see _native/src/augment.cpp): owner, object, number of elements, bytes
# of one, address, shape, strides.
_ARRAY = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, *6 * [ctypes.c_int64]]
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *_ARRAY, ctypes.c_uint64, *_ARRAY)
_FAILED = 1


class Callback:
    """A function ``write(image, key, out)`` that the runner can call.

    Parameters
    ----------
    write : callable
        Gets two arrays (channels, height, width) in the runner's memory, valid during the call only.
    source, target : numpy.dtype
        How their elements are stored.

    Attributes
    ----------
    address : int
        Of the machine code; it holds as long as this object lives.
    """

    def __init__(
        self,
        write: Callable[[npt.NDArray[Any], int, npt.NDArray[Any]], None],
        source: np.dtype[Any],
        target: np.dtype[Any],
    ) -> None:
        self._raised = threading.local()

        def called(*arguments: Any) -> int:
            try:
                write(_array(arguments[2:13], source), arguments[13], _array(arguments[14:], target))
            except BaseException as error:  # nothing may leave through the runner
                self._raised.error = error
                return _FAILED
            return 0

        self._function = _PROTOTYPE(called)
        self.address: int = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def raised(self) -> Exception:
        """Return what the calling thread's last call raised; what is no error, as Ctrl-C, is raised here."""
        error: BaseException = self._raised.__dict__.pop("error", None) or RuntimeError("the call has failed")
        if not isinstance(error, Exception):
            raise error
        return error


def _array(numbers: tuple[Any, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    count, item_bytes, address, *shape = numbers[2:8]
    memory = (ctypes.c_uint8 * (count * item_bytes)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)
