"""What every source of samples looks like to the engine, and how it says that one sample is bad.

A source is cheap in the parent process and does its reading in the workers: the parent asks it for a small picklable
*task* per sample (a path, an offset in a tar file, an index), sends that to a worker, and the worker hands it to the
source's ``load``, which returns the sample's fields. Images may come as file bytes, Pillow images or arrays; turning
them into what is stored is the image policy's job (``images/policy.py``), not the source's.
A new kind of dataset is one new file with one such class; the engine, the writer and the policy stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from dataloading import Field

__all__ = ["SampleFault", "Source", "files_of", "printable"]


class SampleFault(Exception):  # noqa: N818 - a fault of the data, caught by the engine and never shown as it is
    """One sample cannot be converted; the text is the reason, a clause without a final stop.

    Parameters
    ----------
    reason : str
        The text.
    values : mapping, optional
        The sample's other fields, where they are known although its image cannot be read: what a placeholder keeps.
    """

    def __init__(self, reason: str, *, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.values = values or {}


class Source(Protocol):
    """A dataset that can be converted: a length, and random access to samples.

    Attributes
    ----------
    fields : mapping of str to Field
        The file's fields in order; a task's ``load`` returns one value for each.
    class_names : sequence of str or None
        Names of the classes in the order of their labels, where there are classes.
    provenance : mapping
        What the file remembers of its origin. No absolute path, host or time: equal input gives equal bytes.
    load : callable
        ``load(task) -> {field: value}``. Runs in the workers, so it must be picklable; raises `SampleFault` (or
        `OSError`) for a sample that cannot be read. It may have a method ``columns(tasks)``, which returns the values
        of up to ``most_at_once`` samples as arrays, or None.
    starts_here : bool
        Optional, by default False: whether the engine may load samples in its own process, to find out whether worker
        processes are worth their start.
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
        """Return what ``load`` needs to find sample ``index``: small and picklable."""
        ...

    def name(self, index: int) -> str:
        """Return the words by which a message names sample ``index``: its file, where it has one."""
        ...


def files_of(source: Source) -> Iterable[tuple[str, str]]:
    """Return the files that a source's samples come from and its tasks do not name: a short name and a path of each.

    A source has them as its attribute ``files``, if there are any; a change of one ends the hope that an interrupted
    conversion could be gone on with.
    """
    files: Iterable[tuple[str, str]] = getattr(source, "files", ())
    return files


def printable(name: str) -> str:
    r"""Return ``name`` with what cannot be printed escaped: line breaks, terminal codes, bytes that are not UTF-8.

    Parameters
    ----------
    name : str
        A file name as Python gives it (undecodable bytes are surrogates).

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
