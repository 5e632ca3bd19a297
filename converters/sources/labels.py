"""Interprets labels of datasets: integers, or names, which become classes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from converters.source import SampleFault, printable
from dataloading import ConvertError, UsageError

__all__ = ["LABEL_COLUMNS", "Labels", "class_label", "label_numbers", "same_name", "usual_name"]

LABEL_COLUMNS = ("label", "labels", "class", "category", "target", "targets", "class_name", "label_name")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_FRACTION = re.compile(r"[-+]?[0-9]+\.[0-9]*")
_MOST_CLASSES = 1_000_000


class Labels:
    """Collects the distinct labels of a dataset, to decide whether they are numbers or names.

    Parameters
    ----------
    labels : iterable, optional
        Initial labels, see `add`.

    Examples
    --------
    >>> Labels(["dog", "cat", "dog"]).names(), Labels(["3", "0"]).names(), Labels(["100", "007"]).names()
    (['cat', 'dog'], None, ['007', '100'])
    """

    def __init__(self, labels: Iterable[Any] = ()) -> None:
        self._names: set[str] = set()
        self._number: int | str | None = None
        self._word: str | None = None
        self._code: str | None = None
        self._problem = ""
        for label in labels:
            self.add(label)

    def add(self, label: Any) -> None:
        """Add a text or number; None and empty texts are ignored, since their samples are faults."""
        if isinstance(label, str):
            if label in self._names:
                return
            label = label.strip()
        if label is None or label == "" or self._problem:
            return
        if isinstance(label, bool) or not isinstance(label, (int, str)):
            self._problem = f"a label is a {type(label).__name__} ({label!r}), expected whole numbers or names"
        elif isinstance(label, int) or _INTEGER.fullmatch(label):
            self._number = label
        elif _FRACTION.fullmatch(label):  # as text 10.0 would sort before 2.0
            self._problem = (
                f"a label is {label!r}, expected whole numbers or names; write it without a fraction, or, if it is a "
                "name, list all names in a file for --classes"
            )
        elif not label.isascii() and any("\udc80" <= sign <= "\udcff" for sign in label):
            self._problem = (
                f"the label {printable(label)} is not UTF-8; save it as UTF-8: iconv -f WINDOWS-1252 -t UTF-8 "
                "FILE > NEW"
            )
        elif label.isdecimal():
            self._code = label  # 007 is a name, and so are other numbers beside it
        else:
            self._word = label
        if isinstance(label, str) and len(self._names) <= _MOST_CLASSES:
            self._names.add(label)

    @property
    def has_words(self) -> bool:
        """Whether any text is not a number."""
        return bool(self._word or self._code)

    @property
    def num_names(self) -> int:
        """Number of distinct texts."""
        return len(self._names)

    def names(self) -> list[str] | None:
        """Return the sorted names; None if all labels are whole numbers.

        Raises
        ------
        ConvertError
            If numbers and names are mixed, or labels are neither.
        UsageError
            If there are too many distinct names.
        """
        number, word = self._number, self._word or self._code
        if self._problem:
            raise ConvertError(self._problem)
        if word is None:
            return None
        if isinstance(number, int) or (number is not None and self._word is not None):
            # Treated as names, all numbers would change because of one stray name.
            raise ConvertError(
                f"labels are numbers and names: {number!r} and {word!r}; make them one or the other, or, if the "
                "numbers are names as well, list all names in a file for --classes"
            )
        if len(self._names) > _MOST_CLASSES:
            raise UsageError(
                f"the labels are more than {_MOST_CLASSES:,} different words, such as {word!r}; keep such a column as "
                "text with --field NAME=text"
            )
        return sorted(self._names)


def label_numbers(class_names: Sequence[str] | None) -> dict[str, int] | None:
    """Return the label of each class, for `class_label`."""
    return None if class_names is None else {name: label for label, name in enumerate(class_names)}


def class_label(value: object, labels: Mapping[str, int] | None, where: str) -> int:
    """Return a label as an integer: the position of a name among the classes, or the number itself without classes.

    Parameters
    ----------
    value : object
        A name, with or without surrounding blanks, or an integer, which may be text.
    labels : mapping of str to int, optional
        The classes.
    where : str
        The location for messages, such as "column 'label'".

    Raises
    ------
    SampleFault
        If it is neither, or not one of the classes.

    Examples
    --------
    >>> class_label(" cat", {"cat": 0}, "column 'label'"), class_label("7", None, "column 'label'")
    (0, 7)
    """
    value = value.strip() if isinstance(value, str) else value
    if value is None or value == "":
        raise SampleFault(f"its label is {value!r}, expected a whole number or name: {where} has no label for it")
    if labels is not None:
        if not isinstance(value, str) or value not in labels:
            raise SampleFault(f"its label {value!r} is not one of the {len(labels)} classes")
        return labels[value]
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise SampleFault(f"its label is {value!r}, expected a whole number")
    return value


def usual_name(usual: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the first of ``names`` that is one of the usual names; exact matches before other cases."""
    exact = [name for name in usual if name in names]
    return exact[0] if exact else next((each for name in usual for each in names if same_name(each) == name), None)


def same_name(name: str) -> str:
    """Return a name for comparison with the usual names: stripped, in lower case."""
    return name.strip().casefold()
