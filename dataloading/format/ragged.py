"""Fields whose values are arrays with one dtype and any number of rows: boxes, keypoints, tokens.

Defines how a row's dtype and shape are stored in a field's descriptor; the number of rows follows from the number of
stored bytes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dataloading.errors import FormatError, UsageError
from dataloading.messages import describe

from .arrays import plain_dtype
from .base import Bytes, Head, as_array, in_order, kind_arguments, same_numbers
from .coordinates import check_coordinates
from .fields import BytesField

__all__ = ["VarArrayField"]


class VarArrayField(BytesField):
    """An array whose first length differs from sample to sample.

    FFCV reads the field as its ``BytesField``: the elements' bytes in C order.

    Parameters
    ----------
    dtype : numpy dtype
        A plain dtype: numbers, booleans, fixed-length strings, dates; stored little-endian, see `NDArrayField`.
    shape : tuple
        None for the first length, then positive lengths: ``(None,)`` for tokens, ``(None, 4)`` for boxes.
    coordinates : str, optional
        The coordinate format, if the numbers are positions in an image; see `NDArrayField`.

    Examples
    --------
    >>> boxes = VarArrayField("float32", (None, 4))
    >>> boxes.encode(np.zeros((3, 4), np.float32))[1].size
    48
    """

    def __init__(
        self, dtype: npt.DTypeLike, shape: Sequence[int | None] = (None,), *, coordinates: str | None = None
    ) -> None:
        self.dtype: np.dtype[np.generic] = plain_dtype(dtype)
        try:
            first, *rest = shape
            row = tuple(operator.index(length) for length in rest)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            first, row = 0, ()
        if first is not None or len(row) > 31 or min(row, default=1) < 1:
            raise UsageError(
                f"the shape of a variable-length array is None and then positive lengths, such as (None, 4), got "
                f"{shape!r}; NDArrayField holds arrays of one shape"
            )
        self.shape: tuple[int | None, ...] = (None, *row)
        self.coordinates = check_coordinates(coordinates, self.shape, self.dtype)
        # A view of the stored bytes is then an aligned array.
        self.alignment = max(1, self.dtype.alignment)

    @classmethod
    def from_description(cls, dtype: str, shape: list[int]) -> VarArrayField:
        """Return the field that a descriptor's arguments describe."""
        field = cls(dtype, (None, *shape))
        field.dtype = np.dtype(dtype)  # an earlier version kept big-endian elements
        return field

    @property
    def row_bytes(self) -> int:
        """Stored bytes of one row."""
        return math.prod(length for length in self.shape if length is not None) * self.dtype.itemsize

    def arguments(self) -> bytes:
        return kind_arguments("vararray", dtype=self.dtype.str, shape=list(self.shape[1:]))

    def __repr__(self) -> str:
        return f"VarArrayField({str(self.dtype)!r}, {self.shape})"

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """Accept arrays and tensors."""
        wanted = f"a {self.dtype} array of shape {self.shape}"
        array = as_array(value, wanted)
        if (
            not same_numbers(array.dtype, self.dtype)
            or array.ndim != len(self.shape)
            or array.shape[1:] != self.shape[1:]
        ):
            raise UsageError(f"expected {wanted}, got {describe(array)}; convert it first, nothing is cast silently")
        return (), in_order(array, self.dtype)

    def decode(self, record: np.generic, payload: Bytes | None) -> npt.NDArray[np.generic]:
        """Return the array, a read-only view of the file."""
        assert payload is not None
        if payload.size % self.row_bytes:
            raise FormatError(f"its {payload.size} stored bytes are not a multiple of {self.row_bytes}, a row's")
        rest = tuple(length for length in self.shape if length is not None)
        return payload.view(self.dtype).reshape(payload.size // self.row_bytes, *rest)
