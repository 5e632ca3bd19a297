"""The transforms that change colours. The dtype stays: they stand before Normalize."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from dataloading.errors import UsageError
from dataloading.transforms.base import IMAGE_DTYPES, ImageState, PixelOp, check_range
from dataloading.transforms.operation import Law, Node, Operation, constant, uniform

_ADJUSTMENTS = ("brightness", "contrast", "saturation", "hue")

__all__ = [
    "ColorJitter",
    "Grayscale",
    "RandomAutocontrast",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
    "adjustment",
    "equalization",
    "nothing",
    "value_operation",
]


def value_operation(
    kernel: str,
    state: ImageState,
    params: Mapping[str, Law] | None = None,
    *,
    p: float | None = None,
    kind: str = "table",
) -> Operation:
    """Return a function of single values: a table for uint8 images, a loop over pixels for others."""
    assert state.bound is not None
    if state.dtype == "uint8":
        home = "native" if kernel == "solarize" else "color"
        return Operation(f"{home}.{kernel}", params or {}, kind=kind, p=p)
    constants = [state.bound, float(state.dtype != "float32")]
    return Operation(f"color.{kernel}_values", params or {}, kind="in_place", p=p, constants=constants)


def equalization(state: ImageState, params: Mapping[str, Law] | None = None, *, p: float | None = None) -> Operation:
    """Return the operation that equalises histograms: of 256 values, whatever the images' dtype."""
    if state.dtype == "uint8":
        return Operation("histograms.equalize", params or {}, kind="table", p=p)
    return Operation("histograms.equalize_values", params or {}, kind="in_place", p=p)


def nothing(state: ImageState, name: str, place: int | None) -> Node:
    """Return a node that leaves images as they are."""
    return Node("sequence", name, state, state, place=place)


@dataclasses.dataclass(frozen=True)
class ColorJitter(PixelOp):
    """Change brightness, contrast, saturation and hue by random amounts, in random order.

    Parameters
    ----------
    brightness, contrast, saturation : float or (float, float), optional
        The factor is uniform in [max(0, 1 - value), 1 + value], or in the range given. None or 0: not at all.
    hue : float or (float, float), optional
        The turn is uniform in [-value, value], or in the range given, within [-0.5, 0.5]; 1 is a full circle.

    Notes
    -----
    Pixels equal torchvision's on uint8 tensors up to one level, in fewer than one pixel of a thousand: torch may
    fuse multiply and add, which rounds once less.

    Examples
    --------
    >>> ColorJitter(brightness=0.4, hue=0.1).brightness
    (0.6, 1.4)
    """

    mirrors: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES

    brightness: float | Sequence[float] | None = None
    contrast: float | Sequence[float] | None = None
    saturation: float | Sequence[float] | None = None
    hue: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in _ADJUSTMENTS:
            value = getattr(self, what)
            center, low, high = (0.0, -0.5, 0.5) if what == "hue" else (1.0, 0.0, math.inf)
            if value is None:
                continue
            if isinstance(value, bool):
                raise UsageError(f"{self.name}: {what} must be a number or a pair (low, high), got {value}")
            if isinstance(value, (int, float)):
                if not value >= 0:
                    raise UsageError(f"{self.name}: {what} must not be negative, got {value}")
                value = (center - value if what == "hue" else max(0.0, center - value), center + value)
            pair = check_range(self.name, what, value, low, high)
            object.__setattr__(self, what, None if pair == (center, center) else pair)

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``: the four adjustments in random order, all drawing from one stream."""
        self.check_images(state)
        children = [self._adjustment(row, what, state) for row, what in enumerate(_ADJUSTMENTS)]
        return Node("permutation", self.name, state, state, children=tuple(children), place=place)

    def _adjustment(self, row: int, what: str, state: ImageState) -> Node:
        bounds = getattr(self, what)
        if bounds is None:
            return nothing(state, what, None)
        return adjustment(what, uniform(*bounds, number=1 + row), state)  # number 0 is the order


def adjustment(what: str, law: Law, state: ImageState, *, p: float | None = None, place: int | None = None) -> Node:
    """Return one adjustment as a node: "brightness", "contrast", "saturation" or "hue".

    ``law`` draws the factor, or the turn of the hue. Images of one channel have no saturation and no hue.
    """
    if what in ("saturation", "hue") and state.channels == 1:
        return nothing(state, what, place)
    assert state.bound is not None
    # What torchvision's to_dtype multiplies with on the way from floats to integers.
    levels = state.bound + (0.0 if state.dtype == "float32" else 1.0 - 1e-3)
    kind = {"brightness": "table", "contrast": "statistics"}.get(what, "in_place")
    if state.dtype == "uint8":
        operation = Operation(f"native.{what}", {what: law}, kind=kind, p=p, constants=[state.bound, levels])
    elif kind != "in_place":
        operation = value_operation(what, state, {what: law}, p=p)
    else:
        operation = Operation(f"color.{what}", {what: law}, kind=kind, p=p, constants=[state.bound, levels])
    return Node("leaf", what, state, state, operation=operation, p=p, place=place)


def _gray(state: ImageState, p: float | None = None) -> Operation:
    return Operation("native.gray" if state.dtype == "uint8" else "color.gray", kind="in_place", p=p)


@dataclasses.dataclass(frozen=True)
class Grayscale(PixelOp):
    """Turn colour into grey: ``0.2989 r + 0.587 g + 0.114 b``, cut off to an integer.

    Parameters
    ----------
    num_output_channels : {1, 3}
        3: three equal channels.

    Examples
    --------
    >>> Grayscale(num_output_channels=3)
    Grayscale(num_output_channels=3)
    """

    mirrors: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.num_output_channels, bool) or self.num_output_channels not in (1, 3):
            raise UsageError(f"{self.name}: num_output_channels must be 1 or 3, got {self.num_output_channels!r}")

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        if state.channels != 1:
            return super().node(state, place)
        if self.num_output_channels == 3:
            raise UsageError(f"{self.name}: the images are grey, and three equal channels carry nothing more")
        self.check_images(state)
        return nothing(state, self.name, place)

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        if self.num_output_channels == 3:
            return _gray(state)
        return Operation("color.one_gray", after=state.replace(channels=1))


@dataclasses.dataclass(frozen=True)
class RandomGrayscale(PixelOp):
    """Turn colour into grey with probability ``p``; the number of channels stays.

    Examples
    --------
    >>> RandomGrayscale()
    RandomGrayscale(p=0.1)
    """

    mirrors: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES

    p: float = 0.1

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        if state.channels != 1:
            return super().node(state, place)
        self.check_images(state)
        return nothing(state, self.name, place)

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        return _gray(state, p=self.p)


@dataclasses.dataclass(frozen=True)
class RandomInvert(PixelOp):
    """Replace x by 255 - x with probability ``p``.

    Examples
    --------
    >>> RandomInvert()
    RandomInvert(p=0.5)
    """

    mirrors: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES
    any_channels: ClassVar[bool] = True

    p: float = 0.5

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        return value_operation("invert", state, p=self.p)


@dataclasses.dataclass(frozen=True)
class RandomSolarize(PixelOp):
    """Invert values of at least ``threshold`` with probability ``p``.

    Parameters
    ----------
    threshold : float
        0 to 255.
    p : float

    Examples
    --------
    >>> RandomSolarize(128, p=0.2)
    RandomSolarize(threshold=128, p=0.2)
    """

    mirrors: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES
    any_channels: ClassVar[bool] = True

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.threshold, (int, float)) or not 0 <= self.threshold <= 255:
            raise UsageError(f"{self.name}: threshold must be between 0 and 255, got {self.threshold!r}")

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        return value_operation("solarize", state, {"threshold": constant(self.threshold)}, p=self.p)


@dataclasses.dataclass(frozen=True)
class RandomPosterize(PixelOp):
    """Keep only the upper ``bits`` bits of each value with probability ``p``.

    Parameters
    ----------
    bits : int
        0 to 8.
    p : float

    Examples
    --------
    >>> RandomPosterize(4)
    RandomPosterize(bits=4, p=0.5)
    """

    mirrors: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES
    any_channels: ClassVar[bool] = True

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 0 <= self.bits <= 8:
            raise UsageError(f"{self.name}: bits must be an integer between 0 and 8, got {self.bits!r}")

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        return value_operation("posterize", state, {"bits": constant(self.bits)}, p=self.p)


@dataclasses.dataclass(frozen=True)
class RandomAutocontrast(PixelOp):
    """Stretch each channel to the full range 0 to 255 with probability ``p``.

    Examples
    --------
    >>> RandomAutocontrast()
    RandomAutocontrast(p=0.5)
    """

    mirrors: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES
    any_channels: ClassVar[bool] = True

    p: float = 0.5

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        return value_operation("autocontrast", state, p=self.p, kind="statistics")
