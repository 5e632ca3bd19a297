"""MosaicML Streaming: MDS shards on the local disk.

Tuning, after its documentation: JPEG bytes in MDS shards, ``local`` only (nothing to download), ``batch_size`` passed
to the dataset, shuffling with the default ``py1e``, a DataLoader with persistent workers. Images are decoded by
``torchvision.io.decode_image`` with v2 on tensors. ``epoch_size`` makes an epoch longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import streaming
from torch.utils.data import DataLoader

from .base import LoaderSpec
from .copies import encoded_bytes, prepared_copy
from .stock import DecodeAndCrop, worker_options
from .stored_images import FileImages
from .whole_epochs import StreamLoader


class _Images(streaming.StreamingDataset):  # type: ignore[misc]
    def __init__(self, spec: LoaderSpec, folder: Path, epoch_size: int) -> None:
        super().__init__(
            local=str(folder),
            shuffle=spec.training,
            shuffle_seed=spec.seed,
            batch_size=spec.batch_size,
            epoch_size=epoch_size,
        )
        self._decode_and_crop = DecodeAndCrop(spec)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        sample = super().__getitem__(at)
        return self._decode_and_crop(sample["image"]), sample["label"]


class StreamingLoader(StreamLoader):
    """`streaming.StreamingDataset` behind a DataLoader."""

    def __init__(self, spec: LoaderSpec) -> None:
        num_samples = len(FileImages(spec.path))
        super().__init__(spec, name="mosaicml-streaming", num_samples=num_samples)

        def write(source: FileImages, folder: Path) -> None:
            with streaming.MDSWriter(out=str(folder), columns={"image": "bytes", "label": "int"}) as writer:
                for index in range(len(source)):
                    writer.write({"image": encoded_bytes(source, index), "label": source[index].label})

        folder = prepared_copy(spec, "mds", write)
        # Shared memory left by a killed run would break this one; local rank 0 removes it, the others wait.
        streaming.base.util.clean_stale_shared_memory()
        dataset = _Images(spec, folder, num_samples * spec.repeats(num_samples))
        options = worker_options(spec)
        self._loader: DataLoader[Any] = DataLoader(dataset, batch_size=spec.batch_size, drop_last=True, **options)
        self.num_ahead = spec.num_workers * options.get("prefetch_factor", 0)

    def labelled_batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield one epoch."""
        yield from self._loader
