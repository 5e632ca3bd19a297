"""WebDataset: tar shards, sequential reads, a shuffle buffer.

Tuning, after its documentation: shards on the local disk, ``shardshuffle`` and a buffer of 1,000 samples, batches made
in the workers, `WebLoader` with ``batch_size=None``, ``.repeat()`` so that no epoch's end interrupts it. Images are
decoded by ``torchvision.io.decode_image`` with v2 on tensors, which is faster here than its built-in Pillow decoder.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from train.bench.contenders.base import Contender, prepared_copy
from train.bench.contenders.stock import PREFETCH, decode_tensor, torch_transform, worker_options
from train.bench.spec import BenchSpec
from train.loaders.stored_images import FileImages

__all__ = ["WebDatasetContender"]

_SHARDS_A_WORKER = 4


class _Decode:
    """Decode and transform one sample; picklable, for worker processes."""

    def __init__(self, spec: BenchSpec) -> None:
        self._transform = torch_transform(spec, pillow=False)

    def __call__(self, sample: dict[str, bytes]) -> tuple[Any, int]:
        return self._transform(decode_tensor(sample["jpg"])), int(sample["cls"])


class WebDatasetContender(Contender):
    """`webdataset.WebDataset` behind `webdataset.WebLoader`."""

    def __init__(self, spec: BenchSpec) -> None:
        import webdataset as wds

        num_shards = _SHARDS_A_WORKER * spec.num_workers

        def write(source: FileImages, folder: Path) -> None:
            repeats = spec.repeats(len(source))
            for shard in range(num_shards):
                with tarfile.open(folder / f"{shard:05d}.tar", "w") as tar:
                    for number in range(shard, len(source) * repeats, num_shards):
                        item = source[number % len(source)]
                        if item.encoded is None:
                            raise ValueError("raw images have no place in a WebDataset")
                        for ending, data in (("jpg", item.encoded), ("cls", str(item.label).encode())):
                            entry = tarfile.TarInfo(f"{number:08d}.{ending}")
                            entry.size = len(data)
                            tar.addfile(entry, io.BytesIO(data))

        folder = prepared_copy(spec, f"webdataset-{spec.epoch_images}-{num_shards}", write)
        dataset = wds.WebDataset(
            sorted(map(str, folder.glob("*.tar"))),
            shardshuffle=num_shards if spec.training else False,
            workersplitter=wds.split_by_worker,
            seed=spec.seed,
        )
        if spec.training:
            dataset = dataset.shuffle(1000)
        dataset = dataset.map(_Decode(spec)).batched(spec.batch_size, partial=False).repeat()
        self._loader = wds.WebLoader(dataset, batch_size=None, **worker_options(spec))
        self.num_ahead = spec.num_workers * PREFETCH

    def batches(self) -> Iterator[Any]:
        """Go on without end."""
        for images, _labels in self._loader:
            yield images
