"""Shared checks of arguments."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from dataloading.errors import UsageError

__all__ = ["LARGEST", "as_integer", "at_least", "one_of", "true_or_false"]

LARGEST = (1 << 63) - 1
"""The largest integer accepted: native code holds them in 64 bits, with a sign."""


def one_of(name: str, value: object, allowed: Iterable[object], hint: str = "") -> None:
    """Raise UsageError, with `hint` appended, for a value that is not one of those allowed.

    Examples
    --------
    >>> one_of("tail", "pad", ("pad", "drop"))
    """
    allowed = tuple(allowed)
    if value not in allowed:
        raise UsageError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}{hint}")


def as_integer(value: Any) -> int | None:
    """Return an integer of any library as an int; None for everything else, including True and False.

    Examples
    --------
    >>> as_integer(np.int64(3)), as_integer(3.0), as_integer(True)
    (3, None, None)
    """
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def at_least(name: str, value: Any, low: int, hint: str = "", *, high: int = LARGEST) -> int:
    """Return an integer of any library as an int, if it is from `low` to `high`; else raise UsageError with `hint`.

    Examples
    --------
    >>> at_least("batch_size", np.int32(8), 1)
    8
    """
    number = as_integer(value)
    if number is None and isinstance(value, (str, float)) and re.fullmatch(r"\d+(\.0)?", str(value)):
        hint += f": write {name}={int(float(value))}"
    if number is None or number < low:
        raise UsageError(f"{name}={value!r} must be an integer of at least {low}{hint}")
    if number > high:
        shown = "2**63 - 1" if high == LARGEST else str(high)
        raise UsageError(f"{name}={value!r} must be an integer from {low} to {shown}")
    return number


def true_or_false(name: str, value: Any) -> bool:
    """Return a boolean, NumPy's too, as a bool; raise UsageError for everything else: ``"False"`` is true in Python.

    Examples
    --------
    >>> true_or_false("drop_last", np.True_)
    True
    """
    if not isinstance(value, (bool, np.bool_)):
        raise UsageError(f"{name}={value!r} must be True or False")
    return bool(value)
