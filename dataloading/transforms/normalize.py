"""Normalize, and the conversions between floats and the bits they are stored as."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dataloading.errors import UsageError
from dataloading.transforms.base import (
    FLOAT_DTYPES,
    IMAGE_DTYPES,
    ImageState,
    PixelOp,
    check_dtype,
    check_inplace,
    per_channel,
)
from dataloading.transforms.operation import Operation

__all__ = ["Normalize", "ToDtype", "to_storage"]


def to_storage(values: npt.NDArray[np.float64], dtype: str) -> npt.NDArray[Any]:
    """Return float64 values in ``dtype``, rounded once to nearest even, as they are stored in a slot.

    float32 as such; float16 and bfloat16 as their bits, uint16.
    """
    values = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore"):
        if dtype == "float32":
            return values.astype(np.float32)
        if dtype == "float16":
            return np.asarray(values.astype(np.float16).view(np.uint16))
        nearest = values.astype(np.float32)
    # bfloat16 is the upper half of float32. Rounding twice (to float32, then to its half) could go wrong where the
    # first rounding lands on a tie of the second; rounding to odd first (von Neumann) makes the second exact.
    bits = nearest.view(np.uint32).copy()
    exact = nearest.astype(np.float64) == values
    too_far = np.abs(nearest.astype(np.float64)) > np.abs(values)
    finite = np.isfinite(nearest)
    bits = np.where(finite & ~exact, np.where(too_far, bits - 1, bits) | np.uint32(1), bits).astype(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.asarray(np.where(np.isnan(values), np.uint32(0x7FC0), rounded), dtype=np.uint16)


def _lines_in_float32(lines: npt.NDArray[np.float64], table: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return (zero, a, b, c, d) for each (scale, bias), so that float32 arithmetic gives the table bit for bit.

    It is ``(v * a + b) + (v * c + d)``, where ``v = x - zero`` and zero is the value with the result closest to 0. a
    and b are multiples of one power of two, so large that the first bracket is exact; c and d are the rest. Now and
    then one of the 256 results is rounded the wrong way, so neighbours are tried in turn. Empty if none do.
    """
    x = np.arange(256, dtype=np.float32)
    result = []
    for (scale, bias), wanted in zip(lines, table, strict=True):
        zero = float(np.argmin(np.abs(wanted)))
        v = x - np.float32(zero)
        least = scale * zero + bias
        finest = np.frexp(abs(scale) * 255 + abs(least))[1] - 24
        for step, at_a, at_b in itertools.product(range(finest, finest + 8), (0, 1, -1), (0, 1, -1)):
            unit = 2.0**step
            a, b = (np.rint(scale / unit) + at_a) * unit, (np.rint(least / unit) + at_b) * unit
            four = np.array([a, b, scale - a, least - b], dtype=np.float32)
            if np.array_equal((v * four[0] + four[1]) + (v * four[2] + four[3]), wanted):
                result.append([zero, *four])
                break
        else:
            return np.zeros(0)
    return np.array(result, dtype=np.float64)


def _check_first(owner: PixelOp, state: ImageState) -> None:
    """Refuse images that are in their slot already."""
    if state.written:
        raise UsageError(
            f"{owner.name}: an earlier transform has written the output as uint8 already. Give that one in_place=True"
        )


class _ToFloats(PixelOp):
    """What both transforms to floats have in common."""

    mirrors: ClassVar[bool] = True
    any_channels: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES

    dtype: Any

    def check_images(self, state: ImageState) -> None:
        """See ``ImageTransform.check_images``."""
        if state.dtype in FLOAT_DTYPES and state.bound is not None and self.dtype != "float32":
            raise UsageError(
                f"{self.name} of {state.dtype} images gives float32, got dtype={self.dtype!r}. Leave it out, or do it "
                f"all in one step: Normalize of integers gives {self.dtype}"
            )
        if state.dtype in FLOAT_DTYPES and state.bound is None:
            raise UsageError(f"{self.name} needs uint8 images, got {state.dtype}: they are floats already. Keep one")
        super().check_images(state)


@dataclasses.dataclass(frozen=True)
class Normalize(_ToFloats):
    r"""Turn pixels into floats with given mean and standard deviation.

    .. math:: y_c = (x_c / max\_value - mean_c) / std_c

    The result is the exact value of the formula, rounded to ``dtype``: to nearest even for float16 and bfloat16,
    within one unit in the last place for float32. It replaces the pair ``ToDtype(torch.float32, scale=True)``,
    ``Normalize(mean, std)`` of ``torchvision.transforms.v2``.

    Parameters
    ----------
    mean, std : float or sequence of float
        One number, or one a channel, in units of x / max_value: 0 to 1 with the default.
    dtype : {"float32", "float16", "bfloat16"}
        Of the tensors that come out; torch's own (``torch.float16``) will do.
    max_value : float
        What is 1.0, on a scale where white is 255 (of uint16 images 65535 is white, and of float32 1.0). Pass 1.0 to
        give mean and std in units of 0 to 255.
    inplace : bool
        Taken because torchvision's has it; changes nothing.

    Examples
    --------
    >>> Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), dtype="float16").dtype
    'float16'
    """

    mean: float | Sequence[float]
    std: float | Sequence[float]
    _: dataclasses.KW_ONLY
    dtype: Any = "float32"
    max_value: float = 255.0
    inplace: dataclasses.InitVar[bool] = False

    def __post_init__(self, inplace: bool) -> None:
        super().__post_init__()
        check_inplace(self.name, inplace)
        object.__setattr__(self, "dtype", check_dtype(self.name, self.dtype))
        for what in ("mean", "std"):
            value = getattr(self, what)
            try:
                values = [float(value)] if np.ndim(value) == 0 else [float(v) for v in value]
            except (TypeError, ValueError):
                raise UsageError(f"{self.name}: {what} must be numbers, got {value!r}") from None
            if not values or not all(math.isfinite(v) for v in values):
                raise UsageError(f"{self.name}: {what} must be finite numbers, got {value!r}")
            object.__setattr__(self, what, tuple(values))
        if min(self.std) <= 0:  # type: ignore[arg-type]
            raise UsageError(f"{self.name}: std must be positive, got {self.std}")
        if not (isinstance(self.max_value, (int, float)) and math.isfinite(self.max_value) and self.max_value > 0):
            raise UsageError(f"{self.name}: max_value must be positive, got {self.max_value}")
        if self.max_value == 255.0 and (max(self.mean) > 2.0 or max(self.std) > 2.0):  # type: ignore[arg-type]
            raise UsageError(
                f"{self.name}: mean={self.mean} and std={self.std} look like units of 0 to 255, but pixels are divided "
                f"by max_value=255 first. Divide both by 255, or pass max_value=1.0"
            )

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        assert state.bound is not None
        mean = np.array(per_channel(self.name, "mean", self.mean, state.channels))[:, None]
        std = np.array(per_channel(self.name, "std", self.std, state.channels))[:, None]
        one = self.max_value * (state.bound / 255.0)
        line = np.concatenate([1.0 / (one * std), -mean / std], axis=1)
        after = state.replace(dtype=self.dtype, written=True, bound=None)
        if state.dtype == "float32":
            return Operation("color.scale", kind="in_place", constants=line, after=after.replace(written=state.written))
        _check_first(self, state)
        x = np.arange(state.bound + 1)
        table = x * line[:, :1] + line[:, 1:] if self.dtype == "float32" else (x / one - mean) / std
        if self.dtype == "float32" and state.dtype == "uint8":
            line = _lines_in_float32(line, table.astype(np.float32))
        else:
            line = np.zeros(0)
        lookup = to_storage(table, self.dtype)
        return Operation("", kind="lookup", constants=line, lookup=lookup, after=after)


@dataclasses.dataclass(frozen=True)
class ToDtype(_ToFloats):
    """Turn pixels into floats: ``Normalize`` with mean 0 and std 1.

    Parameters
    ----------
    dtype : {"float32", "float16", "bfloat16"}
        Torch's own (``torch.float32``) will do.
    scale : bool
        True: 0 to 255, or of uint16 to 65535, becomes 0 to 1. False: the numbers stay.

    Examples
    --------
    >>> ToDtype("float32", scale=True)
    ToDtype(dtype='float32', scale=True)
    """

    dtype: Any = "float32"
    scale: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "dtype", check_dtype(self.name, self.dtype))

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        assert state.bound is not None
        one = 255.0 if self.scale else 255.0 / state.bound
        operation = Normalize(0.0, 1.0, dtype=self.dtype, max_value=one).operation(state)
        assert operation.after is not None
        bounded = self.dtype == "float32" and (self.scale or state.dtype == "float32")
        after = operation.after.replace(bound=1.0 if bounded else None)
        return dataclasses.replace(operation, after=after)
