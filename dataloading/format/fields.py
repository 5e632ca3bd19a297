"""Fields of numbers, bytes, text and JSON (:mod:`.arrays` and :mod:`.images` hold the others).

Values are stored exactly or raise an error: nothing is cast, truncated or rounded. Knows no file positions.
"""

from __future__ import annotations

import json
import math
import operator

import numpy as np
import numpy.typing as npt

from dataloading.errors import FormatError, UsageError
from dataloading.messages import describe

from .base import Bytes, Field, Head, as_bytes, kind_arguments, unmasked

__all__ = ["BytesField", "CustomField", "Field", "FloatField", "IntField", "JSONField", "TextField"]


def _shown(number: int) -> str:
    # Python raises an error when it formats integers of thousands of digits.
    return str(number) if number.bit_length() <= 128 else f"of {number.bit_length()} bits"


class FloatField(Field):
    """A number, stored as float64.

    Examples
    --------
    >>> FloatField().encode(0.5)
    ((0.5,), None)
    """

    type_id = 0
    has_data = False
    record = np.dtype("<f8")

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """Accept any real number that float64 holds exactly."""
        value = unmasked(value) if isinstance(value, np.ndarray) else value
        scalar = value.item() if isinstance(value, (np.generic, np.ndarray)) and value.size == 1 else value
        if isinstance(scalar, bool) or not isinstance(scalar, (int, float)):
            raise UsageError(f"expected a real number, got {describe(value)}")
        if isinstance(scalar, float):
            return (scalar,), None
        try:
            number = float(scalar)
        except OverflowError:
            number = math.inf
        if number != scalar:
            raise UsageError(f"the integer {_shown(scalar)} has no exact float64; store it in an IntField")
        return (number,), None

    def decode(self, record: np.generic, payload: Bytes | None) -> float:
        return float(record)


class IntField(Field):
    """A whole number, stored as int64; class labels are the usual case.

    Examples
    --------
    >>> IntField().encode(7)
    ((7,), None)
    """

    type_id = 1
    has_data = False
    record = np.dtype("<i8")

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """Accept every value that Python accepts as an index; floats are refused."""
        value = unmasked(value) if isinstance(value, np.ndarray) else value
        if isinstance(value, (np.bool_, np.ndarray)) and value.dtype == bool and value.ndim == 0:
            value = bool(value)  # so that operator.index accepts it
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise UsageError(f"expected a whole number, got {describe(value)}") from None
        if not -(1 << 63) <= number < 1 << 63:
            raise UsageError(f"the integer {_shown(number)} does not fit 64 bits")
        return (number,), None

    def decode(self, record: np.generic, payload: Bytes | None) -> int:
        return int(record)


class BytesField(Field):
    """Any number of bytes; values are bytes-like objects or one-dimensional uint8 arrays.

    Examples
    --------
    >>> BytesField().encode(b"abc")[1].tobytes()
    b'abc'
    """

    type_id = 3
    record = np.dtype([("ptr", "<u8"), ("size", "<u8")])

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        return (), as_bytes(value)

    def entry(self, head: Head, pointer: int, size: int) -> object:
        return (pointer, size)

    def decode(self, record: np.generic, payload: Bytes | None) -> object:
        assert payload is not None
        return payload.tobytes()


class TextField(BytesField):
    r"""Text, stored as UTF-8; FFCV reads the field as its ``BytesField``.

    Examples
    --------
    >>> TextField().encode("\N{SNOWMAN}")[1].tobytes()
    b'\xe2\x98\x83'
    """

    def arguments(self) -> bytes:
        return kind_arguments("text")

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        if not isinstance(value, str):
            raise UsageError(f"expected text (str), got {describe(value)}")
        try:
            return (), np.frombuffer(value.encode("utf-8"), dtype=np.uint8)
        except UnicodeEncodeError as error:
            raise UsageError(f"expected text that UTF-8 can encode, got {describe(value)}: {error.reason}") from error

    def decode(self, record: np.generic, payload: Bytes | None) -> str:
        assert payload is not None
        try:
            return payload.tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"the stored text is damaged: {error}") from error


class JSONField(BytesField):
    r"""Any JSON value, stored as UTF-8 text and one NUL byte (as FFCV does).

    JSON's own rules apply: tuples come back as lists, and keys as strings.

    Examples
    --------
    >>> JSONField().encode({"box": [1, 2]})[1].tobytes()
    b'{"box": [1, 2]}\x00'
    """

    type_id = 5

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"expected a JSON value, got {describe(value)}: {error}") from error
        return (), np.frombuffer(text.encode("utf-8") + b"\0", dtype=np.uint8)

    def decode(self, record: np.generic, payload: Bytes | None) -> object:
        assert payload is not None
        text, end, _ = payload.tobytes().partition(b"\0")
        if not end:
            raise FormatError("the JSON text has no NUL byte at its end")
        try:
            return json.loads(text.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"the stored JSON text is damaged: {error}") from error


class CustomField(Field):
    """A field of a class this library does not know (type 255): its records can be read, not interpreted.

    Parameters
    ----------
    record : numpy dtype
        The field's part of a sample-table record; only the program that wrote the file knows it.
    stored_arguments : bytes
        The descriptor's 1,024 bytes of arguments.
    """

    type_id = 255
    has_data = False

    def __init__(self, record: npt.DTypeLike, stored_arguments: bytes = b"") -> None:
        self.record = np.dtype(record)
        self.stored_arguments = stored_arguments

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """Raise UsageError: the format of a custom field is unknown."""
        raise UsageError("a custom field cannot be written; use BytesField, JSONField or NDArrayField")

    def decode(self, record: np.generic, payload: Bytes | None) -> object:
        """Return the record unchanged."""
        return record
