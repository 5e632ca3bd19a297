"""The transforms that overwrite a rectangle: RandomErasing and Cutout. Before or after Normalize."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dataloading.errors import UsageError
from dataloading.transforms.base import (
    FLOAT_DTYPES,
    ImageState,
    PixelOp,
    check_inplace,
    check_numbers,
    check_range,
    per_channel,
)
from dataloading.transforms.normalize import to_storage
from dataloading.transforms.operation import Operation, constant, integer

__all__ = ["Cutout", "RandomErasing"]


def _stored(owner: str, what: str, value: float | Sequence[float], state: ImageState) -> npt.NDArray[Any]:
    """Return ``value`` one a channel, as the dtype that the image has at this place stores it."""
    values = np.array(per_channel(owner, what, value, state.channels))
    if state.dtype not in ("uint8", "uint16"):
        return to_storage(values, state.dtype)
    if np.any((values < 0) | (values > state.bound) | (values != np.floor(values))):
        raise UsageError(
            f"{owner}: {what} must be integers between 0 and {state.bound:.0f} for {state.dtype} images, "
            f"got {value!r}. Behind Normalize any number will do"
        )
    return values


@functools.cache
def _normal_quantiles(dtype: str) -> npt.NDArray[Any]:
    """Return the standard normal quantiles at (i + 1/2) / 65536, as stored in ``dtype``, shape (65536,).

    Drawing one at random gives mean 0, standard deviation 1 - 4e-5 and no value beyond 4.3.
    """
    inverse = statistics.NormalDist().inv_cdf
    upper = np.array([inverse((i + 0.5) / 65536) for i in range(32768, 65536)])
    return to_storage(np.concatenate([-upper[::-1], upper]), dtype)


@dataclasses.dataclass(frozen=True)
class RandomErasing(PixelOp):
    """Erase a random rectangle with probability ``p`` (Zhong et al., https://arxiv.org/abs/1708.04896).

    Parameters
    ----------
    p : float
    scale : (float, float)
        Range of the erased area, as a fraction of the image's.
    ratio : (float, float)
        Range of its aspect ratio, height / width, drawn uniformly in log scale.
    value : float, sequence of float, or "random"
        What is written: one number, one a channel, or normal noise (behind Normalize only). In units of the image
        at this place: behind Normalize 0 is the mean colour.
    inplace : bool
        Taken because torchvision's has it; changes nothing.

    Examples
    --------
    >>> RandomErasing(p=0.25, value="random").value
    'random'
    """

    any_channels: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("uint8", "uint16", *FLOAT_DTYPES)
    bounded: ClassVar[bool] = False

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | str = 0.0
    inplace: dataclasses.InitVar[bool] = False

    def __post_init__(self, inplace: bool) -> None:
        super().__post_init__()
        check_inplace(self.name, inplace)
        object.__setattr__(self, "scale", check_range(self.name, "scale", self.scale, 0.0, 1.0))
        object.__setattr__(self, "ratio", check_range(self.name, "ratio", self.ratio, 1e-6, 1e6))
        if isinstance(self.value, str) and self.value != "random":
            raise UsageError(f'{self.name}: value must be a number, one a channel, or "random", got {self.value!r}')
        if not isinstance(self.value, str):
            check_numbers(self.name, "value", self.value)

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        low, high = (math.log(float(np.float32(v))) for v in self.ratio)
        low, high = float(np.float32(low)), float(np.float32(high))  # torchvision keeps them in float32
        box = np.array([*self.scale, low, high])
        names = ("top", "left", "height", "width")
        if not isinstance(self.value, str):
            constants = np.concatenate([box, _stored(self.name, "value", self.value, state)])
            return Operation(
                "erase.erase", names, kind="in_place", p=self.p, draw="erase.draw_erasing", constants=constants
            )
        if state.dtype in ("uint8", "uint16"):
            raise UsageError(
                f'{self.name}: value="random" is normal noise, which needs floats. Put it behind Normalize'
            )
        return Operation(
            "erase.erase_noise",
            (*names, "noise"),
            kind="in_place",
            p=self.p,
            draw="erase.draw_erasing_noise",
            constants=np.concatenate([box, _normal_quantiles(state.dtype).view(np.float64)]),
        )


@dataclasses.dataclass(frozen=True)
class Cutout(PixelOp):
    """Overwrite a square at a random place inside the image (DeVries and Taylor, https://arxiv.org/abs/1708.04552).

    Parameters
    ----------
    size : int
        Side of the square in pixels.
    fill : float or sequence of float
        What is written, in units of the image at this place.
    p : float
        Probability.

    Examples
    --------
    >>> Cutout(8)
    Cutout(size=8, fill=0, p=1.0)
    """

    any_channels: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("uint8", "uint16", *FLOAT_DTYPES)
    bounded: ClassVar[bool] = False

    size: int
    fill: float | Sequence[float] = 0
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise UsageError(f"{self.name}: size must be a positive integer, got {self.size!r}")
        check_numbers(self.name, "fill", self.fill)

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        assert state.height is not None and state.width is not None
        if self.size > min(state.height, state.width):
            raise UsageError(f"{self.name}: size {self.size} is larger than the image, {state.size_text}")
        params = {
            "top": integer(0, state.height - self.size + 1),
            "left": integer(0, state.width - self.size + 1),
            "height": constant(self.size),
            "width": constant(self.size),
        }
        fill = _stored(self.name, "fill", self.fill, state)
        return Operation("erase.erase", params, kind="in_place", p=self.p, constants=fill)
