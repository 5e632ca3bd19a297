"""What happens when an object goes, without any Python code in the thread that drops it.

The reference count and the garbage collector run finalisers in whatever thread happens to be there. Where that is the
caller's, Ctrl-C may raise in any line of one, and Python prints such an exception and forgets it: the key was pressed
for nothing. So no class of ours has a ``__del__``, and no weak reference a callback written in Python. A callback is C
code (`deque.append`, `SimpleQueue.put`, a function of a C library), which only leaves a note. Whoever comes next, or a
thread that waits for notes (`dataloading.keeper`), does what is to be done.

Knows nothing of what is finalised.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

__all__ = ["Living", "Note"]

T = TypeVar("T")


class Note(weakref.ref[Any]):
    """A weak reference that is passed to `callback` when its object goes, with something attached.

    It must be alive then: keep it outside of the object, or the garbage collector passes over it where the object is
    part of a cycle.

    Parameters
    ----------
    target : object
    callback : callable
        C code.
    attached : any
        What whoever reads the note needs.

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

    def __new__(cls, target: object, callback: Callable[[Any], object], attached: Any) -> Note:
        """Make the reference."""
        return super().__new__(cls, target, callback)

    def __init__(self, target: object, callback: Callable[[Any], object], attached: Any) -> None:
        super().__init__(target, callback)  # type: ignore[call-arg]  # typeshed has only __new__
        self.attached = attached


class Living(Generic[T]):
    """Objects that somebody else still refers to, in the order in which they came. Unlike a WeakSet, no callback."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[T]] = []

    def add(self, item: T) -> None:
        """Note an object."""
        self._references = [*(each for each in self._references if each() is not None), weakref.ref(item)]

    def __iter__(self) -> Iterator[T]:
        return iter([item for each in self._references if (item := each()) is not None])
