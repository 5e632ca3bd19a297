"""Finds a dataset's class names and transforms by its attributes.

Knows the conventions of torchvision and torch, and imports neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dataloading import Field
from dataloading.tools import label_field

__all__ = ["class_names_of", "has_own_labels", "has_transform"]

# The attributes of torchvision's datasets with class names by label.
_LISTS = ("classes", "categories", "all_categories", "_characters")


def class_names_of(dataset: object, fields: Mapping[str, Field] | None = None) -> list[str] | None:
    """Return a dataset's class names by label, if it has any.

    torchvision's datasets have a list ``classes``, of names or of tuples of names, which are joined by commas; Hugging
    Face's a feature with names: of the field ``label`` among ``fields``, else of the only integers. A ``Subset`` has
    those of its dataset, a ``ConcatDataset`` those of its parts if they are equal.
    """
    if has_own_labels(dataset):
        return None
    parts = _parts_of(dataset)
    if parts:
        found = [class_names_of(part, fields) for part in parts]
        return found[0] if all(names == found[0] for names in found) else None
    features = getattr(dataset, "features", None)
    if fields is not None and isinstance(features, Mapping) and getattr(dataset, "classes", None) is None:
        names = getattr(features.get(label_field(fields)), "names", None)
        return _joined(names)
    return _of_attributes(dataset)


def has_own_labels(dataset: object) -> bool:
    """Return whether the user's ``target_transform`` changes the labels, so that names no longer match."""
    return _has(dataset, "target_transform")


def has_transform(dataset: object) -> bool:
    """Return whether the user's ``transform`` changes the files' images."""
    return _has(dataset, "transform")


def _has(dataset: object, word: str) -> bool:
    if any(_has(part, word) for part in _parts_of(dataset)):
        return True
    both = getattr(
        dataset, "transforms", None
    )  # torchvision's: a function of image and target, or a pair of transforms
    if word == "transform" and both is not None and not hasattr(both, word):
        return True
    return any(getattr(each, word, None) is not None for each in (dataset, both))


def _parts_of(dataset: Any) -> Sequence[object]:
    kinds = {kind.__name__ for kind in type(dataset).__mro__ if kind.__module__ == "torch.utils.data.dataset"}
    if "Subset" in kinds:
        return [dataset.dataset]
    return list(dataset.datasets) if "ConcatDataset" in kinds else []


def _of_attributes(dataset: Any) -> list[str] | None:
    if getattr(dataset, "_target_types", None) == ["binary-category"]:  # OxfordIIITPet
        return _joined(getattr(dataset, "bin_classes", None))
    if getattr(dataset, "target_type", None) not in (None, ["full"], ["category"], "full", "category"):
        # INaturalist's labels on a higher level.
        indices = getattr(dataset, "categories_index", None)
        kind = dataset.target_type[0] if len(dataset.target_type) == 1 else None
        return (
            _by_index(indices.get(kind)) if isinstance(indices, Mapping) else _joined(getattr(dataset, "classes", None))
        )
    by_index = getattr(dataset, "class_to_idx", None)
    names = next((found for word in _LISTS if (found := _joined(getattr(dataset, word, None), dataset))), None)
    if isinstance(by_index, Mapping) and (names is None or (by_index.keys() == set(names))):
        # Labels come from this mapping; the list may have another order.
        return _by_index(by_index)
    return names


def _by_index(indices: object) -> list[str] | None:
    """Return names by label from name -> label; names of the same label are joined."""
    if not isinstance(indices, Mapping) or not all(
        isinstance(name, str) and isinstance(label, int) for name, label in indices.items()
    ):
        return None
    names: dict[int, list[str]] = {}
    for name, label in indices.items():
        names.setdefault(label, []).append(name)
    if sorted(names) != list(range(len(names))):
        return None
    return [", ".join(names[label]) for label in range(len(names))] or None


def _joined(names: object, dataset: object = None) -> list[str] | None:
    """Return the names from a list of names or of tuples of names; duplicates get their WordNet ids added."""
    if isinstance(names, (str, bytes, Mapping)) or not isinstance(names, Iterable):
        return None
    words = [(name,) if isinstance(name, str) else name for name in names]
    if not words or not all(
        isinstance(each, (tuple, list)) and each and all(isinstance(name, str) for name in each) for each in words
    ):
        return None
    listed = [", ".join(each) for each in words]
    ids = getattr(dataset, "wnids", None)
    if not isinstance(ids, (list, tuple)) or len(ids) != len(listed):
        return listed
    # ImageNet has two classes 'crane'.
    times = Counter(listed)
    return [f"{name} ({own})" if times[name] > 1 else name for name, own in zip(listed, ids, strict=True)]
