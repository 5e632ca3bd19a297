"""Pairs samples of equal value, by digests of a field's values.

Keeps 16 bytes per sample, whatever the size of the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.tools.input_files import InputFile
from dataloading import UsageError

__all__ = ["Digests", "combined", "digest_array", "equal_ids", "field_keys", "has_equals", "match", "unpaired"]

Integers = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]

_BLOCK = 4096


def digest_array(values: Iterable[Any], count: int) -> Digests:
    """Return the 128-bit XXH3 checksum of each bytes-like value, as uint64[count, 2]."""
    import xxhash

    keys = np.empty((count, 2), np.uint64)
    for position, value in enumerate(values):
        number = xxhash.xxh3_128_intdigest(value)
        keys[position] = number >> 64, number & (1 << 64) - 1
    return keys


def field_keys(input_file: InputFile, field: str) -> Digests:
    """Return a digest for each sample, the same for equal values of a field: uint64[num_samples, 2].

    Integers and floats are equal as numbers; in other fields values are equal if their stored bytes are.

    Raises
    ------
    UsageError
        If there is no such field.
    """
    if field not in input_file.fields:
        raise UsageError(f"{input_file.path} has no field '{field}'; its fields are {list(input_file.fields)}")
    if not input_file.fields[field].has_data:
        column = np.array(input_file.reader.column(field))
        if column.dtype.kind == "f":
            column = column + 0.0  # minus zero is zero
        keys = np.zeros((len(column), 2), np.uint64)
        keys[:, 0] = column.view(np.uint64)
        return keys

    def values() -> Iterable[Any]:
        for start in range(0, len(input_file), _BLOCK):
            indices = np.arange(start, min(start + _BLOCK, len(input_file)))
            pointers, sizes = input_file.reader.locate(field, indices)
            for pointer, size in zip(pointers.tolist(), sizes.tolist(), strict=True):
                yield input_file.read(pointer, size)

    return digest_array(values(), len(input_file))


def combined(keys: Sequence[Digests]) -> Digests:
    """Return a digest for each sample that is the same where all of its digests are."""
    return digest_array(np.ascontiguousarray(np.concatenate(list(keys), axis=1)), len(keys[0]))


def has_equals(keys: Digests) -> bool:
    """Return whether two samples have the same digest."""
    ids = equal_ids([keys])[0]
    return len(ids) > 0 and int(ids.max()) + 1 < len(ids)


def equal_ids(keys: Sequence[Digests]) -> list[Integers]:
    """Return numbers for the digests of several files, the same for equal digests in any of them.

    Examples
    --------
    >>> one, two = np.array([[7, 0], [9, 0]], np.uint64), np.array([[9, 0]], np.uint64)
    >>> [ids.tolist() for ids in equal_ids([one, two])]
    [[0, 1], [1]]
    """
    joined = np.ascontiguousarray(np.concatenate(list(keys)))
    flat = joined.view(np.dtype([("high", np.uint64), ("low", np.uint64)])).reshape(-1)
    ids = np.unique(flat, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return np.split(ids, np.cumsum([len(each) for each in keys])[:-1].tolist())


def match(left: Digests, right: Digests, ties: tuple[Digests, Digests] | None = None) -> tuple[Integers, Integers]:
    """Pair samples of two files by digest; of equal digests the first goes with the first, the second with the second.

    Returns the indices of the pairs in either file, ascending in the first; samples without a partner are in neither.
    With ``ties``, further digests, samples of equal digests that are equal there as well are paired first.

    Examples
    --------
    >>> one, two = np.array([[7, 0], [7, 0], [9, 0]], np.uint64), np.array([[9, 0], [7, 0]], np.uint64)
    >>> [indices.tolist() for indices in match(one, two)]
    [[0, 2], [1, 0]]
    >>> match(one[:2], two[1:], ties=(np.array([[1, 0], [5, 0]], np.uint64), np.array([[5, 0]], np.uint64)))
    (array([1]), array([0]))
    """
    if ties is not None:
        pairs = match(combined([left, ties[0]]), combined([right, ties[1]]))
        rest = [unpaired(len(keys), found) for keys, found in zip((left, right), pairs, strict=True)]
        more = match(left[rest[0]], right[rest[1]])
        joined = [np.concatenate([pairs[side], rest[side][more[side]]]) for side in (0, 1)]
        order = np.argsort(joined[0])
        return joined[0][order], joined[1][order]
    first, second = equal_ids([left, right])
    width = len(first) + len(second) + 1
    one, two = (ids * width + _occurrence(ids) for ids in (first, second))
    _, left_indices, right_indices = np.intersect1d(one, two, assume_unique=True, return_indices=True)
    order = np.argsort(left_indices)
    return left_indices[order].astype(np.int64), right_indices[order].astype(np.int64)


def unpaired(count: int, paired: Integers) -> Integers:
    """Return those of ``count`` samples that are not among the paired ones, ascending."""
    left_over = np.ones(count, np.bool_)
    left_over[paired] = False
    return np.flatnonzero(left_over)


def _occurrence(ids: Integers) -> Integers:
    """Return how many equal numbers stand before each."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ids) else np.empty(0, np.int64)
    lengths = np.diff(np.r_[starts, len(ids)])
    result = np.empty(len(ids), np.int64)
    result[order] = np.arange(len(ids)) - np.repeat(starts, lengths)
    return result
