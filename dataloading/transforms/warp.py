"""The transforms that resample: rotation, affine maps, perspective, elastic deformation."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dataloading.errors import UsageError
from dataloading.transforms.base import (
    ImageState,
    PixelOp,
    Transform,
    check_fill,
    check_interpolation,
    check_numbers,
    per_channel,
)
from dataloading.transforms.filters import blur_work_bytes
from dataloading.transforms.operation import Law, Operation, constant, stream, uniform

__all__ = ["ElasticTransform", "RandomAffine", "RandomPerspective", "RandomRotation", "Resampling", "affine"]

Fill = float | Sequence[float] | Mapping[Any, Any] | None

_NO_MOVE = {name: constant(0.0) for name in ("angle", "translate_x", "translate_y")}
IDENTITY: dict[str, Law] = {**_NO_MOVE, "scale": constant(1.0), "shear_x": constant(0.0), "shear_y": constant(0.0)}


# -- what they share -----------------------------------------------------------------------------------------------


def _check_warp(owner: str, interpolation: Any, fill: Any) -> tuple[str, Any]:
    """Return the name of a filter and a fill, if they are among torchvision's for tensors."""
    name = check_interpolation(owner, interpolation)
    if name == "bicubic":
        raise UsageError(
            f"{owner}: interpolation must be nearest or bilinear, got 'bicubic': torchvision has no bicubic warp of "
            f"tensors either"
        )
    if fill is not None:
        fill = check_fill(owner, fill)
        fill = tuple(check_numbers(owner, "fill", fill)) if isinstance(fill, Sequence) else fill
        check_numbers(owner, "fill", fill)
    return name, fill


def _fill_constants(owner: str, fill: Any, interpolation: str, state: ImageState) -> list[float]:
    """Return the constants that every kernel of ``kernels/warp.py`` begins with."""
    values = per_channel(owner, "fill", 0.0 if fill is None else fill, state.channels)
    if state.bound is not None and not all(0 <= value <= state.bound for value in values):
        raise UsageError(f"{owner}: fill must be between 0 and {state.bound:g} for {state.dtype} images, got {fill!r}")
    if interpolation == "nearest" and state.dtype != "float32":
        values = [float(round(value)) for value in values]
    return [0.0 if fill is None else 1.0, *values]


def _kernel(owner: str, family: str, interpolation: str, state: ImageState) -> str:
    if interpolation == "bilinear" and state.dtype == "int64":
        raise UsageError(f"{owner}: bilinear mixes classes of {state.dtype} maps. Take interpolation='nearest'")
    deep = "_deep" if interpolation == "bilinear" and state.dtype != "uint8" else ""
    return f"warp.{family}_{interpolation}{deep}"


def _work_bytes(state: ImageState, columns: int) -> int:
    """Return what the samplers need: a few rows of the result, and the source with its border in some form."""
    assert state.height is not None and state.width is not None
    pixels = (state.height + 2) * (state.width + 2)
    return 20 * columns + 8 * max(1, state.channels) * pixels + 64


def affine(
    owner: str,
    state: ImageState,
    params: Mapping[str, Law] | Sequence[str],
    *,
    interpolation: str,
    fill: Any,
    center: Sequence[float] | None = None,
    clockwise: bool = True,
    p: float | None = None,
    draw: str = "",
    ranges: Sequence[float] = (),
    after: ImageState | None = None,
    only_shifts: bool = False,
) -> Operation:
    """Return the operation of an affine map: of RandomAffine, RandomRotation and the policies.

    Parameters
    ----------
    owner : str
        For messages.
    state : ImageState
    params : mapping of str to Law, or sequence of str
        In the order of ``IDENTITY``.
    interpolation : {"nearest", "bilinear"}
    fill : float, sequence of float or None
    center : (float, float), optional
        The fixed point, from the upper left corner; None: the middle.
    clockwise : bool
        Which way a positive angle turns.
    p : float, optional
    draw : str
    ranges : sequence of float
        For ``draw``.
    after : ImageState, optional
        Where the size changes.
    only_shifts : bool
        The image moves by whole pixels, and nothing else happens to it.
    """
    assert state.height is not None and state.width is not None
    offset = [0.0, 0.0] if center is None else [center[0] - state.width / 2, center[1] - state.height / 2]
    turn = 1.0 if clockwise else -1.0
    columns = state.width if after is None or after.width is None else after.width
    kernel = _kernel(owner, "affine", interpolation, state)
    return Operation(
        "warp.affine_shift" if only_shifts else kernel,
        params,
        p=p,
        draw=draw,
        constants=[*_fill_constants(owner, fill, interpolation, state), turn, *offset, *ranges],
        work_bytes=_work_bytes(state, columns),
        after=after,
    )


def _pairs(owner: str, what: str, value: Any, counts: tuple[int, ...]) -> tuple[float, ...]:
    """Return low and high bounds; one number ``x`` means (-x, x), as torchvision reads it."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        if value < 0:
            raise UsageError(f"{owner}: {what} must not be negative if it is one number, got {value!r}")
        return (-float(value), float(value))
    wanted = " or ".join(str(count) for count in counts)
    values = _numbers(owner, what, value)
    if len(values) not in counts:
        raise UsageError(f"{owner}: {what} must be a number, or a sequence of {wanted}, got {value!r}")
    for low, high in zip(values[::2], values[1::2], strict=True):
        if not low <= high:
            raise UsageError(f"{owner}: {what} must have its lower bound first, got {value!r}")
    return values


def _numbers(owner: str, what: str, value: Any, count: int | None = None) -> tuple[float, ...]:
    """Return a sequence of finite numbers as a tuple."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        values = tuple(float(each) for each in value)
    except (TypeError, ValueError):
        values = ()
    if not values or (count is not None and len(values) != count) or not all(map(math.isfinite, values)):
        wanted = "a sequence of numbers" if count is None else f"a sequence of {count} numbers"
        raise UsageError(f"{owner}: {what} must be {wanted}, got {value!r}")
    return values


class Resampling(PixelOp):
    """Has a filter, and a fill for what comes in; checks both."""

    interpolation: Any
    fill: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        interpolation, fill = _check_warp(self.name, self.interpolation, self.fill)
        object.__setattr__(self, "interpolation", interpolation)
        object.__setattr__(self, "fill", fill)


class _Warp(Resampling):
    """Moves pixels by a map of coordinates."""

    any_channels: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("uint8", "uint16", "float32", "int64")
    bounded: ClassVar[bool] = False

    def for_mask(self) -> Transform:
        """See ``Transform.for_mask``: the same map, without mixing labels."""
        return dataclasses.replace(self, interpolation="nearest", fill=0)  # type: ignore[type-var]  # all are


# -- the transforms ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RandomRotation(_Warp):
    """Rotate by a random angle.

    Parameters
    ----------
    degrees : float or (float, float)
        The angle is uniform in [-degrees, degrees], or in the range given; positive turns counter-clockwise.
    interpolation : {"nearest", "bilinear"}
    expand : bool
        Enlarge the image to hold all of the rotated one. Only for one fixed angle, such as ``degrees=(90, 90)``:
        others give each image another size.
    center : (float, float), optional
        The fixed point (x, y) in pixels from the upper left corner; the middle by default.
    fill : float or sequence of float
        What comes in: one number, or one a channel.

    Examples
    --------
    >>> RandomRotation(15).degrees
    (-15.0, 15.0)
    """

    degrees: float | Sequence[float]
    interpolation: Any = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: Fill = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        degrees = _pairs(self.name, "degrees", self.degrees, (2,))
        object.__setattr__(self, "degrees", degrees)
        if self.center is not None:
            object.__setattr__(self, "center", _numbers(self.name, "center", self.center, 2))
        if self.expand and degrees[0] != degrees[1]:
            raise UsageError(
                f"{self.name}: expand=True gives each angle another size, and the images of a batch must have one. "
                f"Leave it out, or fix the angle: degrees=({degrees[1]:g}, {degrees[1]:g})"
            )

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        assert isinstance(self.degrees, tuple)
        return affine(
            self.name,
            state,
            {**IDENTITY, "angle": uniform(*self.degrees)},
            interpolation=self.interpolation,
            fill=self.fill,
            center=self.center,
            clockwise=False,
            after=self._expanded(state, self.degrees[0]) if self.expand else None,
        )

    def _expanded(self, state: ImageState, angle: float) -> ImageState:
        """Return the size of the rotated image, by Pillow's rule that torchvision has, too."""
        assert state.height is not None and state.width is not None
        width, height = state.width, state.height
        if angle % 360 in (0, 180) and self.center is None:
            return state
        if angle % 360 in (90, 270) and self.center is None:
            return state.replace(height=width, width=height)
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        x, y = (0.0, 0.0) if self.center is None else (self.center[0] - width / 2, self.center[1] - height / 2)
        corners = [(sx * width / 2, sy * height / 2) for sx in (-1, 1) for sy in (-1, 1)]
        columns = [cos * (u - x) - sin * (v - y) + x + width / 2 for u, v in corners]
        rows = [sin * (u - x) + cos * (v - y) + y + height / 2 for u, v in corners]
        sizes = [
            math.ceil(math.trunc(max(line) * 1e4) * 1e-4) - math.floor(math.trunc(min(line) * 1e4) * 1e-4)
            for line in (rows, columns)
        ]
        return state.replace(height=sizes[0], width=sizes[1])


@dataclasses.dataclass(frozen=True)
class RandomAffine(_Warp):
    """Rotate, move, scale and shear by random amounts; the middle stays.

    Parameters
    ----------
    degrees : float or (float, float)
        The angle is uniform in [-degrees, degrees], or in the range given; positive turns clockwise, as torchvision's.
    translate : (float, float), optional
        Greatest shift right and down, as shares of the width and height; whole pixels are drawn.
    scale : (float, float), optional
        Range of the factor of size.
    shear : float or sequence of 2 or 4 float, optional
        Range of the angle in x; then in y. One number means (-shear, shear) in x.
    interpolation : {"nearest", "bilinear"}
    fill : float or sequence of float
    center : (float, float), optional
        The fixed point (x, y) in pixels from the upper left corner; the middle by default.

    Examples
    --------
    >>> RandomAffine(10, translate=(0.1, 0.1), shear=5).shear
    (-5.0, 5.0)
    """

    degrees: float | Sequence[float]
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: float | Sequence[float] | None = None
    interpolation: Any = "nearest"
    fill: Fill = 0
    center: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "degrees", _pairs(self.name, "degrees", self.degrees, (2,)))
        if self.translate is not None:
            translate = _numbers(self.name, "translate", self.translate, 2)
            if not all(0 <= share <= 1 for share in translate):
                raise UsageError(f"{self.name}: translate must be two shares between 0 and 1, got {self.translate!r}")
            object.__setattr__(self, "translate", translate)
        if self.scale is not None:
            scale = _pairs(self.name, "scale", _numbers(self.name, "scale", self.scale, 2), (2,))
            if scale[0] <= 0:
                raise UsageError(f"{self.name}: scale must be positive, got {self.scale!r}")
            object.__setattr__(self, "scale", scale)
        if self.shear is not None:
            object.__setattr__(self, "shear", _pairs(self.name, "shear", self.shear, (2, 4)))
        if self.center is not None:
            object.__setattr__(self, "center", _numbers(self.name, "center", self.center, 2))

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        assert isinstance(self.degrees, tuple) and (self.shear is None or isinstance(self.shear, tuple))
        shear = (*(self.shear or (0.0, 0.0)), 0.0, 0.0)[:4]
        x, y = self.translate or (0.0, 0.0)
        ranges = [*self.degrees, -x, x, -y, y, *(self.scale or (1.0, 1.0)), *shear]
        return affine(
            self.name,
            state,
            tuple(IDENTITY),
            interpolation=self.interpolation,
            fill=self.fill,
            center=self.center,
            draw="warp.affine_params",
            ranges=ranges,
            only_shifts=not any((*self.degrees, *shear)) and self.scale in (None, (1.0, 1.0)),
        )


@dataclasses.dataclass(frozen=True)
class RandomPerspective(_Warp):
    """Move each corner of the image inwards by a random amount, with probability ``p``.

    Parameters
    ----------
    distortion_scale : float
        Greatest move, as a share of half the side, 0 to 1.
    p : float
    interpolation : {"nearest", "bilinear"}
    fill : float or sequence of float

    Examples
    --------
    >>> RandomPerspective(0.3)
    RandomPerspective(distortion_scale=0.3, p=0.5, interpolation='bilinear', fill=0)
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: Any = "bilinear"
    fill: Fill = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.distortion_scale, numbers.Real) or not 0 <= self.distortion_scale <= 1:
            raise UsageError(
                f"{self.name}: distortion_scale must be a number between 0 and 1, got {self.distortion_scale!r}"
            )

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        assert state.height is not None and state.width is not None
        if min(state.height, state.width) < 2:
            raise UsageError(f"{self.name} needs at least 2 pixels in each direction, got images of {state.size_text}")
        return Operation(
            _kernel(self.name, "perspective", self.interpolation, state),
            tuple(f"coefficient_{k}" for k in range(8)),
            p=self.p,
            draw="warp.corners",
            constants=[
                *_fill_constants(self.name, self.fill, self.interpolation, state),
                float(self.distortion_scale),
            ],
            work_bytes=_work_bytes(state, state.width),
        )


@dataclasses.dataclass(frozen=True)
class ElasticTransform(_Warp):
    """Move each pixel by a smooth random field.

    Parameters
    ----------
    alpha : float or (float, float)
        Strength of the moves in x and y.
    sigma : float or (float, float)
        Smoothness of the field in x and y.
    interpolation : {"nearest", "bilinear"}
    fill : float or sequence of float

    Examples
    --------
    >>> ElasticTransform(alpha=80.0).alpha
    (80.0, 80.0)
    """

    alpha: float | Sequence[float] = 50.0
    sigma: float | Sequence[float] = 5.0
    interpolation: Any = "bilinear"
    fill: Fill = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in ("alpha", "sigma"):
            value = getattr(self, what)
            one = isinstance(value, numbers.Real) and not isinstance(value, bool)
            values = _numbers(self.name, what, (value,) if one else value)
            if len(values) > 2:
                raise UsageError(f"{self.name}: {what} must be a number, or one for x and one for y, got {value!r}")
            object.__setattr__(self, what, (values[0], values[-1]))
        assert isinstance(self.sigma, tuple)
        if min(self.sigma) < 0 or (min(self.sigma) == 0) != (max(self.sigma) == 0):
            raise UsageError(f"{self.name}: sigma must be positive, or 0 for no smoothing, got {self.sigma!r}")

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        assert state.height is not None and state.width is not None
        assert isinstance(self.alpha, tuple) and isinstance(self.sigma, tuple)
        reach = max(int(8 * sigma + 1) // 2 for sigma in self.sigma) if max(self.sigma) > 0 else 0
        if reach >= min(state.height, state.width):
            raise UsageError(
                f"{self.name}: sigma={max(self.sigma):g} smooths over {reach} pixels, which needs larger images than "
                f"{state.size_text}. Take a smaller sigma"
            )
        field = 12 * state.height * state.width + blur_work_bytes(state, reach, reach)
        return Operation(
            _kernel(self.name, "elastic", self.interpolation, state),
            {"field": stream()},
            constants=[
                *_fill_constants(self.name, self.fill, self.interpolation, state),
                *self.alpha,
                *self.sigma,
            ],
            work_bytes=field + _work_bytes(state, state.width),
        )
