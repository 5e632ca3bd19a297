"""Boxes and points in an image: their formats, and how they change when the image is rotated or resized.

Coordinates are continuous: an image of W pixels spans 0 to W, and the centre of its first pixel is 0.5. Works on arrays
and sizes only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.errors import UsageError

from .base import Field
from .images import ImageField, MaskField

__all__ = [
    "FORMATS",
    "absent_points",
    "box_corners",
    "boxes_as",
    "check_coordinates",
    "extent",
    "image_of",
    "moved_coordinates",
    "numbers_as",
]

FORMATS = ("xyxy", "xywh", "cxcywh", "points")
_RELATIVE, _NONE = "relative", "none"

Floats = npt.NDArray[np.float64]


def check_coordinates(words: object, shape: Sequence[int | None], dtype: np.dtype[np.generic]) -> str | None:
    """Return the coordinate format in its canonical spelling, or None.

    Parameters
    ----------
    words : str or None
        "xyxy" (two corners), "xywh" (a corner, width, height), "cxcywh" (centre, width, height) or "points" (x, y, and
        optionally a third number that does not change); with "relative" they are fractions of the image's sides instead
        of pixels. "none": the numbers are not coordinates.
    shape : sequence
        Of the array; the last length is that of a box or point.
    dtype : numpy dtype

    Raises
    ------
    UsageError
        If the format is unknown, or does not suit the array's shape and dtype.

    Examples
    --------
    >>> check_coordinates("relative xywh", (None, 4), np.dtype("float32"))
    'xywh relative'
    """
    if words is None:
        return None
    given = words.split() if isinstance(words, str) else []
    formats = [word for word in given if word != _RELATIVE]
    is_relative = _RELATIVE in given
    if len(formats) != 1 or len(given) != len(formats) + is_relative or formats[0] not in (*FORMATS, _NONE):
        raise UsageError(
            f"coordinates must be one of {', '.join(FORMATS)}, optionally with 'relative', or none; got {words!r}"
        )
    form = formats[0]
    if form == _NONE and not is_relative:
        return form
    lengths = (2, 3) if form == "points" else (4,)
    if shape[-1] not in lengths or dtype.kind not in ("f" if is_relative else "iuf"):
        wanted = "float" if is_relative else "number"
        raise UsageError(
            f"coordinates {words!r} need {wanted}s whose last length is {' or '.join(map(str, lengths))}, got "
            f"{dtype} of shape {tuple(shape)}"
        )
    return f"{form} {_RELATIVE}" if is_relative else form


def image_of(fields: Mapping[str, Field]) -> str | None:
    """Return the image field that masks, boxes and points belong to: the only one, else the one named 'image'."""
    images = [
        name for name, field in fields.items() if isinstance(field, ImageField) and not isinstance(field, MaskField)
    ]
    return images[0] if len(images) == 1 else "image" if "image" in images else None


def extent(values: npt.NDArray[Any], coordinates: str, size: tuple[int, int]) -> Floats:
    """Return the bounds of each box or point in pixels: (left, top, right, bottom).

    Parameters
    ----------
    values : array, last length 4, 2 or 3
    coordinates : str
        See `check_coordinates`.
    size : (int, int)
        Width and height of the image.

    Returns
    -------
    float64 array, shape (n, 4)
    """
    form, _, relative = coordinates.partition(" ")
    flat = values.reshape(-1, values.shape[-1])
    if form == "points" and flat.shape[1] == 3:
        flat = flat[~absent_points(flat)]
    corners = box_corners(flat, form)
    return corners * np.array([*size, *size]) if relative else corners


def moved_coordinates(
    values: npt.NDArray[Any], coordinates: str, *, size: tuple[int, int], orientation: int, new_size: tuple[int, int]
) -> npt.NDArray[Any]:
    """Return boxes or points transformed as their image was rotated upright and resized.

    Parameters
    ----------
    values : array
        See `check_coordinates`. Integer coordinates are rounded to the nearest.
    coordinates : str
        See `check_coordinates`.
    size : (int, int)
        Width and height before.
    orientation : int
        The image's EXIF orientation, 1 to 8.
    new_size : (int, int)
        Width and height after.

    Returns
    -------
    array
        Same dtype and shape; identical values if the image did not change.

    Raises
    ------
    UsageError
        If a result does not fit the dtype.

    Examples
    --------
    >>> box = np.array([[10.0, 20, 30, 25]])
    >>> moved_coordinates(box, "xyxy", size=(80, 60), orientation=6, new_size=(30, 40))
    array([[17.5,  5. , 20. , 15. ]])
    """
    form, _, relative = coordinates.partition(" ")
    upright = size[::-1] if orientation >= 5 else size
    is_same = orientation == 1 and (bool(relative) or new_size == size)
    if form == _NONE or is_same or not values.size:
        return values
    flat = values.reshape(-1, values.shape[-1])
    width, height = (1, 1) if relative else size
    scale = np.array([1.0, 1.0] if relative else [new_size[0] / upright[0], new_size[1] / upright[1]])
    corners = box_corners(flat, form)
    first, second = (_rotated(corners[:, part], orientation, width, height) * scale for part in (slice(2), slice(2, 4)))
    moved = flat.astype(np.float64)
    if form == "points":
        there = ~absent_points(flat)
        moved[there, :2] = first[there]
    else:
        moved = boxes_as(np.hstack([np.minimum(first, second), np.maximum(first, second)]), form)
    return numbers_as(moved, values)


def boxes_as(corners: Floats, form: str) -> Floats:
    """Return boxes (left, top, right, bottom) in another format: "xyxy", "xywh" or "cxcywh"."""
    low, high = corners[:, :2], corners[:, 2:]
    sides = high - low
    return np.hstack({"xyxy": (low, high), "xywh": (low, sides), "cxcywh": (low + sides / 2, sides)}[form])


def absent_points(points: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which points are COCO's marker for an absent keypoint, (0, 0, 0)."""
    if points.shape[1] != 3:
        return np.zeros(len(points), bool)
    return np.asarray(~points.any(axis=1))


def box_corners(flat: npt.NDArray[Any], form: str) -> Floats:
    """Return left, top, right and bottom of boxes, or of points, shape (n, 4)."""
    numbers = flat.astype(np.float64)
    if form == "points":
        return np.hstack([numbers[:, :2], numbers[:, :2]])
    if form == "xyxy":
        return numbers
    first, sides = numbers[:, :2], numbers[:, 2:]
    low = first - sides / 2 if form == "cxcywh" else first
    return np.hstack([low, low + sides])


def _rotated(places: Floats, orientation: int, width: int, height: int) -> Floats:
    """Transform coordinates in the stored image to the upright image (CIPA DC-008, 4.6.5)."""
    x, y = places[:, 0], places[:, 1]
    if orientation in (2, 3, 7, 8):
        x = width - x
    if orientation in (3, 4, 6, 7):
        y = height - y
    return np.stack([y, x] if orientation >= 5 else [x, y], axis=1)


def numbers_as(moved: Floats, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return numbers in the shape and dtype of ``values``; for whole numbers the nearest.

    Raises
    ------
    UsageError
        If one does not fit the dtype.
    """
    if values.dtype.kind in "iu":
        limits = np.iinfo(values.dtype)
        moved = np.rint(moved)
        wrong = moved[(moved < limits.min) | (moved > limits.max)]
        if wrong.size:
            raise UsageError(f"turned and resized with its image, a coordinate is {wrong[0]:.0f}: no {values.dtype}")
    return moved.astype(values.dtype).reshape(values.shape)
