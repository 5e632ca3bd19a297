"""The exceptions that this project raises.

Each one also inherits from the matching builtin, so ``except ValueError`` keeps working::

    BetonError (Exception)
    |-- UsageError (ValueError)        the caller asked for something impossible
    |   `-- StateError                 a saved state does not fit this loader
    |-- FormatError (ValueError)       the file is not a readable .beton file
    |   `-- ChecksumError              it is one, but its bytes have changed
    |-- SampleError (RuntimeError)     one sample failed; knows which one
    |   |-- DecodeError                its stored bytes do not decode
    |   `-- TransformError             a transform raised on it, or on a whole batch
    |-- StorageError (OSError)         a store could not be reached, or gave a wrong answer
    |-- ConvertError (RuntimeError)    a conversion could not finish
    `-- WorkerError (RuntimeError)     a worker thread or process died

A message says what happened, where, expected against got, and what to do about it.
This module imports nothing of the project: every other module may import it.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BetonError",
    "ChecksumError",
    "ConvertError",
    "DecodeError",
    "FormatError",
    "SampleError",
    "StateError",
    "StorageError",
    "TransformError",
    "UsageError",
    "WorkerError",
]


class BetonError(Exception):
    """Base of every error this project raises on purpose."""


class UsageError(BetonError, ValueError):
    """The caller's arguments are invalid; the message says how to fix them."""


class StateError(UsageError):
    """A state handed to ``load_state_dict`` belongs to other data or options."""


class FormatError(BetonError, ValueError):
    """The bytes are not a complete, well-formed ``.beton`` file."""


class ChecksumError(FormatError):
    """A region of the file does not have the checksum that was stored for it."""


class SampleError(BetonError, RuntimeError):
    """One sample could not be produced.

    Parameters
    ----------
    reason : str
        What failed, as a clause without a full stop.
    sample : int, optional
        Index of the sample in the file.
    index : int, optional
        Index of the sample in a dataset of several files.
    field : str, optional
        Name of the field.
    view : str, optional
        Which view of the field's image: its name in the batch, and place if there are several.
    path : str, optional
        The file the sample is stored in.
    advice : str, optional
        A sentence that tells the user what to do next.
    """

    def __init__(
        self,
        reason: str,
        *,
        sample: int | None = None,
        field: str | None = None,
        view: str | None = None,
        path: str | None = None,
        advice: str = "",
        index: int | None = None,
    ) -> None:
        self.reason = reason
        self.sample = sample
        self.field = field
        self.view = view
        self.path = path
        self.advice = advice
        self.index = index
        super().__init__(self._message())

    def _message(self) -> str:
        place = []
        if self.sample is not None:
            place.append(f"sample {self.sample}")
        if self.field is not None:
            place.append(f"field '{self.field}'")
        if self.view is not None:
            place.append(f"view '{self.view}'")
        where = ", ".join(place + self._more_place())
        if self.path is not None:
            where = f"{where} of {self.path}" if where else self.path
        if self.index is not None:
            where += f" (sample {self.index} of the dataset)"
        text = f"{where}: {self.reason}" if where else self.reason
        return f"{text}. {self.advice}" if self.advice else text

    def _more_place(self) -> list[str]:
        return []

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only state does not survive the default pickling, and these travel between processes.
        return _rebuild, (type(self), dict(vars(self)))


def _rebuild(kind: type[SampleError], arguments: dict[str, Any]) -> SampleError:
    return kind(**arguments)


class DecodeError(SampleError):
    """The stored bytes of one sample do not decode."""


class TransformError(SampleError):
    """A transform raised on one sample, or a callable on a batch; the original is ``__cause__``.

    Parameters
    ----------
    reason : str
        As for `SampleError`.
    transform : str, optional
        Position, name and input of the callable that got a whole batch.
    **place : any
        As for `SampleError`; a batch has no `sample`.
    """

    def __init__(self, reason: str, *, transform: str | None = None, **place: Any) -> None:
        self.transform = transform
        super().__init__(reason, **place)

    def _more_place(self) -> list[str]:
        return [] if self.transform is None else [self.transform]


class StorageError(BetonError, OSError):
    """Bytes could not be read from a store; the message names it, the number of tries and its last answer."""

    is_final = False
    """Whether a retry is useless: access was refused, or the object is gone or has changed."""


class ConvertError(BetonError, RuntimeError):
    """A conversion could not finish; no file that looks finished was left behind."""


class WorkerError(BetonError, RuntimeError):
    """A worker ended without saying why."""
