"""What a batch's samples are in numbers: requests for their stored images, their random keys; reading them ahead.

Knows the addresses and the layout of tables, which its callers give it; no files, fields or epochs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .library import LIBRARY
from .regions import REQUEST

__all__ = ["FileTables", "ImageLayout", "ImageTables", "read_ahead", "sample_keys"]

_TABLES = np.dtype(
    [
        ("samples", "u8"), ("allocations", "u8"), ("num_allocations", "i8"), ("memory", "u8"), ("begin", "u8"),
        ("end", "u8"), ("first_sample", "i8"),
    ]
)  # fmt: skip


class ImageLayout(NamedTuple):
    """Where an image field's numbers lie: ``beton_image_field`` in ``src/samples.h``."""

    record_bytes: int
    field_at: int
    ordinal: int
    num_stored: int
    first_mode: int
    end_mode: int
    pixel_bytes: int
    channels: int


class FileTables(NamedTuple):
    """The tables of one file: ``beton_tables`` in ``src/samples.h``, and its number of samples.

    ``samples`` and ``allocations`` are the tables, ``memory`` holds the file's bytes, of which those from ``begin`` to
    ``end`` are stored values.
    """

    samples: npt.NDArray[np.void]
    allocations: npt.NDArray[np.void]
    memory: npt.NDArray[np.uint8]
    begin: int
    end: int


class ImageTables:
    """Finds the stored images of samples. Keeps the tables alive.

    Parameters
    ----------
    layout : ImageLayout
        Of the field, in all files.
    files : sequence of FileTables
        Their samples are numbered one after another.
    """

    def __init__(self, layout: ImageLayout, files: Sequence[FileTables]) -> None:
        self._files = tuple(files)
        self._layout = np.array(layout, np.int64)
        self._tables = np.zeros(len(files) + 1, _TABLES)
        first = 0
        for row, file in zip(self._tables, files, strict=False):
            row["samples"], row["allocations"] = file.samples.ctypes.data, file.allocations.ctypes.data
            row["num_allocations"] = len(file.allocations)
            row["memory"], row["begin"], row["end"] = file.memory.ctypes.data, file.begin, file.end
            row["first_sample"] = first
            first += len(file.samples)
        self._tables["first_sample"][-1] = first
        self._addresses = self._tables.ctypes.data, len(files), self._layout.ctypes.data

    def find(self, indices: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.void], int] | None:
        """Make requests for whole images, without geometry and destination; and add up their stored bytes.

        Returns
        -------
        (ndarray of REQUEST, int) or None
            None where a sample is out of range or damaged, or is not where our writer puts it: look more closely.
        """
        indices = np.ascontiguousarray(indices, np.int64)
        requests = np.empty(len(indices), REQUEST)
        num_bytes = ctypes.c_uint64()
        missing = LIBRARY.beton_find_images(
            *self._addresses, indices.ctypes.data, len(indices), requests.ctypes.data, ctypes.addressof(num_bytes)
        )
        return None if missing >= 0 else (requests, num_bytes.value)


def read_ahead(addresses: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64], block_bytes: int) -> None:
    """Ask the system to read parts of mapped files; returns before they are read, and releases the GIL.

    Parameters
    ----------
    addresses, sizes : ndarrays of uint64, shape (num_parts,)
        The parts, in bytes.
    block_bytes : int
        They are widened to whole blocks of this size, a power of two and at least a page of the system.
    """
    addresses, sizes = np.ascontiguousarray(addresses), np.ascontiguousarray(sizes)
    assert addresses.dtype == sizes.dtype == np.uint64 and addresses.shape == sizes.shape
    LIBRARY.beton_read_ahead(addresses.ctypes.data, sizes.ctypes.data, len(addresses), block_bytes)


def sample_keys(
    key: int, indices: npt.NDArray[np.int64], views: npt.NDArray[np.int64] | None, view: int
) -> npt.NDArray[np.uint64]:
    """Return ``child(child(key, index), view)`` for each index; where there are `views`, `view` is added to them.

    Examples
    --------
    >>> sample_keys(0, np.array([0]), None, 0)[0] == sample_keys(0, np.array([0]), np.array([-5]), 5)[0]
    np.True_
    """
    indices = np.ascontiguousarray(indices, np.int64)
    keys = np.empty(len(indices), np.uint64)
    if views is not None:
        views = np.ascontiguousarray(views, np.int64)
        if views.shape != indices.shape:
            raise ValueError(f"views must have the shape of indices, {indices.shape}, got {views.shape}")
    LIBRARY.beton_sample_keys(
        key,
        indices.ctypes.data,
        None if views is None else views.ctypes.data,
        view & 0xFFFFFFFFFFFFFFFF,
        len(indices),
        keys.ctypes.data,
    )
    return keys
