"""Numbers that are places in an image: boxes and points, how they are written, and how they follow their image.

Places are continuous: an image of W pixels covers 0 to W, and the middle of its first pixel is 0.5. Knows arrays and
sizes, no file and no image.
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
    "FORMS",
    "absent_points",
    "box_corners",
    "boxes_as",
    "check_coordinates",
    "extent",
    "image_of",
    "moved_coordinates",
    "numbers_as",
]

FORMS = ("xyxy", "xywh", "cxcywh", "points")
_RELATIVE, _NONE = "relative", "none"

Floats = npt.NDArray[np.float64]


def check_coordinates(words: object, shape: Sequence[int | None], dtype: np.dtype[np.generic]) -> str | None:
    """Return the words for what an array's numbers are, in their usual order, or None.

    Parameters
    ----------
    words : str or None
        "xyxy" (two corners), "xywh" (a corner, width, height), "cxcywh" (centre, width, height) or "points" (x, y, and
        perhaps a third number that stays); with "relative" they count parts of the image's sides instead of pixels.
        "none": they are no places in an image.
    shape : sequence
        Of the array; the last length is that of a box or point.
    dtype : numpy dtype

    Raises
    ------
    UsageError
        If there is no such form, or the array cannot have it.

    Examples
    --------
    >>> check_coordinates("relative xywh", (None, 4), np.dtype("float32"))
    'xywh relative'
    """
    if words is None:
        return None
    given = words.split() if isinstance(words, str) else []
    forms = [word for word in given if word != _RELATIVE]
    is_relative = _RELATIVE in given
    if len(forms) != 1 or len(given) != len(forms) + is_relative or forms[0] not in (*FORMS, _NONE):
        raise UsageError(
            f"coordinates must be one of {', '.join(FORMS)}, perhaps with the word relative, or none; got {words!r}"
        )
    form = forms[0]
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
    """Return the places that an array reaches, in pixels: (left, top, right, bottom) of each box or point.

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
    """Return boxes or points where they are after their image was turned upright and resized.

    Parameters
    ----------
    values : array
        As `check_coordinates` describes it. Whole numbers are rounded to the nearest.
    coordinates : str
        See `check_coordinates`.
    size : (int, int)
        Width and height before.
    orientation : int
        How it was turned, EXIF's 1 to 8.
    new_size : (int, int)
        Width and height in the end.

    Returns
    -------
    array
        Of the same dtype and shape; the very values where nothing has moved.

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
    first, second = (_turned(corners[:, part], orientation, width, height) * scale for part in (slice(2), slice(2, 4)))
    moved = flat.astype(np.float64)
    if form == "points":
        there = ~absent_points(flat)
        moved[there, :2] = first[there]
    else:
        moved = boxes_as(np.hstack([np.minimum(first, second), np.maximum(first, second)]), form)
    return numbers_as(moved, values)


def boxes_as(corners: Floats, form: str) -> Floats:
    """Return boxes (left, top, right, bottom) in another form: "xyxy", "xywh" or "cxcywh"."""
    low, high = corners[:, :2], corners[:, 2:]
    sides = high - low
    return np.hstack({"xyxy": (low, high), "xywh": (low, sides), "cxcywh": (low + sides / 2, sides)}[form])


def absent_points(points: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell which points are COCO's for one that is not there: (0, 0, 0)."""
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


def _turned(places: Floats, orientation: int, width: int, height: int) -> Floats:
    """Return where places of a stored image are in the upright one (CIPA DC-008, 4.6.5)."""
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
