"""Stores many short texts compactly: one block of bytes and one array of ends, not one object per text."""

from __future__ import annotations

import os
from array import array

__all__ = ["PackedTexts"]


class PackedTexts:
    """An append-only list of texts.

    Examples
    --------
    >>> texts = PackedTexts()
    >>> texts.append("a"); texts.append("bc")
    >>> texts[1], len(texts)
    ('bc', 2)
    """

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = array("Q", [0])

    def append(self, text: str) -> None:
        """Add a text; surrogates represent bytes of file names that are not UTF-8."""
        self._bytes += os.fsencode(text)
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return os.fsdecode(bytes(self._bytes[self._ends[index] : self._ends[index + 1]]))
