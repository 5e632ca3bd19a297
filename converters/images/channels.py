"""Chooses the fields for a source's images: FFCV's, or raster fields if the image options require them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np

from converters.images.errors import raised
from converters.images.pixels import pixels_of
from converters.images.policy import ImagePolicy
from converters.source import SampleFault, Source
from dataloading import ConvertError, DecodeError, Field, ImageField, RasterField, UsageError
from dataloading.messages import counted

__all__ = ["stored_fields"]

_NUM_TRIED = 100


def stored_fields(source: Source, policy: ImagePolicy, order: Iterable[int]) -> dict[str, Field]:
    """Return the fields of the file to write, in order.

    Only fields of FFCV's image kind are replaced. With ``channels`` "rgb" they stay, unless ``keep`` is "files", since
    they hold no PNG; with "gray" they become 1 channel of uint8; with "keep" what the first readable image is.

    Raises
    ------
    UsageError
        If ``mode`` is "png" and a field would be FFCV's.
    ConvertError
        With "keep", if none of the first 100 samples can be read.
    """
    fields = dict(source.fields)
    images = [name for name, field in fields.items() if type(field) is ImageField]
    if not images:
        return fields
    if policy.channels == "gray":
        return fields | dict.fromkeys(images, RasterField(1))
    if policy.channels == "keep":
        return fields | _fields_of_first_image(source, policy, images, order)
    if policy.keep == "files":
        return fields | dict.fromkeys(images, RasterField(3))
    if policy.mode == "png":
        raise UsageError(
            f"the field '{images[0]}' is of FFCV's kind, which holds no PNG; mode 'png' needs channels 'keep' or "
            "'gray' (--channels)"
        )
    return fields


def _fields_of_first_image(
    source: Source, policy: ImagePolicy, images: list[str], order: Iterable[int]
) -> dict[str, ImageField]:
    faults = []
    for index in map(int, islice(order, _NUM_TRIED)):
        try:
            values = source.load(source.task(index))
            return {name: _field_for(values[name], policy) for name in images}
        except (SampleFault, DecodeError, OSError) as error:
            faults.append(f"{source.name(index)}: {error}")
        except Exception as error:  # sources run the user's code
            faults.append(f"{source.name(index)}: {raised(error)}")
    raise ConvertError(
        f"none of the first {counted(len(faults), 'sample')} can be read, so there is no first image to decide the "
        f"channels. The first: {faults[0] if faults else 'there is none'}"
    )


def _field_for(image: object, policy: ImagePolicy) -> ImageField:
    pixels = pixels_of(image, policy)
    channels = (*pixels.shape, 1)[2]
    if channels == 3 and pixels.dtype == np.uint8 and policy.mode != "png" and policy.keep != "files":
        return ImageField()
    try:
        return RasterField(channels, pixels.dtype)
    except UsageError as error:
        raise SampleFault(str(error)) from error
