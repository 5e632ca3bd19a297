"""Finalisers that run no Python code in the thread that drops an object.

Reference counting and the garbage collector run finalisers in any thread. In the main thread Ctrl-C may raise in any
line of a finaliser written in Python; Python would print this exception and ignore it, so Ctrl-C would have no effect.
So our weak references have callbacks written in C (`deque.append`, `SimpleQueue.put`, a function of a C library), which
only record the event. Later code, or a waiting thread (`dataloading.keeper`), does the work.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

__all__ = ["Living", "Note"]

T = TypeVar("T")


class Note(weakref.ref[Any]):
    """A weak reference with an attached value, passed to `callback` when its object is garbage-collected.

    Keep it outside the object: if both are in one garbage cycle, the callback is not called.

    Parameters
    ----------
    target : object
    callback : callable
        C code.
    attached : any
        For the code that handles the reference.

    Examples
    --------
    >>> notes = []
    >>> class Thing: ...
    >>> thing = Thing()
    >>> note = Note(thing, notes.append, "the thing")
    >>> del thing
    >>> notes[0].attached
    'the thing'
    """

    __slots__ = ("attached",)

    attached: Any

    def __new__(cls, target: object, callback: Callable[[Any], object], attached: Any) -> Note:
        """Make the reference."""
        note = super().__new__(cls, target, callback)
        note.attached = attached
        return note

    def __init__(self, *_: object) -> None:
        """Accept the arguments of `__new__`."""


class Living(Generic[T]):
    """Weak references to objects, oldest first; unlike a WeakSet, without callbacks."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[T]] = []

    def add(self, item: T) -> None:
        """Add an object."""
        self._references = [*(each for each in self._references if each() is not None), weakref.ref(item)]

    def __iter__(self) -> Iterator[T]:
        return iter([item for each in self._references if (item := each()) is not None])
