"""Checks before training that labels mean the same in two datasets, and that they are in range.

Imports no torch: it compares class names and label columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dataloading import UsageError
from dataloading.messages import counted

_SHOWN = 6


class Labelled(Protocol):
    """A dataset with labels; `named` is False if `classes` are only numbers."""

    path: str
    classes: list[str]
    named: bool

    def labels(self) -> np.ndarray:
        """Return the label of every sample, integers of shape (n,)."""


def listed(names: Sequence[str]) -> str:
    """Return class names for a message, shortened if there are many.

    Examples
    --------
    >>> listed(["cat", "dog"])
    'cat, dog'
    """
    if len(names) <= _SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[: _SHOWN - 1])}, ... {names[-1]}"


def _described(data: Labelled) -> str:
    if not data.named:
        return f"{data.path} has no class names ({counted(len(data.classes), 'number')})"
    return f"{data.path} has {counted(len(data.classes), 'class')}: {listed(data.classes)}"


def match_classes(train: Labelled, other: Labelled, *, num_classes: int = 0) -> list[int] | None:
    """Find the training label of each class of `other`.

    Parameters
    ----------
    train, other : Labelled
        Training data, and data whose labels must have the same meaning.
    num_classes : int
        Outputs of the network if the user set them, else 0; if set, unnamed numbers are used as they are.

    Returns
    -------
    list of int or None
        Training labels, indexed by label in `other`; None if the labels are the same in both.

    Raises
    ------
    UsageError
        `other` has a class that `train` lacks, or only one of the two has names, or neither has and their numbers of
        classes differ. The message shows both lists.
    """
    both = f"{_described(train)}; {_described(other)}"
    if train.named != other.named:
        unnamed, named = (train, other) if other.named else (other, train)
        raise UsageError(
            f"the labels of {train.path} and {other.path} cannot be compared: {both}. If they mean the same, write the "
            f"names into the file: beton upgrade {unnamed.path} OUT.beton --class-names-from {named.path}"
        )
    if not train.named:
        if len(train.classes) != len(other.classes) and not num_classes:
            raise UsageError(
                f"the numbers of classes differ, and there are no names to match: {both}. If the same number means "
                f"the same class in both, pass --num-classes"
            )
        return None
    if train.classes == other.classes:
        return None
    missing = [name for name in other.classes if name not in set(train.classes)]
    if missing:
        raise UsageError(
            f"{other.path} has {counted(len(missing), 'class')} that {train.path} lacks ({listed(missing)}): {both}"
        )
    for data in (train, other):
        twice = sorted({name for name in data.classes if data.classes.count(name) > 1})
        if twice:
            raise UsageError(f"labels cannot be matched by name: {data.path} lists {listed(twice)} more than once")
    number = {name: label for label, name in enumerate(train.classes)}
    return [number[name] for name in other.classes]


def describe_match(train: Labelled, other: Labelled, numbers: Sequence[int]) -> str:
    """Return a one-line description of how labels are translated."""
    moved = [
        f"{name} {label} -> {number}"
        for label, (name, number) in enumerate(zip(other.classes, numbers, strict=True))
        if label != number
    ]
    detail = listed(moved) if moved else f"{counted(len(train.classes) - len(numbers), 'class')} has no image in it"
    return f"{other.path} lists its classes differently from {train.path}: its labels are matched by name ({detail})"


def check_labels(data: Labelled, num_classes: int) -> None:
    """Refuse labels outside the range of classes.

    Raises
    ------
    UsageError
        Naming the first such sample.
    """
    labels = data.labels()
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if not len(wrong):
        return
    text = f"{data.path}: sample {wrong[0]} has the label {labels[wrong[0]]}; labels must be "
    text += f"0 to {num_classes - 1}" if num_classes else "at least 0"
    if len(wrong) > 1:
        text += f"; {counted(len(wrong) - 1, 'other sample')} have labels outside too"
    raise UsageError(text)
