"""Compiled kernels, each by itself: in memory, on disk for the next process, or fresh from Numba.

A kernel is compiled once for a signature, whatever lists it stands in. Its machine code, an object file of a few
kilobytes, is kept in a folder under a name that is a digest of everything it depends on: the source of its module and
of the kernel modules that one imports, its name and signature, the versions of Numba, LLVM and Python, and the
processor's name and features. So

- nothing there can be out of date, and processors that share a home directory do not share code;
- processes that start together write equal files, each under a temporary name that is then renamed: no process ever
  reads half of one. A damaged file is noticed by its checksum, and rewritten.

Loading needs llvmlite only: Numba is not imported where all kernels are stored. That works because the runner calls
kernels as Numba itself does (``f(&result, &exception, arguments)``, arrays flattened), not through a wrapper that
would need Numba's run-time library; code that refers to anything but the C library is not stored.

Folder: ``$BETON_CACHE_DIR``, else ``$XDG_CACHE_HOME/beton``, else ``~/.cache/beton``. An empty ``BETON_CACHE_DIR``
turns this off; a folder that cannot be written or read does so silently, since nothing but time is lost.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import hashlib
import importlib
import importlib.metadata
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]

__all__ = ["DoesNotCompile", "address_of", "origins", "unstored", "writable_folder"]

_HERE = Path(__file__).parent
_PACKAGE = __package__ or ""
# What stored code may refer to, all of it part of every process that runs Python.
_C_LIBRARY = {
    name + suffix
    for name in ("acos", "asin", "atan", "atan2", "cbrt", "ceil", "cos", "cosh", "erf", "exp", "exp2", "expm1", "fabs",
                 "floor", "fma", "fmax", "fmin", "fmod", "hypot", "log", "log10", "log1p", "log2", "nearbyint", "pow",
                 "rint", "round", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc")
    for suffix in ("", "f")
} | {"memcpy", "memmove", "memset"}  # fmt: skip

# Called for arrays that own their memory, which no array of a stored kernel does: allocating needs more than this.
_NEVER_CALLED = "NRT_MemInfo_call_dtor"

# The lock keeps threads from doing the same work twice, and from sharing Numba's compiler.
_lock = threading.RLock()
_addresses: dict[tuple[Any, ...], int] = {}
_origins: dict[str, str] = {}
_unstored: list[str] = []
_alive: list[Any] = []  # engines and libraries: the code is gone with them


class DoesNotCompile(Exception):  # noqa: N818 (a report between two layers; the Pipeline raises UsageError)
    """Numba cannot compile a function; the message is Numba's."""


def address_of(kernel: str | Callable[..., Any], signature: Sequence[str]) -> int:
    """Return the address of a kernel's machine code, compiled for these arguments.

    Parameters
    ----------
    kernel : str or callable
        ``"module.function"`` of this package; or a user's function, which is not stored, since nobody can tell what
        it depends on.
    signature : sequence of str
        Types of the arguments: "uint8:3" is an array of three dimensions, "uint64" a number.

    Raises
    ------
    DoesNotCompile
        If Numba refuses.
    """
    key = (kernel, *signature)
    with _lock:
        if key not in _addresses:
            _addresses[key] = _find(kernel, tuple(signature))
        return _addresses[key]


def origins() -> dict[str, str]:
    """Return where each kernel in use comes from: its name and signature, and "stored" or "compiled"."""
    return dict(_origins)


def unstored() -> list[str]:
    """Return the kernels in use, by name and signature, that were compiled and are not in the folder."""
    return list(_unstored)


def writable_folder() -> Path | None:
    """Return the folder, made if it is missing; None where nothing is stored.

    Raises
    ------
    OSError
        It cannot be made or written.
    """
    root = _root()
    if root is not None:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    return root


def _find(kernel: str | Callable[..., Any], signature: tuple[str, ...]) -> int:
    path = _path(kernel, signature) if isinstance(kernel, str) else None
    label = f"{kernel}({', '.join(signature)})"
    if path is not None:
        # Whatever is wrong with the file, compiling still works.
        with contextlib.suppress(Exception):
            address = _load(path)
            _origins[label] = "stored"
            return address
    _origins[label] = "compiled"
    from dataloading.transforms.kernels import jit

    function = _function(kernel) if isinstance(kernel, str) else kernel
    try:
        compiled = jit.compile_for(function, signature, user=not isinstance(kernel, str))
    except jit.NumbaError as error:
        raise DoesNotCompile(str(error)) from None
    _alive.append(compiled.library)
    _unstored.append(label)
    if path is not None and compiled.needs <= {*_C_LIBRARY, _NEVER_CALLED}:
        with contextlib.suppress(OSError, RuntimeError):
            _write(path, compiled.symbol, compiled.machine_code())
            _unstored.remove(label)
    return compiled.address()


def _function(kernel: str) -> Callable[..., Any]:
    module, name = kernel.split(".")
    function: Callable[..., Any] = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)
    return function


# -- on disk ----------------------------------------------------------------------------------------------------------


def _root() -> Path | None:
    named = os.environ.get("BETON_CACHE_DIR")
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "beton"
    except RuntimeError:  # no home directory
        return None


@functools.cache
def _environment() -> bytes:
    """Return what compiled code depends on besides sources."""
    versions = (importlib.metadata.version("numba"), importlib.metadata.version("llvmlite"), sys.version, sys.platform)
    return "\n".join([*versions, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]).encode()


@functools.cache
def _sources(module: str) -> bytes:
    """Return a digest of a kernel module and of all kernel modules that it imports."""
    waiting, seen = [module], {"jit"}
    digest = hashlib.sha256((_HERE / "jit.py").read_bytes())
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        text = (_HERE / f"{name}.py").read_bytes()
        digest.update(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                if node.module == _PACKAGE:
                    waiting += [alias.name for alias in node.names]
                elif node.module.startswith(f"{_PACKAGE}."):
                    waiting.append(node.module.removeprefix(f"{_PACKAGE}."))
    return digest.digest()


def _path(kernel: str, signature: tuple[str, ...]) -> Path | None:
    """Return the file of a kernel, or None where nothing is stored."""
    root = _root()
    if root is None:
        return None
    try:
        digest = hashlib.sha256(_environment() + _sources(kernel.partition(".")[0]))
    except (OSError, SyntaxError, importlib.metadata.PackageNotFoundError):
        return None  # sources in an archive, say
    digest.update("\n".join([kernel, *signature]).encode())
    return root / f"{kernel}-{digest.hexdigest()[:32]}.kernel"


def _write(path: Path, symbol: str, machine_code: bytes) -> None:
    """Write a file under its final name in one step: checksum, symbol, machine code."""
    body = symbol.encode() + b"\n" + machine_code
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(body).digest() + body)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _load(path: Path) -> int:
    data = path.read_bytes()
    checksum, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != checksum:
        raise ValueError("damaged")
    symbol, _, machine_code = body.partition(b"\n")
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
    engine.finalize_object()
    address: int = engine.get_function_address(symbol.decode())
    if address == 0:
        raise ValueError("no such symbol")
    return address


@functools.cache
def _engine() -> Any:
    """Return LLVM's loader of object files."""
    with contextlib.suppress(RuntimeError, AttributeError):  # newer versions do this by themselves, and say so
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if llvm.address_of_symbol(_NEVER_CALLED) is None:
        llvm.add_symbol(_NEVER_CALLED, ctypes.cast(ctypes.pythonapi.Py_DecRef, ctypes.c_void_p).value)
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
