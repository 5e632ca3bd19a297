"""Which kind of field a source's images get: FFCV's, or one of ours where ``--channels`` asks for it.

A source declares plain image fields; `settled` puts others in their place before the conversion begins. Knows sources
and the image policy; neither files nor workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from converters.images.policy import ImagePolicy
from converters.images.rasters import field_for, pixels_of
from converters.source import SampleFault, Source, files_of
from dataloading import ConvertError, DecodeError, Field, ImageField, RasterField, UsageError
from dataloading.messages import counted

__all__ = ["Refielded", "settled"]

_TRIED = 100


class Refielded:
    """A source with other fields than it declares; everything else is the source's.

    Parameters
    ----------
    source : Source
    fields : mapping of str to Field
        Of the same names.
    """

    def __init__(self, source: Source, fields: Mapping[str, Field]) -> None:
        self._source = source
        self.fields = dict(fields)

    @property
    def class_names(self) -> Sequence[str] | None:
        """See `converters.source.Source`."""
        return self._source.class_names

    @property
    def provenance(self) -> Mapping[str, object]:
        """See `converters.source.Source`."""
        return self._source.provenance

    @property
    def load(self) -> Callable[[Any], Mapping[str, Any]]:
        """See `converters.source.Source`."""
        return self._source.load

    @property
    def files(self) -> Iterable[tuple[str, str]]:
        """See `converters.source.files_of`."""
        return files_of(self._source)

    def __len__(self) -> int:
        return len(self._source)

    def task(self, index: int) -> object:
        """See `converters.source.Source`."""
        return self._source.task(index)

    def name(self, index: int) -> str:
        """See `converters.source.Source`."""
        return self._source.name(index)


def settled(source: Source, policy: ImagePolicy, order: Iterable[int]) -> Source:
    """Return the source with the image fields that the policy's ``channels`` asks for.

    Parameters
    ----------
    source : Source
        Only its fields of FFCV's image kind change.
    policy : ImagePolicy
        "rgb" leaves them, unless ``keep`` is "files", for FFCV's hold no PNG; "gray" makes them 1 channel of uint8;
        "keep" what the first readable image is.
    order : iterable of int
        Samples in the order they are stored.

    Raises
    ------
    UsageError
        If ``mode`` is "png" and a field would be FFCV's.
    ConvertError
        With "keep", if none of the first 100 samples can be read.
    """
    images = [name for name, field in source.fields.items() if type(field) is ImageField]
    if not images:
        return source
    if policy.channels == "rgb" and policy.keep == "files":
        return Refielded(source, {**source.fields, **dict.fromkeys(images, RasterField(3))})
    if policy.channels == "rgb":
        if policy.mode == "png":
            raise UsageError(
                f"the field '{images[0]}' is of FFCV's kind, which holds no PNG; mode 'png' needs channels 'keep' or "
                "'gray' (--channels)"
            )
        return source
    if policy.channels == "gray":
        found: dict[str, Field] = dict.fromkeys(images, RasterField(1, "uint8"))
    else:
        found = _first_forms(source, policy, images, order)
    return Refielded(source, {**source.fields, **found})


def _first_forms(source: Source, policy: ImagePolicy, images: list[str], order: Iterable[int]) -> dict[str, Field]:
    faults = []
    for index in islice(order, _TRIED):
        try:
            values = source.load(source.task(int(index)))
            lossless = policy.mode == "png" or policy.keep == "files"
            return {name: field_for(pixels_of(values[name], policy), lossless=lossless) for name in images}
        except (SampleFault, DecodeError, OSError) as error:
            faults.append(f"{source.name(int(index))}: {error}")
        except Exception as error:  # sources run the user's code
            faults.append(f"{source.name(int(index))}: {type(error).__name__}: {error}")
    raise ConvertError(
        f"none of the first {counted(len(faults), 'sample')} can be read, so there is no first image to decide the "
        f"channels. The first: {faults[0] if faults else 'there is none'}"
    )
