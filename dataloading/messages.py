"""Parts of messages: counts with their noun, sizes, descriptions of values, and the nearest right spelling.

Imports nothing of the project and nothing heavy, so that the command line can use it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["counted", "describe", "did_you_mean", "human_bytes"]


def counted(count: int, noun: str) -> str:
    """Return a count with thousands separators and its noun, given in the singular.

    Examples
    --------
    >>> counted(1, "sample"), counted(0, "sample"), counted(1234, "class"), counted(2, "entry")
    ('1 sample', '0 samples', '1,234 classes', '2 entries')
    """
    return f"{count:,} {noun if count == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def human_bytes(count: float) -> str:
    """Format a number of bytes, with units in powers of two.

    Examples
    --------
    >>> human_bytes(0), human_bytes(1536), human_bytes(8 << 20)
    ('0 B', '1.5 KiB', '8.0 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def describe(value: object) -> str:
    """Describe a value for a message: arrays by dtype and shape, everything else by type and value, shortened.

    Examples
    --------
    >>> describe("cat"), describe(None), describe(2.5)
    ("str 'cat'", 'None', 'float 2.5')
    """
    if value is None:
        return "None"
    kind, dtype, shape = type(value).__name__, getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and shape is not None:
        if kind == "ndarray":
            return f"{'an' if str(dtype)[0] in 'aeio' else 'a'} {dtype} array of shape {shape}"
        if type(value).__module__ == "numpy":
            return f"{dtype} {value}"
        return f"a {kind} of dtype {dtype} and shape {tuple(shape)}"
    try:
        text = repr(value)
    except Exception:  # the user's class may raise, and so does Python for huge integers
        return kind
    return f"{kind} {text if len(text) <= 40 else text[:37] + '...'}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question with the known words nearest to a misspelt one, or an empty string.

    Examples
    --------
    >>> did_you_mean("rww", ["jpg", "raw", "mix"]), did_you_mean("parsecs", ["jpg", "raw"])
    ("Did you mean 'raw'?", '')
    """
    by_lower = {name.lower(): name for name in reversed(list(known))}
    near = difflib.get_close_matches(word.lower(), by_lower, n=2, cutoff=0.6)
    return f"Did you mean {' or '.join(repr(by_lower[name]) for name in near)}?" if near else ""
