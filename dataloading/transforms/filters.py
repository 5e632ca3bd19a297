"""The transforms that mix pixels with their neighbours or with noise: blur, sharpness, noise, JPEG."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import statistics
from collections.abc import Sequence
from typing import ClassVar

from dataloading.checks import as_integer
from dataloading.errors import UsageError
from dataloading.transforms.base import IMAGE_DTYPES, ImageState, PixelOp, check_range, check_size
from dataloading.transforms.operation import Law, Operation, constant, integer, stream, uniform

__all__ = [
    "JPEG",
    "GaussianBlur",
    "GaussianNoise",
    "RandomAdjustSharpness",
    "blur_work_bytes",
    "normal_quantiles",
    "sharpness",
]


@functools.cache
def normal_quantiles(count: int, variance: float) -> tuple[float, ...]:
    """Return ``count`` equally likely numbers, normally distributed about 0 with exactly this variance."""
    normal = statistics.NormalDist()
    quantiles = [normal.inv_cdf((i + 0.5) / count) for i in range(count)]
    scale = math.sqrt(variance * count / math.fsum(q * q for q in quantiles))
    return tuple(scale * q for q in quantiles)


@dataclasses.dataclass(frozen=True)
class GaussianBlur(PixelOp):
    """Blur by a Gaussian of random width; edges are mirrored.

    Parameters
    ----------
    kernel_size : int or (int, int)
        Width and height in pixels, odd; one number for both.
    sigma : float or (float, float)
        The standard deviation in pixels, or the range that it is drawn from uniformly.

    Examples
    --------
    >>> GaussianBlur(23)
    GaussianBlur(kernel_size=(23, 23), sigma=(0.1, 2.0))
    """

    mirrors: ClassVar[bool] = True
    any_channels: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES

    kernel_size: int | Sequence[int]
    sigma: float | Sequence[float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        size = check_size(self.name, self.kernel_size, what="kernel_size")
        if not all(side % 2 == 1 for side in size):
            raise UsageError(f"{self.name}: kernel_size must be odd, got {self.kernel_size!r}")
        object.__setattr__(self, "kernel_size", size)
        one = isinstance(self.sigma, numbers.Real) and not isinstance(self.sigma, bool)
        given = (self.sigma, self.sigma) if one else self.sigma
        given = (*given, *given) if isinstance(given, Sequence) and len(given) == 1 else given
        sigma = check_range(self.name, "sigma", given, 0.0, 1e4)  # type: ignore[arg-type]  # checked in there
        if not sigma[0] > 0:
            raise UsageError(f"{self.name}: sigma must be positive, got {self.sigma!r}")
        object.__setattr__(self, "sigma", sigma)

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        assert state.height is not None and state.width is not None
        assert isinstance(self.kernel_size, tuple) and isinstance(self.sigma, tuple)
        width, height = self.kernel_size
        if width // 2 >= state.width or height // 2 >= state.height:
            raise UsageError(
                f"{self.name}: a kernel of {width}x{height} reaches beyond the mirrored edges of images of "
                f"{state.size_text}. Take a kernel_size of less than twice the image"
            )
        params = {"sigma_x": uniform(*self.sigma, number=0), "sigma_y": uniform(*self.sigma, number=0)}
        if state.dtype == "uint8":
            return Operation("", params, kind="blur", constants=[width, height])
        return Operation(
            "filters.gaussian_blur",
            params,
            constants=[width, height],
            work_bytes=blur_work_bytes(state, width // 2, height // 2),
        )


def blur_work_bytes(state: ImageState, reach_x: int, reach_y: int) -> int:
    """Return the scratch memory of ``kernels.filters.gaussian_blur`` with a reach of so many pixels."""
    assert state.width is not None and state.height is not None
    pitch, strip = state.width + 7, 8
    rows = state.height + 2 * (reach_y + 1) + strip
    return 4 * (rows * pitch + strip * (3 * pitch + 4 * (reach_x + 8)) + reach_x + reach_y + 22)


@dataclasses.dataclass(frozen=True)
class GaussianNoise(PixelOp):
    """Add normal noise, a number of its own to each value.

    Parameters
    ----------
    mean, sigma : float
        Of the noise, as shares of white: 0.1 is 25.5 levels of 255.
    clip : bool
        Keep results within black and white; False lets integers overflow, as torchvision does.

    Examples
    --------
    >>> GaussianNoise(sigma=0.05)
    GaussianNoise(mean=0.0, sigma=0.05, clip=True)
    """

    any_channels: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES

    mean: float = 0.0
    sigma: float = 0.1
    clip: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in ("mean", "sigma"):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 100:
                raise UsageError(f"{self.name}: {what} must be a number, as a share of white, got {value!r}")
        if self.sigma < 0:
            raise UsageError(f"{self.name}: sigma must not be negative, got {self.sigma!r}")

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        assert state.width is not None and state.bound is not None
        levels = [state.bound * self.mean, state.bound * self.sigma, float(self.clip)]
        return Operation(
            "noise.gaussian_noise",
            {"noise": stream()},
            constants=[*levels, *normal_quantiles(256, 0.5)],
            work_bytes=4 * state.width + 16,
        )


def sharpness(law: Law, state: ImageState, *, p: float | None = None, name: str = "sharpness_factor") -> Operation:
    """Return the operation that changes sharpness by the factor that ``law`` draws."""
    assert state.width is not None
    kernel = "filters.adjust_sharpness" if state.dtype == "uint8" else "filters.adjust_sharpness_deep"
    return Operation(kernel, {name: law}, p=p, work_bytes=2 * state.width)


@dataclasses.dataclass(frozen=True)
class RandomAdjustSharpness(PixelOp):
    """Sharpen or smooth by a fixed factor with probability ``p``.

    Parameters
    ----------
    sharpness_factor : float
        0 smooths, 1 changes nothing, 2 doubles the sharpness.
    p : float

    Examples
    --------
    >>> RandomAdjustSharpness(2)
    RandomAdjustSharpness(sharpness_factor=2, p=0.5)
    """

    mirrors: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        factor = self.sharpness_factor
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 <= factor < math.inf:
            raise UsageError(f"{self.name}: sharpness_factor must be a number of at least 0, got {factor!r}")

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        return sharpness(constant(self.sharpness_factor), state, p=self.p)


@dataclasses.dataclass(frozen=True)
class JPEG(PixelOp):
    """Compress as a JPEG of random quality, and unpack again.

    Parameters
    ----------
    quality : int or (int, int)
        1 to 100, or the range that it is drawn from, both ends included.

    Examples
    --------
    >>> JPEG((5, 50))
    JPEG(quality=(5, 50))
    """

    needs_bytes: ClassVar[str] = "JPEG files hold 8 bits a value"

    quality: int | Sequence[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.quality if isinstance(self.quality, Sequence) else [self.quality, self.quality]
        quality = tuple(each for each in map(as_integer, given) if each is not None)
        if len(given) != 2 or len(quality) != 2 or not 1 <= quality[0] <= quality[1] <= 100:
            raise UsageError(
                f"{self.name}: quality must be an integer from 1 to 100, or a pair (low, high), got {self.quality!r}"
            )
        object.__setattr__(self, "quality", quality)

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        assert isinstance(self.quality, tuple)
        return Operation("", {"quality": integer(self.quality[0], self.quality[1] + 1)}, kind="jpeg")
