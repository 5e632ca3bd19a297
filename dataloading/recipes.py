"""From options to the making of fields: which are delivered, how each is decoded, and where its memory comes from.

Knows the file's fields and the user's transforms; no order, no threads.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataloading.assembly import ImagePlan
from dataloading.dataset import label_field
from dataloading.decode import Decoder, ImageDecoder
from dataloading.decode_images import make_field_decoder
from dataloading.errors import UsageError
from dataloading.files import FileSet
from dataloading.format import Field, ImageField, MaskField, NDArrayField, VarArrayField
from dataloading.pipeline import Pipeline
from dataloading.transfer import Transfer, as_tensor
from dataloading.transforms.base import BatchOp, Geometry, Placeholder
from dataloading.transforms.custom import AsList
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
        field = files.fields[name]
        partner = _partner(files, names, name)
        given = _steps_of(field, name, transforms, partner)
        as_list = any(isinstance(op, AsList) for op in given)
        decoder = make_field_decoder(files, name, as_list=as_list, partner=partner)
        if isinstance(field, (NDArrayField, VarArrayField)):
            _check_tensors(field, name)
        if not isinstance(decoder, ImageDecoder):
            others[name] = decoder
            batch_transforms += [(name, op) for op in given if not isinstance(op, AsList)]
            continue
        assert isinstance(field, ImageField)
        image = _make_image(decoder, field, given, batch_size, capacity, transfer)
        images[name] = image
        batch_transforms += [(name, op) for op in image.pipeline.batch_transforms]
    label = label_field(files, names)
    mixes = [op for _, op in batch_transforms if isinstance(op, BatchOp)]
    if mixes and label is None:
        raise UsageError(
            f"{type(mixes[0]).__name__} mixes labels too, and needs an integer field named 'label' "
            f"(or a single integer field); the fields are {', '.join(names)}"
        )
    masks = [name for name in names if isinstance(files.fields[name], MaskField)]
    if mixes and masks:
        raise UsageError(
            f"{type(mixes[0]).__name__} mixes images and labels, but not the masks of '{masks[0]}', which would no "
            f"longer fit; leave it out, or the masks with fields=[...]"
        )
    for image in images.values():
        image.decoder.warm_up()
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
    if isinstance(fields, str):
        raise UsageError(f"fields={fields!r} must be a list of names: write fields=[{fields!r}]")
    for name in fields:
        if name not in known:
            raise UsageError(unknown_field(name, known, files.path))
    return tuple(name for name in known if name in fields)


def _check_transforms(files: FileSet, transforms: Mapping[str, Sequence[Any]], names: tuple[str, ...]) -> None:
    if not isinstance(transforms, Mapping):
        raise UsageError(
            f"transforms= must say whose they are, as in transforms={{'image': [...]}}, got {type(transforms).__name__}"
        )
    for name, given in transforms.items():
        if name not in names:
            raise UsageError(unknown_field(name, names, files.path))
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise UsageError(f"transforms[{name!r}] must be a list, got {type(given).__name__}")


def _partner(files: FileSet, names: tuple[str, ...], name: str) -> str | None:
    """Find the image field that a mask belongs to: the only one delivered, else the one named 'image', else none."""
    if not isinstance(files.fields[name], MaskField):
        return None
    kinds = files.fields
    images = [each for each in names if isinstance(kinds[each], ImageField) and not isinstance(kinds[each], MaskField)]
    return images[0] if len(images) == 1 else "image" if "image" in images else None


def _steps_of(field: Field, name: str, transforms: Mapping[str, Sequence[Any]], partner: str | None) -> Sequence[Any]:
    """Give a field's transforms; a mask without any follows the geometry of its image."""
    given = transforms.get(name)
    if given is None and partner is not None:
        image = transforms.get(partner, ())
        # Places are kept, for the place selects the random numbers. Padding shows no label of the image's colour.
        given = [_without_fill(op) if isinstance(op, (Geometry, AsList)) else Placeholder() for op in image]
    if given is None:
        return ()
    if any(isinstance(op, AsList) for op in given) and (len(given) > 1 or not isinstance(field, ImageField)):
        raise UsageError(
            f"transforms[{name!r}]: AsList() delivers images as they are stored, and stands alone in the list of an "
            f"image field's transforms, got {list(given)!r}"
        )
    return given


def _without_fill(op: Any) -> Any:
    return dataclasses.replace(op, fill=0) if hasattr(op, "fill") else op


def _check_tensors(field: NDArrayField | VarArrayField, name: str) -> None:
    try:
        as_tensor(np.empty(0, field.dtype.newbyteorder("=")))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"field '{name}' holds {field.dtype} arrays, of which torch makes no tensors ({error}); leave it out with "
            f"fields=[...]"
        ) from error


def _make_image(
    decoder: ImageDecoder,
    field: ImageField,
    transforms: Sequence[Any],
    batch_size: int,
    capacity: int,
    transfer: Transfer,
) -> ImagePlan:
    is_mask = isinstance(field, MaskField)
    dtype = "int64" if is_mask else field.dtype.name
    pipeline = Pipeline(transforms, channels=field.channels, source_size=decoder.common_size(), dtype=dtype)
    if dtype == "uint16":
        _check_resizes(transforms)
    num_bytes = batch_size * int(np.prod(pipeline.out_shape)) * np.dtype(pipeline.storage_dtype).itemsize
    ring = Ring(num_bytes, capacity=capacity, allocate=transfer.allocate if transfer.is_cuda else None)
    interleaved = transfer.memory_format == "channels_last" and not transfer.is_cuda and not is_mask
    return ImagePlan(decoder=decoder, pipeline=pipeline, ring=ring, interleaved=interleaved, squeezed=is_mask)


def _check_resizes(transforms: Sequence[Any]) -> None:
    for position, op in enumerate(transforms):
        if isinstance(op, Geometry) and getattr(op, "interpolation", "nearest") != "nearest":
            raise UsageError(
                f"transform {position} ({op.name}) would mix 16-bit pixels, which is done for 8 bits only. Pass "
                f"interpolation='nearest', or cut parts out (RandomCrop, CenterCrop) and resize the batched tensor"
            )
