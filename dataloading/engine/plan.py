"""From options to the making of fields: which are delivered, how each is decoded, and where its memory comes from.

Knows the file's fields and the user's transforms; no order, no threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dataloading.cpu import memory_bytes
from dataloading.dataset.files import FileSet
from dataloading.dataset.info import label_field
from dataloading.decode.decoders import Decoder, ImageDecoder
from dataloading.decode.native_images import make_field_decoder
from dataloading.engine.batch_job import ImagePlan
from dataloading.engine.transfer import Transfer, as_tensor
from dataloading.engine.workers import Ring
from dataloading.errors import TransformError, UsageError
from dataloading.format import Field, ImageField, MaskField, NDArrayField, VarArrayField, image_of
from dataloading.messages import counted, describe
from dataloading.transforms.base import BatchOp, Geometry, Placeholder, Transform
from dataloading.transforms.custom import AsList
from dataloading.transforms.foreign import check_callable, name_of
from dataloading.transforms.pipeline import Pipeline

__all__ = ["BatchStep", "FieldPlan", "apply_step", "plan_fields", "unknown_field"]


class BatchStep(NamedTuple):
    """What is done to the batched values of a field: the operation, and its place in the field's list."""

    field: str
    position: int
    op: Any

    @property
    def shown(self) -> str:
        """The operation's name and place, for statistics."""
        op = self.op.func if isinstance(self.op, functools.partial) else self.op
        name = getattr(op, "__name__", None) or type(op).__name__
        return f"{name} (transforms[{self.field!r}][{self.position}])"


@dataclass(frozen=True, kw_only=True)
class FieldPlan:
    """How the delivered fields are made.

    Parameters
    ----------
    names : tuple of str
        Fields to deliver, in this order.
    images, others : mappings
        Field name to how it is made.
    batch_transforms : sequence of BatchStep
        What is left to do on batched tensors, in order.
    label_field : str or None
        The delivered field that holds classes.
    """

    names: tuple[str, ...]
    images: Mapping[str, ImagePlan]
    others: Mapping[str, Decoder]
    batch_transforms: Sequence[BatchStep]
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
        Rows a batch can have.
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
    batch_transforms: list[BatchStep] = []
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
            if not as_list:
                batch_transforms += [BatchStep(name, position, op) for position, op in enumerate(given)]
            continue
        assert isinstance(field, ImageField)
        image = _make_image(decoder, field, given, batch_size, capacity, transfer)
        images[name] = image
        ops = image.pipeline.batch_transforms
        first = len(given) - len(ops)
        batch_transforms += [BatchStep(name, first + number, op) for number, op in enumerate(ops)]
    label = label_field(files, names)
    mixes = [step.op for step in batch_transforms if isinstance(step.op, BatchOp)]
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


def apply_step(step: BatchStep, num_rows: int, given: Any, *more: Any) -> Any:
    """Call an operation on batched values, and check that it gives back one entry a row.

    That is a tensor, an array, a list, or whatever else has a length; or a dictionary or tuple of such, as several
    views of the images.

    Parameters
    ----------
    step : BatchStep
    num_rows : int
        Of the batch.
    given : tensor or list
        The field's values.
    *more : any
        What batch-level transforms get besides.

    Raises
    ------
    TransformError
        It raised, or gave back something else; names field, place, operation, what it was given and what came back.
    """
    try:
        result = step.op(given, *more)
        fault = _wrong_result(result, num_rows)
    except Exception as error:  # KeyboardInterrupt and the like go their way
        if isinstance(error, UsageError) and isinstance(step.op, Transform):
            raise  # ours say what to do
        raise _failed(step, given, f"{type(error).__name__}: {error}") from error
    if fault:
        raise _failed(step, given, fault)
    return result


def _wrong_result(result: Any, num_rows: int) -> str:
    """Say what is wrong with what an operation gave for a batch; nothing if nothing is."""
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


def _failed(step: BatchStep, given: Any, reason: str) -> TransformError:
    what = "list" if isinstance(given, list) else "tensor"
    return TransformError(
        reason.rstrip("."),
        field=step.field,
        transform=f"transform {step.position} ({name_of(step.op)}), given the batch as {_shown(given)}",
        advice=f"Callables get the whole batch as a {what}, not one sample at a time",
    )


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


def unknown_field(name: str, known: Sequence[str], path: str) -> str:
    """Say that there is no such field, and which one may have been meant."""
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"there is no field {name!r} in {path}: it has {', '.join(map(repr, known))}{hint}"


def _choose_fields(files: FileSet, fields: Sequence[str] | None) -> tuple[str, ...]:
    known = tuple(files.fields)
    if fields is None:
        return known
    if isinstance(fields, str):
        raise UsageError(f"fields={fields!r} must be a list of names: write fields=[{fields!r}]")
    if isinstance(fields, Set) or not isinstance(fields, Iterable):
        raise UsageError(f"fields={fields!r} must be a list of names, in the order in which they are wanted")
    names = tuple(fields)
    for name in names:
        if name not in known:
            raise UsageError(unknown_field(name, known, files.path))
        if names.count(name) > 1:
            raise UsageError(f"fields= has {name!r} more than once: a batch holds each field once")
    return names


def _check_transforms(files: FileSet, transforms: Mapping[str, Sequence[Any]], names: tuple[str, ...]) -> None:
    if not isinstance(transforms, Mapping):
        raise UsageError(
            f"transforms= must say whose they are, as in transforms={{'image': [...]}}, got {type(transforms).__name__}"
        )
    for name, given in transforms.items():
        if name in files.fields and name not in names:
            raise UsageError(f"transforms= has a list for {name!r}, which fields={list(names)} leaves out")
        if name not in names:
            raise UsageError(unknown_field(name, names, files.path))
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise UsageError(
                f"transforms[{name!r}] must be a list, got {type(given).__name__}: write transforms={{{name!r}: [...]}}"
            )
        if not isinstance(files.fields[name], ImageField):
            _check_callables(files.fields[name], name, given)


def _check_callables(field: Field, name: str, given: Sequence[Any]) -> None:
    """Refuse what cannot work on the batched values of a field that holds no images."""
    for position, op in enumerate(given):
        # Arrays may be images, (channels, height, width). AsList has a check of its own.
        if isinstance(op, AsList) or (isinstance(op, BatchOp) and isinstance(field, NDArrayField)):
            continue
        if isinstance(op, Transform):
            raise UsageError(
                f"transforms[{name!r}]: transform {position} ({op.name}) works on images, but '{name}' is of kind "
                f"{type(field).__name__}. Put it into the list of an image field; this one takes callables on the batch"
            )
        with _named(name):
            check_callable(op, position)


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Say whose list of transforms an error is about."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"transforms[{name!r}]: {error}") from None


def _partner(files: FileSet, names: tuple[str, ...], name: str) -> str | None:
    """Find the image field that a mask belongs to: the only one delivered, else the one named 'image', else none."""
    if not isinstance(files.fields[name], MaskField):
        return None
    return image_of({each: files.fields[each] for each in names})


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
    with _named(decoder.name) if transforms else contextlib.nullcontext():
        pipeline = Pipeline(transforms, channels=field.channels, source_size=decoder.common_size(), dtype=dtype)
        if dtype == "uint16":
            _check_resizes(transforms)
    num_bytes = batch_size * int(np.prod(pipeline.out_shape)) * np.dtype(pipeline.storage_dtype).itemsize
    if num_bytes > memory_bytes():
        each = f"images of shape {tuple(pipeline.out_shape)} and {pipeline.out_dtype}"
        raise UsageError(
            f"a batch of {batch_size:,} {each} takes {num_bytes / 2**30:,.0f} GiB, and the machine has "
            f"{memory_bytes() / 2**30:,.0f} GiB of memory: pass a smaller batch_size="
        )
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
