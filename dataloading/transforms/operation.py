"""What a transform of pixels tells the runner: which compiled function to call, and what each sample draws for it.

One sample goes through two phases. *Draw*: the list of transforms, a tree, is interpreted for the sample's key; the
result is a *tape*, the operations to execute in order, and their *params*, float64 numbers. No pixel is touched.
*Apply*: the operations of the tape change pixels. Both are done by the runner (``_native/src/augment.cpp``), which
calls compiled kernels by their addresses; each kernel is compiled and stored by itself (``kernels/store.py``).

How to write one
----------------
1. A kernel, a plain ``@kernel`` function in ``kernels/<family>.py``::

       @kernel
       def rotate(source, target, params, constants, work): ...

   ``source`` and ``target`` are (channels, height, width), contiguous. ``params`` and ``constants`` are float64,
   ``work`` is uint8: scratch memory of ``work_bytes``. All of ``target`` must be written. The dtype is that of the
   images at this place: write loops that compile for all that the class names in ``dtypes``.

2. A class, a frozen dataclass derived from ``PixelOp``, whose ``operation`` says what to call::

       @dataclasses.dataclass(frozen=True)
       class RandomRotation(PixelOp):
           any_channels: ClassVar[bool] = True                        # not only gray and RGB
           dtypes: ClassVar[tuple[str, ...]] = ("uint8", "uint16", "float32", "int64")  # int64: label maps
           bounded: ClassVar[bool] = False                            # works behind Normalize, too
           degrees: ...

           def operation(self, state):
               return Operation("warp.rotate", {"angle": uniform(*self.degrees)}, constants=[...])

   The kernel is named, not imported: where it is stored already, Numba is not imported at all.

Params are drawn by *laws*, each of its own number of the transform's random stream: number 0 says whether the
transform happens at all if it has a ``p``; the others follow in order. ``state`` has the exact size and number of
channels of the images at this place, so a law may depend on them. What no law can say is drawn by a kernel::

       @kernel
       def draw_corners(key, height, width, constants, params): ...    # fills params from uniform(key, 0) ...

       Operation("warp.perspective", ("x0", "y0", ...), draw="warp.draw_corners", constants=[...])

Kinds of operations
-------------------
``"apply"``     ``kernel(source, target, params, constants, work)``; ``after=`` has the result's shape and dtype.
``"in_place"``  the same with ``target`` being ``source``: for what changes few pixels, or each by itself.
``"table"``     ``kernel(source, tables, params, constants)``, uint8 only: a function of single values.
                ``tables[c, v]`` is what the stored value ``v`` of channel ``c`` means by now; the kernel puts its own
                function on top: ``tables[c, v] = f(tables[c, v])``. ``source`` is for statistics, read through
                ``tables``. Any number of tables in a row cost one pass over the pixels, or none before Normalize.
``"statistics"``  the same, for a kernel that reads ``source`` without ``tables``: it is brought up to date first.
``"lookup"``    no kernel: ``lookup=`` is a table (channels, 256) of results, as ``Normalize`` to floats has it.
``"custom"``, ``"custom_writes"``  a user's function, ``kernel(image, key)`` or ``kernel(image, key, out)``.
``"jpeg"``      no kernel: through a JPEG of quality ``params[0]`` and back, in the native core.
``"blur"``      no kernel: uint8 blurred by a Gaussian, in the native core; params are sigma across and down, constants
                the kernel's width and height.
``"mix_begin"``, ``"mix_add"``, ``"mix_end"``  no kernels: a weighted sum of versions of one uint8 image. The first
                keeps the image and starts the sum with ``params[0]`` times it; its params are the weights. The second
                adds the image with weight number ``constants[0]`` and goes back to the one kept; the last takes the
                sum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.transforms.callback import Callback
from dataloading.transforms.state import ImageState

__all__ = [
    "Law",
    "Node",
    "Operation",
    "constant",
    "integer",
    "log_uniform",
    "normal",
    "pick",
    "sign",
    "stream",
    "uniform",
]

# Codes of _native/src/augment.h.
_CONSTANT, _UNIFORM, _INTEGER, _SIGN, _LOG_UNIFORM, _NORMAL, _STREAM, _PICK, _PICK_SIGNED = range(9)


@dataclasses.dataclass(frozen=True)
class Law:
    """How one param is drawn; made by the functions below.

    Parameters
    ----------
    code : int
        Which law.
    low, high : float
        Its two numbers.
    number : int or None
        Which number of the transform's stream it takes; None: the next one.
    values : tuple of float
        What ``pick`` picks from.
    """

    code: int
    low: float = 0.0
    high: float = 0.0
    number: int | None = None
    values: tuple[float, ...] = ()


def constant(value: float) -> Law:
    """Return the law of a param that is always ``value``; it takes no number."""
    return Law(_CONSTANT, float(value))


def uniform(low: float, high: float, *, number: int | None = None) -> Law:
    """Return the law of ``low + u * (high - low)``, u uniform in [0, 1)."""
    return Law(_UNIFORM, float(low), float(high), number)


def integer(low: int, high: int, *, number: int | None = None) -> Law:
    """Return the law of an integer in [low, high), as ``torch.randint`` has it."""
    return Law(_INTEGER, float(low), float(high), number)


def sign(value: float, *, number: int | None = None) -> Law:
    """Return the law of ``value`` or ``-value``, each half of the times."""
    return Law(_SIGN, float(value), 0.0, number)


def log_uniform(low: float, high: float, *, number: int | None = None) -> Law:
    """Return the law of ``exp(u)``, u uniform in [log(low), log(high))."""
    return Law(_LOG_UNIFORM, math.log(low), math.log(high), number)


def normal(mean: float, std: float, *, number: int | None = None) -> Law:
    """Return the law of a normal number (Box and Muller, of the stream that ``number`` opens)."""
    return Law(_NORMAL, float(mean), float(std), number)


def stream(*, number: int | None = None) -> Law:
    """Return the law of a random stream for the kernel itself, as noise needs it.

    The param holds the stream's key as bits: ``key = numbers_at(params[k:], 1, np.uint64)[0]``.
    """
    return Law(_STREAM, number=number)


def pick(values: Sequence[float], *, signed: bool = False, number: int | None = None) -> Law:
    """Return the law of one of ``values``, equally likely; ``signed``: or its negative.

    Picking takes ``number``, the sign the number after it.
    """
    return Law(_PICK_SIGNED if signed else _PICK, number=number, values=tuple(float(v) for v in values))


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation on pixels, for images of one shape and dtype.

    Parameters
    ----------
    kernel : str or callable
        ``"family.function"`` of ``dataloading.transforms.kernels``, or ``"native.function"`` of the native core, for
        uint8; or a user's function, for custom kinds; "" for kinds without one.
    params : mapping of str to Law, or sequence of str
        Names of what is drawn, and how. Names alone go with ``draw``.
    kind : {"apply", "in_place", "table", "statistics", "lookup", "custom", "custom_writes", "jpeg", "blur", ...}
        How the kernel is called, see above.
    p : float, optional
        Probability that it happens at all: number 0 of its stream. None: always, and number 0 is the first param's.
    draw : str
        ``"family.function"`` of a kernel that draws the params.
    constants : array_like
        What does not change from sample to sample; float64.
    lookup : ndarray, optional
        For the kind "lookup": results, shape (channels, 256), or of uint16 images (channels, 65536), in the dtype that
        is stored. Of uint8, with ``constants`` it is
        ``(v * a + b) + (v * c + d)`` in float32, ``v = x - zero``, (zero, a, b, c, d) of each channel: faster than
        looking up. The first bracket must be exact.
    work_bytes : int
        Scratch memory that the kernel needs.
    after : ImageState, optional
        What is known of the images afterwards; None: the same as before.
    only : sequence of int, optional
        Numbers of the samples that it happens to; None: to all. The image must be of one kind either way.
    """

    kernel: str | Callable[..., Any] | Callback
    params: Mapping[str, Law] | Sequence[str] = ()
    _: dataclasses.KW_ONLY
    kind: str = "apply"
    p: float | None = None
    draw: str = ""
    constants: npt.ArrayLike = ()
    lookup: npt.NDArray[Any] | None = None
    work_bytes: int = 0
    after: ImageState | None = None
    only: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class Node:
    """A place in the tree that the draw phase walks through.

    Parameters
    ----------
    kind : {"leaf", "sequence", "choice", "permutation"}
        "leaf": ``operation``. "sequence": all children in order. "choice": one child, by ``weights``. "permutation":
        all children, in a random order.
    name : str
        What error messages and ``return_params`` call it.
    operation : Operation, optional
        Of a leaf.
    children : tuple of Node
    weights : tuple of float
        Of a choice, one a child; they need not sum to 1.
    p : float, optional
        Probability that the node happens at all: number 0 of its stream. What it draws itself is the next number.
    place : int or None
        The node's random stream is child ``place`` of its parent's stream; None: the parent's stream itself.
    before, after : ImageState
        What is known of the images.
    """

    kind: str
    name: str
    before: ImageState
    after: ImageState
    operation: Operation | None = None
    children: tuple[Node, ...] = ()
    weights: tuple[float, ...] = ()
    p: float | None = None
    place: int | None = None

    def constants(self) -> npt.NDArray[np.float64]:
        """Return the constants of a leaf's operation."""
        assert self.operation is not None
        return np.ascontiguousarray(self.operation.constants, dtype=np.float64).reshape(-1)
