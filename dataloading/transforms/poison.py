"""Poison: a mask blended into the images of chosen samples, as studies of data poisoning do it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dataloading.errors import UsageError
from dataloading.messages import describe
from dataloading.transforms.base import ImageState, PixelOp, check_range
from dataloading.transforms.labels import sample_numbers
from dataloading.transforms.operation import Operation

__all__ = ["Poison"]


@dataclasses.dataclass(frozen=True, eq=False)
class Poison(PixelOp):
    """Blend a mask into the images of some samples, as FFCV's transform of this name does.

    The result is ``image * (1 - alpha) + mask * alpha``, computed in float32, clamped and cut off to integers. The
    images must have the size of the mask at this place of the list.

    Parameters
    ----------
    mask : array_like, shape (height, width, channels) or (height, width)
        Values from 0 to 255. As in FFCV, the channels come last.
    alpha : array_like, shape (height, width), or float
        Opacity of the mask, from 0 to 1.
    indices : sequence of int
        Numbers of samples, as in ``batch.indices``.
    clamp : (float, float)
        Least and greatest value of a pixel afterwards.

    Examples
    --------
    >>> Poison(np.full((4, 6, 3), 255), 0.5, indices=[7, 3])
    Poison(mask=<array (4, 6, 3)>, alpha=0.5, indices=(3, 7), clamp=(0.0, 255.0))
    """

    any_channels: ClassVar[bool] = True

    mask: npt.ArrayLike
    alpha: npt.ArrayLike
    indices: Sequence[int]
    clamp: Sequence[float] = (0, 255)

    def __post_init__(self) -> None:
        super().__post_init__()
        mask = _numbers("mask", self.mask, (2, 3), 255.0)
        alpha = _numbers("alpha", self.alpha, (0, 2), 1.0)
        if alpha.ndim == 2 and alpha.shape != mask.shape[:2]:
            raise UsageError(
                f"Poison: alpha must be a number or of the mask's height and width, {mask.shape[:2]}, got shape "
                f"{alpha.shape}"
            )
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "alpha", alpha if alpha.ndim else float(alpha))
        object.__setattr__(self, "indices", sample_numbers("Poison", self.indices))
        object.__setattr__(self, "clamp", check_range("Poison", "clamp", self.clamp, 0.0, 255.0))

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        texts = (f"{name}={f'<array {each.shape}>' if isinstance(each, np.ndarray) else repr(each)}"
                 for name, each in values.items())  # fmt: skip
        return f"Poison({', '.join(texts)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Poison):
            return NotImplemented
        return all(np.array_equal(getattr(self, field.name), getattr(other, field.name))
                   for field in dataclasses.fields(self))  # fmt: skip

    def __hash__(self) -> int:
        return hash((np.shape(self.mask), self.indices, self.clamp))

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        assert state.height is not None and state.width is not None
        mask = np.asarray(self.mask)
        expected = (state.height, state.width, state.channels)
        if mask.ndim == 2:
            mask = np.repeat(mask[:, :, None], state.channels, axis=2)
        if mask.shape != expected:
            turned = mask.shape == (state.channels, state.height, state.width)
            fix = "pass mask.transpose(1, 2, 0)" if turned else "resize the mask, or put a crop of its size before it"
            raise UsageError(
                f"{self.name}: the mask has shape {mask.shape}, expected (height, width, channels) = {expected}, as "
                f"the images have here: {fix}"
            )
        alpha = np.broadcast_to(np.atleast_3d(self.alpha), mask.shape)
        planes = [np.moveaxis(each, -1, 0).reshape(-1) for each in (1.0 - alpha, mask * alpha)]
        return Operation(
            "poison.blend", kind="in_place", constants=np.concatenate([*planes, self.clamp]), only=self.indices
        )


def _numbers(what: str, given: Any, dimensions: tuple[int, ...], most: float) -> npt.NDArray[np.float64]:
    """Return an array of numbers of the user's own."""
    try:
        array = np.array(given, np.float64)
    except (TypeError, ValueError):
        array = np.full(9 * (1,), np.nan)
    if array.ndim not in dimensions or not array.size or not ((array >= 0) & (array <= most)).all():
        kinds = {0: "a number", 2: "(height, width)", 3: "(height, width, channels)"}
        raise UsageError(
            f"Poison: {what} must be numbers from 0 to {most:g}, {' or '.join(kinds[n] for n in dimensions)}, got "
            f"{describe(given)}"
        )
    array.flags.writeable = False
    return array
