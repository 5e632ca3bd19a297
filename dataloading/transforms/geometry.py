"""The transforms that say which pixels are wanted: resize, crops, flips, translation.

At the front of a pipeline they cost nothing: they become part of the decoder's request (``_native/src/plan.cpp``
holds the arithmetic). Parameters, defaults and results are those of ``torchvision.transforms.v2``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dataloading.checks import as_integer
from dataloading.errors import UsageError
from dataloading.transforms.base import (
    INTERPOLATIONS,
    PADDING_MODES,
    ROW_LENGTH,
    Geometry,
    ImageState,
    check_antialias,
    check_choice,
    check_fill,
    check_interpolation,
    check_range,
    check_size,
)
from dataloading.transforms.operation import Law, Operation, constant, integer

__all__ = [
    "CENTER_PART",
    "CORNER_CROP",
    "CROP_AROUND_BOX",
    "IOU_CROP",
    "LIST_AT",
    "SCALE_JITTER",
    "SHORTEST_SIZE",
    "ZOOM_OUT",
    "CenterCrop",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomTranslate",
    "RandomVerticalFlip",
    "Resize",
    "after_crop",
    "check_before_padding",
    "check_before_resize",
    "crop_operation",
    "fill_word",
    "in_the_middle",
    "row_of",
]

# Codes of _native/src/plan.h.
RANDOM_RESIZED_CROP, RESIZE, RESIZE_SHORT, RESIZE_LONG, CENTER_CROP = 0, 1, 2, 3, 4
RANDOM_CROP, RANDOM_TRANSLATE, HORIZONTAL_FLIP, VERTICAL_FLIP = 5, 6, 7, 8
SCALE_JITTER, SHORTEST_SIZE, ZOOM_OUT, IOU_CROP, CORNER_CROP, CROP_AROUND_BOX, CENTER_PART = 9, 10, 11, 12, 13, 14, 15
LIST_AT = 10  # where rows of any length hold their list


def row_of(*values: float) -> list[float]:
    """Return numbers as a row for ``_native/src/plan.cpp``."""
    return [float(v) for v in values] + [0.0] * (ROW_LENGTH - len(values))


def check_before_resize(owner: Geometry, state: ImageState) -> None:
    """Refuse to resize what the request cannot resize any more."""
    if state.resized:
        raise UsageError(
            f"{owner.name} would resize an image that an earlier transform has already resized; one decode can "
            f"resize once. Keep the one that gives the final size"
        )
    if state.padded:
        raise UsageError(f"{owner.name} would resize an image after padding. Put it before the transform that pads")


def check_before_padding(owner: Geometry, state: ImageState) -> None:
    """Refuse to pad what the request cannot pad any more."""
    if state.padded or state.zoomed_out:
        raise UsageError(f"{owner.name} would pad an image that an earlier transform has already padded. Keep one")
    if state.resized and state.cropped:
        raise UsageError(
            f"{owner.name} would pad a crop of a resized image, which decoding cannot do. "
            f"Leave out the crop before it, or use {owner.name} alone"
        )


def fill_word(owner: str, fill: Any) -> int:
    """Return the fill of up to three channels as one 4-byte word, first channel in the lowest byte."""
    try:
        values = [float(fill)] if np.ndim(fill) == 0 else [float(v) for v in fill]
    except (TypeError, ValueError):
        values = []
    if len(values) not in (1, 3) or not all(0 <= v <= 255 and v.is_integer() for v in values):
        raise UsageError(f"{owner}: fill must be an integer in [0, 255], or three of them, got {fill!r}")
    values = values * 3 if len(values) == 1 else values
    return int(values[0]) | int(values[1]) << 8 | int(values[2]) << 16


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(Geometry):
    """Crop a random part of random shape and resize it to a fixed size (the usual ImageNet augmentation).

    Parameters
    ----------
    size : int or (int, int)
        Output (height, width) in pixels; one number means a square.
    scale : (float, float)
        Range of the part's area, as a fraction of the image's.
    ratio : (float, float)
        Range of its aspect ratio, width / height, drawn uniformly in log scale.
    interpolation : {"bilinear", "bicubic", "nearest"}
        Or torchvision's ``InterpolationMode``.
    antialias : bool
        Low-pass when shrinking, as Pillow does; so does None, torchvision's word for "as images from files".

    Examples
    --------
    >>> RandomResizedCrop(224).size
    (224, 224)
    """

    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Any = "bilinear"
    antialias: bool | None = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", check_size(self.name, self.size))
        object.__setattr__(self, "scale", check_range(self.name, "scale", self.scale, 0.0, math.inf))
        object.__setattr__(self, "ratio", check_range(self.name, "ratio", self.ratio, 1e-6, 1e6))
        object.__setattr__(self, "interpolation", check_interpolation(self.name, self.interpolation))
        object.__setattr__(self, "antialias", check_antialias(self.name, self.antialias))

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        check_before_resize(self, state)
        height, width = check_size(self.name, self.size)
        # torchvision keeps the bounds of the log ratio in float32.
        low, high = np.log(np.asarray(self.ratio, dtype=np.float32)).astype(np.float64)
        row = row_of(
            height, width, *self.scale, low, high, *self.ratio, INTERPOLATIONS[self.interpolation], bool(self.antialias)
        )
        after = state.replace(height=height, width=width, min_side=min(height, width), resized=True, cropped=False)
        return RANDOM_RESIZED_CROP, row, after


@dataclasses.dataclass(frozen=True)
class Resize(Geometry):
    """Resize the image.

    Parameters
    ----------
    size : int, (int, int) or None
        (height, width) in pixels; one number is the length of the shorter side; None: ``max_size`` decides.
    interpolation : {"bilinear", "bicubic", "nearest"}
    max_size : int, optional
        Longest side allowed, for an integer ``size`` or None.
    antialias : bool
        Low-pass when shrinking, as Pillow does.

    Examples
    --------
    >>> Resize(256)
    Resize(size=256, interpolation='bilinear', max_size=None, antialias=True)
    """

    size: int | Sequence[int] | None
    interpolation: Any = "bilinear"
    max_size: int | None = None
    antialias: bool | None = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "interpolation", check_interpolation(self.name, self.interpolation))
        object.__setattr__(self, "antialias", check_antialias(self.name, self.antialias))
        size = self.size
        if isinstance(size, Sequence) and len(size) == 1:
            size = size[0]
        if size is None and self.max_size is None:
            raise UsageError(f"{self.name}: max_size must be given when size is None")
        if size is not None:
            pair = check_size(self.name, size)
            size = pair[0] if isinstance(size, (int, np.integer)) else pair
        if self.max_size is not None:
            check_size(self.name, self.max_size, what="max_size")
            if isinstance(size, tuple):
                raise UsageError(f"{self.name}: max_size works with an integer size only, got size={size}")
            if size is not None and self.max_size <= size:
                raise UsageError(f"{self.name}: max_size={self.max_size} must be larger than size={size}")
        object.__setattr__(self, "size", size)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) of the result for an image of this size, as torchvision computes it."""
        if isinstance(self.size, tuple):
            return self.size
        short, long = min(height, width), max(height, width)
        if self.size is None:
            assert self.max_size is not None
            new_short, new_long = int(self.max_size * short / long), self.max_size
        else:
            assert isinstance(self.size, int)
            new_short, new_long = self.size, int(self.size * long / short)
            if self.max_size is not None and new_long > self.max_size:
                new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        return (new_long, new_short) if width <= height else (new_short, new_long)

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        check_before_resize(self, state)
        kind = (INTERPOLATIONS[self.interpolation], bool(self.antialias))
        after = state.replace(resized=True, cropped=False)
        if isinstance(self.size, tuple):
            height, width = self.size
            row = row_of(height, width, 0, 0, 0, 0, 0, 0, *kind)
            return RESIZE, row, after.replace(height=height, width=width, min_side=min(self.size))
        if state.height is not None and state.width is not None:
            height, width = self.output_size(state.height, state.width)
            after = after.replace(height=height, width=width, min_side=min(height, width))
        else:
            keeps = isinstance(self.size, int) and self.max_size is None
            after = after.replace(height=None, width=None, min_side=self.size if keeps else 1)
        if self.size is None:
            return RESIZE_LONG, row_of(self.max_size or 0, 0, 0, 0, 0, 0, 0, 0, *kind), after
        assert isinstance(self.size, int)
        return RESIZE_SHORT, row_of(self.size, self.max_size or 0, 0, 0, 0, 0, 0, 0, *kind), after


def after_crop(state: ImageState, height: int, width: int, *, pads: bool) -> ImageState:
    """Return what is known of images of which a part of this size is taken."""
    whole = state.height == height and state.width == width
    return state.replace(
        height=height,
        width=width,
        min_side=min(height, width),
        cropped=state.cropped or not whole,
        padded=state.padded or pads,
    )


def crop_operation(
    owner: Geometry, state: ImageState, size: tuple[int, int], *, top: Callable[[int], Law], left: Callable[[int], Law]
) -> Operation:
    """Return a crop as a kernel on pixels that have been changed already.

    ``top`` and ``left`` say where it begins, given how many pixels of the axis are left over.
    """
    height, width = size
    if state.written:
        raise UsageError(f"{owner.name} cannot follow a transform that writes the output. Move it before that one")
    assert state.height is not None and state.width is not None
    if height > state.height or width > state.width:
        raise UsageError(
            f"{owner.name}: padding after a transform that changes pixels is not possible (size {height}x{width}, "
            f"image {state.size_text}). Move {owner.name} to the front of the list"
        )
    params = {"top": top(state.height - height), "left": left(state.width - width)}
    return Operation("move.crop", params, after=state.replace(height=height, width=width, min_side=min(size)))


def in_the_middle(left_over: int) -> Law:
    """Say where a centred crop begins, as torchvision rounds it."""
    return constant(round(left_over / 2))


def _anywhere(left_over: int) -> Law:
    return integer(0, left_over + 1)


@dataclasses.dataclass(frozen=True)
class CenterCrop(Geometry):
    """Cut out the middle; where the image is smaller, its surroundings are black.

    Parameters
    ----------
    size : int or (int, int)
        Output (height, width) in pixels; one number means a square.

    Examples
    --------
    >>> CenterCrop(224)
    CenterCrop(size=(224, 224))
    """

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", check_size(self.name, self.size))

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        height, width = check_size(self.name, self.size)
        pads = state.height is not None and state.width is not None and (height > state.height or width > state.width)
        if pads:
            check_before_padding(self, state)
        # Images of unknown size may turn out to need padding one by one; where that cannot be done the sample fails.
        return CENTER_CROP, row_of(height, width), after_crop(state, height, width, pads=pads)

    def operation(self, state: ImageState) -> Operation:
        """See ``Geometry.operation``."""
        return crop_operation(self, state, check_size(self.name, self.size), top=in_the_middle, left=in_the_middle)


@dataclasses.dataclass(frozen=True)
class RandomCrop(Geometry):
    """Cut out a random part of fixed size, after padding if asked for.

    Parameters
    ----------
    size : int or (int, int)
        Output (height, width) in pixels; one number means a square.
    padding : int or sequence of 2 or 4 int, optional
        Pixels added at all borders; or (left and right, top and bottom); or (left, top, right, bottom).
    pad_if_needed : bool
        Pad an image that is smaller than ``size``, instead of failing on it.
    fill : int or three int
        Colour of constant padding, 0 to 255. None is 0; of torchvision's mapping by kind, the images' entry counts.
    padding_mode : {"constant", "edge", "reflect", "symmetric"}

    Examples
    --------
    >>> RandomCrop(32, padding=4).padding
    (4, 4, 4, 4)
    """

    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: int | Sequence[int] | Mapping[Any, Any] | None = 0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", check_size(self.name, self.size))
        check_choice(self.name, "padding_mode", self.padding_mode, PADDING_MODES)
        object.__setattr__(self, "fill", check_fill(self.name, self.fill))
        fill_word(self.name, self.fill)
        if self.padding is not None:
            given = self.padding if isinstance(self.padding, (Sequence, np.ndarray)) else [self.padding]
            pads = [as_integer(each) for each in given]
            if len(pads) not in (1, 2, 4) or any(each is None or each < 0 for each in pads):
                raise UsageError(
                    f"{self.name}: padding must be 1, 2 or 4 integers, none negative, got {self.padding!r}"
                )
            object.__setattr__(self, "padding", tuple(pads * (4 // len(pads))))

    def _check_reflection(self, height: int, width: int) -> None:
        left, top, right, bottom = self.padding if isinstance(self.padding, tuple) else (0, 0, 0, 0)
        if max(left, right) >= width or max(top, bottom) >= height:
            raise UsageError(
                f"{self.name}: reflect padding {self.padding} must be smaller than the image, {height}x{width}"
            )

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        height, width = check_size(self.name, self.size)
        left, top, right, bottom = self.padding if isinstance(self.padding, tuple) else (0, 0, 0, 0)
        small = False
        if state.height is not None and state.width is not None:
            small = height > state.height + top + bottom or width > state.width + left + right
            if small and not self.pad_if_needed:
                raise UsageError(
                    f"{self.name}: size {height}x{width} is larger than the image with its padding, "
                    f"{state.height + top + bottom}x{state.width + left + right}. Pass pad_if_needed=True or a larger "
                    f"padding"
                )
        pads = small or max(left, top, right, bottom) > 0
        if pads:
            check_before_padding(self, state)
        if self.padding_mode == "reflect" and state.height is not None and state.width is not None:
            self._check_reflection(state.height, state.width)
        row = row_of(
            height, width, left, top, right, bottom, self.pad_if_needed, PADDING_MODES[self.padding_mode],
            fill_word(self.name, self.fill),
        )  # fmt: skip
        return RANDOM_CROP, row, after_crop(state, height, width, pads=pads)

    def operation(self, state: ImageState) -> Operation:
        """See ``Geometry.operation``."""
        if isinstance(self.padding, tuple) and max(self.padding) > 0:
            return super().operation(state)
        return crop_operation(self, state, check_size(self.name, self.size), top=_anywhere, left=_anywhere)


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip(Geometry):
    """Mirror left and right with probability ``p``.

    Examples
    --------
    >>> RandomHorizontalFlip()
    RandomHorizontalFlip(p=0.5)
    """

    p: float = 0.5

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        return HORIZONTAL_FLIP, row_of(self.p), state

    def operation(self, state: ImageState) -> Operation:
        """See ``Geometry.operation``."""
        return Operation("move.flip_horizontal", kind="in_place", p=self.p)


@dataclasses.dataclass(frozen=True)
class RandomVerticalFlip(Geometry):
    """Mirror top and bottom with probability ``p``.

    Examples
    --------
    >>> RandomVerticalFlip(p=0.1)
    RandomVerticalFlip(p=0.1)
    """

    p: float = 0.5

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        return VERTICAL_FLIP, row_of(self.p), state

    def operation(self, state: ImageState) -> Operation:
        """See ``Geometry.operation``."""
        return Operation("move.flip_vertical", kind="in_place", p=self.p)


@dataclasses.dataclass(frozen=True)
class RandomTranslate(Geometry):
    """Move the image by up to ``padding`` pixels in each direction; what comes in is ``fill``.

    The same as ``RandomCrop(size of the image, padding=padding, fill=fill)``, without naming the size.

    Parameters
    ----------
    padding : int
        Largest shift in pixels; every shift in [-padding, padding] is equally likely, in x and in y.
    fill : int or three int
        Colour, 0 to 255.

    Examples
    --------
    >>> RandomTranslate(4)
    RandomTranslate(padding=4, fill=0)
    """

    dtypes: ClassVar[tuple[str, ...]] = ("uint8", "uint16", "float32", "int64")
    bounded: ClassVar[bool] = True

    padding: int
    fill: int | Sequence[int] | Mapping[Any, Any] | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.padding, bool) or not isinstance(self.padding, int) or not 0 <= self.padding <= 65535:
            raise UsageError(f"{self.name}: padding must be an integer in [0, 65535], got {self.padding!r}")
        object.__setattr__(self, "fill", check_fill(self.name, self.fill))
        fill_word(self.name, self.fill)

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        if self.padding > 0:
            check_before_padding(self, state)
        return RANDOM_TRANSLATE, row_of(self.padding, fill_word(self.name, self.fill)), state.replace(padded=True)

    def operation(self, state: ImageState) -> Operation:
        """See ``Geometry.operation``."""
        word = fill_word(self.name, self.fill)
        levels = [(word >> shift) & 255 for shift in (0, 8, 16)]
        fill = levels if state.channels == 3 else levels[:1] * state.channels
        offset = integer(0, 2 * self.padding + 1)
        return Operation("move.translate", {"top": offset, "left": offset}, constants=[self.padding, *fill])
