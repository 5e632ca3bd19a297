"""Stores many short texts compactly: one block of bytes and one array of ends, not one object per text."""

from __future__ import annotations

import os
import sys
from array import array

__all__ = ["PackedTexts"]

# Those of `os.fsdecode`, which takes no bytearray.
_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


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
        if index < 0:
            raise IndexError(index)
        ends = self._ends
        return self._bytes[ends[index] : ends[index + 1]].decode(_ENCODING, _ERRORS)
