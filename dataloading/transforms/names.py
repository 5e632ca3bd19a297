"""What transforms and callables are called, and the libraries they are from, which are never imported for it."""

from __future__ import annotations

import functools
import types
from typing import Any

from dataloading.transforms.base import Transform

__all__ = ["name_of", "root", "works_on_arrays"]

_SINGLE_IMAGES = ("albumentations", "imgaug", "volumentations")


def name_of(op: Any) -> str:
    """Return what error messages call a transform or callable.

    Examples
    --------
    >>> name_of(len), name_of(functools.partial(len)), name_of("x".upper)
    ('len', 'len', 'str.upper')
    """
    if isinstance(op, Transform):
        return op.name
    if isinstance(op, functools.partial):
        return name_of(op.func)
    owner = getattr(op, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType):
        return f"{name_of(type(owner))}.{getattr(op, '__name__', '')}"
    # A scripted module has the name of the class it was made from elsewhere.
    return str(getattr(op, "__name__", None) or getattr(op, "original_name", None) or type(op).__name__)


def works_on_arrays(op: Any) -> bool:
    """Whether an object is of a library whose transforms take single NumPy images by the name ``image``."""
    return any(root(each) in _SINGLE_IMAGES for each in type(op).__mro__)


def root(kind: type) -> str:
    """Return the library that a class is from."""
    return (kind.__module__ or "").partition(".")[0]
