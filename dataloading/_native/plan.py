"""Geometry of many samples at once: from operations and random keys to requests.

Defines the codes of the operations. Does not know the transforms behind them.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .library import LIBRARY
from .regions import REQUEST

__all__ = ["ROW_LENGTH", "BoxesOfSamples", "PlanFailure", "RequestPlanner"]

ROW_LENGTH = 64  # BETON_PLAN_ROW_LENGTH in src/plan.h

_REASONS = {
    1: "the image is {height}x{width} here, with its padding too small for a crop of {wanted_height}x{wanted_width}",
    2: "the image is {height}x{width} here, a part of a resized image, and cannot be padded to "
    "{wanted_height}x{wanted_width}",
    3: "the image is {height}x{width} here and padded already; it cannot be padded again or resized to "
    "{wanted_height}x{wanted_width}",
    4: "the image is {height}x{width} here and would be resized to {wanted_height}x{wanted_width}, which is empty",
}


class _Failure(ctypes.Structure):
    """Mirror of ``beton_plan_failure`` in ``src/plan.h``."""

    _fields_ = [
        (name, ctypes.c_int64) for name in ("reason", "position", "height", "width", "wanted_height", "wanted_width")
    ]


class _Boxes(ctypes.Structure):
    """Mirror of ``beton_plan_boxes`` in ``src/plan.h``."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("corners", "starts", "kept")]


class BoxesOfSamples(NamedTuple):
    """The boxes of n samples, in pixels of the stored images.

    ``corners``: float64, shape (m, 4): left, top, right, bottom. ``starts``: int64, shape (n + 1,): boxes of sample i
    are ``starts[i]`` to ``starts[i + 1] - 1``. ``kept``: uint8, shape (m,): ones, of which `RequestPlanner.plan` makes
    0 what a crop has cut off.
    """

    corners: npt.NDArray[np.float64]
    starts: npt.NDArray[np.int64]
    kept: npt.NDArray[np.uint8]


class PlanFailure(NamedTuple):
    """The sample and the transform whose geometry is impossible, and why."""

    sample: int
    position: int
    reason: str


class RequestPlanner:
    """A list of geometric operations, which draws the geometry of samples into their requests.

    Parameters
    ----------
    codes, positions : ndarray of int64, shape (k,)
        Operations (``BETON_PLAN_*`` in ``src/plan.h``) and their positions in the user's list, which select their
        random streams.
    rows : ndarray of float64, shape (k, ROW_LENGTH)
        Their parameters.

    Raises
    ------
    TypeError
        If an array is not of the type stated, contiguous and of the right length.

    Examples
    --------
    >>> one = np.ones(1, np.int64)
    >>> row = np.zeros((1, ROW_LENGTH)); row[0, :2] = 2, 4
    >>> requests = np.zeros(1, REQUEST)
    >>> requests["src_width"], requests["src_height"] = 8, 6
    >>> RequestPlanner(4 * one, one, row).plan(np.zeros(1, np.uint64), requests)  # a centre crop
    >>> requests["box_x"][0], requests["box_y"][0]
    (np.int32(2), np.int32(2))
    """

    def __init__(
        self, codes: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], rows: npt.NDArray[np.float64]
    ) -> None:
        k = len(codes)
        for name, array, dtype, shape in (
            ("codes", codes, np.dtype(np.int64), (k,)),
            ("positions", positions, np.dtype(np.int64), (k,)),
            ("rows", rows, np.dtype(np.float64), (k, ROW_LENGTH)),
        ):
            _check(name, array, dtype, shape)
        self._arrays = codes, positions, rows  # kept alive
        self._operations = codes.ctypes.data, positions.ctypes.data, rows.ctypes.data, k

    def plan(
        self,
        keys: npt.NDArray[np.uint64],
        requests: npt.NDArray[np.void],
        start: int = 0,
        boxes: BoxesOfSamples | None = None,
    ) -> PlanFailure | None:
        """Draw the geometry of each sample and write it to its request.

        Parameters
        ----------
        keys : ndarray of uint64, shape (n,)
            Random keys of the samples.
        requests : ndarray of REQUEST, shape (n,)
            ``src_width`` and ``src_height`` are read, the columns from ``box_x`` to ``antialias`` written.
        start : int
            First sample to plan.
        boxes : BoxesOfSamples, optional
            For operations that read them; without, no sample has any.

        Returns
        -------
        PlanFailure or None
            The first sample that could not be planned; the ones before it are done.

        Raises
        ------
        TypeError
            If an array is not of the type stated, contiguous and of the right length.
        """
        n = len(requests)
        _check("keys", keys, np.dtype(np.uint64), (n,))
        _check("requests", requests, REQUEST, (n,))
        given = None
        if boxes is not None:
            _check_boxes(boxes, n)
            given = _Boxes(*(array.ctypes.data for array in boxes))
        failure = _Failure()
        failed: int = LIBRARY.beton_plan(
            *self._operations,
            keys.ctypes.data,
            None if given is None else ctypes.addressof(given),
            requests.ctypes.data,
            start,
            n,
            ctypes.addressof(failure),
        )
        if failed < 0:
            return None
        values = {name: int(getattr(failure, name)) for name, *_ in _Failure._fields_}
        return PlanFailure(failed, values["position"], _REASONS[values["reason"]].format(**values))


def _check(name: str, array: npt.NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise TypeError(f"{name} must be a contiguous {dtype} array of shape {shape}, got {array.dtype} {array.shape}")


def _check_boxes(boxes: BoxesOfSamples, n: int) -> None:
    count = int(boxes.starts[-1]) if len(boxes.starts) else 0
    _check("boxes.corners", boxes.corners, np.dtype(np.float64), (count, 4))
    _check("boxes.starts", boxes.starts, np.dtype(np.int64), (n + 1,))
    _check("boxes.kept", boxes.kept, np.dtype(np.uint8), (count,))
    if boxes.starts[0] != 0 or (np.diff(boxes.starts) < 0).any():
        raise TypeError("boxes.starts must begin with 0 and not decrease")
