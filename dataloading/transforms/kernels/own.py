"""Functions under ``@T.transform`` for the compiler: the type of ``rng``, and the wrapper that the runner calls.

``rng`` is the address of two numbers on the wrapper's stack, the key of the stream and how many numbers of it have been
drawn, so it costs no memory of the heap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending
from numba.core import cgutils, types

from dataloading.transforms.kernels import rng as numbers
from dataloading.transforms.kernels.jit import helper, kernel

__all__ = ["adapted", "tried"]

# Numba's tools for new types say nothing of their types.
_tools: Any = cgutils
_intrinsic: Any = extending.intrinsic
_overload: Any = extending.overload_method


class _GeneratorType(types.Type):
    """The type of ``rng``."""


_kind: Any = _GeneratorType
_RNG = _kind("rng")
_PAIR = ir.ArrayType(ir.IntType(64), 2)


@extending.register_model(_GeneratorType)
class _GeneratorModel(extending.models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _PAIR.as_pointer())  # type: ignore[no-untyped-call]


def _open(typing_context: Any, key: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _tools.alloca_once(builder, _PAIR)
        builder.store(arguments[0], _tools.gep_inbounds(builder, place, 0, 0))
        builder.store(ir.Constant(ir.IntType(64), 0), _tools.gep_inbounds(builder, place, 0, 1))
        return place

    return _RNG(types.uint64), generate


def _load_key(typing_context: Any, rng: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_tools.gep_inbounds(builder, arguments[0], 0, 0))

    return types.uint64(_RNG), generate


def _take(typing_context: Any, rng: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _tools.gep_inbounds(builder, arguments[0], 0, 1)
        value = builder.load(place)
        builder.store(builder.add(value, ir.Constant(ir.IntType(64), 1)), place)
        return value

    return types.int64(_RNG), generate


_opened = _intrinsic(_open)  # the generator of a stream, which must not outlive the function that calls this
_key = _intrinsic(_load_key)
_count = _intrinsic(_take)  # how many numbers have been drawn; then there is one more


def _uniform(rng: Any, low: Any = 0.0, high: Any = 1.0) -> Any:
    return lambda rng, low=0.0, high=1.0: low + numbers.uniform(_key(rng), _count(rng)) * (high - low)


def _normal(rng: Any, mean: Any = 0.0, std: Any = 1.0) -> Any:
    # A normal number takes two uniform ones, of a stream of its own.
    return lambda rng, mean=0.0, std=1.0: mean + numbers.normal(numbers.child(_key(rng), _count(rng)), 0) * std


def _integers(rng: Any, low: Any, high: Any = None) -> Any:
    if high is None or isinstance(high, (types.NoneType, types.Omitted)):
        return lambda rng, low, high=None: numbers.randint(_key(rng), _count(rng), low)
    return lambda rng, low, high=None: low + numbers.randint(_key(rng), _count(rng), high - low)


for _name, _method in (("uniform", _uniform), ("normal", _normal), ("integers", _integers)):
    _overload(_GeneratorType, _name, strict=False)(_method)  # not strict: lambdas have no annotations


@functools.cache
def _compiled(function: Callable[..., Any]) -> Any:
    return helper(getattr(function, "py_func", function))


@functools.cache
def tried(function: Callable[..., Any]) -> Callable[[npt.NDArray[Any], np.uint64], npt.NDArray[Any] | None]:
    """Return ``f(image, key)``, compiled, which returns what the function does."""
    inside = _compiled(function)

    def call(image: Any, key: Any) -> Any:
        return inside(image, _opened(key))

    return kernel(call)


@functools.cache
def adapted(function: Callable[..., Any], *, writes: bool) -> Callable[..., Any]:
    """Return the function as the runner calls it: ``f(image, key)``, or with ``writes`` ``f(image, key, out)``."""
    inside = _compiled(function)

    def change(image: Any, key: Any) -> None:
        inside(image, _opened(key))

    def write(image: Any, key: Any, out: Any) -> None:
        result = inside(image, _opened(key))
        if result.shape != out.shape:
            raise ValueError("it returned an image of another shape than for a trial image")
        out[:] = result

    return kernel(write if writes else change)
