"""The protocol of sources, and the exception for a bad sample.

A source does little in the parent process and reads in the workers. The parent gets a small picklable *task* per sample
(a path, an offset in a tar file, an index) and sends it to a worker; there the source's ``load`` returns the sample's
fields. Images may be file bytes, Pillow images or arrays; the image policy (``images/policy.py``) converts them. A new
kind of dataset needs one new file with such a class, and no other change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from dataloading import Field

__all__ = ["SampleFault", "Source", "files_of", "printable"]


class SampleFault(Exception):  # noqa: N818 - a fault of the data, caught by the engine and never shown as it is
    """A sample cannot be converted; the text is the reason, without a final full stop.

    Parameters
    ----------
    reason : str
        The text.
    values : mapping, optional
        The sample's other fields, if they are known although its image cannot be read; a placeholder keeps them.
    """

    def __init__(self, reason: str, *, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.values = values or {}


class Source(Protocol):
    """A dataset that can be converted: a length, and random access to samples.

    Attributes
    ----------
    fields : mapping of str to Field
        The file's fields in order; ``load`` returns a value for each.
    class_names : sequence of str or None
        Class names by label, if there are classes.
    provenance : mapping
        The file's record of its origin, without absolute paths, hosts or times, so that equal input gives equal bytes.
    load : callable
        ``load(task) -> {field: value}``. Runs in the workers, so it must be picklable; raises `SampleFault` (or
        `OSError`) for a sample that cannot be read. It may have a method ``columns(tasks)``, which returns the values
        of up to ``most_at_once`` samples as arrays, or None.
    starts_here : bool
        Optional, by default False: whether the engine may load samples in its own process, to find out whether starting
        worker processes pays off.
    """

    @property
    def fields(self) -> Mapping[str, Field]: ...  # noqa: D102
    @property
    def class_names(self) -> Sequence[str] | None: ...  # noqa: D102
    @property
    def provenance(self) -> Mapping[str, object]: ...  # noqa: D102
    @property
    def load(self) -> Callable[[Any], Mapping[str, Any]]: ...  # noqa: D102

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def task(self, index: int) -> object:
        """Return the task of sample ``index`` for ``load``: small and picklable."""
        ...

    def name(self, index: int) -> str:
        """Return the name of sample ``index`` for messages: its file, if it has one."""
        ...


def files_of(source: Source) -> Iterable[tuple[str, str]]:
    """Return the files of a source that its tasks do not name: a short name and a path of each.

    They are the source's attribute ``files``, if any; if one changes, an interrupted conversion cannot be resumed.
    """
    files: Iterable[tuple[str, str]] = getattr(source, "files", ())
    return files


def printable(name: str) -> str:
    r"""Escape unprintable characters of ``name``: line breaks, terminal codes, bytes that are not UTF-8.

    Parameters
    ----------
    name : str
        A file name from Python (undecodable bytes are surrogates).

    Examples
    --------
    >>> print(printable("two\nlines, ü, \udcff"))
    two\nlines, ü, \xff
    """
    if name.isprintable():
        return name
    try:
        text = os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a surrogate pair, as JSON may have it
        text = name
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
