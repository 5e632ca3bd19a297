"""What a loader yields: the values of the fields, as a tuple and as a mapping by name, with the samples' indices.

Knows no files and no tensors.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from typing import Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

__all__ = ["Batch"]


class Batch(tuple[Any, ...]):
    """The values of one batch: a tuple in the order of the fields, and a mapping by their names.

    ``for images, labels in loader`` works, and so do ``batch["image"]``, ``dict(batch)`` and ``model(**batch)``. Its
    memory is reused only when no tensor refers to it any more, so you may keep it as long as you like.

    Parameters
    ----------
    values : iterable or mapping
        The values; a mapping's keys become the names.

    Notes
    -----
    It is both a ``tuple`` and a ``collections.abc.Mapping``. Where the two differ it is a tuple: iterating gives values
    (as unpacking does), ``len`` counts them, ``==`` compares them, ``batch[0]`` is the first. For strings it is a
    mapping, ``batch["image"]`` and ``"image" in batch``; and it has ``keys``, ``values``, ``items``, ``get``.

    Attributes
    ----------
    names : tuple of str
        The fields' names, in the order of the values.
    indices : ndarray of int64, shape (rows,)
        Index in the dataset of each row's sample.
    num_valid : int
        Rows that are not padding (``tail="pad"``); they come first.
    global_size : int
        Such rows in this step over all ranks: divide summed losses by it.
    params : mapping of str to mapping of str to tensor
        With ``return_params=True`` what was drawn for each image, by the name of the output and of the transform (a
        list of mappings where the output is a list of views), in host memory; else empty.
    epoch, step : int
        The batch's epoch, and its number in this iteration, from 0.

    Examples
    --------
    >>> batch = Batch([[1.0, 2.0], [0, 1]], names=("x", "label"), indices=np.array([4, 2]))
    >>> x, label = batch
    >>> batch["label"], batch.indices.tolist(), batch.num_valid
    ([0, 1], [4, 2], 2)
    >>> dict(batch)
    {'x': [1.0, 2.0], 'label': [0, 1]}
    """

    names: tuple[str, ...]
    indices: npt.NDArray[np.int64]
    num_valid: int
    global_size: int
    params: Mapping[str, Any]
    epoch: int
    step: int

    def __new__(
        cls,
        values: Iterable[Any] | Mapping[str, Any] = (),
        *,
        names: tuple[str, ...] = (),
        indices: npt.NDArray[np.int64] | None = None,
        num_valid: int | None = None,
        global_size: int | None = None,
        params: Mapping[str, Any] | None = None,
        epoch: int = 0,
        step: int = 0,
    ) -> Batch:
        """Make a batch; from the values alone, a tuple without names or indices."""
        # Libraries that move nested data rebuild tuples as type(x)(values), and mappings as type(x)(dictionary).
        if isinstance(values, Mapping) and not isinstance(values, Batch):
            names = names or (tuple(values) if all(isinstance(key, str) for key in values) else ())
            values = values.values()
        self = super().__new__(cls, values)
        self.names = names
        self.indices = np.empty(0, np.int64) if indices is None else indices
        self.num_valid = len(self.indices) if num_valid is None else num_valid
        self.global_size = self.num_valid if global_size is None else global_size
        self.params = {} if params is None else params
        self.epoch = epoch
        self.step = step
        return self

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self.names:
                raise KeyError(f"{key!r} is not a field of this batch; it has {', '.join(map(repr, self.names))}")
            return super().__getitem__(self.names.index(key))
        if not isinstance(key, (int, slice)) and any(key is value for value in self):
            # Code that expects a mapping to iterate over its keys (torch's default_convert) passes a value here.
            if isinstance(key, list):
                raise TypeError(
                    "a Batch gives its values when iterated over: take batch.items() or dict(batch); a torch "
                    "DataLoader around a Loader needs collate_fn=lambda batch: batch"
                )
            return key
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self.names if isinstance(key, str) else super().__contains__(key)

    def _by_name(self) -> dict[Any, Any]:
        """Return the values by name; by number if a library has made the batch without names."""
        return dict(zip(self.names or range(len(self)), self, strict=False))

    def keys(self) -> KeysView[str]:
        """Return the names of the fields."""
        return self._by_name().keys()

    def values(self) -> ValuesView[Any]:
        """Return the values of the fields."""
        return self._by_name().values()

    def items(self) -> ItemsView[str, Any]:
        """Return pairs of name and value."""
        return self._by_name().items()

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a field, or `default` if there is no such field."""
        return self[key] if key in self.names else default

    def pin_memory(self, device: Any = None) -> Batch:
        """Copy the tensors to pinned memory, as a torch DataLoader around the loader asks for."""
        pinned = (_each_tensor(value, "pin_memory") for value in self)
        return self.replace(pinned)

    def to(self, device: Any, *, non_blocking: bool = False) -> Batch:
        """Move the tensors, as `torch.Tensor.to` does; names, indices and sizes stay.

        Frameworks that move batches by themselves (Lightning, Accelerate) call it.
        """
        moved = (_each_tensor(value, "to", device, non_blocking=non_blocking) for value in self)
        return self.replace(moved)

    def replace(self, values: Iterable[Any]) -> Batch:
        """Make a batch of the same samples with other values."""
        return Batch(
            values,
            names=self.names,
            indices=self.indices,
            num_valid=self.num_valid,
            global_size=self.global_size,
            params=self.params,
            epoch=self.epoch,
            step=self.step,
        )

    def __repr__(self) -> str:
        parts = []
        for name, value in zip(self.names, self, strict=False):
            shape = getattr(value, "shape", None)
            parts.append(f"{name}: {len(value)} values" if shape is None else f"{name}: {tuple(shape)} {value.dtype}")
        return f"Batch({', '.join(parts)}; epoch {self.epoch}, step {self.step})"


def _each_tensor(value: Any, method: str, *args: Any, **options: Any) -> Any:
    """Call a method of a tensor, or of each tensor in a list; anything else stays as it is."""
    if isinstance(value, list):
        return [_each_tensor(each, method, *args, **options) for each in value]
    found = getattr(value, method, None)
    return found(*args, **options) if callable(found) else value


Mapping.register(Batch)  # not inherited: Mapping iterates and compares in another way
