"""From options to the making of fields: which are delivered, how each is decoded, and where its memory comes from.

Knows the file's fields and the user's transforms; no order, no threads.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataloading.assembly import ImagePlan
from dataloading.dataset import label_field
from dataloading.decode import Decoder, ImageDecoder, make_decoder
from dataloading.errors import UsageError
from dataloading.files import FileSet
from dataloading.pipeline import Pipeline
from dataloading.transfer import Transfer
from dataloading.transforms.base import BatchOp
from dataloading.workers import Ring

__all__ = ["FieldPlan", "plan_fields", "unknown_field"]


@dataclass(frozen=True, kw_only=True)
class FieldPlan:
    """How the delivered fields are made.

    Parameters
    ----------
    names : tuple of str
        Fields to deliver, in the file's order.
    images, others : mappings
        Field name to how it is made.
    batch_transforms : list of (field, operation)
        What is left to do on batched tensors, in order.
    label_field : str or None
        The delivered field that holds classes.
    """

    names: tuple[str, ...]
    images: Mapping[str, ImagePlan]
    others: Mapping[str, Decoder]
    batch_transforms: Sequence[tuple[str, Any]]
    label_field: str | None


def plan_fields(
    files: FileSet,
    transforms: Mapping[str, Sequence[Any]],
    fields: Sequence[str] | None,
    *,
    batch_size: int,
    capacity: int,
    transfer: Transfer,
) -> FieldPlan:
    """Make decoders, pipelines and buffers.

    Parameters
    ----------
    files : FileSet
    transforms, fields
        As the Loader's.
    batch_size : int
    capacity : int
        Free image buffers to keep.
    transfer : Transfer

    Raises
    ------
    UsageError
        There is no such field, or its transforms cannot work.
    """
    names = _choose_fields(files, fields)
    _check_transforms(files, transforms, names)
    images: dict[str, ImagePlan] = {}
    others: dict[str, Decoder] = {}
    batch_transforms: list[tuple[str, Any]] = []
    for name in names:
        decoder = make_decoder(files, name)
        given = transforms.get(name, ())
        if not isinstance(decoder, ImageDecoder):
            others[name] = decoder
            batch_transforms += [(name, op) for op in given]
            continue
        image = _make_image(decoder, given, batch_size, capacity, transfer)
        images[name] = image
        batch_transforms += [(name, op) for op in image.pipeline.batch_transforms]
    label = label_field(files, names)
    mixes = [op for _, op in batch_transforms if isinstance(op, BatchOp)]
    if mixes and label is None:
        raise UsageError(
            f"{type(mixes[0]).__name__} mixes labels too, and needs an integer field named 'label' "
            f"(or a single integer field); the fields are {', '.join(names)}"
        )
    for image in images.values():
        image.pipeline.warm_up()
    return FieldPlan(names=names, images=images, others=others, batch_transforms=batch_transforms, label_field=label)


def unknown_field(name: str, known: Sequence[str], path: str) -> str:
    """Say that there is no such field, and which one may have been meant."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"there is no field {name!r} in {path}: it has {', '.join(map(repr, known))}{hint}"


def _choose_fields(files: FileSet, fields: Sequence[str] | None) -> tuple[str, ...]:
    known = tuple(files.fields)
    if fields is None:
        return known
    for name in fields:
        if name not in known:
            raise UsageError(unknown_field(name, known, files.path))
    return tuple(name for name in known if name in fields)


def _check_transforms(files: FileSet, transforms: Mapping[str, Sequence[Any]], names: tuple[str, ...]) -> None:
    for name, given in transforms.items():
        if name not in names:
            raise UsageError(unknown_field(name, names, files.path))
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise UsageError(f"transforms[{name!r}] must be a list, got {type(given).__name__}")


def _make_image(
    decoder: ImageDecoder, transforms: Sequence[Any], batch_size: int, capacity: int, transfer: Transfer
) -> ImagePlan:
    pipeline = Pipeline(transforms, channels=3, source_size=decoder.common_size())
    num_bytes = batch_size * int(np.prod(pipeline.out_shape)) * np.dtype(pipeline.storage_dtype).itemsize
    ring = Ring(num_bytes, capacity=capacity, allocate=transfer.allocate if transfer.is_cuda else None)
    interleaved = transfer.memory_format == "channels_last" and not transfer.is_cuda
    return ImagePlan(decoder=decoder, pipeline=pipeline, ring=ring, interleaved=interleaved)
