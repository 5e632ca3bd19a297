"""Compiled programs on disk, so that only the first process with a given pipeline compiles it.

A program's generated source is written to a folder of its own, and Numba's documented ``cache=True`` keeps the
machine code beside it. The folder's name is a hash of everything the code depends on: the generated source, the
source of all kernels, the versions of Numba, LLVM and Python, and the processor's name and features. So

- nothing in it can be out of date, and processors that share a home directory do not share code;
- each folder holds one function with one signature, so that processes starting together write equal files; Numba
  writes each under a temporary name and renames it, so that no process ever reads half of one.

Folder: ``$BETON_CACHE_DIR``, else ``$XDG_CACHE_HOME/beton``, else ``~/.cache/beton``. An empty ``BETON_CACHE_DIR``
turns this off; a folder that cannot be written or read does so silently, since nothing but time is lost.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import llvmlite.binding  # type: ignore[import-untyped]
import numba

from dataloading.transforms.kernels.jit import JIT_OPTIONS

__all__ = ["stored_program"]

_FILE = "beton_program.py"


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
    """Return a digest of what compiled code depends on besides its own source."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    features = llvmlite.binding.get_host_cpu_features().flatten()
    parts = (numba.__version__, llvmlite.__version__, sys.version, sys.platform, repr(JIT_OPTIONS), features)
    digest.update("\n".join([*parts, llvmlite.binding.get_host_cpu_name()]).encode())
    return digest.digest()


def _write_once(path: Path, text: str) -> None:
    """Create a file under its final name in one step, with a date that is equal for all who write it."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.utime(temporary, (0, 0))  # Numba takes code for out of date when its source's date has changed
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def stored_program(source: str, names: str, scope: dict[str, Any]) -> Callable[..., int] | None:
    """Return ``run`` of ``source``, to be compiled or read from disk at its first call.

    Parameters
    ----------
    source : str
        Defines ``run``.
    names : str
        Identifies the kernels that ``scope`` holds; they must be this package's own.
    scope : dict
        Global names of the source; ``run`` is added.

    Returns
    -------
    callable or None
        None: programs cannot be stored here.
    """
    root = _root()
    if root is None:
        return None
    try:
        digest = hashlib.sha256(_environment() + source.encode() + names.encode()).hexdigest()[:32]
        path = root / digest / _FILE
        _write_once(path, source)
        exec(compile(source, str(path), "exec"), scope)
        return cast("Callable[..., int]", numba.njit(cache=True, **JIT_OPTIONS)(scope["run"]))
    except (OSError, RuntimeError):  # RuntimeError: Numba's word for a folder it cannot write
        return None
