"""What a transform is, and what it may tell the pipeline. Knows no particular transform, no Numba, no torch.

A transform is a frozen dataclass of plain values. It is one of four kinds, by what it tells the pipeline:

``Geometry``   says which pixels are wanted. At the front of a pipeline it costs nothing: it becomes columns of
               the decoder's request (a *row* of numbers that ``_native/src/plan.cpp`` interprets for each sample).
``PixelOp``    changes pixels: names a compiled kernel and what each image draws for it (an *operation*; how to write
               one is told in ``operation.py``).
``FieldOp``    works on the values of other fields, such as labels.
``BatchOp``    works on the tensors of a whole batch, after batching.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import inspect
import numbers
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dataloading.checks import as_integer, true_or_false
from dataloading.errors import UsageError
from dataloading.messages import did_you_mean
from dataloading.transforms.operation import Node, Operation
from dataloading.transforms.state import FLOAT_DTYPES, IMAGE_DTYPES, STORAGE_DTYPES, ImageState

__all__ = [
    "FLOAT_DTYPES",
    "IMAGE_DTYPES",
    "STORAGE_DTYPES",
    "BatchOp",
    "FieldOp",
    "Geometry",
    "ImageState",
    "ImageTransform",
    "PixelOp",
    "Placeholder",
    "Transform",
    "Values",
    "check_probability",
    "check_range",
    "check_size",
]

INTERPOLATIONS = {"nearest": 0, "bilinear": 1, "bicubic": 2}
PADDING_MODES = {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 3}

ROW_LENGTH = 64  # numbers in the row of a geometry: its parameters, see _native/src/plan.h


def check_options(owner: str, options: Iterable[str], signature: inspect.Signature) -> None:
    """Refuse options that a function with this signature lacks, and name the nearest."""
    known = signature.parameters
    unknown = next((each for each in options if each not in known), None)
    if unknown is not None and not any(each.kind is each.VAR_KEYWORD for each in known.values()):
        hint = did_you_mean(unknown, known) or f"It has {', '.join(known) or 'none'}"
        raise UsageError(f"{owner} has no option {unknown!r}. {hint}")


class _TransformKind(abc.ABCMeta):
    """Makes transforms: an option that their class lacks is answered with the nearest name."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        check_options(cls.__name__, options, cls.__signature__)
        return super().__call__(*args, **options)

    @property
    def __signature__(cls) -> inspect.Signature:
        """What `inspect.signature` and ``help`` show: the class's options, not those of ``__call__`` here."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class Transform(metaclass=_TransformKind):
    """Base of everything that can stand in a pipeline's list and belongs to this project."""

    def __post_init__(self) -> None:
        """Make numbers of NumPy and torch Python's own; check flags, and the probability ``p``."""
        if not dataclasses.is_dataclass(self):
            return
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
                value = value.item()
            if field.type == "bool":
                value = true_or_false(f"{type(self).__name__}: {field.name}", value)
            elif field.name == "p" and field.type == "float":
                value = check_probability(self.name, value)
            object.__setattr__(self, field.name, value)

    @property
    def name(self) -> str:
        """What error messages call it."""
        return type(self).__name__

    def for_mask(self) -> Transform:
        """Return what stands in this place of the list of a mask that follows its image.

        Raises
        ------
        UsageError
            Where a mask cannot follow.
        """
        return Placeholder()


class Placeholder(Transform):
    """Does nothing and holds a place in the list: what stands behind it draws the random numbers of its own place."""


class ImageTransform(Transform, abc.ABC):
    """Works on single images."""

    # True where it treats each channel alike; otherwise images must be gray or RGB.
    any_channels: ClassVar[bool] = False
    # What images it works on.
    dtypes: ClassVar[tuple[str, ...]] = ("uint8",)
    # True where values mean something by themselves: then floats must be between 0 and 1, as before Normalize.
    bounded: ClassVar[bool] = True
    # Why it works on uint8 only, if that is its nature.
    needs_bytes: ClassVar[str] = ""

    def operation(self, state: ImageState) -> Operation:
        """Return what to do with the pixels of images of this size, number of channels and dtype.

        Raises
        ------
        UsageError
            Where the transform cannot work on such images.
        """
        raise NotImplementedError

    def node(self, state: ImageState, place: int | None) -> Node:
        """Return the transform as a node of the tree; ``place`` selects its random stream."""
        self.check_images(state)
        operation = self.operation(state)
        after = operation.after or state
        return Node("leaf", self.name, state, after, operation=operation, p=operation.p, place=place)

    def __call__(self, image: Any, *, seed: int = 0) -> Any:
        """Apply the transform to an image, or to each of a batch, that lies in memory.

        Parameters
        ----------
        image : ndarray or tensor, shape (C, H, W) or (N, C, H, W)
            uint8, uint16, or float32 with values from 0 to 1. It is not changed.
        seed : int
            Equal seeds give equal results; image n of a batch draws what sample n does in a Loader's epoch 0, if the
            transform is the first of its list.

        Returns
        -------
        ndarray or tensor
            Of the kind that was given, in host memory.

        Raises
        ------
        UsageError
            Where the transform cannot work on such images.

        Examples
        --------
        >>> import numpy as np
        >>> from dataloading import transforms as T
        >>> T.RandomInvert(p=1.0)(np.zeros((3, 2, 2), np.uint8), seed=1).max()
        np.uint8(255)
        """
        from dataloading.transforms.alone import apply

        return apply([self], image, seed, self.name)

    def check_images(self, state: ImageState) -> None:
        """Raise UsageError where such images cannot be used."""
        if state.dtype not in self.dtypes or (self.bounded and state.bound is None and state.dtype != "int64"):
            fix = {
                "uint16": "Leave it out, or store the images as uint8",
                "int64": "Such a field takes geometry only",
            }.get(state.dtype, "Put it before Normalize and ToDtype" if self.needs_bytes else "Put it before Normalize")
            because = f": {self.needs_bytes}" if self.needs_bytes else ""
            raise UsageError(f"{self.name} needs {self.dtypes[0]} images, got {state.dtype}. {fix}{because}")
        if state.channels not in (1, 3) and not self.any_channels:
            raise UsageError(
                f"{self.name} works on gray or RGB images, got {state.channels} channels. Leave it out; "
                f"geometry, Normalize, ToDtype, RandomErasing, Cutout and Custom take any number"
            )


class Geometry(ImageTransform):
    """Says which pixels are wanted, and where they go."""

    any_channels: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = tuple(STORAGE_DTYPES)
    bounded: ClassVar[bool] = False

    @abc.abstractmethod
    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """Return the operation's code, its row of numbers, and what is known of the images after it.

        Raises
        ------
        UsageError
            Where the decoder's request cannot hold this operation after the ones before it.
        """

    def operation(self, state: ImageState) -> Operation:
        """Return the operation on pixels, where it cannot be part of the decoder's request."""
        raise UsageError(
            f"{self.name} after a transform that changes pixels cannot be part of decoding. "
            f"Move {self.name} to the front of the list, before every transform that changes pixels"
        )

    def for_mask(self) -> Transform:
        """See ``Transform.for_mask``: the same, but that padding shows no label of the image's colour."""
        return dataclasses.replace(self, fill=0) if hasattr(self, "fill") else self  # type: ignore[type-var]


class PixelOp(ImageTransform):
    """Changes pixels."""

    # True where mirroring before or after makes no difference, so that flips can move to the front.
    mirrors: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class Values:
    """What is known of a field's values, before any is seen.

    Parameters
    ----------
    shape : tuple of int, optional
        Of one value in an array; None: a list of whatever the field holds.
    dtype : str
        Of an array.
    """

    shape: tuple[int, ...] | None = None
    dtype: str = ""

    @property
    def text(self) -> str:
        """The values as words, for messages."""
        if self.shape is None:
            return "a list of Python's values"
        return f"{self.dtype} arrays of shape {self.shape}" if self.shape else f"one {self.dtype} a sample"


class FieldOp(Transform, abc.ABC):
    """Works on the values of a field that holds no images, sample by sample, on the worker threads."""

    @abc.abstractmethod
    def values_after(self, values: Values) -> Values:
        """Return what comes out for such values; raise UsageError where they cannot be used."""

    @abc.abstractmethod
    def on_values(self, values: Any, indices: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64]) -> Any:
        """Return the results for some samples; any error is that of a sample among them.

        Parameters
        ----------
        values : ndarray of shape (n, ...), or list of n
            Not to be changed.
        indices : ndarray of int64, shape (n,)
            Numbers of the samples.
        keys : ndarray of uint64, shape (n,)
            A random stream for each.
        """


class BatchOp(Transform, abc.ABC):
    """Works on the batched tensors: called as ``op(images, labels, key)``, returns both."""

    def check(self, state: ImageState) -> None:
        """Raise UsageError where such images cannot be used."""

    @abc.abstractmethod
    def __call__(self, images: Any, labels: Any, key: int) -> tuple[Any, Any]:
        """Return the mixed images and labels of one batch."""


def check_size(owner: str, value: int | Sequence[int], *, what: str = "size") -> tuple[int, int]:
    """Return ``value`` as (height, width), as torchvision reads it: one number means a square."""
    given = value if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes)) else [value]
    sizes = [as_integer(each) for each in given]
    if len(sizes) == 1:
        sizes = [sizes[0], sizes[0]]
    if len(sizes) != 2 or sizes[0] is None or sizes[1] is None:
        raise UsageError(f"{owner}: {what} must be an integer or (height, width), got {value!r}")
    if min(sizes[0], sizes[1]) < 1 or max(sizes[0], sizes[1]) > 65535:
        raise UsageError(f"{owner}: {what} must be between 1 and 65535, got {value!r}")
    return sizes[0], sizes[1]


def check_probability(owner: str, p: float) -> float:
    """Return ``p`` as a float, if it is a probability."""
    if isinstance(p, bool) or not isinstance(p, numbers.Real) or not 0.0 <= p <= 1.0:
        raise UsageError(f"{owner}: p must be a number between 0 and 1, got {p!r}")
    return float(p)


def check_range(owner: str, what: str, value: Sequence[float], low: float, high: float) -> tuple[float, float]:
    """Return ``value`` as (low, high), if it is an increasing pair within [low, high]."""
    try:
        first, second = (float(v) for v in value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{owner}: {what} must be a pair (low, high), got {value!r}") from None
    if not low <= first <= second <= high:
        raise UsageError(f"{owner}: {what} must satisfy {low} <= low <= high <= {high}, got {value!r}")
    return first, second


def check_choice(owner: str, what: str, value: str, choices: Sequence[str] | dict[str, int]) -> str:
    """Return ``value``, if it is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{owner}: {what} must be one of {', '.join(choices)}, got {value!r}")
    return value


# PIL's numbers of filters, which torchvision takes as well.
_PIL_FILTERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}


def check_interpolation(owner: str, value: Any) -> str:
    """Return the name of a filter; torchvision's InterpolationMode and PIL's numbers are names, too."""
    name: Any = value.value if isinstance(value, enum.Enum) else value
    name = _PIL_FILTERS.get(name, name) if isinstance(name, int) else name
    return check_choice(owner, "interpolation", name, INTERPOLATIONS)


def check_antialias(owner: str, value: Any) -> bool:
    """Return whether to low-pass; None is True, for that is what it means for images that come from files."""
    return True if value is None else true_or_false(f"{owner}: antialias", value)


def check_dtype(owner: str, value: Any) -> str:
    """Return the name of a dtype of floats; torch's and NumPy's are names, too."""
    if isinstance(value, dict):
        raise UsageError(
            f"{owner}: dtype is of images, the field's own kind: give one, such as 'float32', not {value!r}"
        )
    name = value.__name__ if isinstance(value, type) else str(value).removeprefix("torch.")
    return check_choice(owner, "dtype", name, FLOAT_DTYPES)


def check_inplace(owner: str, value: Any) -> None:
    """Take torchvision's ``inplace``, which changes nothing here: an image has one place, that of its batch."""
    true_or_false(f"{owner}: inplace", value)


def check_fill(owner: str, value: Any) -> Any:
    """Return the colour of images from torchvision's ways to write a fill: None is 0, a mapping has one for images."""
    if value is None:
        return 0
    if not isinstance(value, dict):
        return value
    by_name = {key if isinstance(key, str) else getattr(key, "__name__", str(key)): fill for key, fill in value.items()}
    unknown = sorted(by_name.keys() - {"Image", "Tensor", "others"})
    if unknown or not by_name:
        raise UsageError(
            f"{owner}: fill has an entry for {', '.join(unknown) or 'nothing'}: it is for images only. A mask that "
            f"follows its image is filled with 0; give it a list of its own for another value"
        )
    return check_fill(owner, next(by_name[key] for key in ("Image", "Tensor", "others") if key in by_name))


def check_numbers(owner: str, what: str, value: Any) -> list[float]:
    """Return one number, or several, as a list of floats."""
    try:
        return [float(value)] if np.ndim(value) == 0 else [float(v) for v in value]
    except (TypeError, ValueError):
        raise UsageError(f"{owner}: {what} must be one number, or one a channel, got {value!r}") from None


def per_channel(owner: str, what: str, value: float | Sequence[float], channels: int) -> list[float]:
    """Return ``value`` as one float for each channel."""
    values = check_numbers(owner, what, value)
    if len(values) not in (1, channels):
        expected = "1, as the images are gray here" if channels == 1 else f"1 or {channels} (one a channel)"
        raise UsageError(f"{owner}: {what} has {len(values)} values, expected {expected}")
    return values * channels if len(values) == 1 else values
