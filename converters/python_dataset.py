"""Converts any indexable Python dataset: `write`, the counterpart of FFCV's ``DatasetWriter``.

Samples are tuples (in the order of the fields), dicts (by name) or, for a single field, bare values; others raise an
error that describes them. Images of Hugging Face datasets are read encoded, as they are stored.
"""

from __future__ import annotations

import operator
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from converters.engine.convert import convert
from converters.images.opened_files import Opened, file_of, recorded, watched
from converters.images.policy import ImagePolicy
from converters.options import OnError
from converters.report import Report
from converters.settings import settings
from converters.source import SampleFault
from converters.sources.dataset_attributes import class_names_of, has_own_labels, has_transform
from converters.sources.row_values import file_bytes
from dataloading import Field, ImageField, UsageError
from dataloading.cli import default_num_workers, note
from dataloading.messages import counted, describe
from dataloading.tools import label_field

__all__ = ["DatasetSource", "Indexable", "by_name", "class_names_of", "write"]


_PLAIN = frozenset({np.ndarray, int, float, str, bytes})
"""Types of values that need no conversion."""


class Indexable(Protocol):
    """A dataset with a length and samples by index, such as torch's map-style datasets."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class DatasetSource:
    """A `converters.source.Source` over an indexable dataset.

    Parameters
    ----------
    dataset : Indexable
        ``dataset[i]`` runs in the workers, so the dataset must be picklable unless there are none.
    fields : mapping of str to Field
        The file's fields in order.
    class_names : sequence of str, optional
        By default the dataset's ``classes``, if that is a list of strings; an empty list stores none. Labels without a
        name are faults.
    starts_here : bool
        Whether the calling process may read samples, to find out whether starting workers pays off.
    """

    def __init__(
        self,
        dataset: Indexable,
        fields: Mapping[str, Field],
        *,
        class_names: Sequence[str] | None = None,
        starts_here: bool = False,
    ) -> None:
        self.starts_here = starts_here
        _check_indexable(dataset)
        if not isinstance(fields, Mapping):
            raise UsageError(
                f"fields must be a dict such as {{'image': ImageField(), 'label': IntField()}}, got {fields!r}"
            )
        if not fields:
            raise UsageError("fields is empty; name at least one, such as {'image': ImageField(), 'label': IntField()}")
        for name, field in fields.items():
            if not isinstance(field, Field):
                raise UsageError(f"fields['{name}'] must be a field such as IntField(), got {field!r}")
        self.fields = dict(fields)
        if isinstance(class_names, (str, bytes)):
            raise UsageError(f"class_names must be a list of strings, got {describe(class_names)}")
        self.class_names = class_names_of(dataset, self.fields) if class_names is None else list(class_names) or None
        self._dataset = _with_encoded_images(dataset, self.fields)
        self._name = type(self._dataset).__name__

    @property
    def provenance(self) -> Mapping[str, object]:
        """The dataset's class and its number of samples."""
        return {"source": "dataset", "source_name": type(self._dataset).__qualname__, "source_samples": len(self)}

    @property
    def load(self) -> Callable[[int], Mapping[str, Any]]:
        """See `converters.source.Source`."""
        return _Load(self._dataset, self.fields, 0 if self.class_names is None else len(self.class_names))

    def __len__(self) -> int:
        return len(self._dataset)

    def task(self, index: int) -> int:
        """Return the index itself."""
        return index

    def name(self, index: int) -> str:
        """Return the sample's index, since its file is not known."""
        return f"{self._name}[{index}]"


class _Load:
    """``dataset[i]`` by field name; sent to the workers."""

    def __init__(self, dataset: Indexable, fields: Mapping[str, Field], num_classes: int) -> None:
        self._dataset = dataset
        self._names = tuple(fields)
        self._images = frozenset(name for name, field in fields.items() if isinstance(field, ImageField))
        self._label = label_field(fields) if num_classes else None
        self._num_classes = num_classes

    def __call__(self, index: int) -> Mapping[str, Any]:
        opened = recorded()
        if opened is None:
            with watched():
                return self(index)
        opened.clear()
        given = by_name(self._dataset[index], self._names)
        values = given
        if not _PLAIN.issuperset(map(type, given.values())):
            values = {
                name: self._image(value, opened) if name in self._images else _without_torch(value)
                for name, value in given.items()
            }
        if self._label is not None:
            self._check_label(self._label, values)
        return values

    def _check_label(self, name: str, values: Mapping[str, Any]) -> None:
        try:
            label = operator.index(values[name])
        except TypeError:
            return  # the field raises the error
        if not 0 <= label < self._num_classes:
            raise SampleFault(
                f"field '{name}': the label {label} has no class name ({counted(self._num_classes, 'name')}: 0 "
                f"to {self._num_classes - 1}); class_names= takes all names, class_names=[] stores none"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled by value: torch sends tensors as shared memory, which only one receiver can open, but there are
        # several workers. Arrays are not copied until a worker is started.
        buffers: list[pickle.PickleBuffer] = []
        packed = pickle.dumps(self.__dict__, protocol=5, buffer_callback=buffers.append)
        return _unpacked, (packed, buffers)

    def _image(self, value: Any, opened: Sequence[Opened]) -> Any:
        if opened and (found := file_of(value, opened)) is not None:
            return found
        if type(value) is np.ndarray:
            return value
        # Hugging Face's encoded image; a dict is never an image otherwise.
        if not isinstance(value, Mapping) or set(value) != {"bytes", "path"}:
            return _without_torch(value)
        return value["bytes"] if value["bytes"] is not None else file_bytes(value["path"] or "", os.curdir)


def _unpacked(packed: bytes, buffers: Sequence[Any]) -> _Load:
    load = _Load.__new__(_Load)
    load.__dict__.update(pickle.loads(packed, buffers=buffers))
    return load


def _without_torch(value: Any) -> Any:
    """Return a tensor as an array, which a worker can send; other values unchanged."""
    if type(value) is np.ndarray or not (hasattr(value, "detach") and hasattr(value, "numpy")):
        return value
    try:
        return value.detach().cpu().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError):
        return value  # a dtype that NumPy lacks, such as bfloat16: the field raises the error


def by_name(sample: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the values of a sample (by name, in the order of the fields, or of the only field) by field name.

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
    if type(sample) is tuple and len(sample) == len(names):  # the common case; the checks below take longer
        return dict(zip(names, sample, strict=True))
    if isinstance(sample, Mapping) and not (len(names) == 1 and names[0] not in sample):
        missing = [name for name in names if name not in sample]
        if missing or len(sample) != len(names):
            raise SampleFault(f"expected a dict with the keys {list(names)}, got one with {list(sample)}")
        return {name: sample[name] for name in names}
    # A named tuple may have the fields in another order.
    named = getattr(sample, "_fields", None)
    if isinstance(sample, tuple) and isinstance(named, tuple) and set(named) == set(names):
        return {name: getattr(sample, name) for name in names}
    # With one field a list is more likely the value itself (boxes, tokens) than a list of one value.
    if isinstance(sample, tuple) or (isinstance(sample, list) and len(names) > 1):
        if len(sample) == len(names):
            return dict(zip(names, sample, strict=True))
        types = ", ".join(type(value).__name__ for value in sample)
        raise SampleFault(
            f"expected a {type(sample).__name__} of {len(names)} values for {list(names)}, got {len(sample)} ({types})"
        )
    if len(names) == 1:
        return {names[0]: sample}
    raise SampleFault(f"expected a tuple or dict with {list(names)}, got {describe(sample)}")


def _check_indexable(dataset: Any) -> None:
    """Refuse a dataset without samples by index, with advice."""
    got = type(dataset).__name__
    if isinstance(dataset, (str, bytes, os.PathLike)):
        raise UsageError(f"a dataset is an object with samples, got {got} {dataset!r}; `beton convert` reads files")
    if isinstance(dataset, Mapping):
        raise UsageError(
            f"a dataset needs samples by index, got a {got} with the keys {list(dataset)[:5]}; put the samples in a "
            "list, or wrap the columns: torch.utils.data.StackDataset(**columns)"
        )
    if isinstance(dataset, type):
        raise UsageError(
            f"a dataset is an object, got the class {dataset.__name__} itself; make one: {dataset.__name__}(...)"
        )
    if type(dataset).__module__.partition(".")[0] in {"pandas", "polars"}:
        raise UsageError(f"a {got} gives columns by [..], not samples; pass its records as a list of dicts")
    iterable_only = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)
    if iterable_only or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(f"a dataset needs len() and [index], got {got}; put an iterable's samples in a list")
    try:
        len(dataset)
    except Exception as error:  # an array without axes, or any exception of the user's class
        raise UsageError(f"a dataset needs len(), which {got} refuses: {error}") from error


def _with_encoded_images(dataset: Any, fields: Mapping[str, Field]) -> Any:
    """Return a Hugging Face dataset with only the wanted columns, images as stored bytes; other datasets unchanged."""
    features = getattr(dataset, "features", None)
    if type(dataset).__module__.partition(".")[0] != "datasets" or not isinstance(features, Mapping):
        return dataset
    if dataset.format["type"] is not None:
        return dataset  # the user has set a transform or a format, whose output is wanted
    missing = [name for name in fields if name not in features]
    if missing:
        raise UsageError(f"the dataset has no column '{missing[0]}'; it has {', '.join(features)}")
    import datasets

    chosen = dataset.select_columns(list(fields))
    for name, feature in features.items():
        if name in fields and isinstance(feature, datasets.Image):
            chosen = chosen.cast_column(name, datasets.Image(decode=False))
    return chosen


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
    **others: Any,
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
        Names and fields of the values, in order.
    images : ImagePolicy, optional
        How images are stored, instead of the arguments for images below.
    class_names : sequence of str, optional
        Class names by label; by default the dataset's own ``classes``; an empty list stores none. With names, a label
        without a name (-1, or beyond the last) is an error.
    num_workers : int, optional
        Worker processes; 0 works in this process. By default this process converts the first samples, and one worker
        per core is started if that saves time. Scripts that use workers need the usual ``if __name__ == "__main__":``.
    limit, shuffle, seed, page_size, overwrite, on_error, quiet
        See `converters.options.Options`.
    **others
        All other options of ``beton convert``, with the same names. For images, see `converters.ImagePolicy`:
        ``max_resolution``, ``quality``, ``mode``, ``keep``, ``channels``, ``subsampling``, ``resample``,
        ``background``, ``orientation``, ``to_srgb``, ``mix_fraction``, ``smart_threshold``. For the run, see
        `converters.Options`: ``resume``, ``error_log``, ``num_shards``, ``shard_size``, ``shard_index``, ``engine``,
        ``temp_dir``, ``check_space``, ``checkpoint_seconds``.

    Returns
    -------
    Report
        Counts, sizes, time and what was skipped.

    Raises
    ------
    UsageError
        If the arguments are invalid, or the dataset cannot be sent to worker processes.
    ConvertError
        If the conversion cannot finish; no file is left under its name.

    Examples
    --------
    >>> from dataloading import IntField
    >>> write([(7,), (8,)], "numbers.beton", {"label": IntField()}, num_workers=0)  # doctest: +SKIP
    >>> write(photos, "small.beton", {"image": ImageField()}, max_resolution=256, quality=85)  # doctest: +SKIP
    """
    if images is not None and not isinstance(images, ImagePolicy):
        raise UsageError(f"images must be an ImagePolicy(mode=..., quality=...), got {describe(images)}")
    given = {
        "num_workers": default_num_workers() if num_workers is None else num_workers, "limit": limit,
        "shuffle": shuffle, "seed": seed, "page_size": page_size, "overwrite": overwrite, "on_error": on_error,
        "quiet": quiet, **others,
    }  # fmt: skip
    options, policy = settings(given, images=images)
    source = DatasetSource(dataset, fields, class_names=class_names, starts_here=num_workers is None)
    if not quiet:
        _note_transforms(dataset, source, asked=class_names is not None)
    return convert(source, path, policy=policy, options=options)


def _note_transforms(dataset: object, source: DatasetSource, *, asked: bool) -> None:
    if has_transform(dataset) and any(isinstance(field, ImageField) for field in source.fields.values()):
        note(
            "the dataset has a transform: its images are encoded as that leaves them, instead of their files being "
            "kept; give transforms to the Loader, and store images as they are"
        )
    if has_own_labels(dataset) and not asked:
        note(
            "the dataset has a target_transform, so its class names may not be those of its labels: none are stored; "
            "class_names= names them"
        )
