"""What is done to a finished batch in the caller's thread: the user's callables, and transforms that mix samples."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dataloading.engine.outputs import Output
from dataloading.errors import TransformError, UsageError
from dataloading.messages import counted, describe
from dataloading.transforms.base import BatchOp, Transform
from dataloading.transforms.foreign import name_of
from dataloading.transforms.mix import Mixing

__all__ = ["BatchTransform"]


@dataclass(frozen=True, kw_only=True)
class BatchTransform:
    """A callable or batch-level transform on the values of one output; on those of each view by itself.

    Parameters
    ----------
    output : Output
    position : int
        Index in the output's list of transforms.
    op : callable or BatchOp
    label_field : str, optional
        The field whose values a BatchOp mixes as well.
    """

    output: Output
    position: int
    op: Any
    label_field: str | None = None

    @functools.cached_property
    def name(self) -> str:
        """Name of the operation and its position, for statistics."""
        op = self.op.func if isinstance(self.op, functools.partial) else self.op
        name = getattr(op, "__name__", None) or type(op).__name__
        return f"{name} (transforms[{self.output.name!r}][{self.position}])"

    def apply(self, values: dict[str, Any], num_rows: int, key: int) -> dict[str, Any]:
        """Replace the values of its output, and for a BatchOp the labels.

        A result has one entry per row: a tensor, an array, a list, or whatever else has a length; or it is a dictionary
        or tuple of such, for instance several views of the images.

        Parameters
        ----------
        values : dict of str to tensor or list
            All outputs of the batch; changed.
        num_rows : int
            Of the batch.
        key : int
            Random key, for a BatchOp.

        Returns
        -------
        dict of str to ndarray, one row a sample
            What was drawn where samples were mixed, by "place.transform.param".

        Raises
        ------
        TransformError
            It raised, or returned something else. The error names field, position, operation, input and result.
        """
        name = self.output.name
        if isinstance(self.op, BatchOp):
            labels = self.label_field or ""
            given = values[name]
            values[name], values[labels] = self._call(given, num_rows, 0, values[labels], key)
            if isinstance(self.op, Mixing):
                drawn = self.op.drawn(given.shape, key)
                return {f"{self.position}.{self.op.name}.{param}": each for param, each in drawn.items()}
        elif len(self.output.views) > 1:
            values[name] = [self._call(each, num_rows, k) for k, each in enumerate(values[name])]
        else:
            values[name] = self._call(values[name], num_rows)
        return {}

    def _call(self, given: Any, num_rows: int, place: int = 0, *more: Any) -> Any:
        view = self.output.view_text(place)
        try:
            result = self.op(given, *more)
            fault = _wrong_result(result, num_rows)
        except Exception as error:  # KeyboardInterrupt and the like pass
            if isinstance(error, UsageError) and isinstance(self.op, Transform):
                raise  # its message already says what to do
            raise self._error(given, f"{type(error).__name__}: {error}", view) from error
        if fault:
            raise self._error(given, fault, view)
        return result

    def _error(self, given: Any, reason: str, view: str | None) -> TransformError:
        what = "list" if isinstance(given, list) else "tensor"
        return TransformError(
            reason.rstrip("."),
            field=self.output.field,
            view=view,
            transform=f"transform {self.position} ({name_of(self.op)}), given the batch as {_shown(given)}",
            advice=f"Callables get the whole batch as a {what}, not one sample at a time",
        )


def _wrong_result(result: Any, num_rows: int) -> str:
    """Say what is wrong with the result for a batch; empty if nothing is."""
    parts = [result]
    if isinstance(result, Mapping) or type(result) is tuple:
        parts = list(result.values() if isinstance(result, Mapping) else result)
    expected = f"expected one entry for each of {counted(num_rows, 'row')}"
    if not parts:
        return f"returned an empty {type(result).__name__}, {expected}"
    for part in parts:
        try:
            num = None if isinstance(part, (str, bytes)) else len(part)
        except TypeError:  # None, a number, a tensor of no dimension
            num = None
        if num != num_rows:
            missing = " (a function without return gives None)" if part is None else ""
            inside = "" if part is result else f" in a {type(result).__name__} of {len(parts)}"
            return f"returned {_shown(part)}{inside}, {expected}{missing}"
    return ""


def _shown(value: Any) -> str:
    """Describe batched values: shape and dtype of tensors and arrays, length of lists."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        device = str(getattr(value, "device", "cpu"))
        where = "" if device == "cpu" else f" on {device}"
        return f"{tuple(shape)} {str(dtype).removeprefix('torch.')}{where}"
    if isinstance(value, (list, tuple)):
        kinds = sorted({type(each).__name__ for each in value})
        return f"a {type(value).__name__} of {len(value)} {', '.join(kinds)}".rstrip()
    return describe(value)
