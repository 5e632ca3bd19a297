"""Transforms of labels and other values: one-hot with smoothing, mapping, replacing those of some samples.

They work on the worker threads, on the values of a group of samples, before anything that works on the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.checks import as_integer
from dataloading.errors import UsageError
from dataloading.messages import describe
from dataloading.transforms.base import FieldOp, Values

__all__ = ["MapLabels", "OneHot", "ReplaceLabel", "sample_numbers"]


def sample_numbers(owner: str, indices: Iterable[int]) -> tuple[int, ...]:
    """Return the indices of samples, sorted, each once."""
    given = indices.tolist() if hasattr(indices, "tolist") else indices
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise UsageError(f"{owner}: indices must be the numbers of samples, got {describe(indices)}")
    numbers = [as_integer(each) for each in given]
    wrong = next((each for each in numbers if each is None or each < 0), 0)
    if wrong is None or wrong < 0:
        raise UsageError(f"{owner}: indices must be numbers of samples, 0 or more, got {wrong if wrong else 'others'}")
    return tuple(sorted({each for each in numbers if each is not None}))


@dataclasses.dataclass(frozen=True)
class OneHot(FieldOp):
    """Class numbers to rows of ``num_classes`` float32 numbers, smoothed if wanted.

    Parameters
    ----------
    num_classes : int
    smoothing : float
        Share that is spread over all classes, as ``label_smoothing=`` of ``torch.nn.CrossEntropyLoss`` has it: the
        label's own number becomes ``1 - smoothing + smoothing / num_classes``.

    Examples
    --------
    >>> OneHot(10, smoothing=0.1)
    OneHot(num_classes=10, smoothing=0.1)
    """

    num_classes: int
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.num_classes, bool) or not isinstance(self.num_classes, int) or self.num_classes < 1:
            raise UsageError(f"OneHot: num_classes must be a positive integer, got {self.num_classes!r}")
        check_smoothing("OneHot", self.smoothing)

    def values_after(self, values: Values) -> Values:
        """See ``FieldOp.values_after``."""
        if values.shape is None or np.dtype(values.dtype).kind not in "iu":
            raise UsageError(f"OneHot needs class numbers, got {values.text}. Put MapLabels before it")
        return Values((*values.shape, self.num_classes), "float32")

    def on_values(self, values: Any, indices: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64]) -> Any:
        """See ``FieldOp.on_values``."""
        if values.size and (values.min() < 0 or values.max() >= self.num_classes):
            wrong = values.max() if values.max() >= self.num_classes else values.min()
            raise ValueError(f"label {wrong}, but num_classes={self.num_classes} allows 0 to {self.num_classes - 1}")
        low = self.smoothing / self.num_classes
        rows = np.full((*values.shape, self.num_classes), low, np.float32)
        np.put_along_axis(rows, values[..., None].astype(np.int64), 1.0 - self.smoothing + low, axis=-1)
        return rows


def check_smoothing(owner: str, smoothing: float) -> None:
    """Raise UsageError if it is no share of labels."""
    if isinstance(smoothing, bool) or not isinstance(smoothing, (int, float)) or not 0.0 <= smoothing <= 1.0:
        raise UsageError(f"{owner}: smoothing must be a number from 0 to 1, got {smoothing!r}")


@dataclasses.dataclass(frozen=True)
class MapLabels(FieldOp):
    """Put another number in place of each label.

    Parameters
    ----------
    mapping : mapping, or sequence
        Label to number, all integers or all floats; in a sequence labels are places. Labels may be integers, or text.
    default : int or float, optional
        For labels that ``mapping`` lacks; without it they are an error of the sample.

    Examples
    --------
    >>> MapLabels({3: 0, 7: 1}), MapLabels([0, 0, 1]).mapping
    (MapLabels(mapping={3: 0, 7: 1}, default=None), (0, 0, 1))
    """

    mapping: Mapping[Any, float] | Sequence[float]
    default: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.mapping.tolist() if hasattr(self.mapping, "tolist") else self.mapping
        if isinstance(given, (str, bytes)) or not isinstance(given, (Mapping, Sequence)) or not given:
            raise UsageError(f"MapLabels: mapping must be a dictionary or a list, not empty, got {describe(given)}")
        mapping = dict(given) if isinstance(given, Mapping) else dict(enumerate(given))
        for label, number in [*mapping.items(), ("default", 0 if self.default is None else self.default)]:
            if isinstance(number, bool) or not isinstance(number, (int, float, np.number)):
                raise UsageError(f"MapLabels: labels become numbers, got {describe(number)} for {label!r}")
        object.__setattr__(self, "mapping", mapping if isinstance(given, Mapping) else tuple(mapping.values()))

    def values_after(self, values: Values) -> Values:
        """See ``FieldOp.values_after``."""
        if values.shape is not None and (values.shape or np.dtype(values.dtype).kind not in "iu"):
            raise UsageError(f"MapLabels needs one integer or text a sample, got {values.text}")
        return Values((), self._dtype)

    @property
    def _numbers(self) -> dict[Any, float]:
        return dict(self.mapping if isinstance(self.mapping, Mapping) else enumerate(self.mapping))

    @property
    def _dtype(self) -> str:
        numbers = [*self._numbers.values(), *([] if self.default is None else [self.default])]
        return "int64" if np.asarray(numbers).dtype.kind in "iu" else "float64"

    def on_values(self, values: Any, indices: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64]) -> Any:
        """See ``FieldOp.on_values``."""
        numbers = self._numbers
        labels = values.tolist() if isinstance(values, np.ndarray) else values
        found = [numbers.get(each, self.default) for each in labels]
        if None in found:
            wrong = labels[found.index(None)]
            raise ValueError(f"there is no {wrong!r} in the mapping. Add it, or pass default=")
        return np.array(found, self._dtype)


@dataclasses.dataclass(frozen=True)
class ReplaceLabel(FieldOp):
    """Give some samples another label, as FFCV's transform of this name does.

    Parameters
    ----------
    indices : sequence of int
        Numbers of samples, as in ``batch.indices``.
    new_label : int or float

    Examples
    --------
    >>> ReplaceLabel([7, 3, 7], 0)
    ReplaceLabel(indices=(3, 7), new_label=0)
    """

    indices: Sequence[int]
    new_label: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "indices", sample_numbers("ReplaceLabel", self.indices))
        if isinstance(self.new_label, bool) or not isinstance(self.new_label, (int, float)):
            raise UsageError(f"ReplaceLabel: new_label must be a number, got {describe(self.new_label)}")

    def values_after(self, values: Values) -> Values:
        """See ``FieldOp.values_after``."""
        if values.shape is None:
            raise UsageError(f"ReplaceLabel needs numbers, got {values.text}. Put MapLabels before it")
        if np.asarray(self.new_label).astype(values.dtype) != self.new_label:
            raise UsageError(f"ReplaceLabel: {values.dtype} labels cannot be {self.new_label!r}")
        return values

    def on_values(self, values: Any, indices: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64]) -> Any:
        """See ``FieldOp.on_values``."""
        replaced = values.copy()
        replaced[np.isin(indices, self.indices)] = self.new_label
        return replaced
