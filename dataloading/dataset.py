"""What a training script asks of ``loader.dataset``, and which data it is. Knows no order and no pixels."""

from __future__ import annotations

from collections.abc import Sequence

from dataloading.format import IntField, Reader

__all__ = ["DatasetInfo", "label_field"]


class DatasetInfo:
    """What scripts ask of ``loader.dataset``: its length and its classes.

    Attributes
    ----------
    path : str
    classes : list of str or None
        Class names in the order of labels; None where the file does not record them (FFCV's do not).
    class_to_idx : dict of str to int or None
    fingerprint : str
        Changes with the file's content (for files FFCV wrote: with its size, fields and number of samples).
    """

    def __init__(self, reader: Reader) -> None:
        self.path = reader.path
        self._num_samples = reader.num_samples
        names = reader.extension.class_names if reader.extension is not None else None
        self.classes = None if names is None else list(names)
        self.class_to_idx = None if names is None else {name: label for label, name in enumerate(names)}
        self.fingerprint = reader.fingerprint

    def __len__(self) -> int:
        return self._num_samples

    def __repr__(self) -> str:
        return f"DatasetInfo({self.path!r}, {len(self)} samples)"


def label_field(reader: Reader, names: Sequence[str] | None = None) -> str | None:
    """Find the field that holds classes: the integers named 'label', else the only integers; None if neither.

    Parameters
    ----------
    reader : Reader
    names : sequence of str, optional
        Fields to choose from, by default all.
    """
    integers = [name for name in names or reader.fields if isinstance(reader.fields[name], IntField)]
    return "label" if "label" in integers else integers[0] if len(integers) == 1 else None
