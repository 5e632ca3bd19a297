"""WebDataset: tar shards, sequential reads, a shuffle buffer.

Tuning, after its documentation: shards on the local disk, ``shardshuffle`` and a buffer of 1,000 samples, batches made
in the workers, `WebLoader` with ``batch_size=None``, and ``.repeat()``, so that epoch ends do not interrupt it. Images
are decoded by ``torchvision.io.decode_image`` with v2 on tensors, which is faster here than its built-in Pillow
decoder.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .base import LoaderSpec
from .copies import encoded_bytes, prepared_copy
from .stock import DecodeAndCrop, worker_options
from .stored_images import FileImages
from .whole_epochs import StreamLoader

_SHARDS_A_WORKER = 4


class _Decode:
    """Decode and transform one sample of a shard; picklable, for worker processes."""

    def __init__(self, spec: LoaderSpec) -> None:
        self._decode_and_crop = DecodeAndCrop(spec)

    def __call__(self, sample: dict[str, bytes]) -> tuple[Any, int]:
        return self._decode_and_crop(sample["jpg"]), int(sample["cls"])


class WebDatasetLoader(StreamLoader):
    """`webdataset.WebDataset` behind `webdataset.WebLoader`."""

    def __init__(self, spec: LoaderSpec) -> None:
        import webdataset as wds

        super().__init__(spec, name="webdataset", num_samples=len(FileImages(spec.path)))
        num_shards = _SHARDS_A_WORKER * max(1, spec.num_workers) * spec.world_size

        def write(source: FileImages, folder: Path) -> None:
            repeats = spec.repeats(len(source))
            for shard in range(num_shards):
                with tarfile.open(folder / f"{shard:05d}.tar", "w") as tar:
                    for number in range(shard, len(source) * repeats, num_shards):
                        index = number % len(source)
                        label = str(source[index].label).encode()
                        for ending, data in (("jpg", encoded_bytes(source, index)), ("cls", label)):
                            entry = tarfile.TarInfo(f"{number:08d}.{ending}")
                            entry.size = len(data)
                            tar.addfile(entry, io.BytesIO(data))

        folder = prepared_copy(spec, f"webdataset-{spec.epoch_images}-{num_shards}", write)
        dataset = wds.WebDataset(
            sorted(map(str, folder.glob("*.tar")))[spec.rank :: spec.world_size],
            shardshuffle=num_shards if spec.training else False,
            nodesplitter=None,  # the ranks have divided the shards
            workersplitter=wds.split_by_worker,
            seed=spec.seed,
        )
        if spec.training:
            dataset = dataset.shuffle(1000)
        dataset = dataset.map(_Decode(spec)).batched(spec.batch_size, partial=False).repeat()
        options = worker_options(spec)
        self._loader = wds.WebLoader(dataset, batch_size=None, **options)
        self.num_ahead = spec.num_workers * options.get("prefetch_factor", 0)

    def labelled_batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield batches endlessly."""
        yield from self._loader
