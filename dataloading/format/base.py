"""What every kind of field can do.

Owns the contract between a field and the reader and writer: how one value becomes a record of the sample table plus
stored bytes, and how it comes back.
"""

from __future__ import annotations

import abc
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Bytes", "Field", "Head", "describe"]

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Head: TypeAlias = "tuple[int | float, ...]"


class Field(abc.ABC):
    """One column of the dataset: how its values are checked, stored and read back."""

    type_id: ClassVar[int]
    """The number that stands for this kind in the file."""
    has_data: ClassVar[bool] = True
    """Whether values own bytes in the pages; otherwise the sample table holds them whole."""
    alignment: int = 1
    """Stored bytes start at a multiple of this many bytes."""

    @property
    @abc.abstractmethod
    def record(self) -> np.dtype[np.generic]:
        """The dtype of this field's part of a sample-table record."""

    @property
    def fixed_bytes(self) -> int | None:
        """Stored bytes of each value if all have the same number, else None."""
        return None

    def arguments(self) -> bytes:
        """Return what the field's descriptor must remember, at most 1,024 bytes."""
        return b""

    @abc.abstractmethod
    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """Return ``(head, payload)``: what the sample table stores besides the pointer, and the bytes.

        Raises
        ------
        UsageError
            If the value is not exactly representable; the message says expected against got.
        """

    def entry(self, head: Head, pointer: int, size: int) -> object:
        """Return this field's part of a sample-table record once the payload's position is known."""
        return (*head, pointer)

    @abc.abstractmethod
    def decode(self, record: np.generic, payload: Bytes | None) -> object:
        """Return the value from its record and its stored bytes (a read-only view of the file)."""


def describe(value: object) -> str:
    """Return what a value is, in the words of an error message."""
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {value.shape}"
    kind = type(value).__name__
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"a {kind} of dtype {getattr(value, 'dtype', '?')} and shape {tuple(shape)}"
    text = repr(value)
    return f"{kind} {text if len(text) <= 40 else text[:37] + '...'}"
