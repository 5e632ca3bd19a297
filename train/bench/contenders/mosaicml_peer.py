"""MosaicML Streaming: MDS shards on the local disk.

Tuning, after its documentation: JPEG bytes in MDS shards, ``local`` only (nothing to download), ``batch_size`` told to
the dataset, shuffling with the default ``py1e``, a DataLoader with persistent workers. Images are decoded by
``torchvision.io.decode_image`` with v2 on tensors. An epoch is made longer with ``epoch_size``, its own means.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import streaming
from torch.utils.data import DataLoader

from train.bench.contenders.base import Contender, as_images, prepared_copy
from train.bench.contenders.stock import PREFETCH, decode_tensor, torch_transform, worker_options
from train.bench.spec import BenchSpec
from train.loaders.stored_images import FileImages

__all__ = ["StreamingContender"]


class _Images(streaming.StreamingDataset):  # type: ignore[misc]
    def __init__(self, spec: BenchSpec, folder: Path, epoch_size: int) -> None:
        super().__init__(
            local=str(folder),
            shuffle=spec.training,
            shuffle_seed=spec.seed,
            batch_size=spec.batch_size,
            epoch_size=epoch_size,
        )
        self._transform = torch_transform(spec, pillow=False)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        sample = super().__getitem__(at)
        return self._transform(decode_tensor(sample["image"])), sample["label"]


class StreamingContender(Contender):
    """`streaming.StreamingDataset` behind a DataLoader."""

    def __init__(self, spec: BenchSpec) -> None:
        num_samples = len(FileImages(spec.path))

        def write(source: FileImages, folder: Path) -> None:
            with streaming.MDSWriter(out=str(folder), columns={"image": "bytes", "label": "int"}) as writer:
                for index in range(len(source)):
                    item = source[index]
                    if item.encoded is None:
                        raise ValueError("raw images are left out of this comparison")
                    writer.write({"image": item.encoded, "label": item.label})

        folder = prepared_copy(spec, "mds", write)
        # Shared memory of a run that was killed would stop this one.
        streaming.base.util.clean_stale_shared_memory()
        dataset = _Images(spec, folder, num_samples * spec.repeats(num_samples))
        self._loader: DataLoader[Any] = DataLoader(
            dataset, batch_size=spec.batch_size, drop_last=True, **worker_options(spec)
        )
        self.num_ahead = spec.num_workers * PREFETCH

    def batches(self) -> Iterator[Any]:
        """Go through one epoch."""
        for batch in self._loader:
            yield as_images(batch)
