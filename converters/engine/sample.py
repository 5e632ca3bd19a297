"""Converts one sample in a worker: the source's task -> loaded values -> encoded values.

Knows sources, fields and the image policy; neither processes nor the writer.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from converters.engine.alike import AlikeSamples, make_collector
from converters.engine.converted import ConvertedSample, Encoded
from converters.engine.fingerprint import stamp_of, stamps_of
from converters.engine.packed import PackedSamples, SamplePacker, can_be_packed
from converters.images.errors import raised
from converters.images.geometry import Geometry, geometry_of, has_followers, moved
from converters.images.opened_files import FileImage, watched
from converters.images.pillow_files import DamagedImage
from converters.images.policy import ImagePolicy
from converters.images.store import decode_damaged, store_image
from converters.options import OnError, Options
from converters.source import SampleFault
from dataloading import EncodedImage, Field, ImageField, MaskField, UsageError
from dataloading.tools import image_of

__all__ = ["SampleConverter"]

PLACEHOLDER_SIDE = 256
_GRAY = 128


class SampleConverter:
    """The function of the workers: ``(index, task of the source)`` -> `ConvertedSample`. It never raises on bad data.

    Parameters
    ----------
    load : callable
        The source's ``load``.
    fields : mapping of str to Field
        The stored fields.
    policy : ImagePolicy
        How images are stored.
    on_error : {"raise", "skip", "placeholder", "keep"}
        With "placeholder" a sample whose image fails keeps its other values and gets a gray image, a square of the
        policy's ``max_resolution`` or 256 pixels; with "keep" a damaged image is stored as Pillow shows it with
        ``LOAD_TRUNCATED_IMAGES``, if it shows any.
    checkpoint_seconds : float
        Samples wait at most this long until others are sent with them.
    """

    def __init__(
        self,
        load: Callable[[Any], Mapping[str, Any]],
        fields: Mapping[str, Field],
        policy: ImagePolicy,
        *,
        on_error: OnError = "raise",
        checkpoint_seconds: float = Options.checkpoint_seconds,
    ) -> None:
        self._load = load
        self._fields = dict(fields)
        self._images = [name for name, field in self._fields.items() if isinstance(field, ImageField)]
        self._followed = image_of(self._fields) if has_followers(self._fields) else None
        self._policy = policy
        self._on_error = on_error
        self._gathering = None if self._followed is not None else make_collector(self._fields, policy)
        self._packing = SamplePacker(self._fields, checkpoint_seconds) if can_be_packed(self._fields) else None

    def __call__(self, job: tuple[int, Any]) -> ConvertedSample:
        """Convert one sample."""
        # Before it is read, so that a change during the read is detected later.
        before = stamp_of(job[1])
        return self._sample(job, before, lambda: self._load(job[1]))

    def many(
        self, jobs: Iterator[tuple[int, Any]]
    ) -> Iterator[tuple[int, ConvertedSample | AlikeSamples | PackedSamples]]:
        """Convert samples; yield the number of samples with their result. Equal shapes are converted together."""
        if self._gathering is None and self._packing is None:
            yield from ((1, self(job)) for job in jobs)
        elif self._gathering is None:
            yield from self._packed(jobs)
        elif (columns := getattr(self._load, "columns", None)) is not None:
            most = getattr(self._load, "most_at_once", 1)
            while group := list(islice(jobs, most)):
                yield from self._of_columns(group, columns)
        else:
            yield from self._gathered(jobs)

    def _packed(self, jobs: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, ConvertedSample | PackedSamples]]:
        """Convert samples one by one, and pack those without faults and remarks."""
        packing = self._packing
        assert packing is not None
        for job in jobs:
            sample = self(job)
            is_packed = packing.takes(sample)
            if (not is_packed or packing.is_due) and (samples := packing.taken()) is not None:
                yield samples.num_samples, samples
            if not is_packed and not packing.takes(sample):
                yield 1, sample
        if (samples := packing.taken()) is not None:
            yield samples.num_samples, samples

    def _of_columns(
        self, jobs: list[tuple[int, Any]], columns: Callable[[list[Any]], Mapping[str, Any] | None]
    ) -> Iterator[tuple[int, ConvertedSample | AlikeSamples]]:
        """Convert samples of a source that returns arrays of samples."""
        assert self._gathering is not None
        tasks = [task for _, task in jobs]
        before = stamps_of(tasks)
        alike = None
        with contextlib.suppress(Exception):  # converted one by one, the error names the sample
            values = columns(tasks)
            alike = None if values is None else self._gathering.of_columns(values, before)
        if alike is not None:
            yield len(jobs), alike
        else:
            yield from ((1, self(job)) for job in jobs)

    def _gathered(self, jobs: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, ConvertedSample | AlikeSamples]]:
        """Convert samples one by one."""
        gathering = self._gathering
        assert gathering is not None
        more = True
        while more:
            more = False
            other: tuple[tuple[int, Any], str, Mapping[str, Any] | Exception] | None = None
            files: dict[str | bytes, str] = {}
            with watched():  # once for all samples, since it takes as long as a small sample
                for job in jobs:
                    before = stamp_of(job[1], files)
                    try:
                        values = self._load(job[1])
                        if gathering.takes(values, before):
                            if not gathering.is_due:
                                continue
                        else:
                            other = job, before, values
                    except Exception as error:
                        other = job, before, error
                    more = True
                    break
            if (samples := gathering.taken()) is not None:
                yield samples.num_samples, samples
            if other is not None:
                job, before, given = other
                yield 1, self._sample(job, before, partial(_given, given))

    def _sample(self, job: tuple[int, Any], before: str, load: Callable[[], Mapping[str, Any]]) -> ConvertedSample:
        index, _ = job
        values: Mapping[str, Any] = {}
        try:
            values = load()
            return self._converted(index, values)._replace(stamp=before)
        except SampleFault as error:
            fault = str(error)
            # The source may know the other values of a sample whose image cannot be read.
            values = values or error.values
        except MemoryError:
            fault = "not enough memory for it"
        except Exception as error:  # sources run the user's code; any exception is a fault of this sample
            fault = raised(error)
        sample = self._replaced(index, values, fault) if self._on_error == "placeholder" else None
        return (sample or ConvertedSample(fault=fault))._replace(stamp=before)

    def _converted(self, index: int, values: Mapping[str, Any]) -> ConvertedSample:
        if values.keys() != self._fields.keys():
            raise SampleFault(f"expected values for the fields {list(self._fields)}, got {list(values)}")
        encoded: dict[str, Encoded] = {}
        images, notes, faults = [], [], []
        source_bytes = 0
        geometry: Geometry | None = None
        # The image first, because the others follow it.
        for name in sorted(self._fields, key=lambda name: name != self._followed):
            field, value = self._fields[name], values[name]
            if isinstance(field, ImageField):
                data = value.data if isinstance(value, FileImage) else value
                source_bytes += len(data) if isinstance(data, bytes) else 0
                found: list[str] = []
                prefix = "" if len(self._images) == 1 else f"field '{name}': "
                try:
                    image, became, fault = self._stored(value, index, field, found, geometry)
                    if name == self._followed:
                        geometry = geometry_of(value, image, self._policy)
                except SampleFault as error:
                    raise SampleFault(f"{prefix}{error}") from error
                images.append(became)
                notes += [prefix + note for note in found]
                faults += [prefix + fault] if fault else []
                value = image
            elif geometry is not None:
                value = moved(name, field, value, geometry)
            encoded[name] = _encoded(name, field, value)
        return ConvertedSample(
            encoded=[encoded[name] for name in self._fields], images=tuple(images), source_bytes=source_bytes,
            stored_bytes=_stored_bytes(encoded.values()), notes="; ".join(notes), fault="; ".join(faults),
            listed="damaged",
        )  # fmt: skip

    def _stored(
        self, value: Any, index: int, field: ImageField, notes: list[str], follow: Geometry | None
    ) -> tuple[EncodedImage, str, str]:
        """Return a stored image, how it was stored, and its fault if that is tolerated."""
        try:
            return *store_image(self._policy, value, index, field, notes=notes, follow=follow), ""
        except DamagedImage as error:
            if self._on_error != "keep" or isinstance(field, MaskField):  # a damaged mask has no usable labels
                raise
            fault = error
        try:
            shown = value.image if isinstance(value, FileImage) else decode_damaged(self._policy, bytes(value))
            return *store_image(self._policy, shown, index, field, follow=follow), str(fault)
        except SampleFault:
            raise fault from None

    def _replaced(self, index: int, values: Mapping[str, Any], fault: str) -> ConvertedSample | None:
        if {*values, *self._images} != {*self._fields}:
            return None
        try:
            others = [
                None if name in self._images else _encoded(name, field, values[name])
                for name, field in self._fields.items()
            ]
        except SampleFault:
            return None
        return self.with_placeholders(index, others, fault)

    def with_placeholders(self, index: int, encoded: Sequence[Any], fault: str) -> ConvertedSample | None:
        """Return a sample with gray images, or None if it has no images or they cannot be stored.

        Parameters
        ----------
        index : int
            Index of the sample in its source.
        encoded : sequence of Encoded
            Its values in the order of the fields; those of images are ignored.
        fault : str
            Why it cannot be stored unchanged.
        """
        if not self._images:
            return None
        try:
            values: list[Encoded] = [
                self._placeholder(name, index, field) if isinstance(field, ImageField) else value
                for (name, field), value in zip(self._fields.items(), encoded, strict=True)
            ]
        except SampleFault:
            return None
        return ConvertedSample(encoded=values, stored_bytes=_stored_bytes(values), fault=fault)

    def _placeholder(self, name: str, index: int, field: ImageField) -> Encoded:
        """Return gray pixels of a field's channels and depth, or a label map of zeros."""
        side = self._policy.max_resolution or PLACEHOLDER_SIDE
        shape = (side, side, field.channels)[: 2 if field.channels == 1 else 3]
        level = 0 if isinstance(field, MaskField) else _GRAY * (257 if field.dtype.itemsize == 2 else 1)
        image, _ = store_image(self._policy, np.full(shape, level, field.dtype), index, field)
        return _encoded(name, field, image)


def _given(values: Mapping[str, Any] | Exception) -> Mapping[str, Any]:
    if isinstance(values, Exception):
        raise values
    return values


def _encoded(name: str, field: Field, value: object) -> Encoded:
    """Return the stored form of a value; raises a fault if it does not fit its field."""
    try:
        head, payload = field.encode(value)
    except UsageError as error:
        raise SampleFault(f"field '{name}': {error}") from error
    return head, None if payload is None else pickle.PickleBuffer(payload.data)


def _stored_bytes(encoded: Any) -> int:
    return sum(0 if payload is None else payload.raw().nbytes for _, payload in encoded)
