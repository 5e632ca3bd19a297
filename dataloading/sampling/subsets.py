"""Lists of samples and of weights: checks, comparisons, counts. Knows no order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dataloading.arrays import Indices
from dataloading.errors import UsageError
from dataloading.messages import counted

__all__ = ["balanced_weights", "checked_indices", "checked_weights", "chosen_by", "digest", "occurrences"]


_MAX_EXPONENT = 512


def checked_indices(indices: Iterable[int] | Indices, num_samples: int) -> Indices:
    """Copy a list of sample indices, read-only.

    Raises
    ------
    UsageError
        It is not a flat list of integers below `num_samples`.
    """
    if isinstance(indices, (str, bytes)) or not isinstance(indices, Iterable):
        raise UsageError(f"indices must be a list of integers, got {indices!r}")
    given = np.asarray(indices if isinstance(indices, np.ndarray | list | tuple) else list(indices))
    if given.size == 0:
        return np.empty(0, np.int64)
    if given.dtype == np.bool_ or not np.issubdtype(given.dtype, np.integer) or given.ndim != 1:
        hint = "; use numpy.flatnonzero(mask) for a mask" if given.dtype == np.bool_ else ""
        raise UsageError(f"indices must be a flat list of integers, got {given.dtype} of shape {given.shape}{hint}")
    low, high = int(given.min()), int(given.max())
    if low < 0 or high >= num_samples:
        wrong = low if low < 0 else high
        raise UsageError(
            f"index {wrong} is outside the dataset: it has {counted(num_samples, 'sample')}, 0..{num_samples - 1}"
        )
    subset = given.astype(np.int64)  # a copy: the caller may change theirs
    subset.flags.writeable = False
    return subset


def checked_weights(
    weights: object, num_samples: int, labels: npt.NDArray[np.integer[Any]] | None
) -> npt.NDArray[np.float64] | Literal["balanced"] | None:
    """Copy one weight for each sample of the dataset, read-only; "balanced" and None are returned as they are.

    Raises
    ------
    UsageError
        A weight is negative or not finite, their number is wrong, or there are no labels to balance.
    """
    if weights is None:
        return None
    if isinstance(weights, str):
        if weights != "balanced":
            raise UsageError(f"weights={weights!r} must be a list of numbers or 'balanced'")
        if labels is None:
            raise UsageError("weights='balanced' needs an integer label field")
        return "balanced"
    try:
        given = np.array(weights, np.float64)  # a copy: the caller may change theirs
    except (TypeError, ValueError) as error:
        raise UsageError(f"weights= must be numbers, one for each sample, or 'balanced': {error}") from error
    if given.shape != (num_samples,):
        raise UsageError(
            f"weights= must hold one number for each of the {num_samples} samples of the dataset, "
            f"got shape {given.shape}"
        )
    bad = np.flatnonzero(~(np.isfinite(given) & (given >= 0)))
    if len(bad):
        raise UsageError(f"weights[{bad[0]}]={given[bad[0]]} must be finite and not negative")
    exponent = int(np.frexp(given.max(initial=0.0))[1])
    if abs(exponent) > _MAX_EXPONENT:
        # Sums of them, or quotients by them, would overflow. Scaling by a power of two changes no draw.
        given = np.ldexp(given, -exponent)
    given.flags.writeable = False
    return given


def balanced_weights(labels: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float64]:
    """Weigh samples so that every class has the total weight 1.

    Examples
    --------
    >>> balanced_weights(np.array([5, 5, 7])).tolist()
    [0.5, 0.5, 1.0]
    """
    if len(labels) == 0:
        return np.empty(0)
    low = int(labels.min())
    if int(labels.max()) - low < len(labels):  # nothing need be sorted
        classes = np.subtract(labels, low, dtype=np.int64)  # the difference may not fit the labels' own type
        counts = np.bincount(classes)
    else:
        _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.asarray((1.0 / np.maximum(counts, 1))[classes])


def chosen_by(predicate: Callable[[Any], Any], values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Call a predicate on all values at once, or on each if it cannot take an array.

    Examples
    --------
    >>> chosen_by(lambda v: v > 1, np.array([0, 3])).tolist(), chosen_by(lambda v: v in {3}, np.array([0, 3])).tolist()
    ([False, True], [False, True])
    """
    try:
        answer = predicate(values)
    except Exception:  # "unhashable", "truth value is ambiguous", ...; an error of its own is raised below as well
        answer = None
    if isinstance(answer, np.ndarray) and answer.shape == values.shape and answer.dtype == np.bool_:
        return answer
    return np.fromiter((bool(predicate(value)) for value in values.tolist()), np.bool_, len(values))


def occurrences(indices: Indices) -> Indices | None:
    """Count, for each position, the earlier ones with the same index; None if no index occurs twice.

    Examples
    --------
    >>> occurrences(np.array([4, 9, 4, 4])).tolist()
    [0, 0, 1, 2]
    """
    seen = np.zeros(int(indices.max(initial=-1)) + 1, bool)
    seen[indices] = True
    if np.count_nonzero(seen) == len(indices):
        return None
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    again = np.append(False, ordered[1:] == ordered[:-1])
    positions = np.arange(len(ordered))
    views = np.empty(len(ordered), np.int64)
    views[order] = positions - np.maximum.accumulate(np.where(again, 0, positions))
    return views


def digest(values: npt.NDArray[Any]) -> str:
    """Return 16 hexadecimal digits that change with the values."""
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()[:16]
