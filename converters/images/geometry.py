"""Transforms masks, boxes and points as their image is rotated upright and resized.

Also detects fields that look like coordinates but are not declared as such.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.images.opened_files import FileImage
from converters.images.pillow_files import open_header
from converters.images.policy import ImagePolicy
from converters.images.rgb import is_jpeg, jpeg_orientation, other_orientation
from converters.source import SampleFault
from dataloading import (
    EncodedImage,
    Field,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    MaskField,
    NDArrayField,
    UsageError,
    VarArrayField,
)
from dataloading.tools import image_of, moved_coordinates, probe_jpeg

__all__ = ["Geometry", "check_declared", "geometry_of", "has_followers", "moved"]

_NAMED = re.compile(r"(?i)b?box|keypoint|landmark|polygon|corners|contour")
_NAMED_NUMBER = re.compile(r"(?i)[xy]_?(min|max|[12])|bbox.*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """How an image was rotated and resized.

    Parameters
    ----------
    size, new_size : (int, int)
        Width and height of the image as the source gave it, and as it is stored.
    orientation : int
        EXIF orientation, 1 to 8, that was applied.
    drawn_upright : bool
        Whether masks, boxes and points refer to the upright image and not to the source's.
    """

    size: tuple[int, int]
    new_size: tuple[int, int]
    orientation: int
    drawn_upright: bool = False

    @property
    def upright(self) -> tuple[int, int]:
        """Width and height after rotation."""
        return self.size[::-1] if self.orientation >= 5 else self.size

    @property
    def is_plain(self) -> bool:
        """Whether no pixel moved."""
        return self.orientation == 1 and self.new_size == self.size


def geometry_of(image: object, stored: EncodedImage, policy: ImagePolicy) -> Geometry:
    """Return how the policy rotated and resized a source's image."""
    size, orientation = _as_given(image, policy)
    new_size, drawn_upright = (stored.width, stored.height), policy.annotations == "upright"
    return Geometry(size=size, orientation=orientation, new_size=new_size, drawn_upright=drawn_upright)


def _as_given(image: Any, policy: ImagePolicy) -> tuple[tuple[int, int], int]:
    if isinstance(image, (bytes, bytearray, memoryview)):
        data = bytes(image)
        if is_jpeg(data):
            info = probe_jpeg(data)
            return (info.width, info.height), jpeg_orientation(data) if policy.orient else 1
        opened = open_header(data)
        orientation = other_orientation(opened)
        if opened.format == "TIFF":  # Pillow rotates these itself, and has already swapped their sides
            return (opened.size[::-1] if orientation >= 5 else opened.size), orientation
        return opened.size, orientation if policy.orient else 1
    if isinstance(image, FileImage):
        image = image.image
    if isinstance(image, EncodedImage):
        return (image.width, image.height), 1
    if isinstance(image, np.ndarray):
        return (image.shape[1], image.shape[0]), 1
    return image.size, 1


def has_followers(fields: Mapping[str, Field]) -> bool:
    """Return whether any field follows an image, or looks as if it should."""
    return any(
        isinstance(field, MaskField) or _is_declared(field) or _looks_like_coordinates(name, field)
        for name, field in fields.items()
    )


def moved(name: str, field: Field, value: object, geometry: Geometry) -> object:
    """Return a value of the same sample, transformed with the image if it holds coordinates.

    Raises
    ------
    SampleFault
        If it cannot be moved, or looks like coordinates but its field does not say so.
    """
    if geometry.is_plain:
        return value
    if not _is_declared(field):
        if _looks_like_coordinates(name, field):
            raise SampleFault(f"{_undeclared(name)} This image was {_what_happened(geometry)}")
        return value
    try:
        field.encode(value)  # raises for a wrong dtype or shape, before any arithmetic
        return moved_coordinates(
            np.asarray(value), field.coordinates,  # type: ignore[attr-defined]
            size=geometry.upright if geometry.drawn_upright else geometry.size,
            orientation=1 if geometry.drawn_upright else geometry.orientation, new_size=geometry.new_size,
        )  # fmt: skip
    except UsageError as error:
        raise SampleFault(f"field '{name}': {error}") from error


def check_declared(fields: Mapping[str, Field], policy: ImagePolicy) -> None:
    """Refuse, before the conversion starts, fields that could not follow their image.

    Raises
    ------
    UsageError
        If images will be resized and a field looks like coordinates but does not say so, or it says so and there are
        several images that it may belong to.
    """
    images = [each for each in fields.values() if isinstance(each, ImageField) and not isinstance(each, MaskField)]
    if not images:
        return
    declared = [name for name, field in fields.items() if _is_declared(field)]
    if declared and image_of(fields) is None:
        raise UsageError(f"the coordinates of '{declared[0]}' belong to one of several images: name that one 'image'")
    for name, field in fields.items():
        if policy.max_resolution is not None and _looks_like_coordinates(name, field):
            raise UsageError(f"{_undeclared(name)} Or keep sizes, without --max-resolution (max_resolution=)")


def _is_declared(field: Field) -> bool:
    return getattr(field, "coordinates", None) not in (None, "none")


def _looks_like_coordinates(name: str, field: Field) -> bool:
    if isinstance(field, (NDArrayField, VarArrayField)):
        if field.coordinates is not None or field.dtype.kind not in "iuf":
            return False
        is_box = isinstance(field, VarArrayField) and field.shape[1:] == (4,)
        return is_box or _NAMED.search(name) is not None
    if isinstance(field, (IntField, FloatField)):
        return _NAMED_NUMBER.fullmatch(name) is not None
    return isinstance(field, JSONField) and _NAMED.search(name) is not None


def _undeclared(name: str) -> str:
    return (
        f"field '{name}' looks like coordinates in the image, which must change with it, but has no coordinate format: "
        f"--field {name}=boxes:xyxy (or xywh, cxcywh; points by vararray:float32:?x2:points), in Python VarArrayField("
        '"float32", (None, 4), coordinates="xyxy"); "none" if it is something else, or another name.'
    )


def _what_happened(geometry: Geometry) -> str:
    changes = []
    if geometry.orientation != 1:
        changes.append(f"turned upright (EXIF orientation {geometry.orientation})")
    if geometry.new_size != geometry.upright:
        changes.append("resized from {}x{} to {}x{}".format(*geometry.upright, *geometry.new_size))
    return " and ".join(changes)
