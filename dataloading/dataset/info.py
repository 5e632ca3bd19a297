"""``loader.dataset`` for training scripts. Knows no order and no pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from dataloading.dataset.files import FileSet
from dataloading.format import Field, IntField, Reader
from dataloading.messages import counted

__all__ = ["DatasetInfo", "label_field"]


class DatasetInfo:
    """The length and classes of a dataset.

    Attributes
    ----------
    path : str
        The file, or the first file and the number of others.
    paths : tuple of str
        All files, in order.
    classes : list of str or None
        Class names in label order; None if no file records them (FFCV's do not).
    class_to_idx : dict of str to int or None
    fingerprint : str
        Changes with the files' content and order (for files that FFCV wrote: with size, fields, number of samples).
    """

    def __init__(self, files: FileSet) -> None:
        self.path = files.path
        self.paths = files.paths
        self._num_samples = files.num_samples
        names = files.class_names
        self.classes = None if names is None else list(names)
        self.class_to_idx = None if names is None else {name: label for label, name in enumerate(names)}
        prints = [reader.fingerprint for reader in files.readers]
        whole = hashlib.sha256(" ".join(prints).encode()).hexdigest()[:16]
        self.fingerprint = prints[0] if len(prints) == 1 else whole

    def __len__(self) -> int:
        return self._num_samples

    def __repr__(self) -> str:
        return f"DatasetInfo({self.path!r}, {counted(len(self), 'sample')})"


def label_field(source: Reader | FileSet | Mapping[str, Field], names: Sequence[str] | None = None) -> str | None:
    """Return the name of the label field: the integer field 'label', else the only integer field; None if neither.

    Parameters
    ----------
    source : Reader, FileSet or mapping of str to Field
        Files, or the fields alone.
    names : sequence of str, optional
        Fields to choose from, by default all.
    """
    fields = source if isinstance(source, Mapping) else source.fields
    integers = [name for name in names or fields if isinstance(fields[name], IntField)]
    return "label" if "label" in integers else integers[0] if len(integers) == 1 else None
