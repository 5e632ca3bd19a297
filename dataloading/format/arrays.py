"""Fields whose values are arrays of one dtype and shape.

Defines how dtype and shape are stored in a field's descriptor. A value with another dtype or shape is an error, never
cast: FFCV once stored the bits of integers in a float field.
"""

from __future__ import annotations

import json
import math
import operator

import numpy as np
import numpy.typing as npt

from dataloading.errors import FormatError, UsageError
from dataloading.messages import describe

from .base import Bytes, Field, Head, as_array, in_order, same_numbers
from .coordinates import check_coordinates
from .layout import ARGUMENTS_BYTES

__all__ = ["NDArrayField", "TorchTensorField", "plain_dtype"]

NDARRAY_ARGUMENTS = np.dtype([("shape", "<u8", (32,)), ("type_length", "<u8")])
LOCATOR_ROOM = 64
"""Bytes at the end of a field's arguments that are reserved for the extension's locator."""


class NDArrayField(Field):
    """An array whose dtype and shape are the same for every sample.

    Parameters
    ----------
    dtype : numpy dtype
        A plain dtype: numbers, booleans, fixed-length strings, dates. Elements are stored little-endian, whatever the
        byte order of the dtype or value.
    shape : tuple of int
        1 to 32 positive lengths; a scalar is ``(1,)``.
    coordinates : str, optional
        The coordinate format, if the numbers are positions in an image: "xyxy", "xywh", "cxcywh" or "points",
        optionally with "relative"; see `dataloading.format.coordinates`. The converters transform them with their
        image.

    Examples
    --------
    >>> NDArrayField("float32", (2, 3)).fixed_bytes
    24
    """

    type_id = 4
    record = np.dtype("<u8")

    def __init__(self, dtype: npt.DTypeLike, shape: tuple[int, ...], *, coordinates: str | None = None) -> None:
        self.dtype: np.dtype[np.generic] = plain_dtype(dtype)
        try:
            self.shape = tuple(operator.index(length) for length in shape)
        except TypeError:
            raise UsageError(f"an array field's shape must be a tuple of whole numbers, got {shape!r}") from None
        if not 1 <= len(self.shape) <= 32 or min(self.shape) < 1:
            raise UsageError(
                f"an array field's shape must have 1 to 32 positive lengths, got {self.shape}; use (1,) for a scalar"
            )
        self.coordinates = check_coordinates(coordinates, self.shape, self.dtype)
        # Makes a view of the stored bytes an aligned array, as vector code and C libraries expect.
        self.alignment = max(1, self.dtype.alignment)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.dtype)!r}, {self.shape})"

    @property
    def fixed_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def arguments(self) -> bytes:
        head = np.zeros((), dtype=NDARRAY_ARGUMENTS)
        head["shape"][: len(self.shape)] = self.shape
        text = json.dumps(self.dtype.descr).encode("ascii")
        head["type_length"] = len(text)
        return head.tobytes() + text

    @classmethod
    def from_arguments(cls, arguments: bytes) -> NDArrayField:
        """Return the field that a descriptor's arguments describe.

        Raises
        ------
        FormatError
            If they are malformed.
        """
        head = np.frombuffer(arguments, dtype=NDARRAY_ARGUMENTS, count=1)[0]
        length = int(head["type_length"])
        if length > ARGUMENTS_BYTES - NDARRAY_ARGUMENTS.itemsize:
            raise FormatError(f"its dtype's description claims {length} bytes, more than the descriptor holds")
        text = arguments[NDARRAY_ARGUMENTS.itemsize :][:length]
        shape = [int(size) for size in head["shape"]]
        while shape and shape[-1] == 0:
            shape.pop()
        try:
            described = json.loads(text.decode("ascii"))
            [(_, code)] = described
            field = cls(np.dtype(code), tuple(shape))
            field.dtype = np.dtype(code)  # FFCV's writer keeps big-endian elements
            return field
        except (ValueError, TypeError, RecursionError, SyntaxError) as error:
            raise FormatError(f"its dtype {text!r} and shape {tuple(shape)} are not usable: {error}") from error

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        """Accept arrays and tensors."""
        array = as_array(value, self._wanted())
        if not same_numbers(array.dtype, self.dtype) or array.shape != self.shape:
            way = "" if array.size != self.fixed_bytes // self.dtype.itemsize else f" (reshape{self.shape})"
            raise UsageError(
                f"expected {self._wanted()}, got {describe(array)}; convert it first{way}, nothing is cast silently"
            )
        return (), in_order(array, self.dtype)

    def entry(self, head: Head, pointer: int, size: int) -> object:
        return pointer

    def decode(self, record: np.generic, payload: Bytes | None) -> npt.NDArray[np.generic]:
        """Return the array, a read-only view of the file."""
        assert payload is not None
        return payload.view(self.dtype).reshape(self.shape)

    def _wanted(self) -> str:
        return f"a {self.dtype} array of shape {self.shape}"


class TorchTensorField(NDArrayField):
    """A tensor whose dtype and shape are the same for every sample.

    Stored exactly as :class:`NDArrayField`. The reader returns an array; the loader makes a tensor of it.

    Parameters
    ----------
    dtype : torch or numpy dtype
        A dtype that NumPy also has, so not bfloat16.
    shape : tuple of int
        1 to 32 positive lengths.
    coordinates : str, optional
        See `NDArrayField`.
    """

    type_id = 6

    def __init__(self, dtype: object, shape: tuple[int, ...], *, coordinates: str | None = None) -> None:
        # A torch dtype is recognised by its name, so that files can be written and read without importing torch.
        name = str(dtype)
        plain = name.removeprefix("torch.") if name.startswith("torch.") else dtype
        super().__init__(plain, shape, coordinates=coordinates)  # type: ignore[arg-type]


def plain_dtype(dtype: npt.DTypeLike) -> np.dtype[np.generic]:
    """Return ``dtype``, little-endian, if its values can be stored: no objects, structures or empty strings.

    Raises
    ------
    UsageError
        Otherwise.
    """
    try:
        result: np.dtype[np.generic] = np.dtype(dtype)
    except TypeError as error:
        raise UsageError(f"{dtype!r} is not a NumPy dtype; convert to one, or store the values as bytes") from error
    if result.hasobject or result.names is not None or result.subdtype is not None or result.itemsize == 0:
        raise UsageError(f"an array field needs a plain dtype of fixed size, got {result!r}{_way_out(result)}")
    result = result.newbyteorder("<")
    if np.dtype(result.descr[0][1]) != result:
        # A dtype of another package (bfloat16 of ml_dtypes): its description would be read back as raw bytes.
        raise UsageError(f"{result!r} is not a built-in NumPy dtype; convert to one, such as float32")
    room = ARGUMENTS_BYTES - LOCATOR_ROOM - NDARRAY_ARGUMENTS.itemsize
    if len(json.dumps(result.descr)) > room:
        raise UsageError(f"the description of dtype {result!r} is longer than the {room} bytes that the format allows")
    return result


def _way_out(dtype: np.dtype[np.generic]) -> str:
    if dtype.names is not None:
        return f"; give each of {', '.join(dtype.names)} a field of its own"
    return "; convert to numbers or fixed-length texts, or use a JSONField" if dtype.hasobject else ""
