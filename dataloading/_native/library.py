"""Finds and loads ``libbeton_native.so``; declares the C signatures."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["LIBRARY", "Info", "kernels_in_use", "library_path", "memory_of", "use_kernels"]

_NAME = "libbeton_native.so"
_INTERFACE = 2  # BETON_INTERFACE of src/beton_native.h
# Names another build of the library (a sanitizer's, an older one); for development only.
_OVERRIDE = "BETON_NATIVE_LIBRARY"


class Info(ctypes.Structure):
    """Mirror of ``beton_jpeg_info`` in ``src/beton_native.h``."""

    _fields_ = [
        ("width", ctypes.c_int32),
        ("height", ctypes.c_int32),
        ("num_components", ctypes.c_int32),
        ("h_samp", ctypes.c_int32 * 4),
        ("v_samp", ctypes.c_int32 * 4),
        ("progressive", ctypes.c_int32),
        ("arithmetic", ctypes.c_int32),
        ("restart_interval", ctypes.c_int32),
        ("color_space", ctypes.c_int32),
        ("mcu_width", ctypes.c_int32),
        ("mcu_height", ctypes.c_int32),
        ("mcus_per_row", ctypes.c_int32),
        ("mcu_rows", ctypes.c_int32),
        ("num_scan_components", ctypes.c_int32),
    ]


def library_path() -> str:
    """Return the path of the shared library.

    Returns
    -------
    str
        The newest ``libbeton_native.so`` in the package's search path: an installed one lies beside this module, an
        editable install keeps it in the environment, and a development build lies in the checkout.

    Raises
    ------
    ImportError
        If it is not found; the message says how to build it.

    Examples
    --------
    >>> library_path().endswith(".so")
    True
    """
    override = os.environ.get(_OVERRIDE)
    if override:
        return override
    from . import __path__ as folders

    found = [path for path in (Path(folder) / _NAME for folder in folders) if path.is_file()]
    if found:
        return str(max(found, key=lambda path: path.stat().st_mtime_ns))
    raise ImportError(
        f"{_NAME} was not found in {[str(folder) for folder in folders]}. Install the package (pip install .), or in a "
        "checkout build it: cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release && cmake --build build/dev"
    )


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"{path} does not load: {error}. It needs the libjpeg-turbo it was built with "
            "(Debian: libjpeg62-turbo, Ubuntu: libjpeg-turbo8); build it again after changing that"
        ) from error
    pointer, i32, i64, text = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p
    out_pointer, out_i64 = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "beton_interface": (i32, []),
        "beton_request_size": (i64, []),
        "beton_decode_regions": (i64, [pointer, i64]),
        "beton_find_images": (i64, [pointer, i64, pointer, pointer, i64, pointer, pointer]),
        "beton_aim": (None, [pointer, i64, pointer, i64, i64, i64]),
        "beton_read_ahead": (None, [pointer, pointer, i64, i64]),
        "beton_sample_keys": (None, [ctypes.c_uint64, pointer, pointer, ctypes.c_uint64, i64, pointer]),
        "beton_plan": (i64, [pointer] * 3 + [i64] + [pointer] * 3 + [i64, i64, pointer]),
        "beton_augment_draw": (i64, [pointer, pointer, i64, pointer, pointer]),
        "beton_augment_run": (i32, [pointer] * 4 + [i64, i64, pointer, pointer]),
        "beton_augment_last_failure": (None, [pointer]),
        "beton_status_text": (text, [i32]),
        "beton_jpeg_probe": (i32, [pointer, i64, ctypes.POINTER(Info)]),
        "beton_jpeg_decode": (i32, [pointer, i64, i32, pointer, i64, pointer]),
        "beton_jpeg_encode": (i32, [pointer, i32, i32, i64, i32, i32, i32, i32, out_pointer, out_i64, pointer]),
        "beton_jpeg_reencode": (i32, [pointer, i64, i32, i32, i32, i32, out_pointer, out_i64, pointer]),
        "beton_jpeg_transcode": (i32, [pointer, i64, i32, i32, out_pointer, out_i64, pointer]),
        "beton_jpeg_check": (i32, [pointer, i64, pointer]),
        "beton_jpeg_round_trip": (i32, [pointer, i32, i32, i32, i32, pointer]),
        "beton_resize_rgb": (i32, [pointer, i32, i32, i64, i32, i32, i32, pointer]),
        "beton_gather": (i32, [pointer, pointer, i32, i32, pointer]),
        "beton_interleave": (i32, [pointer, i64, i64, i64, i32, pointer]),
        "beton_free": (None, [pointer]),
        "beton_kernels": (text, []),
        "beton_set_kernels": (i32, [text]),
        "beton_gate_init": (None, [pointer]),
        "beton_gate_open": (None, [pointer]),
        "beton_gate_wait": (i32, [pointer, i32]),
        "beton_gate_wait_for_dropped": (None, [pointer, i32, ctypes.py_object]),
        "beton_gates_close": (None, []),
        "beton_thread_is_own": (None, []),
    }
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise ImportError(f"{path} lacks {name}: it is older than its gateway; build it again") from error
        function.restype = result
        function.argtypes = arguments
        # The first of all: a library of another version may have every name, and crash.
        if name == "beton_interface" and function() != _INTERFACE:
            raise ImportError(
                f"{path} has interface {function()}, its gateway needs {_INTERFACE}: they are of different versions; "
                "build it again"
            )
    return library


LIBRARY = _load()

_one_byte: Any = (ctypes.c_char * 1).from_buffer


def memory_of(array: npt.NDArray[Any]) -> Any:
    """Return where a contiguous array lies as an argument for C, five times as fast as ``array.ctypes`` does."""
    return _one_byte(array) if array.flags.writeable and array.size else array.ctypes.data


def kernels_in_use() -> str:
    """Return the name of the instruction set the kernels use.

    Returns
    -------
    str
        ``"avx2"``, ``"neon"`` or ``"portable"``; all give the same bytes.

    Examples
    --------
    >>> kernels_in_use() in ("avx2", "neon", "portable")
    True
    """
    name: bytes = LIBRARY.beton_kernels()
    return name.decode()


def use_kernels(name: str) -> None:
    """Choose the instruction set of the kernels for the whole process; for tests and benchmarks.

    Parameters
    ----------
    name : {"auto", "avx2", "neon", "portable"}
        ``"auto"`` takes the fastest that this processor supports. The environment variable ``BETON_KERNELS=portable``
        makes ``"auto"`` mean ``"portable"``.

    Raises
    ------
    ValueError
        If the name is unknown, or this processor cannot run the kernels.

    Examples
    --------
    >>> use_kernels("portable")
    >>> kernels_in_use()
    'portable'
    >>> use_kernels("auto")
    """
    if LIBRARY.beton_set_kernels(name.encode()) != 0:
        raise ValueError(f"kernels {name!r} are unknown or do not run on this processor; use 'auto' or 'portable'")
