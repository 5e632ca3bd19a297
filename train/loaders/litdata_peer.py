"""LitData: optimised chunks of 64 MB on the local disk.

Tuning, after its documentation: JPEG bytes stored in chunks by `optimize`'s writer, `StreamingDataset` subclassed to
decode in the workers, `StreamingDataLoader` with persistent workers and prefetching. Images are decoded by
``torchvision.io.decode_image`` with v2 on tensors. A small file is written several times, because the dataset cannot
repeat its samples within an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import litdata

from .base import LoaderSpec
from .copies import encoded_bytes, prepared_copy
from .stock import DecodeAndCrop, worker_options
from .stored_images import FileImages
from .whole_epochs import StreamLoader


class _Sample:
    """Read one stored sample; picklable, for the writer's process."""

    def __init__(self, path: str) -> None:
        self._source = FileImages(path)

    def __call__(self, number: int) -> dict[str, Any]:
        index = number % len(self._source)
        return {"image": encoded_bytes(self._source, index), "label": self._source[index].label}


class _Images(litdata.StreamingDataset):  # type: ignore[misc]
    def __init__(self, spec: LoaderSpec, folder: Path) -> None:
        super().__init__(str(folder), shuffle=spec.training, drop_last=True, seed=spec.seed)
        self._decode_and_crop = DecodeAndCrop(spec)

    def __getitem__(self, index: Any) -> tuple[Any, int]:
        sample = super().__getitem__(index)
        return self._decode_and_crop(sample["image"]), sample["label"]


class LitDataLoader(StreamLoader):
    """`litdata.StreamingDataset` behind its `StreamingDataLoader`."""

    def __init__(self, spec: LoaderSpec) -> None:
        super().__init__(spec, name="litdata", num_samples=len(FileImages(spec.path)))

        def write(source: FileImages, folder: Path) -> None:
            litdata.optimize(
                fn=_Sample(spec.path),
                inputs=list(range(len(source) * spec.repeats(len(source)))),
                output_dir=str(folder),
                chunk_bytes="64MB",
                num_workers=1,
                start_method="fork",
                verbose=False,
            )

        folder = prepared_copy(spec, f"litdata-{spec.epoch_images}", write)
        options = worker_options(spec)
        self._loader = litdata.StreamingDataLoader(
            _Images(spec, folder), batch_size=spec.batch_size, drop_last=True, **options
        )
        self.num_ahead = options.get("prefetch_factor", 0)

    def labelled_batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield one epoch."""
        yield from self._loader
