"""One sample's way through a worker: the source's task -> loaded values -> what the writer will store.

Knows sources, fields and the image policy; neither processes nor the writer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dataloading import EncodedImage, Field, ImageField, UsageError

from .policy import ImagePolicy
from .sources.base import SampleFault, Source

__all__ = ["Outcome", "Work"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a worker made of one sample.

    Parameters
    ----------
    values : mapping or None
        One value for each field, as the writer takes them; None if the sample failed.
    kinds : tuple of str
        What became of its images, see `converters.policy`.
    source_bytes : int
        Bytes of image files read.
    fault : str
        Why there are no values.
    """

    values: Mapping[str, Any] | None = None
    kinds: tuple[str, ...] = ()
    source_bytes: int = 0
    fault: str = ""

    @property
    def stored_bytes(self) -> int:
        """Bytes of the images it stores."""
        values = (self.values or {}).values()
        return sum(len(value.data) for value in values if isinstance(value, EncodedImage))


class Work:
    """What the workers run: ``(index, task of the source)`` -> `Outcome`. It never raises on bad data.

    Parameters
    ----------
    source : Source
        Where the samples come from; only its ``load`` and fields travel to the workers.
    policy : ImagePolicy
        How images are stored.
    """

    def __init__(self, source: Source, policy: ImagePolicy) -> None:
        self._load = source.load
        self._fields = dict(source.fields)
        self._policy = policy

    def __call__(self, job: tuple[int, Any]) -> Outcome:
        """Convert one sample."""
        index, task = job
        try:
            return self._convert(index, self._load(task))
        except SampleFault as error:
            return Outcome(fault=str(error))
        except MemoryError:
            return Outcome(fault="not enough memory for it")
        except Exception as error:  # sources run the user's code; whatever it raises is this sample's fault
            return Outcome(fault=f"{type(error).__name__}: {error}")

    def _convert(self, index: int, values: Mapping[str, Any]) -> Outcome:
        if values.keys() != self._fields.keys():
            raise SampleFault(f"expected values for the fields {list(self._fields)}, got {list(values)}")
        stored: dict[str, Any] = {}
        kinds = []
        source_bytes = 0
        for name, field in self._fields.items():
            value = values[name]
            if isinstance(field, ImageField):
                source_bytes += len(value) if isinstance(value, bytes) else 0
                value, kind = self._policy.store(value, index)
                kinds.append(kind)
            else:
                _check(name, field, value)
            stored[name] = value
        return Outcome(values=stored, kinds=tuple(kinds), source_bytes=source_bytes)


def _check(name: str, field: Field, value: object) -> None:
    # The writer checks again, but there it is too late to leave the sample out.
    try:
        field.encode(value)
    except UsageError as error:
        raise SampleFault(f"field '{name}': {error}") from error
