"""The transforms that add edges or move channels: Pad and RandomChannelPermutation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dataloading.checks import as_integer
from dataloading.errors import UsageError
from dataloading.transforms.base import (
    PADDING_MODES,
    ImageState,
    PixelOp,
    Transform,
    check_choice,
    check_fill,
    check_numbers,
    per_channel,
)
from dataloading.transforms.operation import Operation

__all__ = ["Pad", "RandomChannelPermutation"]


@dataclasses.dataclass(frozen=True)
class Pad(PixelOp):
    """Put edges around the image.

    Parameters
    ----------
    padding : int, or 2 or 4 int
        Pixels on all sides; left and right, then top and bottom; or left, top, right, bottom.
    fill : float or sequence of float
        What is added with ``padding_mode="constant"``: one number, or one a channel.
    padding_mode : {"constant", "edge", "reflect", "symmetric"}
        "reflect" mirrors without, "symmetric" with the pixel at the edge.

    Examples
    --------
    >>> Pad(4)
    Pad(padding=(4, 4, 4, 4), fill=0, padding_mode='constant')
    """

    any_channels: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("uint8", "uint16", "float32", "int64")
    bounded: ClassVar[bool] = False

    padding: int | Sequence[int]
    fill: float | Sequence[float] | Mapping[Any, Any] | None = 0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.padding if isinstance(self.padding, Sequence) else [self.padding]
        sides = [each for each in map(as_integer, given) if each is not None and 0 <= each <= 65535]
        if len(sides) != len(given) or len(sides) not in (1, 2, 4) or isinstance(self.padding, (str, bytes)):
            raise UsageError(
                f"{self.name}: padding must be an integer, two (left and right, top and bottom) or four (left, top, "
                f"right, bottom), none negative, got {self.padding!r}"
            )
        object.__setattr__(self, "padding", tuple(sides * (4 // len(sides))))
        check_choice(self.name, "padding_mode", self.padding_mode, PADDING_MODES)
        fill = check_fill(self.name, self.fill)
        values = check_numbers(self.name, "fill", fill)
        object.__setattr__(self, "fill", tuple(values) if isinstance(fill, Sequence) else fill)
        if len(values) > 1 and self.padding_mode != "constant":
            raise UsageError(f"{self.name}: padding_mode={self.padding_mode!r} takes no fill, got {self.fill!r}")

    def for_mask(self) -> Transform:
        """See ``Transform.for_mask``."""
        return dataclasses.replace(self, fill=0)

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        assert state.height is not None and state.width is not None and isinstance(self.padding, tuple)
        left, top, right, bottom = self.padding
        for sides, side in (((left, right), state.width), ((top, bottom), state.height)):
            most = {"reflect": side - 1, "symmetric": side}.get(self.padding_mode, 65535)
            if max(sides) > most:
                raise UsageError(
                    f"{self.name}: padding_mode={self.padding_mode!r} can add {most} pixels at most to images of "
                    f"{state.size_text}, got {max(sides)}"
                )
        fill = per_channel(self.name, "fill", self.fill, state.channels)  # type: ignore[arg-type]  # checked above
        if state.bound is not None and not all(0 <= value <= state.bound for value in fill):
            raise UsageError(f"{self.name}: fill must be between 0 and {state.bound:g}, got {self.fill!r}")
        return Operation(
            "frame.pad",
            constants=[left, top, PADDING_MODES[self.padding_mode], *fill],
            after=state.replace(height=state.height + top + bottom, width=state.width + left + right),
        )


@dataclasses.dataclass(frozen=True)
class RandomChannelPermutation(PixelOp):
    """Put the channels into a random order.

    Examples
    --------
    >>> RandomChannelPermutation()
    RandomChannelPermutation()
    """

    mirrors: ClassVar[bool] = True
    any_channels: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("uint8", "uint16", "float32", "int64")
    bounded: ClassVar[bool] = False

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        return channel_permutation(state)


def channel_permutation(state: ImageState, p: float | None = None) -> Operation:
    """Return the operation that puts channels into a random order, with probability ``p``."""
    order = tuple(f"channel_{c}" for c in range(state.channels))
    return Operation("frame.permute_channels", order, draw="frame.channel_order", p=p)
