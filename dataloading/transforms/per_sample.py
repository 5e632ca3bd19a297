"""Any Python callable, sample by sample: what torchvision, albumentations or you have written, with our random numbers.

The callable runs on the loader's worker threads. Around each call the global generators of Python, NumPy and torch are
seeded from the sample's key (``seeding.py``), so results depend on nothing else.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dataloading.checks import as_integer
from dataloading.errors import UsageError
from dataloading.messages import describe
from dataloading.transforms.base import STORAGE_DTYPES, FieldOp, ImageState, Transform, Values, check_choice
from dataloading.transforms.callback import Callback
from dataloading.transforms.custom import StatedMoves
from dataloading.transforms.names import name_of, works_on_arrays
from dataloading.transforms.operation import Operation
from dataloading.transforms.seeding import seeded
from dataloading.transforms.state import random_image

__all__ = ["PerSample"]

_INPUTS = ("tensor", "numpy", "pil")
_WARN_AFTER = 16  # calls
_HALVES = ("float16", "bfloat16")


class _WrongResultError(Exception):
    """What a callable returned cannot be used; the message begins with "returned"."""


class _Meter:
    """Times calls, and says once what they cost."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = -1  # the first call may import and compile

    def note(self, seconds: float, name: str) -> None:
        self.calls += 1
        if self.calls < 1 or self.calls > _WARN_AFTER:
            return
        self.seconds += seconds
        if self.calls == _WARN_AFTER:
            rate = self.calls / max(self.seconds, 1e-9)
            warnings.warn(
                f"{name} runs in Python, one sample at a time for all workers of a process together: at most about "
                f"{rate:,.0f} samples/s here, measured over the first {_WARN_AFTER}. Transforms of "
                f"dataloading.transforms and functions under @T.transform are compiled and run on all workers at once",
                stacklevel=2,
            )


@dataclasses.dataclass(frozen=True)
class PerSample(StatedMoves, FieldOp):
    """Run any Python callable on each sample, with random numbers that depend on the sample alone.

    Before each call the global generators of Python (``random``), NumPy (``np.random``) and torch are seeded from
    (seed, epoch, sample, place in the list), and afterwards they are as they were. So the results are the same for any
    number of workers and any batch size. Only one call runs at a time in a process, on whichever worker; a warning says
    how many samples a second that allows.

    Parameters
    ----------
    fn : callable
        A transform of torchvision (v2 or v1), albumentations or another library, a module, a function.
    input : {"tensor", "numpy", "pil"}, optional
        What it gets for an image: a tensor (C, H, W), an array (H, W, C) or a PIL image. By default an array for
        albumentations, whose transforms are called as ``fn(image=array)["image"]``, else a tensor. Other fields come as
        a tensor or an array; numbers, text and bytes as Python has them.
    out_shape : sequence of int, optional
        Shape of the result, (C, H, W) of images. By default it is found by a trial on a random image.
    out_dtype : str, optional
        Of the result, with ``out_shape``; by default that of what comes in.
    moves_pixels : bool, optional
        False: every pixel stays in its place, so that masks, boxes and points of the image stay right. Without this
        statement a list with masks, boxes or points that follow the image is refused.

    Notes
    -----
    A result may be a tensor (C, H, W), an array in the layout of the input, a PIL image, or two-dimensional for one
    channel; it must have one shape and dtype for all samples. A generator that the callable holds itself is not
    reached, unless it has ``set_random_seed``, as albumentations has. A training loop that draws from the global
    generators of Python or NumPy at the same time takes numbers from them that the callable would get.

    Examples
    --------
    >>> import numpy as np
    >>> from dataloading import transforms as T
    >>> flip = T.PerSample(lambda image: image.flip(-1))
    >>> flip(np.arange(4, dtype=np.uint8).reshape(1, 2, 2)).tolist()
    [[[1, 0], [3, 2]]]
    """

    any_channels: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = tuple(STORAGE_DTYPES)
    bounded: ClassVar[bool] = False

    fn: Callable[..., Any]
    _: dataclasses.KW_ONLY
    input: str | None = None
    out_shape: Sequence[int] | None = None
    out_dtype: str | None = None
    moves_pixels: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.fn, type):
            name = self.fn.__name__
            raise UsageError(f"PerSample: fn is the class {name}, not an instance. Write PerSample({name}(...))")
        if isinstance(self.fn, Transform):
            raise UsageError(f"PerSample: {self.fn.name} is one of our transforms. Put it into the list itself")
        if not callable(self.fn):
            raise UsageError(f"PerSample: fn must be callable, got {describe(self.fn)}")
        if self.input is not None:
            check_choice(self.name, "input", self.input, _INPUTS)
        if self.out_shape is not None:
            given = self.out_shape if isinstance(self.out_shape, Sequence) else [None]
            shape = tuple(each for each in map(as_integer, given) if each is not None and each >= 1)
            if len(shape) != len(given):
                raise UsageError(f"{self.name}: out_shape must be a tuple of positive integers, got {self.out_shape!r}")
            object.__setattr__(self, "out_shape", shape)
        if self.out_dtype is not None:
            if self.out_shape is None:
                raise UsageError(f"{self.name}: out_dtype goes with out_shape; without both a trial finds them")
            check_choice(self.name, "out_dtype", self.out_dtype, [*STORAGE_DTYPES, "float64"])
        object.__setattr__(self, "_meter", _Meter())

    @property
    def name(self) -> str:
        """What error messages call it."""
        return f"PerSample({name_of(self.fn)})"

    # -- images ---------------------------------------------------------------------------------------------------

    def operation(self, state: ImageState) -> Operation:
        """See ``ImageTransform.operation``."""
        after = self.checked(state, self._stated(state) if self.out_shape is not None else self._found(state))
        shape = (after.channels, after.height, after.width)

        def write(image_CHW: npt.NDArray[Any], key: int, out_CHW: npt.NDArray[Any]) -> None:
            result, dtype = self._call_on_image(image_CHW, state.dtype, key)
            if result.shape != shape or dtype != after.dtype:
                raise ValueError(
                    f"it returned an image of shape {result.shape} and {dtype}, expected {shape} and "
                    f"{after.dtype}, as {'stated by out_shape' if self.out_shape else 'on a trial image'}"
                )
            out_CHW[:] = result

        return Operation(
            Callback(write, np.dtype(STORAGE_DTYPES[state.dtype]), np.dtype(STORAGE_DTYPES[after.dtype])),
            kind="custom_writes",
            after=after,
        )

    def _stated(self, state: ImageState) -> ImageState:
        assert self.out_shape is not None
        dtype = self.out_dtype or state.dtype
        if len(self.out_shape) != 3:
            raise UsageError(
                f"{self.name}: out_shape of images must be (channels, height, width), got {self.out_shape}"
            )
        if dtype == "float64":
            raise UsageError(f"{self.name}: images of float64 are delivered as float32. State out_dtype='float32'")
        return state.like(self.out_shape, dtype)

    def _found(self, state: ImageState) -> ImageState:
        if state.height is None or state.width is None:
            raise UsageError(
                f"{self.name} needs images of one size, got {state.size_text}. Put RandomResizedCrop(size), or "
                f"Resize(size) and CenterCrop(size), before it"
            )
        try:
            result, dtype = self._call_on_image(random_image(state), state.dtype, 0)
        except _WrongResultError as error:
            raise UsageError(f"{self.name}, given {self._given_as(state)}, {error}") from None
        except Exception as error:
            others = " or ".join(repr(each) for each in _INPUTS if each != self._input)
            raise UsageError(
                f"{self.name}, given {self._given_as(state)} on trial, raised {type(error).__name__}: {error}. If it "
                f"needs another kind of image, pass input={others}; if it works on your images only, state "
                f"out_shape=(channels, height, width)"
            ) from error
        return state.like(result.shape, dtype)

    def _given_as(self, state: ImageState) -> str:
        c, h, w = state.channels, state.height, state.width
        return {
            "tensor": f"a {state.dtype} tensor ({c}, {h}, {w})",
            "numpy": f"a {state.dtype} array ({h}, {w}, {c})",
            "pil": f"a PIL image of {w}x{h}",
        }[self._input]

    @property
    def _input(self) -> str:
        return self.input or ("numpy" if works_on_arrays(self.fn) else "tensor")

    def _call_on_image(self, image_CHW: npt.NDArray[Any], dtype: str, key: int) -> tuple[npt.NDArray[Any], str]:
        kind = self._input
        result = self._call(_GIVE[kind](image_CHW, dtype), key)
        return _as_planes(result, "tensor" if kind == "tensor" else "numpy", dtype)

    # -- other values -----------------------------------------------------------------------------------------------

    def values_after(self, values: Values) -> Values:
        """See ``FieldOp.values_after``."""
        if self.input == "pil":
            raise UsageError(f"{self.name}: input='pil' is for images, got {values.text}")
        if self.out_shape is not None:
            return Values(tuple(self.out_shape), self.out_dtype or values.dtype or "float32")
        if values.shape is None:
            return values
        try:
            result = _as_array(self._call(self._value(np.zeros(values.shape, values.dtype)), 0))
        except _WrongResultError as error:
            raise UsageError(f"{self.name} {error}") from None
        except Exception as error:
            raise UsageError(
                f"{self.name} raised {type(error).__name__} on zeros, given {values.text}: {error}. If it works on "
                f"your values only, state out_shape= and out_dtype="
            ) from error
        return Values(result.shape, str(result.dtype))

    def on_values(self, values: Any, indices: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64]) -> Any:
        """See ``FieldOp.on_values``."""
        is_list = isinstance(values, list)
        results = [self._call(self._value(value), key) for value, key in zip(values, keys.tolist(), strict=True)]
        if is_list and self.out_shape is None:
            return results
        arrays = [_as_array(result) for result in results]
        for array in arrays[1:]:
            if array.shape != arrays[0].shape:
                raise ValueError(f"it returned values of different shapes, {arrays[0].shape} and {array.shape}")
        return np.stack(arrays)

    def _value(self, value: Any) -> Any:
        if not isinstance(value, (np.ndarray, np.generic)):
            return value
        if value.ndim == 0:
            return value.item()
        if self._input == "numpy":
            return value.copy()
        import torch

        return torch.from_numpy(value.copy())

    def _call(self, value: Any, key: int) -> Any:
        with seeded(key, self.fn) as since:
            result = self.fn(image=value) if works_on_arrays(self.fn) else self.fn(value)
            meter: _Meter = self._meter  # type: ignore[attr-defined]
            meter.note(time.perf_counter() - since, self.name)
        return result["image"] if isinstance(result, Mapping) and "image" in result else result


# -- images as callables want them, and back ------------------------------------------------------------------------


def _tensor(image_CHW: npt.NDArray[Any], dtype: str) -> Any:
    import torch

    copy = image_CHW.copy()
    if dtype in _HALVES:
        return torch.from_numpy(copy.view(np.int16)).view(getattr(torch, dtype))
    return torch.from_numpy(copy)


def _array(image_CHW: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    if dtype == "bfloat16":
        raise ValueError("NumPy has no bfloat16: pass input='tensor', or use Normalize(..., dtype='float32')")
    image_HWC: npt.NDArray[Any] = image_CHW.transpose(1, 2, 0).copy()
    return image_HWC.view(np.float16) if dtype == "float16" else image_HWC


def _pil(image_CHW: npt.NDArray[Any], dtype: str) -> Any:
    from PIL import Image

    channels = len(image_CHW)
    if dtype == "uint8" and channels in (1, 3, 4):
        return Image.fromarray(image_CHW[0].copy() if channels == 1 else _array(image_CHW, dtype))
    if dtype in ("uint16", "int64") and channels == 1:
        return Image.fromarray(image_CHW[0].astype(np.uint16 if dtype == "uint16" else np.int32))
    raise ValueError(f"PIL has no images of {channels} channels and {dtype}: pass input='tensor' or 'numpy'")


def _as_array(result: Any) -> npt.NDArray[Any]:
    array = result.detach().cpu().numpy() if hasattr(result, "detach") else np.asarray(result)
    if array.dtype.kind not in "biuf":
        raise _WrongResultError(f"returned {describe(result)}, expected numbers: a tensor, an array or a number")
    return array


_GIVE: dict[str, Callable[[npt.NDArray[Any], str], Any]] = {"tensor": _tensor, "numpy": _array, "pil": _pil}


def _as_planes(result: Any, layout: str, given: str) -> tuple[npt.NDArray[Any], str]:
    """Return a result as it is stored, (channels, height, width), and its dtype."""
    if hasattr(result, "detach"):
        import torch

        tensor = result.detach().as_subclass(torch.Tensor).cpu()
        dtype = str(tensor.dtype).removeprefix("torch.")
        planes = tensor.contiguous().view(torch.int16).numpy().view(np.uint16) if dtype in _HALVES else tensor.numpy()
        layout = "tensor"
    elif isinstance(result, np.ndarray) or hasattr(result, "getbands"):  # PIL's images have bands
        planes = np.asarray(result)
        dtype = str(planes.dtype)
        planes = planes.view(np.uint16) if dtype == "float16" else planes
    else:
        missing = " (a function without return gives None)" if result is None else ""
        raise _WrongResultError(f"returned {describe(result)}, expected a tensor, an array or a PIL image{missing}")
    if planes.ndim == 2:
        planes = planes[None]
    elif planes.ndim == 3 and layout == "numpy":
        planes = planes.transpose(2, 0, 1)
    if planes.ndim != 3 or 0 in planes.shape:
        raise _WrongResultError(f"returned something of shape {planes.shape}, expected an image")
    if dtype == "float64":
        planes, dtype = planes.astype(np.float32), "float32"
    elif dtype in ("int32", "uint8", "uint16") and given == "int64":
        planes, dtype = planes.astype(np.int64), "int64"
    elif dtype not in STORAGE_DTYPES or (dtype == "int64" and given != "int64"):
        raise _WrongResultError(
            f"returned pixels of {dtype}, expected uint8, uint16, float32, float16 or bfloat16. Convert them in it"
        )
    return planes, dtype
