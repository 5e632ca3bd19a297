"""One compiled loop out of a pipeline's steps: all kernels of one sample run before the next sample begins.

The loop's source text is generated, as ``dataclasses`` does it: Numba has no list of functions to loop over, and
one flat function compiles in a fraction of the time that nested closures take. Numba links the kernels into it.
"""

from __future__ import annotations

import contextlib
import linecache
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import numba
import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError

from dataloading.transforms.base import KernelCall
from dataloading.transforms.kernels import move
from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.rng import child
from dataloading.transforms.kernels.store import stored_program

# Programs by structure. The lock only keeps threads from doing the same work twice: Numba has its own.
_programs: dict[tuple[Any, ...], Callable[..., int]] = {}
_lock = threading.Lock()

__all__ = ["compiled", "fuse", "source_of", "why_not_compiled"]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a user's function as a kernel: compiled, unless it is already."""
    return function if isinstance(function, Dispatcher) else kernel(function)


def why_not_compiled(step: KernelCall, image_dtype: np.dtype[Any], out_dtype: np.dtype[Any]) -> str | None:
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


def source_of(steps: Sequence[KernelCall], in_place: bool) -> str:
    """Return the source of the fused loop; kernel ``k`` is called ``kernel_k``."""
    parameters: list[str] = []
    body: list[str] = []
    image = "image_0"  # a new name wherever the image gets another type or shape
    for k, step in enumerate(steps):
        names = [f"arg_{len(parameters) + i}" for i in range(len(step.arguments))]
        parameters += names
        key = f"child(keys[i], positions[{k}])" if step.random else "keys[i]"
        call = f"kernel_{k}({', '.join([image, key, *names])}"
        body.append(f"progress[1] = {k}")
        if step.kind == "in_place":
            body.append(f"{call})")
        elif step.kind == "repack":
            image = f"image_{k + 1}"
            body.append(f"{image} = {call})")
        else:
            body += [f"{call}, out[i])", f"image_{k + 1} = out[i]"]
            image = f"image_{k + 1}"
    if not in_place and all(step.kind != "convert" for step in steps):
        body.append(f"copy({image}, keys[i], out[i])")
    lines = [
        f"def run({', '.join(['decoded', 'keys', 'out', 'start', 'progress', 'positions', *parameters])}):",
        "    for i in range(start, decoded.shape[0]):",
        "        progress[0] = i",
        "        image_0 = decoded[i]",
        *(f"        {line}" for line in body),
        "    return 0",
    ]
    return "\n".join(lines) + "\n"


def fuse(steps: Sequence[KernelCall], in_place: bool, out_dtype: np.dtype[Any]) -> Callable[..., int]:
    """Return ``run(decoded, keys, out, start, progress, positions, *arguments)``, compiled.

    ``progress`` is written as [sample, step], to say where an exception came from; ``positions`` are the steps'
    places in the user's list, which select their random streams. The same structure of kernels gives the same
    program, for a training and a validation loader in one process; and the first process leaves it on disk for the
    next, if all of its kernels are this package's own.
    """
    source = source_of(steps, in_place)
    arguments = [argument for step in steps for argument in step.arguments]
    types = [f"{a.dtype}:{a.ndim}" for a in arguments] + [str(out_dtype)]
    identity = (source, tuple(step.kernel for step in steps), tuple(types))
    with _lock:
        if identity not in _programs:
            names = [f"{step.kernel.__module__}.{step.kernel.__qualname__}" for step in steps]
            scope: dict[str, Any] = {f"kernel_{k}": step.kernel for k, step in enumerate(steps)}
            scope.update(child=child, copy=move.copy, __name__=__name__)
            if all(name.startswith(f"{__package__}.") for name in names):
                stored = stored_program(source, " ".join(names + types), dict(scope))
                if stored is not None:
                    # Whatever is wrong with the files (a full disk, damage), compiling in memory still works.
                    with contextlib.suppress(Exception):
                        _programs[identity] = _compile(stored, in_place, out_dtype, arguments)
            if identity not in _programs:
                file = f"<beton pipeline {len(_programs)}>"
                linecache.cache[file] = (len(source), None, source.splitlines(True), file)
                exec(compile(source, file, "exec"), scope)
                _programs[identity] = _compile(kernel(scope["run"]), in_place, out_dtype, arguments)
        return _programs[identity]


def _compile(program: Any, in_place: bool, out_dtype: np.dtype[Any], arguments: list[Any]) -> Callable[..., int]:
    """Compile a program by calling it on no sample, with the types of real calls."""
    decoded = np.zeros((0, 1, 1, 1), dtype=np.uint8)
    out = decoded if in_place else np.zeros((0, 1, 1, 1), dtype=out_dtype)
    numbers = np.zeros(2, np.int64)
    program(decoded, np.zeros(0, np.uint64), out, 0, numbers, numbers, *arguments)
    return cast("Callable[..., int]", program)
