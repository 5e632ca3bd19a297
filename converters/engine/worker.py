"""One sample's way through a worker: the source's task -> loaded values -> what the writer will store.

Knows sources, fields and the image policy; neither processes nor the writer.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.engine.fingerprint import stamps
from converters.images.errors import raised
from converters.images.geometry import Geometry, geometry_of, has_followers, moved
from converters.images.opened_files import FileImage
from converters.images.pillow_files import DamagedImage
from converters.images.policy import ImagePolicy
from converters.source import SampleFault, Source
from dataloading import EncodedImage, Field, ImageField, MaskField, UsageError
from dataloading.tools import image_of

__all__ = ["Outcome", "Work"]

PLACEHOLDER_SIDE = 256
_GRAY = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a worker made of one sample.

    Parameters
    ----------
    values : mapping or None
        One value for each field, as the writer takes them; None if the sample failed.
    kinds : tuple of str
        What became of its images, see `converters.images.policy`.
    source_bytes : int
        Bytes of image files read.
    stored_bytes : int
        Bytes its values take in the file's pages.
    fault : str
        Why there are no values, or why a placeholder is among them, or a damaged image as Pillow shows it.
    listed : str
        Where a report lists it (`converters.report.LISTS`): with a ``fault`` and values "replaced" or "damaged".
    notes : str
        What was odd about its images although no pixel suffers.
    stamps : tuple of str or None
        What `converters.engine.fingerprint.stamps` said of the sample's task before it was read; None if it was not
        asked.
    """

    values: Mapping[str, Any] | None = None
    kinds: tuple[str, ...] = ()
    source_bytes: int = 0
    stored_bytes: int = 0
    fault: str = ""
    listed: str = "replaced"
    notes: str = ""
    stamps: tuple[str, ...] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # The parent unpickles one for each sample: tuples cost it less than objects, and a stored image travels beside
        # the pickle, without being copied into it.
        values = self.values or {}
        images = [
            (name, value.mode, value.width, value.height, _beside(value.data), value.channels, value.dtype)
            for name, value in values.items()
            if type(value) is EncodedImage
        ]
        others = {name: value for name, value in values.items() if type(value) is not EncodedImage}
        state = (
            self.kinds, self.source_bytes, self.stored_bytes, self.fault, self.listed, self.notes, self.stamps
        )  # fmt: skip
        return _unpacked, (self.values is None, images, others, *state)


def _beside(data: Any) -> pickle.PickleBuffer:
    return pickle.PickleBuffer(data)


def _unpacked(
    failed: bool,
    images: list[tuple[Any, ...]],
    values: dict[str, Any],
    kinds: tuple[str, ...],
    source_bytes: int,
    stored_bytes: int,
    fault: str,
    listed: str,
    notes: str,
    stamps: tuple[str, ...] | None,
) -> Outcome:
    for name, *parts in images:
        values[name] = EncodedImage(*parts)
    return Outcome(
        values=None if failed else values, kinds=kinds, source_bytes=source_bytes, stored_bytes=stored_bytes,
        fault=fault, listed=listed, notes=notes, stamps=stamps,
    )  # fmt: skip


class Work:
    """What the workers run: ``(index, task of the source)`` -> `Outcome`. It never raises on bad data.

    Parameters
    ----------
    source : Source
        Where the samples come from; only its ``load`` and fields travel to the workers.
    policy : ImagePolicy
        How images are stored.
    placeholder : bool
        Whether a sample whose image fails keeps its other values and gets a gray image, a square of the policy's
        ``max_resolution`` or 256 pixels.
    as_shown : bool
        Whether a damaged image is stored as Pillow shows it with ``LOAD_TRUNCATED_IMAGES``, if it shows any.
    """

    def __init__(
        self, source: Source, policy: ImagePolicy, *, placeholder: bool = False, as_shown: bool = False
    ) -> None:
        self._load = source.load
        self._fields = dict(source.fields)
        partner = image_of(self._fields) if has_followers(self._fields) else None
        self._partner = partner
        # The image first, for the others follow it.
        self._order = sorted(self._fields.items(), key=lambda item: item[0] != partner)
        self._num_images = sum(isinstance(field, ImageField) for field in self._fields.values())
        self._policy = policy
        self._placeholder = placeholder
        self._as_shown = as_shown

    def __call__(self, job: tuple[int, Any]) -> Outcome:
        """Convert one sample."""
        index, task = job
        # Before it is read: what changes while it is being read has then changed for whoever looks later.
        before = tuple(stamps(task))
        return dataclasses.replace(self._outcome(index, task), stamps=before)

    def _outcome(self, index: int, task: Any) -> Outcome:
        values: Mapping[str, Any] = {}
        try:
            values = self._load(task)
            return self._convert(index, values)
        except SampleFault as error:
            fault = str(error)
            # A source that knows the rest of a sample whose image cannot be read says so.
            values = values or error.values
        except MemoryError:
            fault = "not enough memory for it"
        except Exception as error:  # sources run the user's code; whatever it raises is this sample's fault
            fault = raised(error)
        return (self._placeholder and self.replace(index, values, fault)) or Outcome(fault=fault)

    def replace(self, index: int, values: Mapping[str, Any], fault: str) -> Outcome | None:
        """Return the sample with placeholders for its images, or None if its other values are not known or right.

        Parameters
        ----------
        index : int
            Index of the sample in its source.
        values : mapping
            What is known of it.
        fault : str
            Why it cannot be stored as it is.
        """
        images = [name for name, field in self._fields.items() if isinstance(field, ImageField)]
        side = self._policy.max_resolution or PLACEHOLDER_SIDE
        known = {name: value for name, value in values.items() if name not in images}
        gray = {name: _placeholder(self._fields[name], side) for name in images}
        try:
            if not images:
                return None
            outcome = self._convert(index, {**known, **gray}, is_placeholder=True)
        except (SampleFault, UsageError):
            return None
        return dataclasses.replace(outcome, kinds=(), fault=fault, listed="replaced")

    def _convert(self, index: int, values: Mapping[str, Any], *, is_placeholder: bool = False) -> Outcome:
        if values.keys() != self._fields.keys():
            raise SampleFault(f"expected values for the fields {list(self._fields)}, got {list(values)}")
        stored: dict[str, Any] = {}
        kinds, notes, faults = [], [], []
        source_bytes = stored_bytes = 0
        geometry: Geometry | None = None
        for name, field in self._order:
            value = values[name]
            if isinstance(field, ImageField):
                data = value.data if isinstance(value, FileImage) else value
                source_bytes += len(data) if isinstance(data, bytes) else 0
                if isinstance(value, EncodedImage):
                    _check(name, field, value)
                found: list[str] = []
                prefix = "" if self._num_images == 1 else f"field '{name}': "
                try:
                    given = value
                    value, kind, fault = self._stored(given, index, field, found, geometry)
                    if name == self._partner and not is_placeholder:
                        geometry = geometry_of(given, value, self._policy)
                except SampleFault as error:
                    if not prefix:
                        raise
                    raise SampleFault(f"{prefix}{error}") from error
                notes += [prefix + note for note in found]
                faults += [prefix + fault] if fault else []
                if not isinstance(value.data, bytes):
                    value = dataclasses.replace(value, data=np.frombuffer(value.data, np.uint8))
                stored_bytes += len(value.data)
                kinds.append(kind)
            else:
                value = value if geometry is None else moved(name, field, value, geometry)
                stored_bytes += _check(name, field, value)
            stored[name] = value
        return Outcome(
            values=stored, kinds=tuple(kinds), source_bytes=source_bytes, stored_bytes=stored_bytes,
            notes="; ".join(notes), fault="; ".join(faults), listed="damaged",
        )  # fmt: skip

    def _stored(
        self, value: Any, index: int, field: ImageField, notes: list[str], follow: Geometry | None
    ) -> tuple[EncodedImage, str, str]:
        """Return an image as it is stored, what became of it, and what was wrong with it if that is tolerated."""
        try:
            return *self._policy.store(value, index, field, notes=notes, follow=follow), ""
        except DamagedImage as error:
            if not self._as_shown or isinstance(field, MaskField):  # what is shown of damage are no labels
                raise
            fault = error
        try:
            shown = value.image if isinstance(value, FileImage) else self._policy.as_shown(bytes(value))
            return *self._policy.store(shown, index, field, follow=follow), str(fault)
        except SampleFault:
            raise fault from None


def _placeholder(field: Field, side: int) -> npt.NDArray[Any]:
    """Return gray pixels of a field's form, or a label map of zeros."""
    assert isinstance(field, ImageField)
    shape = (side, side) if field.channels == 1 else (side, side, field.channels)
    level = 0 if isinstance(field, MaskField) else _GRAY * (257 if field.dtype.itemsize == 2 else 1)
    return np.full(shape, level, field.dtype)


def _check(name: str, field: Field, value: object) -> int:
    """Return how many bytes a value takes in the pages; a value that does not fit its field is a fault."""
    # The writer checks again, but there it is too late to leave the sample out.
    try:
        _, payload = field.encode(value)
    except UsageError as error:
        raise SampleFault(f"field '{name}': {error}") from error
    return 0 if payload is None else len(payload)
