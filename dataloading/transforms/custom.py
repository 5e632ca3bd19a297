"""What is no augmentation of ours: Custom, the user's own compiled function; AsList and PadBatch for any sizes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, overload

import numpy as np

from dataloading.checks import as_integer, true_or_false
from dataloading.errors import UsageError
from dataloading.messages import describe
from dataloading.transforms.base import FLOAT_DTYPES, ImageState, PixelOp, Placeholder, Transform, check_choice
from dataloading.transforms.operation import Operation
from dataloading.transforms.state import random_image

__all__ = ["AsList", "Collation", "Custom", "PadBatch", "StatedMoves"]


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


class StatedMoves(PixelOp):
    """Runs a user's function, of which nobody but the user knows whether pixels stay in their places."""

    moves_pixels: bool | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.moves_pixels is not None:
            stated = true_or_false(f"{type(self).__name__}: moves_pixels", self.moves_pixels)
            object.__setattr__(self, "moves_pixels", stated)

    def for_mask(self) -> Transform:
        """See ``Transform.for_mask``: a mask stays as it is where the user says that pixels do."""
        if self.moves_pixels is False:
            return Placeholder()
        fix = "" if self.moves_pixels else ". If every pixel stays in its place, say so: moves_pixels=False"
        raise UsageError(
            f"{self.name} may move pixels, so a mask cannot follow it. Give the mask a list of its own: equal "
            f"transforms at equal places draw equal numbers{fix}"
        )

    @property
    def way_out(self) -> str:
        """What to do where a field cannot follow; the message goes on with another way."""
        stated = "If every pixel stays in its place, say so: moves_pixels=False. Otherwise leave it out,"
        return "Leave it out," if self.moves_pixels else stated

    def checked(self, before: ImageState, after: ImageState) -> ImageState:
        """Refuse a change of size where pixels are said to stay."""
        if self.moves_pixels is False and (before.height, before.width) != (after.height, after.width):
            raise UsageError(
                f"{self.name} changes the size of images from {before.size_text} to {after.size_text}, so pixels move. "
                f"Leave moves_pixels=False out"
            )
        return after


@dataclasses.dataclass(frozen=True)
class Custom(StatedMoves):
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
    rng : bool
        True: ``fn(image, rng)``, which changes ``image`` in place or returns another; see `transform`.
    moves_pixels : bool, optional
        False: every pixel stays in its place, so that masks, boxes and points of the image stay right. Without this
        statement a list with masks, boxes or points that follow the image is refused.

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
    rng: bool = False
    moves_pixels: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.fn):
            raise UsageError(f"Custom: fn must be a function, got {type(self.fn).__name__}")
        plain = getattr(self.fn, "py_func", self.fn)
        function = getattr(plain, "__name__", "function")
        object.__setattr__(self, "name", self.name or (function if self.rng else f"Custom({function})"))
        check_choice(self.name, "out_dtype", self.out_dtype, ("uint8", "float32"))
        wanted = ("image", "rng") if self.rng else ("image", "key") if self.in_place else ("image", "key", "out")
        try:
            inspect.signature(plain).bind(*wanted)
        except (TypeError, ValueError):
            raise UsageError(
                f"{self.name}: the function must take ({', '.join(wanted)}) with "
                f"{'rng=True' if self.rng else f'in_place={self.in_place}'}, "
                f"but its signature is {inspect.signature(plain)}"
            ) from None
        if self.rng and not self.in_place:
            raise UsageError(f"{self.name}: in_place=False is for functions (image, key, out); leave it out with rng")
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
        if self.rng:
            return self._of_rng(state)
        if self.in_place:
            return Operation(self.fn, kind="custom")
        if state.written:
            raise UsageError(f"{self.name}: an earlier transform has written the output already. Use in_place=True")
        channels, height, width = self.out_shape or (state.channels, state.height, state.width)
        bound = 255.0 if self.out_dtype == "uint8" else None
        after = state.replace(
            channels=channels, height=height, width=width, dtype=self.out_dtype, written=True, bound=bound
        )
        return Operation(self.fn, kind="custom_writes", after=self.checked(state, after))

    def _of_rng(self, state: ImageState) -> Operation:
        """Try the function on a random image, and see whether it returns one."""
        from dataloading.transforms.kernels import jit, own

        trial = state if state.height is not None else state.replace(height=37, width=41)
        try:
            result = own.tried(self.fn)(random_image(trial), np.uint64(0))
        except jit.NumbaError as error:
            raise UsageError(
                f"{self.name} does not compile. Numba says: {error}\n"
                f"Use plain loops, NumPy operations and rng.uniform, rng.integers or rng.normal in it"
            ) from None
        except Exception as error:
            raise UsageError(
                f"{self.name} raised {type(error).__name__} on a random {state.dtype} image of shape "
                f"({trial.channels}, {trial.height}, {trial.width}): {error}"
            ) from error
        if result is None:
            return Operation(own.adapted(self.fn, writes=False), kind="custom")
        kinds = ("uint8", "uint16", "float32")
        if (
            not isinstance(result, np.ndarray)
            or result.ndim != 3
            or 0 in result.shape
            or str(result.dtype) not in kinds
        ):
            raise UsageError(
                f"{self.name} returned {describe(result)}, expected nothing, for a change in place, or an array "
                f"(channels, height, width) of {', '.join(kinds)}. Use .astype(image.dtype), or np.float32"
            )
        if trial is not state:
            raise UsageError(f"{self.name} returns images, which must have one size, got {state.size_text}")
        after = self.checked(state, state.like(result.shape, str(result.dtype)))
        return Operation(own.adapted(self.fn, writes=True), kind="custom_writes", after=after)


@overload
def transform(fn: Callable[..., Any], *, moves_pixels: bool | None = None) -> Custom: ...


@overload
def transform(fn: None = None, *, moves_pixels: bool | None = None) -> Callable[[Callable[..., Any]], Custom]: ...


def transform(fn: Callable[..., Any] | None = None, *, moves_pixels: bool | None = None) -> Any:
    """Make a transform of a function ``(image, rng)``, which Numba compiles.

    Parameters
    ----------
    fn : callable
        Changes ``image`` in place, or returns another image, of one shape for all samples. ``image`` is a contiguous
        array (channels, height, width) of uint8, uint16, or float32 behind ``Normalize``. ``rng`` gives the sample's
        own random numbers, one after the other, and nothing else random may be used:
        ``rng.uniform(low=0.0, high=1.0)``, ``rng.integers(low, high)`` (without ``high``: from 0 to ``low``; ``high``
        excluded) and ``rng.normal(mean=0.0, std=1.0)``. Parameters come from outside: write a function that
        takes them and returns the transform.
    moves_pixels : bool, optional
        False: every pixel stays in its place; needed where masks, boxes or points follow the image.

    Returns
    -------
    Custom
        For the lists of image fields; test it with ``dataloading.testing.check_transform``. Without ``fn``, as in
        ``@T.transform(moves_pixels=False)``, what makes it of a function.

    Examples
    --------
    >>> import numpy as np
    >>> from dataloading import transforms as T
    >>> @T.transform
    ... def darken(image, rng):
    ...     image[:] = image // rng.integers(2, 4)
    >>> darken(np.full((1, 2, 2), 60, np.uint8), seed=0).max() in (20, 30)
    True
    """
    if fn is None:
        return functools.partial(transform, moves_pixels=moves_pixels)
    return Custom(fn, rng=True, moves_pixels=moves_pixels)
