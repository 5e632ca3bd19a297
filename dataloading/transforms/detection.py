"""The transforms of detection: those that look at boxes, and those that give each image another size."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from dataloading.checks import as_integer
from dataloading.errors import UsageError
from dataloading.transforms.base import (
    INTERPOLATIONS,
    ROW_LENGTH,
    Geometry,
    ImageState,
    Placeholder,
    check_antialias,
    check_choice,
    check_fill,
    check_interpolation,
    check_numbers,
    check_range,
    check_size,
)
from dataloading.transforms.geometry import (
    CROP_AROUND_BOX,
    IOU_CROP,
    LIST_AT,
    SCALE_JITTER,
    SHORTEST_SIZE,
    ZOOM_OUT,
    check_before_padding,
    check_before_resize,
    fill_word,
    row_of,
)

__all__ = [
    "AnnotationOp",
    "ClampBoundingBoxes",
    "CropAroundBox",
    "RandomIoUCrop",
    "RandomShortestSize",
    "RandomZoomOut",
    "SanitizeBoundingBoxes",
    "ScaleJitter",
]

_PICKS = ("random", "first", "largest")
_MOST_LISTED = ROW_LENGTH - LIST_AT


class _RandomResize(Geometry):
    """Resizes each image to a size of its own."""

    interpolation: Any
    antialias: bool | None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "interpolation", check_interpolation(self.name, self.interpolation))
        object.__setattr__(self, "antialias", check_antialias(self.name, self.antialias))

    def _lowered(self, state: ImageState, code: int, first: Sequence[float], *rest: float) -> Any:
        check_before_resize(self, state)
        values = [*first, *[0.0] * (8 - len(first)), INTERPOLATIONS[self.interpolation], bool(self.antialias), *rest]
        after = state.replace(height=None, width=None, min_side=1, resized=True, cropped=False)
        return code, row_of(*values), after


@dataclasses.dataclass(frozen=True)
class ScaleJitter(_RandomResize):
    """Resize the image to a random multiple of the size at which it fits into ``target_size``.

    Images then have sizes of their own: ``RandomCrop(size, pad_if_needed=True)`` behind it gives them one again.

    Parameters
    ----------
    target_size : (int, int)
        Height and width. torchvision divides its first number by the image's width and the second by the height, which
        matters if they differ; so does this.
    scale_range : (float, float)
    interpolation : {"bilinear", "bicubic", "nearest"}
    antialias : bool
        Low-pass when shrinking, as Pillow does.

    Examples
    --------
    >>> ScaleJitter((1024, 1024)).scale_range
    (0.1, 2.0)
    """

    target_size: Sequence[int]
    scale_range: Sequence[float] = (0.1, 2.0)
    interpolation: Any = "bilinear"
    antialias: bool | None = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "target_size", check_size(self.name, self.target_size, what="target_size"))
        object.__setattr__(self, "scale_range", check_range(self.name, "scale_range", self.scale_range, 1e-6, math.inf))

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        lowered: tuple[int, list[float], ImageState] = self._lowered(
            state, SCALE_JITTER, [*self.target_size, *self.scale_range]
        )
        return lowered


@dataclasses.dataclass(frozen=True)
class RandomShortestSize(_RandomResize):
    """Resize the image so that its shorter side has a random length of a list.

    Parameters
    ----------
    min_size : int or sequence of int
        Lengths in pixels, equally likely.
    max_size : int, optional
        Longest side allowed.
    interpolation : {"bilinear", "bicubic", "nearest"}
    antialias : bool
        Low-pass when shrinking, as Pillow does.

    Examples
    --------
    >>> RandomShortestSize(range(480, 801, 32), max_size=1333).min_size[:3]
    (480, 512, 544)
    """

    min_size: int | Sequence[int]
    max_size: int | None = None
    interpolation: Any = "bilinear"
    antialias: bool | None = True

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.min_size if isinstance(self.min_size, Sequence) else [self.min_size]
        sizes = [as_integer(each) for each in given]
        if not 1 <= len(sizes) <= _MOST_LISTED or any(each is None or not 1 <= each <= 65535 for each in sizes):
            raise UsageError(
                f"{self.name}: min_size must be 1 to {_MOST_LISTED} integers of at least 1, got {self.min_size!r}"
            )
        object.__setattr__(self, "min_size", tuple(sizes))
        if self.max_size is not None:
            check_size(self.name, self.max_size, what="max_size")

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        assert isinstance(self.min_size, tuple)
        lowered: tuple[int, list[float], ImageState] = self._lowered(
            state, SHORTEST_SIZE, [self.max_size or 0, len(self.min_size)], *self.min_size
        )
        return lowered


@dataclasses.dataclass(frozen=True)
class RandomZoomOut(Geometry):
    """Put the image at a random place of a larger canvas.

    A crop and a resize can follow. What is visible is then resized to whole pixels of the result, so that it lies up to
    half a pixel beside torchvision's; boxes, points and masks are where the pixels are.

    Parameters
    ----------
    fill : int or three int
        Colour of the canvas, 0 to 255.
    side_range : (float, float)
        How many times as long as the image's the sides of the canvas are.
    p : float

    Examples
    --------
    >>> RandomZoomOut(fill=114)
    RandomZoomOut(fill=114, side_range=(1.0, 4.0), p=0.5)
    """

    fill: int | Sequence[int] | Mapping[Any, Any] | None = 0
    side_range: Sequence[float] = (1.0, 4.0)
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "fill", check_fill(self.name, self.fill))
        fill_word(self.name, self.fill)
        object.__setattr__(self, "side_range", check_range(self.name, "side_range", self.side_range, 1.0, 100.0))

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        check_before_padding(self, state)
        row = row_of(*self.side_range, self.p, fill_word(self.name, self.fill))
        return ZOOM_OUT, row, state.replace(height=None, width=None, zoomed_out=True)


@dataclasses.dataclass(frozen=True)
class RandomIoUCrop(Geometry):
    """Crop a random part that holds the centre of a box and overlaps with it enough (as SSD is trained).

    It reads the boxes that follow the image. Boxes whose centres lie outside of the part become 0, for
    `SanitizeBoundingBoxes` to drop.

    Parameters
    ----------
    min_scale, max_scale : float
        Range of the part's sides, as shares of the image's.
    min_aspect_ratio, max_aspect_ratio : float
        Range of width / height.
    sampler_options : sequence of float, optional
        Least overlaps (intersection over union of box and part), equally likely; 1 or more: the image as it is.
    trials : int
        How many parts are tried before another overlap is chosen. After 50 overlaps the image stays as it is.

    Examples
    --------
    >>> RandomIoUCrop().sampler_options
    (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    """

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: Sequence[float] | None = None
    trials: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.name, "(min_scale, max_scale)", (self.min_scale, self.max_scale), 1e-6, 1.0)
        ratios = (self.min_aspect_ratio, self.max_aspect_ratio)
        check_range(self.name, "(min_aspect_ratio, max_aspect_ratio)", ratios, 0.0, math.inf)
        given = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0) if self.sampler_options is None else self.sampler_options
        options = tuple(check_numbers(self.name, "sampler_options", given))
        if not 1 <= len(options) <= _MOST_LISTED or isinstance(given, (int, float)):
            raise UsageError(
                f"{self.name}: sampler_options must be 1 to {_MOST_LISTED} numbers, got {self.sampler_options!r}"
            )
        object.__setattr__(self, "sampler_options", options)
        trials = as_integer(self.trials)
        if trials is None or not 1 <= trials <= 10_000:
            raise UsageError(f"{self.name}: trials must be an integer between 1 and 10,000, got {self.trials!r}")

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        assert isinstance(self.sampler_options, tuple)
        scales = (self.min_scale, self.max_scale, self.min_aspect_ratio, self.max_aspect_ratio)
        options = self.sampler_options
        row = row_of(*scales, self.trials, len(options), 0, 0, 0, 0, *options)
        return IOU_CROP, row, state.replace(height=None, width=None, min_side=1, cropped=True)


@dataclasses.dataclass(frozen=True)
class CropAroundBox(Geometry):
    """Crop the part around a stored box and resize it to a fixed size: birds, faces, people, lesions.

    The part has the shape of ``size`` and holds the box, scaled about its centre. Where it reaches beyond the image it
    is moved inwards; a side that is longer than the image's is cut off, and only then is the content stretched. A
    sample without a box that has an area gives the largest part in the middle.

    Parameters
    ----------
    size : int or (int, int)
        Output (height, width) in pixels; one number means a square.
    field : str
        The field that holds the box, or the boxes, of each sample, with declared coordinates. It need not be in the
        batch; boxes that follow the image move with the crop.
    scale : float or (float, float)
        How many times as long as the box's the sides of the part are; of a pair a number in between is drawn.
    shift : float
        The part moves by up to this share of its sides in each direction.
    pick : {"random", "first", "largest"}
        Which box, if a sample has several.
    interpolation : {"bilinear", "bicubic", "nearest"}
    antialias : bool
        Low-pass when shrinking, as Pillow does.

    Examples
    --------
    >>> CropAroundBox(224, scale=(1.0, 1.5), shift=0.1).scale
    (1.0, 1.5)
    """

    size: int | Sequence[int]
    _: dataclasses.KW_ONLY
    field: str = "boxes"
    scale: float | Sequence[float] = 1.25
    shift: float = 0.0
    pick: str = "random"
    interpolation: Any = "bilinear"
    antialias: bool | None = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", check_size(self.name, self.size))
        if not isinstance(self.field, str):
            raise UsageError(f"{self.name}: field must be the name of a field, got {self.field!r}")
        given = (self.scale, self.scale) if isinstance(self.scale, (int, float)) else self.scale
        object.__setattr__(self, "scale", check_range(self.name, "scale", given, 1e-3, 1e3))
        if isinstance(self.shift, bool) or not isinstance(self.shift, numbers.Real) or not 0 <= self.shift <= 1:
            raise UsageError(f"{self.name}: shift must be a number from 0 to 1, got {self.shift!r}")
        check_choice(self.name, "pick", self.pick, _PICKS)
        object.__setattr__(self, "interpolation", check_interpolation(self.name, self.interpolation))
        object.__setattr__(self, "antialias", check_antialias(self.name, self.antialias))

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        check_before_resize(self, state)
        height, width = check_size(self.name, self.size)
        assert isinstance(self.scale, tuple)
        filters = (INTERPOLATIONS[self.interpolation], bool(self.antialias))
        row = row_of(height, width, *self.scale, self.shift, _PICKS.index(self.pick), 0, 0, *filters)
        after = state.replace(height=height, width=width, min_side=min(height, width), resized=True, cropped=False)
        return CROP_AROUND_BOX, row, after


class AnnotationOp(Placeholder):
    """Works on the boxes that follow an image, and leaves its pixels as they are."""


@dataclasses.dataclass(frozen=True)
class SanitizeBoundingBoxes(AnnotationOp):
    """Drop boxes that are too small in the finished image, and what belongs to them.

    It stands in the list of the image, behind all geometry.

    Parameters
    ----------
    min_size : float
        Least width and height of a box in pixels.
    min_area : float
        Least area.
    labels_getter : str, sequence of str or None
        The fields with one row a box, whose rows are dropped too. "default": those with "label", "categor" or "class"
        in their names. None: no field.

    Examples
    --------
    >>> SanitizeBoundingBoxes(labels_getter=("category", "iscrowd")).labels_getter
    ('category', 'iscrowd')
    """

    min_size: float = 1.0
    min_area: float = 1.0
    labels_getter: str | Sequence[str] | None = "default"

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in ("min_size", "min_area"):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not float(value) >= 1:
                raise UsageError(f"{self.name}: {what} must be a number of at least 1, got {value!r}")
        given = self.labels_getter
        if given is None or isinstance(given, str):
            return
        if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
            raise UsageError(
                f"{self.name}: labels_getter must be a field's name, several, 'default' or None, got {given!r}"
            )
        object.__setattr__(self, "labels_getter", tuple(given))


@dataclasses.dataclass(frozen=True)
class ClampBoundingBoxes(AnnotationOp):
    """Clip boxes to their image, which is done after every move anyway: only for boxes that no transform moves.

    Parameters
    ----------
    clamping_mode : {"auto", "hard", "soft"}
        torchvision's words for rotated boxes; for upright ones they are the same.

    Examples
    --------
    >>> ClampBoundingBoxes()
    ClampBoundingBoxes(clamping_mode='auto')
    """

    clamping_mode: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "clamping_mode", self.clamping_mode, ("auto", "hard", "soft"))
