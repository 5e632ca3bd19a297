"""How every kernel is compiled: one decorator, so that no kernel differs from another by accident.

``nogil``: the Loader's threads run kernels side by side. ``error_model="numpy"``: a division by zero gives
inf as in NumPy instead of a test in the inner loop. No ``fastmath`` (it would let results differ between
machines), no ``parallel`` (the threads are ours), no ``cache``: see ``store.py``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar, cast

import numba
from numba.core import types
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError

__all__ = ["WITHOUT_WRAPPERS", "NumbaError", "compile_for", "helper", "kernel", "run_again"]

Function = TypeVar("Function", bound=Callable[..., Any])

_JIT_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
# Code without wrappers for callers in Python can be loaded without Numba, and compiles in less time.
WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **_JIT_OPTIONS}


def kernel(function: Function) -> Function:
    """Compile ``function`` lazily with the options that all kernels share."""
    return cast(Function, numba.njit(**_JIT_OPTIONS)(function))


def helper(function: Function) -> Function:
    """Compile a function that only kernels call: without a wrapper for Python, which takes as long again."""
    return cast(Function, numba.njit(**WITHOUT_WRAPPERS)(function))


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Machine code that follows Numba's own calling convention.

    Parameters
    ----------
    library : object
        Numba's; it owns the code.
    symbol : str
        Name of the function in it.
    needs : set of str
        Names of functions and data that the code refers to and does not hold.
    """

    library: Any
    symbol: str
    needs: set[str]

    def address(self) -> int:
        """Return where the function is."""
        return int(self.library.get_pointer_to_function(self.symbol))

    def machine_code(self) -> bytes:
        """Return the object file."""
        _, _, (code, _) = self.library.serialize_using_object_code()
        return bytes(code)


def compile_for(function: Callable[..., Any], signature: Sequence[str], *, user: bool) -> Compiled:
    """Compile a kernel, or a user's function, for arguments of these types (see ``store.address_of``).

    Raises
    ------
    NumbaError
        If it does not compile.
    """
    argument_types = tuple(_type(each) for each in signature)
    if user:
        dispatcher: Any = numba.njit(**WITHOUT_WRAPPERS)(_without_result(function, len(signature)))
    else:
        dispatcher = _without_wrappers(function)
    dispatcher.compile(argument_types)
    result = dispatcher.overloads[argument_types]
    module = result.library._final_module
    symbol = result.fndesc.llvm_func_name
    _check_convention(module.get_function(symbol), argument_types)
    outside = [*module.functions, *module.global_variables]
    needs = {each.name for each in outside if each.is_declaration and not each.name.startswith("llvm.")}
    return Compiled(result.library, symbol, needs)


@functools.cache
def _without_wrappers(function: Callable[..., Any]) -> Any:
    """Return a kernel that, with all kernels it calls, compiles without wrappers for Python, in less time."""
    plain: Any = getattr(function, "py_func", function)
    scope = dict(plain.__globals__)
    for name in plain.__code__.co_names:
        if isinstance(scope.get(name), Dispatcher):
            scope[name] = _without_wrappers(scope[name])
    options = {**getattr(function, "targetoptions", {}), **WITHOUT_WRAPPERS, "nopython": True}  # "inline", for one
    return numba.jit(**options)(FunctionType(plain.__code__, scope))


def _type(text: str) -> Any:
    name, _, dimensions = text.partition(":")
    number = getattr(types, name)
    return types.Array(number, int(dimensions), "C") if dimensions else number


def _check_convention(function: Any, argument_types: Sequence[Any]) -> None:
    """Make sure that Numba still passes arguments the way the runner calls: flattened, behind two pointers."""
    expected = 2 + sum(5 + 2 * each.ndim if isinstance(each, types.Array) else 1 for each in argument_types)
    found = len(list(function.arguments))
    if found != expected:
        raise RuntimeError(
            f"Numba {numba.__version__} passes {found} arguments to a kernel where {expected} were expected. Install a "
            f"version of Numba that this version of beton was tested with"
        )


def run_again(function: Callable[..., Any], *arguments: Any) -> Exception | None:
    """Call a user's function as Python does, and return what it raises."""
    compiled: Any = function if isinstance(function, Dispatcher) else kernel(function)
    try:
        compiled(*arguments)
    except Exception as error:
        return error
    return None


def _without_result(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Wrap a user's function so that what it returns is dropped."""
    compiled = function if isinstance(function, Dispatcher) else kernel(function)
    if count == 2:

        def change(image: Any, key: Any) -> None:
            compiled(image, key)

        return change

    def write(image: Any, key: Any, out: Any) -> None:
        compiled(image, key, out)

    return write
