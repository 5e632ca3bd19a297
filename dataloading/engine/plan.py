"""How the outputs of a loader are made: how each is decoded and transformed, and where its memory comes from.

Knows the files' fields and the user's transforms; no order of samples and no threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
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
from dataloading.engine.field_values import FieldValues
from dataloading.engine.outputs import Output, choose_outputs, named
from dataloading.engine.transfer import Transfer, as_tensor
from dataloading.engine.workers import Ring
from dataloading.errors import DecodeError, SampleError, TransformError, UsageError
from dataloading.format import ImageField, MaskField, NDArrayField, VarArrayField
from dataloading.sampling.ranks import Ranks
from dataloading.transforms.base import BatchOp, FieldOp, Geometry
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.view import View

__all__ = ["ImagePlan", "OnError", "Plan"]

OnError = Literal["raise", "skip", "replace"]

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
    pipeline : Pipeline
    ring : Ring
        Lends memory for the images of one batch and view.
    interleaved : bool
        Lay out the batch as NHWC (the tensor is still (N, C, H, W), in channels_last format).
    is_mask : bool
        Deliver (N, H, W): label maps have no channels.
    group_size : int
        Most rows of a group.
    """

    output: Output
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
    """How the batches of a loader are made, fixed when it is built. All its batches share it.

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
    images, others : dict
        Name of an output to how it is made.
    values : dict of str to FieldValues
        Name of an output to what is done to its values, sample by sample.
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
        group_size: int,
        max_rows: int,
        num_buffers: int,
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
        self.group_size = group_size
        self.return_params = return_params
        self.images: dict[str, ImagePlan] = {}
        self.others: dict[str, Decoder] = {}
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
                self.images[name] = _plan_images(
                    output, decoder, field, group_size, max_rows, num_buffers, transfer, on_device=on_device
                )
                num_batched = len(self.images[name].pipeline.batch_transforms)
            else:
                self.others[name] = decoder
                num_batched = 0 if output.as_list else len(given)
                if any(isinstance(op, FieldOp) for op in given):
                    with named(name):
                        self.values[name] = FieldValues(decoder, given)
                    num_batched -= self.values[name].count
            self.batch_transforms += [
                BatchTransform(output=output, position=position, op=given[position], label_field=label)
                for position in range(len(given) - num_batched, len(given))
            ]
        self._check_mixing(label)
        for image in self.images.values():
            image.decoder.warm_up()
            image.pipeline.warm_up()
        self.compile_seconds = time.perf_counter() - started

    def _check_mixing(self, label: str | None) -> None:
        mixing = [each for each in self.batch_transforms if isinstance(each.op, BatchOp)]
        mixes = [each.op.name for each in mixing]
        several = next((each for each in mixing if len(each.output.views) > 1), None)
        if several is not None:
            raise UsageError(
                f"transforms[{several.output.name!r}]: {several.op.name} mixes labels too, of which the "
                f"{len(several.output.views)} views have only one set. Give it to one view with repeat=1, or call it "
                f"in the training loop"
            )
        if mixes and label is None:
            raise UsageError(
                f"{mixes[0]} mixes labels too, and needs an integer field named 'label' (or a single integer field); "
                f"the fields are {', '.join(self.names)}"
            )
        masks = [name for name in self.fields if isinstance(self.files.fields[name], MaskField)]
        if mixes and masks:
            raise UsageError(
                f"{mixes[0]} mixes images and labels, but not the masks of '{masks[0]}', which would no longer fit; "
                f"leave it out, or the masks with fields=[...]"
            )

    def error(
        self, kind: type[SampleError], reason: str, sample: int, output: Output, view: str | None = None
    ) -> SampleError:
        """Make the error for one sample, with the advice that fits."""
        file, sample_of_file = self.files.place(sample)
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
    group_size: int,
    max_rows: int,
    num_buffers: int,
    transfer: Transfer,
    *,
    on_device: bool,
) -> ImagePlan:
    is_mask = isinstance(field, MaskField)
    dtype = "int64" if is_mask else field.dtype.name
    transforms, num_views = output.transforms, len(output.views)
    with named(output.name) if transforms else contextlib.nullcontext():
        pipeline = Pipeline(
            transforms,
            channels=field.channels,
            source_size=decoder.common_size(),
            dtype=dtype,
            on_device=on_device and not is_mask,
        )
        if dtype == "uint16":
            _check_resizes(transforms)
    num_bytes = max_rows * int(np.prod(pipeline.out_shape)) * np.dtype(pipeline.storage_dtype).itemsize
    if num_views * num_bytes > memory_bytes():
        views = "" if num_views == 1 else f"times {num_views} "
        each = f"{views}images of shape {tuple(pipeline.out_shape)} and {pipeline.out_dtype}"
        raise UsageError(
            f"a batch of {max_rows:,} {each} takes {num_views * num_bytes / 2**30:,.0f} GiB, and the machine has "
            f"{memory_bytes() / 2**30:,.0f} GiB of memory: pass a smaller batch_size="
        )
    return ImagePlan(
        output=output,
        decoder=decoder,
        pipeline=pipeline,
        ring=Ring(
            num_bytes, capacity=num_views * num_buffers, allocate=transfer.allocate if transfer.is_cuda else None
        ),
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
