"""What FFCV's compiled library has for decoders of the user's own: plain functions, which Numba can compile.

``Compiler.compile(imdecode)`` gives what compiled code calls. They raise ValueError on data that does not decode.
"""

from __future__ import annotations

import ctypes
from typing import Any

from dataloading._native import library_path

__all__ = ["imdecode", "memcpy", "read", "resize_crop"]

# Functions of their own, with addresses as plain integers: that is what compiled code has.
_system, _native = ctypes.CDLL(None), ctypes.CDLL(library_path())
_pread, _memmove = _system.pread, _system.memmove
_pread.argtypes, _pread.restype = [ctypes.c_int32, *[ctypes.c_int64] * 3], ctypes.c_int64
_memmove.argtypes, _memmove.restype = [ctypes.c_int64] * 3, ctypes.c_int64
_jpeg_decode, _resize_rgb = _native.beton_jpeg_decode, _native.beton_resize_rgb
_jpeg_decode.argtypes = [*[ctypes.c_int64] * 2, ctypes.c_int32, *[ctypes.c_int64] * 3]
_jpeg_decode.restype = ctypes.c_int32
_resize_rgb.argtypes = [ctypes.c_int64, *[ctypes.c_int32] * 2, ctypes.c_int64, *[ctypes.c_int32] * 3, ctypes.c_int64]
_resize_rgb.restype = ctypes.c_int32
_INTERLEAVED, _BILINEAR = 0, 1


def read(fileno: Any, destination: Any, offset: Any) -> Any:
    """Fill an array with the bytes of an open file from `offset` on; return how many there were."""
    return _pread(fileno, destination.ctypes.data, destination.size, offset)


def memcpy(source: Any, dest: Any) -> Any:
    """Copy the bytes of a contiguous array to the start of another."""
    if source.size * source.itemsize > dest.size * dest.itemsize:
        raise ValueError("memcpy: the destination has fewer bytes than the source")
    return _memmove(dest.ctypes.data, source.ctypes.data, source.size * source.itemsize)


def imdecode(
    source: Any,
    dst: Any,
    source_height: Any,
    source_width: Any,
    crop_height: Any = None,
    crop_width: Any = None,
    offset_x: Any = 0,
    offset_y: Any = 0,
    scale_factor_num: Any = 1,
    scale_factor_denom: Any = 1,
    enable_crop: Any = False,
    do_flip: Any = False,
) -> Any:
    """Decode a whole JPEG to RGB in a contiguous array, which may be larger."""
    if enable_crop or do_flip or scale_factor_num != scale_factor_denom:
        raise ValueError("imdecode decodes whole images: crop, scale and flip the result, or use resize_crop")
    num_bytes = source_height * source_width * 3
    if num_bytes > dst.size * dst.itemsize:
        raise ValueError("imdecode: the destination has fewer bytes than the image")
    status = _jpeg_decode(source.ctypes.data, source.size, _INTERLEAVED, dst.ctypes.data, num_bytes, 0)
    if status != 0:
        raise ValueError("imdecode: the JPEG is damaged, or not of the size that the file says")
    return status


def resize_crop(source: Any, start_row: Any, end_row: Any, start_col: Any, end_col: Any, destination: Any) -> Any:
    """Resize a part of an image to the size of another, bilinear with antialiasing; both uint8 (H, W, 3)."""
    height, width = source.shape[0], source.shape[1]
    if not (0 <= start_row < end_row <= height and 0 <= start_col < end_col <= width):
        raise ValueError("resize_crop: the part lies outside the image")
    first = source.ctypes.data + (start_row * width + start_col) * 3
    status = _resize_rgb(
        first,
        end_col - start_col,
        end_row - start_row,
        width * 3,
        _BILINEAR,
        destination.shape[1],
        destination.shape[0],
        destination.ctypes.data,
    )
    if status != 0:
        raise ValueError("resize_crop: not enough memory")
    return status
