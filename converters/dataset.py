"""Any Python dataset that can be indexed -> ``.beton``: `write`, the counterpart of FFCV's ``DatasetWriter``.

Accepts samples that are tuples (in the order of the fields), dicts (by name) or, for a single field, bare values, and
says clearly what it got when they fit none of these.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from dataloading import Field, UsageError
from dataloading.cli import default_num_workers

from .encode import OnError, Options, convert
from .policy import ImagePolicy
from .report import Report
from .sources.base import SampleFault

__all__ = ["DatasetSource", "Indexable", "write"]


class Indexable(Protocol):
    """A dataset: a length, and samples by index. torch's map-style datasets are."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class DatasetSource:
    """A `converters.sources.base.Source` over an indexable dataset.

    Parameters
    ----------
    dataset : Indexable
        ``dataset[i]`` runs in the workers, so the dataset must be picklable unless there are none.
    fields : mapping of str to Field
        The file's fields in order.
    class_names : sequence of str, optional
        By default the dataset's ``classes``, if it has a list of strings there.
    """

    def __init__(
        self, dataset: Indexable, fields: Mapping[str, Field], *, class_names: Sequence[str] | None = None
    ) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise UsageError(
                f"a dataset needs len() and [index], got {type(dataset).__name__}; put an iterable's samples in a list"
            )
        if not fields:
            raise UsageError("fields is empty; name at least one, such as {'image': ImageField(), 'label': IntField()}")
        for name, field in fields.items():
            if not isinstance(field, Field):
                raise UsageError(f"fields['{name}'] must be a field such as IntField(), got {field!r}")
        self.fields = dict(fields)
        self._dataset = dataset
        self.class_names = list(class_names) if class_names is not None else _classes_of(dataset)

    @property
    def provenance(self) -> Mapping[str, object]:
        """Kind of the dataset and how many samples it has."""
        return {"source": "dataset", "source_name": type(self._dataset).__qualname__, "source_samples": len(self)}

    @property
    def load(self) -> Callable[[int], Mapping[str, Any]]:
        """See `converters.sources.base.Source`."""
        return _Load(self._dataset, tuple(self.fields))

    def __len__(self) -> int:
        return len(self._dataset)

    def task(self, index: int) -> int:
        """Return the index itself."""
        return index

    def name(self, index: int) -> str:
        """Return words for the sample, which has no file that we know of."""
        return f"{type(self._dataset).__name__}[{index}]"


class _Load:
    """``dataset[i]`` by field name; what travels to the workers."""

    def __init__(self, dataset: Indexable, names: tuple[str, ...]) -> None:
        self._dataset = dataset
        self._names = names

    def __call__(self, index: int) -> Mapping[str, Any]:
        return by_name(self._dataset[index], self._names)


def by_name(sample: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    """Return a sample's values by field name.

    Parameters
    ----------
    sample : mapping, tuple, list or any value
        Values by name, values in the order of the fields, or the value of the only field.
    names : tuple of str
        The fields.

    Raises
    ------
    SampleFault
        If the sample does not have exactly these fields.

    Examples
    --------
    >>> by_name((b"jpeg", 3), ("image", "label"))
    {'image': b'jpeg', 'label': 3}
    >>> by_name(3, ("label",))
    {'label': 3}
    """
    if isinstance(sample, Mapping) and not (len(names) == 1 and names[0] not in sample):
        missing = [name for name in names if name not in sample]
        if missing or len(sample) != len(names):
            raise SampleFault(f"expected a dict with the keys {list(names)}, got one with {list(sample)}")
        return {name: sample[name] for name in names}
    # With one field a list is more likely the value itself (boxes, tokens) than a list of one value.
    if isinstance(sample, tuple) or (isinstance(sample, list) and len(names) > 1):
        if len(sample) == len(names):
            return dict(zip(names, sample, strict=True))
        kinds = ", ".join(type(value).__name__ for value in sample)
        raise SampleFault(
            f"expected a {type(sample).__name__} of {len(names)} values for {list(names)}, got {len(sample)} ({kinds})"
        )
    if len(names) == 1:
        return {names[0]: sample}
    raise SampleFault(f"expected a tuple or dict with {list(names)}, got {type(sample).__name__}")


def _classes_of(dataset: object) -> list[str] | None:
    names = getattr(dataset, "classes", None)
    if isinstance(names, Iterable) and not isinstance(names, (str, bytes)):
        listed = list(names)
        if listed and all(isinstance(name, str) for name in listed):
            return listed
    return None


def write(
    dataset: Indexable,
    path: str | os.PathLike[str],
    fields: Mapping[str, Field],
    *,
    images: ImagePolicy | None = None,
    class_names: Sequence[str] | None = None,
    num_workers: int | None = None,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    page_size: int | None = None,
    overwrite: bool = False,
    on_error: OnError = "raise",
    quiet: bool = False,
) -> Report:
    """Write any indexable dataset into a ``.beton`` file.

    Parameters
    ----------
    dataset : Indexable
        Has ``len()`` and ``dataset[i]``; samples are tuples, dicts or, with one field, bare values. An image may be
        a Pillow image, a uint8 array (H, W, 3), or an image file's bytes (a JPEG's are kept where possible).
    path : str or path-like
        The file to make; it appears when it is complete.
    fields : mapping of str to Field
        Names and kinds of the values, in order.
    images : ImagePolicy, optional
        How images are stored; the default is JPEG at quality 90 without resizing.
    class_names : sequence of str, optional
        Names of the classes by label; by default the dataset's own ``classes``.
    num_workers : int, optional
        Worker processes, by default one a core; 0 works in this process. Scripts that use workers need the usual
        ``if __name__ == "__main__":``.
    limit, shuffle, seed, page_size, overwrite, on_error, quiet
        See `converters.encode.Options`.

    Returns
    -------
    Report
        Counts, sizes, time and what was skipped.

    Raises
    ------
    UsageError
        If the arguments cannot be honoured, or the dataset cannot be sent to worker processes.
    ConvertError
        If the conversion cannot finish; no file is left behind.

    Examples
    --------
    >>> from dataloading import IntField
    >>> write([(7,), (8,)], "numbers.beton", {"label": IntField()}, num_workers=0)  # doctest: +SKIP
    """
    options = Options(
        num_workers=default_num_workers() if num_workers is None else num_workers,
        limit=limit,
        shuffle=shuffle,
        seed=seed,
        page_size=page_size,
        overwrite=overwrite,
        on_error=on_error,
        quiet=quiet,
    )
    source = DatasetSource(dataset, fields, class_names=class_names)
    return convert(source, path, policy=images or ImagePolicy(seed=seed), options=options)
