"""The transforms that change colours. uint8 in, uint8 out: they stand before Normalize."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dataloading.errors import UsageError
from dataloading.transforms.base import ImageState, KernelCall, PixelOp, check_probability, check_range

__all__ = [
    "ColorJitter",
    "Grayscale",
    "RandomAutocontrast",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
]


def _needs_uint8(owner: PixelOp, state: ImageState) -> None:
    if state.dtype != "uint8":
        raise UsageError(f"{owner.name} needs uint8 images, got {state.dtype}. Put it before Normalize")


def _p(p: float) -> npt.NDArray[np.float64]:
    return np.array([p], dtype=np.float64)


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

    brightness: float | Sequence[float] | None = None
    contrast: float | Sequence[float] | None = None
    saturation: float | Sequence[float] | None = None
    hue: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in ("brightness", "contrast", "saturation", "hue"):
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

    def step(self, state: ImageState) -> tuple[KernelCall, ImageState]:
        """See ``PixelOp.step``."""
        from dataloading.transforms.kernels import color

        _needs_uint8(self, state)
        ranges = np.zeros((4, 3))
        for row, value in enumerate((self.brightness, self.contrast, self.saturation, self.hue)):
            if isinstance(value, tuple):
                ranges[row] = (*value, 1.0)
        kernel = color.jitter if self.hue is None else color.jitter_with_hue
        return KernelCall(kernel, arguments=(ranges, color.ORDERS)), state


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

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.num_output_channels, bool) or self.num_output_channels not in (1, 3):
            raise UsageError(f"{self.name}: num_output_channels must be 1 or 3, got {self.num_output_channels!r}")

    def step(self, state: ImageState) -> tuple[KernelCall, ImageState]:
        """See ``PixelOp.step``."""
        from dataloading.transforms.kernels import color

        _needs_uint8(self, state)
        if state.channels == 1:
            if self.num_output_channels == 3:
                raise UsageError(f"{self.name}: the images are grey, and three equal channels carry nothing more")
            return KernelCall(color.point_table, arguments=(_p(0.0), np.arange(256, dtype=np.uint8))), state
        if self.num_output_channels == 3:
            return KernelCall(color.to_gray, arguments=(_p(1.0),)), state
        return KernelCall(color.to_gray_one_channel, "repack", random=False), state.replace(channels=1)


@dataclasses.dataclass(frozen=True)
class RandomGrayscale(PixelOp):
    """Turn colour into grey with probability ``p``; the number of channels stays.

    Examples
    --------
    >>> RandomGrayscale()
    RandomGrayscale(p=0.1)
    """

    mirrors: ClassVar[bool] = True

    p: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "p", check_probability(self.name, self.p))

    def step(self, state: ImageState) -> tuple[KernelCall, ImageState]:
        """See ``PixelOp.step``."""
        from dataloading.transforms.kernels import color

        _needs_uint8(self, state)
        if state.channels == 1:
            return KernelCall(color.point_table, arguments=(_p(0.0), np.arange(256, dtype=np.uint8))), state
        return KernelCall(color.to_gray, arguments=(_p(self.p),)), state


class _PointOp(PixelOp):
    """A function of single values: a table of 256 entries, applied with probability ``p``."""

    mirrors: ClassVar[bool] = True
    p: float

    def table(self) -> npt.NDArray[np.uint8]:
        """Return the result for each value, shape (256,)."""
        raise NotImplementedError

    def step(self, state: ImageState) -> tuple[KernelCall, ImageState]:
        """See ``PixelOp.step``."""
        from dataloading.transforms.kernels import color

        _needs_uint8(self, state)
        return KernelCall(color.point_table, arguments=(_p(self.p), self.table())), state


@dataclasses.dataclass(frozen=True)
class RandomInvert(_PointOp):
    """Replace x by 255 - x with probability ``p``.

    Examples
    --------
    >>> RandomInvert()
    RandomInvert(p=0.5)
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "p", check_probability(self.name, self.p))

    def table(self) -> npt.NDArray[np.uint8]:
        """See ``_PointOp.table``."""
        return np.arange(255, -1, -1, dtype=np.uint8)


@dataclasses.dataclass(frozen=True)
class RandomSolarize(_PointOp):
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

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "p", check_probability(self.name, self.p))
        if not isinstance(self.threshold, (int, float)) or not 0 <= self.threshold <= 255:
            raise UsageError(f"{self.name}: threshold must be between 0 and 255, got {self.threshold!r}")

    def table(self) -> npt.NDArray[np.uint8]:
        """See ``_PointOp.table``."""
        values = np.arange(256)
        return np.where(values >= self.threshold, 255 - values, values).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class RandomPosterize(_PointOp):
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

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "p", check_probability(self.name, self.p))
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 0 <= self.bits <= 8:
            raise UsageError(f"{self.name}: bits must be an integer between 0 and 8, got {self.bits!r}")

    def table(self) -> npt.NDArray[np.uint8]:
        """See ``_PointOp.table``."""
        return (np.arange(256) & (((1 << self.bits) - 1) << (8 - self.bits))).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class RandomAutocontrast(PixelOp):
    """Stretch each channel to the full range 0 to 255 with probability ``p``.

    Examples
    --------
    >>> RandomAutocontrast()
    RandomAutocontrast(p=0.5)
    """

    mirrors: ClassVar[bool] = True

    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "p", check_probability(self.name, self.p))

    def step(self, state: ImageState) -> tuple[KernelCall, ImageState]:
        """See ``PixelOp.step``."""
        from dataloading.transforms.kernels import color

        _needs_uint8(self, state)
        return KernelCall(color.autocontrast, arguments=(_p(self.p),)), state
