"""What a sample is made of: one class per kind of value the format can hold, arrays apart (:mod:`.arrays`).

Conversions are exact or they are errors: nothing is cast, cut or rounded. Whether a JPEG's bytes decode is not this
module's business, nor is where in the file anything lies.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dataloading.errors import FormatError, UsageError

from .arrays import NDArrayField, TorchTensorField
from .base import Bytes, Field, Head, describe

__all__ = [
    "MODE_JPEG",
    "MODE_RAW",
    "BytesField",
    "CustomField",
    "EncodedImage",
    "Field",
    "FloatField",
    "ImageField",
    "IntField",
    "JSONField",
    "NDArrayField",
    "TorchTensorField",
    "field_from_descriptor",
]

MODE_JPEG = 0
MODE_RAW = 1
MAX_SIDE = 65_535
"""Width and height are stored in 16 bits."""

IMAGE_RECORD = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("data_ptr", "<u8")])
BYTES_RECORD = np.dtype([("ptr", "<u8"), ("size", "<u8")])


@dataclasses.dataclass(frozen=True)
class EncodedImage:
    """An image as it is stored: JPEG bytes, or rows of RGB pixels.

    Parameters
    ----------
    mode : int
        ``MODE_JPEG`` (0) or ``MODE_RAW`` (1).
    width, height : int
        Size in pixels, 1 to 65,535.
    data : bytes-like
        The JPEG file's bytes, or ``height * width * 3`` bytes in row-major HWC order.
    """

    mode: int
    width: int
    height: int
    data: bytes | bytearray | memoryview | Bytes = dataclasses.field(repr=False)


class FloatField(Field):
    """A number, stored as float64.

    Examples
    --------
    >>> FloatField().encode(0.5)
    ((0.5,), None)
    """

    type_id = 0
    has_data = False

    @property
    def record(self) -> np.dtype[np.generic]:
        """See :attr:`Field.record`."""
        return np.dtype("<f8")

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """See :meth:`Field.encode`; accepts any real number that float64 holds exactly."""
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
            raise UsageError(f"the integer {scalar} has no exact float64; store it in an IntField")
        return (number,), None

    def entry(self, head: Head, pointer: int, size: int) -> object:
        """See :meth:`Field.entry`."""
        return head[0]

    def decode(self, record: np.generic, payload: Bytes | None) -> float:
        """See :meth:`Field.decode`."""
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

    @property
    def record(self) -> np.dtype[np.generic]:
        """See :attr:`Field.record`."""
        return np.dtype("<i8")

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """See :meth:`Field.encode`; accepts whatever Python itself takes as an index, not floats."""
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise UsageError(f"expected a whole number, got {describe(value)}") from None
        if not -(1 << 63) <= number < 1 << 63:
            raise UsageError(f"the integer {number} does not fit 64 bits")
        return (number,), None

    def entry(self, head: Head, pointer: int, size: int) -> object:
        """See :meth:`Field.entry`."""
        return head[0]

    def decode(self, record: np.generic, payload: Bytes | None) -> int:
        """See :meth:`Field.decode`."""
        return int(record)


class ImageField(Field):
    """An RGB image, stored as JPEG bytes or as raw pixels; each sample chooses.

    Values are :class:`EncodedImage`, or a uint8 array of shape (height, width, 3), which is stored raw.

    Examples
    --------
    >>> head, payload = ImageField().encode(np.zeros((2, 5, 3), np.uint8))
    >>> head, payload.size
    ((1, 5, 2), 30)
    """

    type_id = 2

    @property
    def record(self) -> np.dtype[np.generic]:
        """See :attr:`Field.record`."""
        return IMAGE_RECORD

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """See :meth:`Field.encode`."""
        if isinstance(value, np.ndarray):
            if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] != 3:
                raise UsageError(
                    f"expected an EncodedImage or a uint8 array of shape (height, width, 3), got {describe(value)}"
                )
            height, width = value.shape[:2]
            _check_side(width, height)
            return (MODE_RAW, width, height), np.ascontiguousarray(value).reshape(-1)
        if not isinstance(value, EncodedImage):
            raise UsageError(
                f"expected an EncodedImage or a uint8 array of shape (height, width, 3), got {describe(value)}"
            )
        width, height = value.width, value.height
        _check_side(width, height)
        payload = _as_bytes(value.data)
        if value.mode == MODE_RAW:
            if payload.size != width * height * 3:
                raise UsageError(
                    f"a raw image of {width}x{height} pixels has {width * height * 3} bytes, got {payload.size}"
                )
        elif value.mode != MODE_JPEG:
            raise UsageError(f"an image's mode is {MODE_JPEG} (JPEG) or {MODE_RAW} (raw), got {value.mode!r}")
        elif payload.size == 0:
            raise UsageError("expected a JPEG's bytes, got none")
        return (int(value.mode), int(width), int(height)), payload

    def decode(self, record: np.generic, payload: Bytes | None) -> EncodedImage:
        """See :meth:`Field.decode`."""
        assert payload is not None
        mode, width, height, _ = record.item()
        return EncodedImage(mode, width, height, payload)


class BytesField(Field):
    """Any number of bytes; values are bytes-like objects or one-dimensional uint8 arrays.

    Examples
    --------
    >>> BytesField().encode(b"abc")[1].tobytes()
    b'abc'
    """

    type_id = 3

    @property
    def record(self) -> np.dtype[np.generic]:
        """See :attr:`Field.record`."""
        return BYTES_RECORD

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """See :meth:`Field.encode`."""
        return (), _as_bytes(value)

    def entry(self, head: Head, pointer: int, size: int) -> object:
        """See :meth:`Field.entry`."""
        return (pointer, size)

    def decode(self, record: np.generic, payload: Bytes | None) -> object:
        """See :meth:`Field.decode`."""
        assert payload is not None
        return payload.tobytes()


class JSONField(BytesField):
    r"""Any value that JSON can express, stored as UTF-8 text and one NUL byte (as FFCV does).

    JSON's own rules apply: tuples come back as lists, and keys as strings.

    Examples
    --------
    >>> JSONField().encode({"box": [1, 2]})[1].tobytes()
    b'{"box": [1, 2]}\x00'
    """

    type_id = 5

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """See :meth:`Field.encode`."""
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"expected a value that JSON can express, got {describe(value)}: {error}") from error
        return (), np.frombuffer(text.encode("utf-8") + b"\0", dtype=np.uint8)

    def decode(self, record: np.generic, payload: Bytes | None) -> object:
        """See :meth:`Field.decode`."""
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
        self._record: np.dtype[np.generic] = np.dtype(record)
        self.stored_arguments = stored_arguments

    @property
    def record(self) -> np.dtype[np.generic]:
        """See :attr:`Field.record`."""
        return self._record

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """Refuse: what a custom field means is unknown."""
        raise UsageError("a custom field cannot be written; use BytesField, JSONField or NDArrayField")

    def decode(self, record: np.generic, payload: Bytes | None) -> object:
        """Return the record as it is."""
        return record


_KINDS: dict[int, type[Field]] = {
    kind.type_id: kind for kind in (FloatField, IntField, ImageField, BytesField, JSONField)
}
_ARRAY_KINDS: dict[int, type[NDArrayField]] = {kind.type_id: kind for kind in (NDArrayField, TorchTensorField)}


def field_from_descriptor(
    type_id: int, name: str, arguments: bytes, custom_records: Mapping[str, npt.DTypeLike]
) -> Field:
    """Return the field that a descriptor stands for.

    Parameters
    ----------
    custom_records : mapping
        Record dtype of each custom field (type 255), by name.

    Raises
    ------
    FormatError
        If the type is unknown, its arguments make no sense, or a custom field's record dtype is not given.
    """
    if type_id in _KINDS:
        return _KINDS[type_id]()
    if type_id in _ARRAY_KINDS:
        try:
            return _ARRAY_KINDS[type_id].from_arguments(arguments)
        except FormatError as error:
            raise FormatError(f"field '{name}': {error}") from error
    if type_id != CustomField.type_id:
        raise FormatError(f"field '{name}' has the unknown type {type_id}; expected 0 to 6, or 255 for a custom field")
    if name not in custom_records:
        raise FormatError(
            f"field '{name}' is of a custom type, so only the program that wrote it knows how large its records are; "
            f"pass custom_records={{'{name}': dtype}} (metadata_type of its FFCV class)"
        )
    return CustomField(custom_records[name], arguments)


def _as_bytes(value: object) -> Bytes:
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or value.ndim != 1:
            raise UsageError(f"expected bytes or a one-dimensional uint8 array, got {describe(value)}")
        return np.ascontiguousarray(value)
    if isinstance(value, memoryview) and not value.contiguous:
        value = value.tobytes()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise UsageError(f"expected bytes or a one-dimensional uint8 array, got {describe(value)}")
    return np.frombuffer(value, dtype=np.uint8)


def _check_side(width: int, height: int) -> None:
    for name, side in (("width", width), ("height", height)):
        if not isinstance(side, (int, np.integer)) or not 1 <= side <= MAX_SIDE:
            raise UsageError(f"an image's {name} must be 1 to {MAX_SIDE} pixels, got {side!r}; resize it first")
