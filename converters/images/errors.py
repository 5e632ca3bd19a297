"""Error messages for values that are not images, and for exceptions that a user's dataset raises."""

from __future__ import annotations

import os
import sysconfig
import traceback
from functools import lru_cache
from pathlib import Path

import numpy as np

import dataloading
from converters.source import SampleFault
from dataloading.messages import describe

__all__ = ["not_an_image", "plain_array", "raised"]


def plain_array(value: object) -> object:
    """Return an array in the machine's byte order and without a mask; any other value as it is.

    Raises
    ------
    SampleFault
        If elements are masked.
    """
    if not isinstance(value, np.ndarray):
        return value
    if np.ma.is_masked(value):
        raise SampleFault("elements of the array are masked, and a file has no masks; fill them first, array.filled(0)")
    # asarray drops a mask without masked elements. The caller refuses dtypes other than numbers.
    plain = np.asarray(value)
    return plain.astype(plain.dtype.newbyteorder("="), copy=False)


def not_an_image(value: object, wanted: str) -> SampleFault:
    """Return the error for a value that is not an image: what was expected, what it is, and what to do.

    Examples
    --------
    >>> str(not_an_image(np.zeros((3, 40, 50), np.uint8), "an image as uint8 (height, width, 3)"))
    'expected an image as uint8 (height, width, 3), got a uint8 array of shape (3, 40, 50); channels come last: x.transpose(1, 2, 0)'
    """  # noqa: E501 - what is printed is one line
    return SampleFault("; ".join([f"expected {wanted}, got {describe(value)}", *_advice(value)]))


def _advice(value: object) -> list[str]:
    if isinstance(value, (str, os.PathLike)):
        return ["a path is not read: give the file's bytes, Path(path).read_bytes()"]
    if callable(getattr(value, "read", None)):
        return ["give what its read() returns"]
    if not isinstance(value, np.ndarray):
        return []
    ways = []
    if value.dtype.kind == "f":
        ways.append(
            "leave out a transform such as ToTensor, or, if its values are from 0 to 1, give "
            "(x * 255).round().astype('uint8')"
        )
    elif value.dtype != np.uint8:
        ways.append("nothing is cast silently")
    if value.ndim == 3 and value.shape[0] in (1, 3, 4) and value.shape[2] not in (1, 3, 4):
        ways.append("channels come last: x.transpose(1, 2, 0)")
    return ways


def raised(error: Exception) -> str:
    """Return a caught exception's type and message, and the line of the user's code that it comes from, if any."""
    text = str(error).strip().rstrip(".")
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *_library_folders())):
            return f"{words} ({Path(frame.filename).name}, line {frame.lineno})"
    return words


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    """Return the folders of this library, of Python's, and of installed packages."""
    ours = [os.path.dirname(os.path.abspath(each)) for each in (__file__, dataloading.__file__)]
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(folder + os.sep for folder in [*ours, *paths])
