"""Checks of arguments that many modules make, with one wording. Knows no argument by name."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dataloading.errors import UsageError

__all__ = ["at_least", "one_of"]


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse a value that is not one of those allowed.

    Raises
    ------
    UsageError
        Naming argument, value and what is allowed.

    Examples
    --------
    >>> one_of("tail", "pad", ("pad", "drop"))
    """
    allowed = tuple(allowed)
    if value not in allowed:
        raise UsageError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}")


def at_least(name: str, value: object, low: int, hint: str = "") -> None:
    """Refuse a value that is not an integer of at least `low`; True and False are none.

    Raises
    ------
    UsageError
        Naming argument, value and bound; `hint` is appended.

    Examples
    --------
    >>> at_least("batch_size", 1, 1)
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise UsageError(f"{name}={value!r} must be an integer of at least {low}{hint}")
