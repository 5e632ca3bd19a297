"""What a field of a dataset is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dataloading.errors import UsageError
from dataloading.ffcv.pipeline.operation import BatchContext, EngineOperation, Operation
from dataloading.ffcv.pipeline.state import State
from dataloading.format import Field as StoredField

__all__ = ["ARG_TYPE", "Decoder", "EngineField", "Field", "Malloc", "UserField"]

ARG_TYPE = np.dtype([("", "<u1", 1024)])

Malloc: TypeAlias = "Callable[[int], tuple[int, npt.NDArray[np.uint8]]]"
"""Given a number of bytes, returns where they will be in the file, and memory to fill."""


class Field(ABC):
    """A kind of values: how they are written, and the decoder that reads them.

    Derive from it, or from a field of FFCV's, for a kind of your own. Tell the loader of it with
    ``Loader(custom_fields={name: YourField})``.
    """

    @property
    @abstractmethod
    def metadata_type(self) -> np.dtype[Any]:
        """Dtype of the field's part of a sample-table record."""

    @staticmethod
    @abstractmethod
    def from_binary(binary: Any) -> Field:
        """Make the field of the 1,024 bytes that `to_binary` returned."""

    @abstractmethod
    def to_binary(self) -> Any:
        """Return what the file keeps of the field, of dtype `ARG_TYPE`."""

    @abstractmethod
    def encode(self, destination: Any, value: Any, malloc: Malloc) -> None:
        """Write a value: its record to ``destination[0]``, and bytes to memory that `malloc` gives."""

    @abstractmethod
    def get_decoder_class(self) -> type[Operation]:
        """Return the decoder of a pipeline that names none."""


class EngineField(Field):
    """A field of FFCV's. Our writer stores its values without `encode`; classes derived from it have their own."""

    @abstractmethod
    def stored(self) -> StoredField:
        """Return the field of ours that it is in the file."""

    def prepared(self, value: Any, place: int) -> Any:
        """Return a value as that field takes it; `place` is the sample's number in the file."""
        return value

    @property
    def metadata_type(self) -> np.dtype[Any]:
        """See ``Field``."""
        return self.stored().record

    def to_binary(self) -> Any:
        """See ``Field``."""
        arguments = self.stored().arguments().ljust(ARG_TYPE.itemsize, b"\0")
        return np.frombuffer(arguments, ARG_TYPE)[0]

    def encode(self, destination: Any, value: Any, malloc: Malloc) -> None:
        """See ``Field``."""
        stored = self.stored()
        head, payload = stored.encode(self.prepared(value, 0))
        if payload is None:
            destination[0] = stored.entry(head, 0, 0)
            return
        pointer, memory = malloc(payload.size)
        memory[:] = payload
        destination[0] = stored.entry(head, pointer, payload.size)


class UserField(StoredField):
    """A field of the user's own, as our writer stores it: its class encodes, and the file says nothing of its kind."""

    type_id = 255
    # In place of a position in the file, which is known only later; no value of a record is likely to be this one.
    _POINTER = 0x5AD1_7E57_0B5C_94C3
    _MARK = _POINTER.to_bytes(8, "little")

    def __init__(self, field: Field) -> None:
        self._field = field
        self.record = np.dtype(field.metadata_type)

    def arguments(self) -> bytes:
        """See ``StoredField``."""
        binary: bytes = self._field.to_binary().tobytes()
        return binary.rstrip(b"\0")

    def encode(self, value: object) -> tuple[Any, npt.NDArray[np.uint8] | None]:
        """Let the user's class encode a value; the head is its record, with a mark where the pointer goes."""
        given: list[npt.NDArray[np.uint8]] = []

        def malloc(size: int) -> tuple[int, npt.NDArray[np.uint8]]:
            if given:
                raise UsageError(
                    f"{type(self._field).__name__}.encode() called malloc twice, and a value has one place in the "
                    f"file: allocate all of it at once, or make two fields"
                )
            given.append(np.zeros(int(size), np.uint8))
            return self._POINTER, given[0]

        record = np.zeros(1, self.record)
        self._field.encode(record, value, malloc)
        if given and self._MARK not in record.tobytes():
            raise UsageError(
                f"{type(self._field).__name__}.encode() called malloc, and did not store the pointer that it returned "
                f"in its record ({self.record})"
            )
        return (record.tobytes(),), given[0] if given else None

    def entry(self, head: Any, pointer: int, size: int) -> object:
        """Return the record with the pointer in it."""
        return np.frombuffer(head[0].replace(self._MARK, int(pointer).to_bytes(8, "little")), self.record)[0]

    def decode(self, record: Any, payload: Any) -> object:
        """Return the record unchanged."""
        return record


class Decoder(EngineOperation):
    """The first of a pipeline: what is read of the file, and as what it arrives.

    The engine decodes. `generate_code` does the same sample by sample, for classes derived from a decoder and for
    fields of the user's own: a function of the samples, the allocated memory, the field's column of the sample table
    and what ``memory_read`` needs.
    """

    stored: tuple[type[StoredField], ...] = ()
    """The fields of ours that it decodes."""

    def transforms(self) -> list[Any]:
        """Return our transforms that are part of decoding."""
        return []

    def first(self, field: StoredField) -> State:
        """Return what comes out of the engine."""
        raise NotImplementedError

    def delivered(self, values: Any, widest: int) -> Any:
        """Turn what our Loader delivers into an array or a tensor; `widest` is the longest value in the file."""
        return values

    def on_batch(self, values: Any, context: BatchContext) -> Any:
        """See ``EngineOperation``; decoders never stand there."""
        raise AssertionError("a decoder behind others")

    @abstractmethod
    def generate_code(self) -> Callable[..., Any]:
        """See ``Operation``."""
