"""How the outputs of a loader are made: how each is decoded and transformed, and where its memory comes from.

Knows the files' fields and the user's transforms; no order of samples and no threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dataloading.dataset.files import FileSet
from dataloading.dataset.info import label_field
from dataloading.decode.decoders import ColumnDecoder, Decoder, ImageDecoder
from dataloading.decode.native_images import make_decoder
from dataloading.engine.annotations import Annotations, declared_coordinates
from dataloading.engine.batch_transforms import BatchTransform
from dataloading.engine.field_values import FieldValues
from dataloading.engine.outputs import Output, choose_outputs, named
from dataloading.engine.transfer import Transfer, as_tensor
from dataloading.engine.workers import Ring
from dataloading.errors import DecodeError, SampleError, TransformError, UsageError
from dataloading.format import ImageField, MaskField, NDArrayField, VarArrayField
from dataloading.limits import memory_bytes
from dataloading.sampling.ranks import Ranks
from dataloading.transforms.base import BatchOp, FieldOp, Geometry
from dataloading.transforms.crops import one_list_per_crop
from dataloading.transforms.custom import PadBatch
from dataloading.transforms.mix import Mixing
from dataloading.transforms.pipeline import Pipeline, PipelineFault
from dataloading.transforms.view import View

__all__ = ["ImagePlan", "OnError", "Plan"]

OnError = Literal["raise", "skip", "replace"]

_GROUP_SIZE, _GROUP_BYTES, _SMALL_BYTES = 32, 1 << 21, 1 << 16

_ADVICE = {
    DecodeError: "Run 'beton verify {path}' to list damaged samples, or pass on_error=\"skip\"",
    TransformError: 'Fix the transform, or pass on_error="skip"',
}


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """How the images of one output are made.

    Parameters
    ----------
    output : Output
    decoder : ImageDecoder
    pipelines : tuple of Pipeline
        One; or one for each crop of the FiveCrop or TenCrop in its list.
    ring : Ring
        Lends memory for the images of one batch and view.
    interleaved : bool
        Lay out the batch as NHWC (the tensor is still (N, C, H, W), in channels_last format).
    channels_last : bool
        The same for images of any size.
    is_mask : bool
        Deliver (N, H, W): label maps have no channels.
    """

    output: Output
    decoder: ImageDecoder
    pipelines: tuple[Pipeline, ...]
    ring: Ring
    interleaved: bool
    channels_last: bool
    is_mask: bool
    # By thread, not by a worker's number: two iterators of one loader have workers of equal numbers.
    _scratch: threading.local = dataclasses.field(default_factory=threading.local)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline whose shapes, dtypes and transforms on batches are those of all."""
        return self.pipelines[0]

    def pipeline_of(self, place: int) -> Pipeline:
        """Return the pipeline for image number `place` of each sample."""
        return self.pipelines[place % len(self.pipelines)]

    def lend(self, rows: int) -> npt.NDArray[Any] | list[Any]:
        """Lend an array of shape (rows, channels, height, width), or (rows, height, width, channels).

        A list of Nones for images of any size.
        """
        if self.pipeline.collation is not None:
            return [None] * rows
        channels, height, width = self.pipeline.out_shape
        shape = (height, width, channels) if self.interleaved else (channels, height, width)
        dtype = np.dtype(self.pipeline.storage_dtype)
        num_bytes = rows * channels * height * width * dtype.itemsize
        # A loader of indices that repeat may have more rows a batch than the one whose ring it shares.
        fits = num_bytes <= self.ring.num_bytes
        memory = self.ring.lend()[:num_bytes] if fits else np.empty(num_bytes, np.uint8)
        return memory.view(dtype).reshape(rows, *shape)

    def scratch(self, out: npt.NDArray[Any], place: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the arrays to decode to and to write transformed planes to, for rows `out` of view `place`.

        Each is `out` itself where that is possible, else the calling thread's own array.
        """
        pipeline, planar = self.pipeline, out
        if self.interleaved:
            planar = self._array(f"planar {place}", len(out), pipeline.out_shape, out.dtype)
        if pipeline.in_place:
            return planar, planar
        return self._array(f"decoded {place}", len(out), pipeline.decode_shape, pipeline.decode_dtype), planar

    def _array(self, purpose: str, rows: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        arrays: dict[str, npt.NDArray[Any]] = self._scratch.__dict__
        if purpose not in arrays or len(arrays[purpose]) < rows:
            arrays[purpose] = np.empty((rows, *shape), dtype)
        return arrays[purpose][:rows]

    def one(
        self,
        pipeline: Pipeline,
        request: npt.NDArray[np.void],
        key: npt.NDArray[np.uint64],
        index: npt.NDArray[np.int64],
    ) -> npt.NDArray[Any] | str:
        """Make one image of any size, shape (channels, height, width); or say why it cannot be decoded.

        Raises
        ------
        PipelineFault
            If a transform fails.
        """
        height, width = int(request["out_h"][0]), int(request["out_w"][0])
        try:
            pipeline = pipeline.of_size(height, width) if pipeline.varies else pipeline
        except UsageError as error:
            raise PipelineFault(0, error, f"an image of {height}x{width}") from error
        decoded = np.empty((1, *pipeline.decode_shape), pipeline.decode_dtype)
        for _, reason in self.decoder.decode(request, decoded):
            return reason
        out = decoded if pipeline.in_place else np.empty((1, *pipeline.out_shape), pipeline.storage_dtype)
        pipeline.run(decoded, key, out, indices=index)
        return np.asarray(out[0])

    def collated(self, images: list[npt.NDArray[Any]]) -> list[Any]:
        """Make what the batch holds of images of any size: a list, or a tensor and for images the sizes."""
        collation = self.pipeline.collation
        if not isinstance(collation, PadBatch):
            tensors = [as_tensor(image, self.pipeline.out_dtype) for image in images]
            return [[tensor[0] for tensor in tensors] if self.is_mask else tensors]
        sizes = np.array([image.shape[1:] for image in images], np.int64).reshape(-1, 2)
        height, width = -(-sizes.max(axis=0, initial=1) // collation.size_divisor) * collation.size_divisor
        channels = self.pipeline.out_shape[0]
        shape = (height, width, channels) if self.channels_last else (channels, height, width)
        padded = np.full((len(images), *shape), self._stored(collation.fill), self.pipeline.storage_dtype)
        planes = padded.transpose(0, 3, 1, 2) if self.channels_last else padded
        for row, image in enumerate(images):
            planes[row, :, : image.shape[1], : image.shape[2]] = image
        tensor = as_tensor(padded, self.pipeline.out_dtype)
        tensor = tensor.permute(0, 3, 1, 2) if self.channels_last else tensor
        return [tensor[:, 0]] if self.is_mask else [tensor, as_tensor(sizes)]

    def _stored(self, value: float) -> Any:
        """Return a number as it is stored."""
        dtype = self.pipeline.out_dtype
        if dtype == "float16":
            return np.float16(value).view(np.uint16)
        if dtype == "bfloat16":
            return np.uint16(np.float32(value).view(np.uint32) >> 16)
        return np.dtype(self.pipeline.storage_dtype).type(value)

    def tensor(self, values: npt.NDArray[Any]) -> Any:
        """Make the batch's tensor of an array that `lend` gave."""
        tensor = as_tensor(values, self.pipeline.out_dtype)
        if self.is_mask:
            return tensor[:, 0]
        return tensor.permute(0, 3, 1, 2) if self.interleaved else tensor


class Plan:
    """How the batches of a loader are made, fixed when it is built. All its batches share it.

    Parameters
    ----------
    files : FileSet
    transforms, fields, seed, on_error
        As the Loader's.
    ranks : Ranks
        Batch-level transforms draw differently on each rank.
    transfer : Transfer
    max_rows : int
        Rows a batch can have.
    num_workers : int
        Threads that make batches.
    num_ahead : int, optional
        Batches that may be ready or in the making; by default as many as keep all workers busy, and two more.
    on_device : bool
        Whether to do on the device what can be done there of the image fields' transforms.
    return_params : bool
        Deliver what was drawn for images, too.

    Attributes
    ----------
    outputs : dict of str to Output
        What batches hold, in order.
    fields : tuple of str
        What is read of the files for it.
    stored_fields : list of str
        What is read of stored bytes, not of the sample table.
    images, others : dict
        Name of an output to how it is made.
    num_views : Counter of str
        Name of a field to how many images are made of each of its own.
    columns : set of str
        Those of `others` that are numbers in the sample table, gathered for a whole batch at once.
    group_size : int
        Samples that a worker takes at a time.
    num_ahead : int
        Batches that may be ready or in the making.
    values : dict of str to FieldValues
        Name of an output to what is done to its values, sample by sample.
    annotations : dict of str to Annotations
        Name of an output of images to what follows it.
    sizes : tuple of str
        Names of what batches hold behind the outputs: the sizes of padded images.
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
        transforms: Mapping[str, Sequence[Any] | View],
        fields: Sequence[str] | None,
        *,
        seed: int,
        on_error: OnError,
        ranks: Ranks,
        transfer: Transfer,
        max_rows: int,
        num_workers: int,
        num_ahead: int | None,
        on_device: bool = False,
        return_params: bool = False,
    ) -> None:
        started = time.perf_counter()
        self.files = files
        self.outputs = choose_outputs(files, transforms, fields)
        self.names = tuple(self.outputs)
        self.fields = tuple(dict.fromkeys(output.field for output in self.outputs.values()))
        self.seed = seed
        self.on_error = on_error
        self.ranks = ranks
        self.transfer = transfer
        self.return_params = return_params
        self.num_views: Counter[str] = Counter()
        self.images: dict[str, ImagePlan] = {}
        self.others: dict[str, Decoder] = {}
        self.columns: set[str] = set()
        self.values: dict[str, FieldValues] = {}
        self.batch_transforms: list[BatchTransform] = []
        label = label_field(files, self.fields)
        for name, output in self.outputs.items():
            field, given = files.fields[output.field], output.transforms
            decoder = make_decoder(files, output.field, as_list=output.as_list, partner=output.partner)
            if isinstance(field, (NDArrayField, VarArrayField)):
                _check_tensors(field, name)
            if isinstance(decoder, ImageDecoder):
                assert isinstance(field, ImageField)
                self.images[name] = _plan_images(output, decoder, field, max_rows, transfer, on_device=on_device)
                self.num_views[output.field] += len(output.views)
                num_batched = len(self.images[name].pipeline.batch_transforms)
            else:
                self.others[name] = decoder
                if isinstance(decoder, ColumnDecoder):
                    self.columns.add(name)
                num_batched = 0 if output.as_list else len(given)
                if any(isinstance(op, FieldOp) for op in given):
                    with named(name):
                        self.values[name] = FieldValues(decoder, given)
                    num_batched -= self.values[name].count
            self.batch_transforms += [
                BatchTransform(output=output, position=position, op=given[position], label_field=label)
                for position in range(len(given) - num_batched, len(given))
            ]
        self.group_size = self._group_size(max_rows // num_workers, max_rows)
        groups = max(-(-max_rows // self.group_size), 1)
        self.num_ahead = 2 + -(-num_workers // groups) if num_ahead is None else num_ahead
        for image in self.images.values():
            image.ring.keep(len(image.output.views) * (self.num_ahead + 2))
        self._check_mixing(label)
        self._readers: dict[str, Any] = {}
        self.annotations = self._annotations()
        self.stored_fields = [name for name in {*self.fields, *self._readers} if files.fields[name].has_data]
        self.sizes = self._sizes()
        for image in self.images.values():
            for pipeline in image.pipelines:
                pipeline.warm_up()
        self.compile_seconds = time.perf_counter() - started

    def _group_size(self, share: int, max_rows: int) -> int:
        """Choose how many samples make a call worth its cost: some images, or many small ones.

        Few enough bytes, stored and decoded, that none of them takes long. A batch of small images is not shared among
        all workers, which take batches in turn: each group costs time that holds the GIL.
        """
        stored = sum(reader.data_end for reader in self.files.readers) // max(self.files.num_samples, 1)
        decoded = sum(int(np.prod(each.pipeline.decode_shape)) for each in self.images.values())
        each = max(stored + decoded, 1)
        of_bytes = min(_GROUP_BYTES // each, share)
        if each <= _SMALL_BYTES:
            of_bytes = -(-max_rows // max(max_rows * each // _GROUP_BYTES, 1))
        return max(1, min(_GROUP_SIZE, share // 2), of_bytes)

    def _annotations(self) -> dict[str, Annotations]:
        """Find out what follows each output of images."""
        found: dict[str, Annotations] = {}
        known = {name: self.files.fields[output.field] for name, output in self.outputs.items() if name in self.others}
        for name, image in self.images.items():
            if image.is_mask and image.output.follows is not None:
                continue
            follows = [each for each, output in self.outputs.items() if output.follows == name and each in self.others]
            followers = {each: known[each] for each in follows if declared_coordinates(known[each]) is not None}
            for each in followers:
                _check_declarations(self.files, each)
            with named(name):
                found[name] = Annotations.following(image.pipeline, followers, known, self.files.fields)
            reads = found[name].reads
            if reads:
                _check_declarations(self.files, reads)
                self._readers[reads] = self.others.get(reads) or make_decoder(self.files, reads)
        return found

    def annotations_read_by(self, output: Output) -> Annotations | None:
        """Return the annotations that the geometry of an output reads, if it does."""
        if not self.images[output.name].pipeline.reads_boxes:
            return None
        while output.name not in self.annotations and output.follows is not None:
            output = self.outputs[output.follows]
        found = self.annotations.get(output.name)
        return found if found is not None and found.reads else None

    def reader(self, annotations: Annotations) -> Any:
        """Return the decoder of the boxes that geometry reads."""
        return self._readers[annotations.reads]

    def _sizes(self) -> tuple[str, ...]:
        """Name the sizes of padded images."""
        names: list[str] = []
        for name, image in self.images.items():
            if not isinstance(image.pipeline.collation, PadBatch):
                continue
            if len(image.output.views) > 1:
                raise UsageError(
                    f"transforms[{name!r}]: PadBatch() puts the images of one view together, but there are "
                    f"{len(image.output.views)} views. Use AsList(), or a single view"
                )
            if image.is_mask:
                continue
            names.append(f"{name}_sizes")
            if names[-1] in self.outputs:
                raise UsageError(
                    f"transforms[{name!r}]: PadBatch() puts '{names[-1]}' into the batch, but a field is called that. "
                    f"Leave it out with fields=[...], or use AsList()"
                )
        return tuple(names)

    def _check_mixing(self, label: str | None) -> None:
        mixing = [each for each in self.batch_transforms if isinstance(each.op, BatchOp)]
        mixes = [each.op.name for each in mixing]
        several = next((each for each in mixing if len(each.output.views) > 1), None)
        if several is not None:
            raise UsageError(
                f"transforms[{several.output.name!r}]: {several.op.name} mixes labels too, of which the "
                f"{len(several.output.views)} views have only one set. Give it to a single view, or call it in the "
                f"training loop"
            )
        if mixes and label is None:
            raise UsageError(
                f"{mixes[0]} mixes labels too, and needs an integer field named 'label' (or a single integer field); "
                f"the fields are {', '.join(self.names)}. Deliver such a field, or leave {mixes[0]} out"
            )
        if mixing and label is not None:
            self._check_labels(mixing[0], label)
        masks = [name for name in self.fields if isinstance(self.files.fields[name], MaskField)]
        places = [name for name, output in self.outputs.items() if output.follows and name in self.others]
        if mixes and (masks or places):
            what = f"the masks of '{masks[0]}'" if masks else f"what '{places[0]}' holds"
            raise UsageError(
                f"{mixes[0]} mixes images and labels, but not {what}, which would no longer fit; "
                f"leave it out, or {'the masks' if masks else repr(places[0])} with fields=[...]"
            )

    def _check_labels(self, mixing: BatchTransform, label: str) -> None:
        """Refuse to mix class numbers of an unknown number of classes."""
        values = (self.values.get(label) or self.others[label]).allocate(1)
        are_numbers = isinstance(values, np.ndarray) and values.ndim == 1
        if any(each.output.name == label for each in self.batch_transforms) or not are_numbers:
            return
        if isinstance(mixing.op, Mixing) and not mixing.op.takes_class_numbers:
            names = self.files.class_names
            count = "the number of classes" if names is None else str(len(names))
            raise UsageError(
                f"transforms[{mixing.output.name!r}]: {mixing.op.name} mixes rows with a number for each class, but "
                f"'{label}' holds class numbers. Pass num_classes={count}, or put OneHot(...) into the list of "
                f"'{label}'"
            )

    def error(
        self, kind: type[SampleError], reason: str, sample: int, output: Output, view: str | None = None
    ) -> SampleError:
        """Make the error for one sample, with the advice that fits."""
        file, sample_of_file = self.files.split_index(sample)
        path = self.files.paths[file]
        index = None if len(self.files) == 1 else sample
        advice = _ADVICE[kind].format(path=path)
        return kind(reason, sample=sample_of_file, field=output.field, view=view, path=path, advice=advice, index=index)


def _check_tensors(field: NDArrayField | VarArrayField, name: str) -> None:
    try:
        as_tensor(np.empty(0, field.dtype.newbyteorder("=")))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"field '{name}' holds {field.dtype} arrays, of which torch makes no tensors ({error}); leave it out with "
            f"fields=[...]"
        ) from error


def _plan_images(
    output: Output,
    decoder: ImageDecoder,
    field: ImageField,
    max_rows: int,
    transfer: Transfer,
    *,
    on_device: bool,
) -> ImagePlan:
    is_mask = isinstance(field, MaskField)
    dtype = "int64" if is_mask else field.dtype.name
    transforms, num_views = output.transforms, len(output.views)
    with named(output.name) if transforms else contextlib.nullcontext():
        pipelines = tuple(
            Pipeline(
                each,
                channels=field.channels,
                source_size=decoder.common_size(),
                dtype=dtype,
                on_device=on_device and not is_mask,
            )
            for each in one_list_per_crop(transforms)
        )
        pipeline = pipelines[0]
        if dtype == "uint16":
            _check_resizes(transforms)
    num_bytes = max_rows * int(np.prod(pipeline.out_shape)) * np.dtype(pipeline.storage_dtype).itemsize
    is_any_size = pipeline.collation is not None
    num_bytes = 0 if is_any_size else num_bytes
    channels_last = transfer.memory_format == "channels_last" and not transfer.is_cuda and not is_mask
    if num_views * num_bytes > memory_bytes():
        views = "" if num_views == 1 else f"times {num_views} "
        each = f"{views}images of shape {tuple(pipeline.out_shape)} and {pipeline.out_dtype}"
        raise UsageError(
            f"a batch of {max_rows:,} {each} takes {num_views * num_bytes / 2**30:,.0f} GiB, and this "
            f"process may use {memory_bytes() / 2**30:,.0f} GiB of memory: pass a smaller batch_size="
        )
    return ImagePlan(
        output=output,
        decoder=decoder,
        pipelines=pipelines,
        ring=Ring(num_bytes, allocate=transfer.allocate if transfer.is_cuda else None),
        interleaved=channels_last and not is_any_size,
        channels_last=channels_last,
        is_mask=is_mask,
    )


def _check_declarations(files: FileSet, name: str) -> None:
    """Refuse files that differ in what a field's numbers are."""
    words = sorted({str(declared_coordinates(reader.fields[name])) for reader in files.readers})
    if len(words) > 1:
        raise UsageError(
            f"field '{name}' holds {' in some files and '.join(words)} in others, so it cannot follow its image. "
            f"Convert them with one declaration, or get it as it is stored, with an empty list of its own"
        )


def _check_resizes(transforms: Sequence[Any]) -> None:
    for position, op in enumerate(transforms):
        if isinstance(op, Geometry) and getattr(op, "interpolation", "nearest") != "nearest":
            raise UsageError(
                f"transform {position} ({op.name}) would mix 16-bit pixels, which is done for 8 bits only. Pass "
                f"interpolation='nearest', or cut parts out (RandomCrop, CenterCrop) and resize the batched tensor"
            )
