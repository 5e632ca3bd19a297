"""How the fields of a loader are made: which are delivered, how each is decoded, and where its memory comes from.

Knows the files' fields and the user's transforms; no order of samples and no threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dataloading.cpu import memory_bytes
from dataloading.dataset.files import FileSet
from dataloading.dataset.info import label_field
from dataloading.decode.decoders import Decoder, ImageDecoder
from dataloading.decode.native_images import make_decoder
from dataloading.engine.batch_transforms import BatchTransform
from dataloading.engine.transfer import Transfer, as_tensor
from dataloading.engine.workers import Ring
from dataloading.errors import DecodeError, SampleError, TransformError, UsageError
from dataloading.format import Field, ImageField, MaskField, NDArrayField, VarArrayField, image_of
from dataloading.sampling.ranks import Ranks
from dataloading.transforms.base import BatchOp, Geometry, Placeholder, Transform
from dataloading.transforms.compose import Compose, written_out
from dataloading.transforms.custom import AsList
from dataloading.transforms.foreign import check_callable
from dataloading.transforms.pipeline import Pipeline

__all__ = ["ImagePlan", "OnError", "Plan"]

OnError = Literal["raise", "skip", "replace"]

_ADVICE = {
    DecodeError: "Run 'beton verify {path}' to list damaged samples, or pass on_error=\"skip\"",
    TransformError: 'Fix the transform, or pass on_error="skip"',
}


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """How the images of one field are made.

    Parameters
    ----------
    decoder : ImageDecoder
    pipeline : Pipeline
    ring : Ring
        Lends memory for the images of one batch.
    interleaved : bool
        Lay out the batch as NHWC (the tensor is still (N, C, H, W), in channels_last format).
    is_mask : bool
        Deliver (N, H, W): label maps have no channels.
    group_size : int
        Most rows of a group.
    """

    decoder: ImageDecoder
    pipeline: Pipeline
    ring: Ring
    interleaved: bool
    is_mask: bool
    group_size: int
    # By thread, not by a worker's number: two iterators of one loader have workers of equal numbers.
    _scratch: threading.local = dataclasses.field(default_factory=threading.local)

    def lend(self, rows: int) -> npt.NDArray[Any]:
        """Lend an array of shape (rows, channels, height, width), or (rows, height, width, channels)."""
        channels, height, width = self.pipeline.out_shape
        shape = (height, width, channels) if self.interleaved else (channels, height, width)
        dtype = np.dtype(self.pipeline.storage_dtype)
        num_bytes = rows * channels * height * width * dtype.itemsize
        # A loader of indices that repeat may have more rows a batch than the one whose ring it shares.
        fits = num_bytes <= self.ring.num_bytes
        memory = self.ring.lend()[:num_bytes] if fits else np.empty(num_bytes, np.uint8)
        return memory.view(dtype).reshape(rows, *shape)

    def scratch(self, out: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the arrays to decode to and to write transformed planes to, for the rows `out` of a group.

        Each is `out` itself where that is possible, else the calling thread's own array.
        """
        pipeline, planar = self.pipeline, out
        if self.interleaved:
            planar = self._array("planar", pipeline.out_shape, out.dtype)[: len(out)]
        if pipeline.in_place:
            return planar, planar
        return self._array("decoded", pipeline.decode_shape, pipeline.decode_dtype)[: len(out)], planar

    def _array(self, purpose: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        arrays: dict[str, npt.NDArray[Any]] = self._scratch.__dict__
        if purpose not in arrays:
            arrays[purpose] = np.empty((self.group_size, *shape), dtype)
        return arrays[purpose]

    def tensor(self, values: npt.NDArray[Any]) -> Any:
        """Make the batch's tensor of an array that `lend` gave."""
        tensor = as_tensor(values, self.pipeline.out_dtype)
        if self.is_mask:
            return tensor[:, 0]
        return tensor.permute(0, 3, 1, 2) if self.interleaved else tensor


class Plan:
    """How the fields of a loader are made, fixed when it is built. All its batches share it.

    Parameters
    ----------
    files : FileSet
    transforms, fields, seed, on_error
        As the Loader's.
    ranks : Ranks
        Batch-level transforms draw differently on each rank.
    transfer : Transfer
    group_size : int
        Samples that a worker takes at a time.
    max_rows : int
        Rows a batch can have.
    num_buffers : int
        Free image buffers to keep.

    Attributes
    ----------
    names : tuple of str
        Fields to deliver, in order.
    images, others : dict
        Field name to how it is made.
    batch_transforms : list of BatchTransform
        What is left to do on finished batches, in order.
    compile_seconds : float
        What making the plan took.

    Raises
    ------
    UsageError
        There is no such field, or its transforms cannot work.
    """

    def __init__(
        self,
        files: FileSet,
        transforms: Mapping[str, Sequence[Any]],
        fields: Sequence[str] | None,
        *,
        seed: int,
        on_error: OnError,
        ranks: Ranks,
        transfer: Transfer,
        group_size: int,
        max_rows: int,
        num_buffers: int,
    ) -> None:
        started = time.perf_counter()
        self.files = files
        self.names = _choose_fields(files, fields)
        self.seed = seed
        self.on_error = on_error
        self.ranks = ranks
        self.transfer = transfer
        self.group_size = group_size
        self.images: dict[str, ImagePlan] = {}
        self.others: dict[str, Decoder] = {}
        self.batch_transforms: list[BatchTransform] = []
        _check_transforms(files, transforms, self.names)
        transforms = {
            name: written_out([given] if isinstance(given, Compose) else given) for name, given in transforms.items()
        }
        label = label_field(files, self.names)
        for name in self.names:
            field = files.fields[name]
            partner = _partner(files, self.names, name)
            given = _transforms_of(field, name, transforms, partner)
            as_list = any(isinstance(op, AsList) for op in given)
            decoder = make_decoder(files, name, as_list=as_list, partner=partner)
            if isinstance(field, (NDArrayField, VarArrayField)):
                _check_tensors(field, name)
            if isinstance(decoder, ImageDecoder):
                assert isinstance(field, ImageField)
                self.images[name] = _plan_images(decoder, field, given, group_size, max_rows, num_buffers, transfer)
                num_batched = len(self.images[name].pipeline.batch_transforms)
            else:
                self.others[name] = decoder
                num_batched = 0 if as_list else len(given)
            self.batch_transforms += [
                BatchTransform(field=name, position=position, op=given[position], label_field=label)
                for position in range(len(given) - num_batched, len(given))
            ]
        self._check_mixing(label)
        for image in self.images.values():
            image.decoder.warm_up()
            image.pipeline.warm_up()
        self.compile_seconds = time.perf_counter() - started

    def _check_mixing(self, label: str | None) -> None:
        mixes = [type(each.op).__name__ for each in self.batch_transforms if isinstance(each.op, BatchOp)]
        if mixes and label is None:
            raise UsageError(
                f"{mixes[0]} mixes labels too, and needs an integer field named 'label' (or a single integer field); "
                f"the fields are {', '.join(self.names)}"
            )
        masks = [name for name in self.names if isinstance(self.files.fields[name], MaskField)]
        if mixes and masks:
            raise UsageError(
                f"{mixes[0]} mixes images and labels, but not the masks of '{masks[0]}', which would no longer fit; "
                f"leave it out, or the masks with fields=[...]"
            )

    def error(self, kind: type[SampleError], reason: str, sample: int, field: str) -> SampleError:
        """Make the error for one sample, with the advice that fits."""
        file, sample_of_file = self.files.place(sample)
        path = self.files.paths[file]
        index = None if len(self.files) == 1 else sample
        advice = _ADVICE[kind].format(path=path)
        return kind(reason, sample=sample_of_file, field=field, path=path, advice=advice, index=index)


def _unknown_field(name: str, known: Sequence[str], path: str) -> str:
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
            raise UsageError(_unknown_field(name, known, files.path))
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
            raise UsageError(_unknown_field(name, names, files.path))
        if isinstance(given, str) or not isinstance(given, (Sequence, Compose)):
            raise UsageError(
                f"transforms[{name!r}] must be a list, got {type(given).__name__}: write transforms={{{name!r}: [...]}}"
            )
        if not isinstance(files.fields[name], ImageField):
            _check_callables(files.fields[name], name, [given] if isinstance(given, Compose) else given)


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


def _transforms_of(
    field: Field, name: str, transforms: Mapping[str, Sequence[Any]], partner: str | None
) -> Sequence[Any]:
    """Give a field's transforms; a mask without any follows the geometry of its image."""
    given = transforms.get(name)
    if given is None and partner is not None:
        image = transforms.get(partner, ())
        # Positions in the list stay the same, as random numbers depend on them.
        given = [op.for_mask() if isinstance(op, Transform) else Placeholder() for op in image]
    if given is None:
        return ()
    if any(isinstance(op, AsList) for op in given) and (len(given) > 1 or not isinstance(field, ImageField)):
        raise UsageError(
            f"transforms[{name!r}]: AsList() delivers images as they are stored, and stands alone in the list of an "
            f"image field's transforms, got {list(given)!r}"
        )
    return given


def _check_tensors(field: NDArrayField | VarArrayField, name: str) -> None:
    try:
        as_tensor(np.empty(0, field.dtype.newbyteorder("=")))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"field '{name}' holds {field.dtype} arrays, of which torch makes no tensors ({error}); leave it out with "
            f"fields=[...]"
        ) from error


def _plan_images(
    decoder: ImageDecoder,
    field: ImageField,
    transforms: Sequence[Any],
    group_size: int,
    max_rows: int,
    num_buffers: int,
    transfer: Transfer,
) -> ImagePlan:
    is_mask = isinstance(field, MaskField)
    dtype = "int64" if is_mask else field.dtype.name
    with _named(decoder.name) if transforms else contextlib.nullcontext():
        pipeline = Pipeline(transforms, channels=field.channels, source_size=decoder.common_size(), dtype=dtype)
        if dtype == "uint16":
            _check_resizes(transforms)
    num_bytes = max_rows * int(np.prod(pipeline.out_shape)) * np.dtype(pipeline.storage_dtype).itemsize
    if num_bytes > memory_bytes():
        each = f"images of shape {tuple(pipeline.out_shape)} and {pipeline.out_dtype}"
        raise UsageError(
            f"a batch of {max_rows:,} {each} takes {num_bytes / 2**30:,.0f} GiB, and the machine has "
            f"{memory_bytes() / 2**30:,.0f} GiB of memory: pass a smaller batch_size="
        )
    return ImagePlan(
        decoder=decoder,
        pipeline=pipeline,
        ring=Ring(num_bytes, capacity=num_buffers, allocate=transfer.allocate if transfer.is_cuda else None),
        interleaved=transfer.memory_format == "channels_last" and not transfer.is_cuda and not is_mask,
        is_mask=is_mask,
        group_size=group_size,
    )


def _check_resizes(transforms: Sequence[Any]) -> None:
    for position, op in enumerate(transforms):
        if isinstance(op, Geometry) and getattr(op, "interpolation", "nearest") != "nearest":
            raise UsageError(
                f"transform {position} ({op.name}) would mix 16-bit pixels, which is done for 8 bits only. Pass "
                f"interpolation='nearest', or cut parts out (RandomCrop, CenterCrop) and resize the batched tensor"
            )
