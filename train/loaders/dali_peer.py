"""NVIDIA DALI on the CPU.

Tuning, after its documentation: the fused ``decoders.image_random_crop`` (decodes and crops in one operator), the file
reader with ``random_shuffle`` (files in class folders, mapped into memory), ``num_threads`` = workers,
``prefetch_queue_depth=2`` (default), antialiased linear resize, an endless iterator, so that epoch ends do not
interrupt it. uint8 images are HWC, DALI's own layout, viewed as NCHW without a copy; normalised ones use the fused
``crop_mirror_normalize``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dataloading import UsageError

from .base import LoaderSpec, wants_normalised
from .copies import image_folder
from .stored_images import FileImages
from .whole_epochs import StreamLoader


class DaliLoader(StreamLoader):
    """A DALI pipeline without a GPU."""

    num_ahead = 3

    def __init__(self, spec: LoaderSpec) -> None:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        super().__init__(spec, name="dali", num_samples=len(FileImages(spec.path)))
        if spec.steps is not None:
            raise UsageError("DALI lacks most transforms of a recipe; use --loader beton, torch or torch-fast")
        root = str(image_folder(spec))

        @pipeline_def(
            batch_size=spec.batch_size, num_threads=max(1, spec.num_workers), device_id=None, seed=spec.seed + 1
        )
        def graph() -> Any:
            files, labels = fn.readers.file(
                file_root=root,
                random_shuffle=spec.training,
                shard_id=spec.rank,
                num_shards=spec.world_size,
                name="reader",
            )
            linear = {"interp_type": types.INTERP_LINEAR, "antialias": True}
            if spec.training:
                images = fn.decoders.image_random_crop(
                    files, output_type=types.RGB, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
                )
                images = fn.resize(images, size=[spec.image_size, spec.image_size], **linear)
                mirror = fn.random.coin_flip(probability=0.5)
            else:
                images = fn.decoders.image(files, output_type=types.RGB)
                images = fn.resize(images, resize_shorter=spec.resize_size, **linear)
                images = fn.crop(images, crop=[spec.image_size, spec.image_size])
                mirror = 0
            if wants_normalised(spec):
                images = fn.crop_mirror_normalize(
                    images,
                    mirror=mirror,
                    mean=[value * 255.0 for value in spec.mean],
                    std=[value * 255.0 for value in spec.std],
                    dtype=types.FLOAT,
                    output_layout="CHW",
                )
            elif spec.training:
                images = fn.flip(images, horizontal=mirror)
            return images, labels

        pipeline = graph()
        pipeline.build()
        self._planar = wants_normalised(spec)
        self._iterator = DALIGenericIterator([pipeline], ["images", "labels"], size=-1)

    def labelled_batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield batches endlessly."""
        for [batch] in self._iterator:
            images = batch["images"]
            yield images if self._planar else images.permute(0, 3, 1, 2), batch["labels"]
