"""One compiled loop out of a pipeline's steps: all kernels of one sample run before the next sample begins.

The loop's source text is generated, as ``dataclasses`` does it: Numba has no list of functions to loop over, and
one flat function compiles in a fraction of the time that nested closures take. Numba links the kernels into it.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError

from dataloading.transforms.base import Step
from dataloading.transforms.kernels import move
from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.rng import child

__all__ = ["compiled", "fuse", "source_of", "why_not_compiled"]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a user's function as a kernel: compiled, unless it is already."""
    return function if isinstance(function, Dispatcher) else kernel(function)


def why_not_compiled(step: Step, image_dtype: np.dtype[Any], out_dtype: np.dtype[Any]) -> str | None:
    """Compile a user's kernel for images of these dtypes; return Numba's reason where it cannot, else None."""
    arrays = [np.zeros((1, 1, 1), dtype=image_dtype), np.uint64(0), *step.arguments]
    if step.kind == "convert":
        arrays.append(np.zeros((1, 1, 1), dtype=out_dtype))
    try:
        types = tuple(numba.typeof(array) for array in arrays)  # type: ignore[no-untyped-call]
        step.kernel.compile(types)  # type: ignore[attr-defined]
    except NumbaError as error:
        return str(error)
    return None


def source_of(steps: Sequence[tuple[int, Step]], in_place: bool) -> str:
    """Return the source of the fused loop; kernel ``k`` is called ``kernel_k``."""
    parameters: list[str] = []
    body: list[str] = []
    image = "image_0"  # a new name wherever the image gets another type or shape
    for k, (position, step) in enumerate(steps):
        names = [f"arg_{len(parameters) + i}" for i in range(len(step.arguments))]
        parameters += names
        key = f"child(keys[i], {position})" if step.random else "keys[i]"
        call = f"kernel_{k}({', '.join([image, key, *names])}"
        body.append(f"progress[1] = {position}")
        if step.kind == "in_place":
            body.append(f"{call})")
        elif step.kind == "repack":
            image = f"image_{k + 1}"
            body.append(f"{image} = {call})")
        else:
            body += [f"{call}, out[i])", f"image_{k + 1} = out[i]"]
            image = f"image_{k + 1}"
    if not in_place and all(step.kind != "convert" for _, step in steps):
        body.append(f"copy({image}, keys[i], out[i])")
    lines = [
        f"def run({', '.join(['decoded', 'keys', 'out', 'start', 'progress', *parameters])}):",
        "    for i in range(start, decoded.shape[0]):",
        "        progress[0] = i",
        "        image_0 = decoded[i]",
        *(f"        {line}" for line in body),
        "    return 0",
    ]
    return "\n".join(lines) + "\n"


def fuse(
    steps: Sequence[tuple[int, Step]], in_place: bool, programs: dict[tuple[Any, ...], Callable[..., int]]
) -> Callable[..., int]:
    """Return ``run(decoded, keys, out, start, progress, *arguments)`` for these steps.

    ``programs`` remembers what has been made; ``progress`` is written as [sample, position of the transform], to
    say where an exception came from.
    """
    source = source_of(steps, in_place)
    identity = (source, *(step.kernel for _, step in steps))
    if identity not in programs:
        file = f"<beton pipeline {len(programs)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        scope: dict[str, Any] = {f"kernel_{k}": step.kernel for k, (_, step) in enumerate(steps)}
        scope.update(child=child, copy=move.copy, __name__=__name__)
        exec(compile(source, file, "exec"), scope)
        programs[identity] = kernel(scope["run"])
    return programs[identity]
