"""What is done, sample by sample, to the values of fields that hold no images: the ``FieldOp``s of their lists.

Knows decoders and transforms; no batches or threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.decode.decoders import Decoder
from dataloading.errors import UsageError
from dataloading.sampling.random import children
from dataloading.transforms.base import FieldOp, Values
from dataloading.transforms.foreign import name_of
from dataloading.transforms.pipeline import PipelineFault

__all__ = ["FieldValues"]


class FieldValues:
    """The transforms of single values at the front of a field's list.

    Parameters
    ----------
    decoder : Decoder
        Makes the values that go in.
    transforms : sequence
        The field's whole list.

    Attributes
    ----------
    count : int
        How many of the list they are; the rest works on the batch.

    Raises
    ------
    UsageError
        If one of them cannot work on such values, or stands behind something that works on the batch.
    """

    def __init__(self, decoder: Decoder, transforms: Sequence[Any]) -> None:
        self._ops: list[FieldOp] = []
        self._after: list[Values] = []
        example = decoder.allocate(1)
        is_array = isinstance(example, np.ndarray)
        self._values = Values(example.shape[1:], str(example.dtype)) if is_array else Values()
        for position, op in enumerate(transforms):
            if not isinstance(op, FieldOp):
                continue
            if position > len(self._ops):
                before = name_of(transforms[position - 1])
                raise UsageError(
                    f"transform {position} ({op.name}) works on single values, but stands behind transform "
                    f"{position - 1} ({before}), which works on the batch. Move it before that"
                )
            try:
                self._values = op.values_after(self._values)
            except UsageError as error:
                raise UsageError(f"transform {position}: {error}") from None
            self._ops.append(op)
            self._after.append(self._values)
        self.count = len(self._ops)

    def allocate(self, rows: int) -> Any:
        """Make memory for ``rows`` results, an array or a list."""
        if self._values.shape is None:
            return [None] * rows
        return np.empty((rows, *self._values.shape), self._values.dtype)

    def run(
        self,
        given: Any,
        indices: npt.NDArray[np.int64],
        keys: npt.NDArray[np.uint64],
        out: Any,
        first: int,
        start: int = 0,
    ) -> None:
        """Write the results for some rows to ``out``.

        Parameters
        ----------
        given : ndarray or list
            Decoded values of all rows of the batch.
        indices : ndarray of int64, shape (n,)
            Of the samples in rows ``first`` to ``first + n``.
        keys : ndarray of uint64, shape (n,)
            From ``sample_keys``.
        out : ndarray or list
            Of all rows.
        first : int
        start : int
            How many of these rows are done already.

        Raises
        ------
        PipelineFault
            For the first row on which a transform raised; those before it are done.
        """
        last = len(indices)
        try:
            rows = slice(first + start, first + last)
            out[rows] = self._results(given[rows], indices[start:], keys[start:])
        except _Failed:
            for row in range(start, last):
                here, at = slice(first + row, first + row + 1), slice(row, row + 1)
                try:
                    out[here] = self._results(given[here], indices[at], keys[at])
                except _Failed as failure:
                    raise PipelineFault(row, failure.error, failure.where) from failure.error

    def _results(self, values: Any, indices: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64]) -> Any:
        for position, (op, expected) in enumerate(zip(self._ops, self._after, strict=True)):
            try:
                values = op.on_values(values, indices, children(keys, position))
                if expected.shape is not None:
                    got = Values(values.shape[1:], str(values.dtype))
                    if got != expected:
                        raise ValueError(f"it returned {got.text}, expected {expected.text}")
            except Exception as error:
                raise _Failed(error, f"transform {position} ({op.name})") from error
        return values


class _Failed(Exception):  # noqa: N818 (never leaves this module)
    def __init__(self, error: Exception, where: str) -> None:
        self.error = error
        self.where = where
        super().__init__(where)
