"""Random operations on pixels: one program drawn and run for many samples a call.

Owns the layout of programs (``src/augment.h``). Must not know which transforms they come from, nor who compiled the
kernels whose addresses they hold.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .library import LIBRARY, memory_of

__all__ = ["LAW", "LEAF", "NODE", "AugmentFailure", "AugmentProgram", "Draws"]

LAW = np.dtype([("code", "<i8"), ("number", "<i8"), ("low", "<f8"), ("high", "<f8")])
NODE = np.dtype(
    [
        ("kind", "<i8"), ("place", "<i8"), ("p", "<f8"), ("first_child", "<i8"), ("num_children", "<i8"),
        ("leaf", "<i8"),
    ]
)  # fmt: skip
LEAF = np.dtype(
    [
        ("kind", "<i8"), ("kernel", "<u8"), ("draw", "<u8"), ("constants", "<u8"), ("lookup", "<u8"),
        ("num_constants", "<i8"), ("first_law", "<i8"), ("num_params", "<i8"), ("params_at", "<i8"),
        ("source_bytes", "<i8"), ("source_shape", "<i8", 3), ("target_bytes", "<i8"), ("target_shape", "<i8", 3),
    ]
)  # fmt: skip
_TABLES = {"nodes": NODE, "children": np.dtype(np.int64), "weights": np.dtype(np.float64), "leaves": LEAF,
           "laws": LAW, "values": np.dtype(np.float64)}  # fmt: skip
_SIZES = ("num_params", "tape_length", "image_bytes", "work_bytes", "decoded_bytes", "out_bytes")


class _Program(ctypes.Structure):
    """Mirror of ``beton_program`` in ``src/augment.h``."""

    _fields_ = [(name, ctypes.c_uint64) for name in _TABLES] + [(name, ctypes.c_int64) for name in _SIZES]


class _Failure(ctypes.Structure):
    """Mirror of ``beton_augment_failure`` in ``src/augment.h``."""

    _fields_ = [
        ("sample", ctypes.c_int64),
        ("leaf", ctypes.c_int64),
        ("status", ctypes.c_int64),
        ("source", ctypes.c_uint64),
        ("key", ctypes.c_uint64),
    ]


class Draws(NamedTuple):
    """What samples have drawn.

    ``params``: float64, shape (n, num_params), of all leaves side by side; undefined where a leaf is not executed.
    ``tapes``: int64, shape (n, tape_length): the leaves to execute, in order, and -1 behind the last.
    """

    params: npt.NDArray[np.float64]
    tapes: npt.NDArray[np.int64]


class AugmentFailure(NamedTuple):
    """Which sample failed, in which leaf, with what status.

    ``source`` is the address of the image that the leaf was given, in the calling thread's scratch memory: it holds
    until this thread's next call. ``key`` is the random stream of a user's function.
    """

    sample: int
    leaf: int
    status: int
    source: int
    key: int


class AugmentProgram:
    """A tree of operations, ready to be drawn and run.

    Parameters
    ----------
    tables : mapping of str to ndarray
        "nodes" (NODE), "children" (int64), "weights" (float64, as long as "children"), "leaves" (LEAF), "laws" (LAW)
        and "values" (float64), as ``src/augment.h`` describes them. They are kept alive; what they point to is the
        caller's to keep.
    sizes : mapping of str to int
        "num_params", "tape_length", "image_bytes", "work_bytes", "decoded_bytes", "out_bytes".

    Raises
    ------
    TypeError
        If a table is not of the type stated.
    """

    def __init__(self, tables: Mapping[str, npt.NDArray[Any]], sizes: Mapping[str, int]) -> None:
        for name, dtype in _TABLES.items():
            if tables[name].dtype != dtype or tables[name].ndim != 1 or not tables[name].flags.c_contiguous:
                raise TypeError(f"{name} must be a contiguous {dtype} array of one dimension")
        self._tables = dict(tables)
        addresses = {name: tables[name].ctypes.data for name in _TABLES}
        self._program = _Program(**addresses, **sizes)
        self._address = ctypes.addressof(self._program)

    def draw(self, keys: npt.NDArray[np.uint64]) -> Draws:
        """Return what samples with these keys draw; a kernel that failed leaves the rest undrawn, shape aside.

        Raises
        ------
        RuntimeError
            If a kernel that draws has failed.
        """
        n = len(keys)
        draws = Draws(
            np.zeros((n, self._program.num_params), np.float64), np.full((n, self._program.tape_length), -1, np.int64)
        )
        keys = np.ascontiguousarray(keys, dtype=np.uint64)
        failed = LIBRARY.beton_augment_draw(
            self._address, keys.ctypes.data, n, draws.params.ctypes.data, draws.tapes.ctypes.data
        )
        if failed >= 0:
            raise RuntimeError(f"sample {failed}: drawing has failed")
        return draws

    def run(
        self,
        keys: npt.NDArray[np.uint64],
        decoded: npt.NDArray[Any],
        out: npt.NDArray[Any],
        start: int,
        draws: Draws | None = None,
    ) -> AugmentFailure | None:
        """Take samples from ``start`` on from ``decoded`` to ``out``.

        Parameters
        ----------
        keys : ndarray of uint64, shape (n,), contiguous
        decoded, out : ndarray, contiguous
            n images; their shapes are the caller's to check. ``decoded`` is scratch, and may be ``out``.
        start : int
        draws : Draws, optional
            What to execute; by default it is drawn from the keys.

        Returns
        -------
        AugmentFailure or None
            The first sample that failed; the ones before it are done.

        Raises
        ------
        MemoryError
            If there is no memory for scratch images.
        """
        if start >= len(keys):
            return None
        params, tapes = (None, None) if draws is None else (draws.params.ctypes.data, draws.tapes.ctypes.data)
        result = LIBRARY.beton_augment_run(
            self._address, memory_of(keys), memory_of(decoded), memory_of(out), start, len(keys), params, tapes
        )
        if result == 0:
            return None
        if result == -2:
            raise MemoryError("no memory for the scratch images of transforms")
        failure = _Failure()
        LIBRARY.beton_augment_last_failure(ctypes.addressof(failure))
        return AugmentFailure(failure.sample, failure.leaf, failure.status, failure.source, failure.key)
