"""The base class of fields.

Defines the contract between a field and the reader and writer: how a value becomes a record of the sample table plus
stored bytes, and how it is read back.
"""

from __future__ import annotations

import abc
import json
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from dataloading.errors import FormatError, UsageError
from dataloading.messages import counted, describe

__all__ = [
    "Bytes", "Field", "Head", "as_array", "as_bytes", "has_beton_kind", "in_order", "kind_arguments", "parse_kind",
    "same_numbers", "unmasked",
]  # fmt: skip

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Head: TypeAlias = "tuple[int | float, ...]"

# Starts the arguments of field kinds that FFCV does not have; JSON follows.
_KIND_MAGIC = b"\x89beton-kind\r\n"


def kind_arguments(kind: str, **parameters: object) -> bytes:
    """Return the descriptor arguments of a field kind that FFCV does not have.

    Examples
    --------
    >>> parse_kind(kind_arguments("mask", dtype="uint8"))
    ('mask', {'dtype': 'uint8'})
    """
    return _KIND_MAGIC + json.dumps({"kind": kind, **parameters}, sort_keys=True).encode("ascii")


def has_beton_kind(arguments: bytes) -> bool:
    """Return whether a descriptor's arguments are those of a field kind that FFCV does not have."""
    return arguments.startswith(_KIND_MAGIC)


def parse_kind(arguments: bytes) -> tuple[str, dict[str, Any]] | None:
    """Return the kind and parameters in a descriptor's arguments, or None if the kind is FFCV's.

    Raises
    ------
    FormatError
        If the arguments start with our magic but their description is damaged.
    """
    if not has_beton_kind(arguments):
        return None
    text = arguments[len(_KIND_MAGIC) :].partition(b"\0")[0]
    try:
        described = json.loads(text.decode("ascii"))
        kind = described.pop("kind")
        if not isinstance(kind, str):
            raise TypeError(f"the kind is {kind!r}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FormatError(f"its description {text!r} is damaged: {error}") from error
    return kind, described


class Field(abc.ABC):
    """One column of the dataset: how its values are checked, stored and read back."""

    type_id: ClassVar[int]
    """The kind's number in the file."""
    has_data: ClassVar[bool] = True
    """Whether values have bytes in the pages; otherwise they are in the sample table."""
    record: np.dtype[np.generic]
    """The dtype of this field's part of a sample-table record."""
    alignment: int = 1
    """Stored bytes start at a multiple of this many bytes."""

    @property
    def fixed_bytes(self) -> int | None:
        """Number of stored bytes of each value if it is constant, else None."""
        return None

    def arguments(self) -> bytes:
        """Return the arguments for the field's descriptor, at most 1,024 bytes."""
        return b""

    @abc.abstractmethod
    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """Return ``(head, payload)``: what the sample table stores besides the pointer, and the bytes.

        Raises
        ------
        UsageError
            If the value cannot be represented exactly; the message states expected and got.
        """

    def entry(self, head: Head, pointer: int, size: int) -> object:
        """Return this field's part of a sample-table record once the payload's position is known."""
        return (*head, pointer) if self.has_data else head[0]

    @abc.abstractmethod
    def decode(self, record: np.generic, payload: Bytes | None) -> object:
        """Return the value from its record and its stored bytes (a read-only view of the file)."""

    def __eq__(self, other: object) -> bool:
        # Fields are equal if they store and read values in the same way.
        return (
            isinstance(other, Field)
            and type(self) is type(other)
            and self.record == other.record
            and self.arguments() == other.arguments()
        )

    def __hash__(self) -> int:
        return hash((type(self), self.arguments()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def as_bytes(value: object) -> Bytes:
    """Return a bytes-like object or one-dimensional uint8 array as a uint8 array.

    Raises
    ------
    UsageError
        If it is neither.
    """
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or value.ndim != 1:
            raise UsageError(f"expected bytes or a one-dimensional uint8 array, got {describe(value)}")
        return in_order(unmasked(value), value.dtype)
    if isinstance(value, memoryview) and not value.contiguous:
        value = value.tobytes()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise UsageError(f"expected bytes or a one-dimensional uint8 array, got {describe(value)}")
    return np.frombuffer(value, dtype=np.uint8)


def as_array(value: object, wanted: str) -> npt.NDArray[np.generic]:
    """Return a NumPy array or torch tensor as a NumPy array, without importing torch.

    Raises
    ------
    UsageError
        If it is neither (the message says that ``wanted`` was expected), NumPy lacks the dtype, or an element is
        masked.
    """
    if not isinstance(value, np.ndarray) and hasattr(value, "detach"):
        try:
            value = value.detach().cpu().resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError) as error:
            reason = str(error).rstrip(".")
            if "ScalarType" in reason:  # for other tensors, torch's own error says what to do
                reason += "; convert it first, such as by value.to(torch.float32)"
            raise UsageError(f"expected {wanted}, got {describe(value)}: {reason}") from error
    if not isinstance(value, np.ndarray):
        raise UsageError(f"expected {wanted}, got {describe(value)}")
    return unmasked(value)


def unmasked(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return a plain array: a masked array loses its mask.

    Raises
    ------
    UsageError
        If an element is masked: files cannot store masks.
    """
    if not isinstance(array, np.ma.MaskedArray):
        return array
    num_masked = int(np.ma.getmaskarray(array).sum())
    if num_masked:
        raise UsageError(
            f"{num_masked} of {counted(array.size, 'element')} of the {array.dtype} array of shape {array.shape} are "
            "masked, and a file has no masks; fill them first (array.filled(0)), or store the mask in another field"
        )
    return array.data


def same_numbers(one: np.dtype[np.generic], other: np.dtype[np.generic]) -> bool:
    """Return whether two dtypes are the same except for byte order."""
    return bool(one.newbyteorder("=") == other.newbyteorder("="))


def in_order(array: npt.NDArray[np.generic], dtype: np.dtype[np.generic]) -> Bytes:
    """Return the bytes of an array's elements in C order, each in the byte order of ``dtype``."""
    return np.ascontiguousarray(array, dtype=dtype).reshape(-1).view(np.uint8)
