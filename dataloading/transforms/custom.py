"""What is no augmentation of ours: Custom, the user's own compiled function; AsList and PadBatch for any sizes."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from dataloading.checks import as_integer
from dataloading.errors import UsageError
from dataloading.transforms.base import FLOAT_DTYPES, ImageState, PixelOp, Transform, check_choice
from dataloading.transforms.operation import Operation

__all__ = ["AsList", "Collation", "Custom", "PadBatch"]


class Collation(Transform):
    """The last of a list: how images, each of its own size, are put together."""

    def for_mask(self) -> Transform:
        """See ``Transform.for_mask``."""
        return self


@dataclasses.dataclass(frozen=True)
class AsList(Collation):
    """Deliver images, each of its own size, as a list of tensors instead of one.

    It is the last of a field's transforms. The tensors are (channels, height, width), of label maps (height, width).
    Alone, it gives images as they are stored. They stay in host memory whatever the loader's device.

    Examples
    --------
    >>> AsList()
    AsList()
    """


@dataclasses.dataclass(frozen=True)
class PadBatch(Collation):
    """Deliver images, each of its own size, in one tensor: padded at the right and at the bottom.

    It is the last of a field's transforms. The sizes are in the batch, too, behind all fields: ``batch["image_sizes"]``
    of the field "image" is an int64 tensor (N, 2) of height and width.

    Parameters
    ----------
    size_divisor : int
        The tensor's height and width are the least multiples of it that hold all images of the batch.
    fill : float
        What is added, in the values of the finished image: behind ``Normalize`` 0 is the mean colour.
    mask_fill : int
        What is added to a mask that follows its image.

    Examples
    --------
    >>> PadBatch(32).size_divisor
    32
    """

    size_divisor: int = 1
    fill: float = 0
    _: dataclasses.KW_ONLY
    mask_fill: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        divisor = as_integer(self.size_divisor)
        if divisor is None or not 1 <= divisor <= 65535:
            raise UsageError(
                f"{self.name}: size_divisor must be an integer between 1 and 65535, got {self.size_divisor!r}"
            )
        for what in ("fill", "mask_fill"):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise UsageError(f"{self.name}: {what} must be a number, got {value!r}")

    def for_mask(self) -> Transform:
        """See ``Transform.for_mask``."""
        return dataclasses.replace(self, fill=self.mask_fill)


@dataclasses.dataclass(frozen=True)
class Custom(PixelOp):
    """Run your own function on each image, compiled by Numba.

    Parameters
    ----------
    fn : callable
        ``fn(image, key)`` changes ``image`` in place, or ``fn(image, key, out)`` writes ``out``. ``image`` is a
        contiguous array of shape (channels, height, width): uint8, or float32 behind ``Normalize``. ``key`` is the
        random stream of this sample at this place of the list, uint64: ``T.uniform(key, 0)``, ``T.uniform(key, 1)``
        ... are its numbers, and nothing else random may be used. A plain Python function is compiled for you;
        one that carries ``numba.njit`` (with ``nogil=True``, or threads wait for each other) is used as it is.
    name : str, optional
        For messages; the function's own name by default.
    in_place : bool
        True: ``fn(image, key)``. False: ``fn(image, key, out)``, the last write of a sample, in place of Normalize.
    out_dtype : {"uint8", "float32"}
        Of ``out``, for ``in_place=False``.
    out_shape : (int, int, int), optional
        Channels, height and width of ``out``, for ``in_place=False``; by default those of ``image``.

    Examples
    --------
    >>> def darken(image, key):
    ...     image[:] = image // 2
    >>> Custom(darken).name
    'Custom(darken)'
    """

    any_channels: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("uint8", "uint16", *FLOAT_DTYPES)
    bounded: ClassVar[bool] = False

    fn: Callable[..., Any]
    _: dataclasses.KW_ONLY
    name: str = ""
    in_place: bool = True
    out_dtype: str = "uint8"
    out_shape: Sequence[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.fn):
            raise UsageError(f"Custom: fn must be a function, got {type(self.fn).__name__}")
        plain = getattr(self.fn, "py_func", self.fn)
        object.__setattr__(self, "name", self.name or f"Custom({getattr(plain, '__name__', 'function')})")
        check_choice(self.name, "out_dtype", self.out_dtype, ("uint8", "float32"))
        wanted = ("image", "key") if self.in_place else ("image", "key", "out")
        try:
            inspect.signature(plain).bind(*wanted)
        except (TypeError, ValueError):
            raise UsageError(
                f"{self.name}: the function must take ({', '.join(wanted)}) with in_place={self.in_place}, "
                f"but its signature is {inspect.signature(plain)}"
            ) from None
        if self.in_place and (self.out_shape is not None or self.out_dtype != "uint8"):
            raise UsageError(
                f"{self.name}: out_shape and out_dtype need in_place=False and a function with three arguments"
            )
        if self.out_shape is not None:
            given = self.out_shape if isinstance(self.out_shape, Sequence) else ()
            shape = tuple(each for each in map(as_integer, given) if each is not None and each >= 1)
            if len(shape) != 3 or len(given) != 3:
                raise UsageError(f"{self.name}: out_shape must be (channels, height, width), got {self.out_shape!r}")
            object.__setattr__(self, "out_shape", shape)

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        if state.dtype in ("float16", "bfloat16"):
            raise UsageError(
                f"{self.name} cannot compute on {state.dtype} images: Numba has no such arithmetic. "
                f'Put it before Normalize, or use Normalize(..., dtype="float32")'
            )
        if self.in_place:
            return Operation(self.fn, kind="custom")
        if state.written:
            raise UsageError(f"{self.name}: an earlier transform has written the output already. Use in_place=True")
        channels, height, width = self.out_shape or (state.channels, state.height, state.width)
        bound = 255.0 if self.out_dtype == "uint8" else None
        after = state.replace(
            channels=channels, height=height, width=width, dtype=self.out_dtype, written=True, bound=bound
        )
        return Operation(self.fn, kind="custom_writes", after=after)
