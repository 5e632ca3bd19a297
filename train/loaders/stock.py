"""The stock PyTorch loaders, tuned as well as they go: `torch` (Pillow) and `torch-fast` (torchvision.io).

Owns a map-style dataset over a `StoredImages`, a resumable batch sampler with `DistributedSampler`'s order, and a
`DataLoader` with persistent workers, pinned memory and, on CUDA, a copy one batch ahead on a side stream.

Augmentation is seeded per (seed, epoch, sample index), so that a run stopped in mid-epoch resumes with the same
images. A stock script does not do that; it costs one reseeding of torch's CPU generator per image (microseconds).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, get_worker_info
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from train.batch_shares import Shares

from .base import LoaderSpec, TrainBatch, check_position
from .stored_images import FileImages, StoredImage, StoredImages, open_images

_MASK = 2**64 - 1


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Return a 63-bit seed for one sample in one epoch (SplitMix64's finaliser over the three numbers)."""
    value = (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + index * 0x94D049BB133111EB) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return (value ^ (value >> 31)) >> 1


class StockDataset(Dataset[tuple[torch.Tensor, int]]):
    """Decode and transform one sample, as a training script would.

    Parameters
    ----------
    source : StoredImages
        Stored bytes.
    spec : LoaderSpec
        Sizes and normalisation.
    fast : bool
        Decode to a tensor with torchvision.io instead of Pillow.
    normalise : bool
        Normalise here; else deliver uint8.
    """

    def __init__(self, source: StoredImages, spec: LoaderSpec, *, fast: bool, normalise: bool) -> None:
        self._source = source
        self._fast = fast
        steps: list[torch.nn.Module] = []
        if spec.training:
            steps += [v2.RandomResizedCrop(spec.image_size, antialias=True), v2.RandomHorizontalFlip()]
        else:
            steps += [v2.Resize(spec.resize_size, antialias=True), v2.CenterCrop(spec.image_size)]
        if not fast:
            steps.append(v2.ToImage())
        if normalise:
            steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(spec.mean, spec.std)]
        self._transform = v2.Compose(steps)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, key: tuple[int, int]) -> tuple[torch.Tensor, int]:
        index, seed = key
        item = self._source[index]
        pixels = _decode_fast(item) if self._fast else _decode_pillow(item)
        if get_worker_info() is not None:
            torch.manual_seed(seed)
            return self._transform(pixels), item.label
        # In the training process itself the generator belongs to the network (dropout).
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._transform(pixels), item.label


def _decode_pillow(item: StoredImage) -> Image.Image:
    if item.raw is not None:
        return Image.fromarray(item.raw)
    assert item.encoded is not None
    with Image.open(io.BytesIO(item.encoded)) as image:
        pixels: Image.Image = image.convert("RGB")
    return pixels


def _decode_fast(item: StoredImage) -> torch.Tensor:
    if item.raw is not None:
        return torch.from_numpy(np.ascontiguousarray(item.raw.transpose(2, 0, 1)))
    assert item.encoded is not None
    with warnings.catch_warnings():
        # The bytes are read-only and decode_image only reads them.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        # torchvision points to torchcodec from 0.29 on; until it goes, this is the stock way.
        warnings.filterwarnings("ignore", message="The image decoding", category=DeprecationWarning)
        data = torch.frombuffer(item.encoded, dtype=torch.uint8)
        pixels: torch.Tensor = decode_image(data, mode=ImageReadMode.RGB)
    return pixels


class KeyedBatches(Sampler[list[tuple[int, int]]]):
    """Batches of (sample index, seed), in `DistributedSampler`'s order, from any batch of an epoch on.

    Parameters
    ----------
    spec : LoaderSpec
        Shares and seed.
    indices : numpy.ndarray
        Samples of the data set that take part, int64.
    """

    def __init__(self, spec: LoaderSpec, indices: np.ndarray) -> None:
        self._spec = spec
        self._indices = indices
        self.epoch = 0
        self.start = 0
        self.shares = Shares(
            num_samples=len(indices),
            rank=spec.rank,
            world_size=spec.world_size,
            batch_size=spec.batch_size,
            drop_last=spec.tail == "drop",
        )
        self._mine = indices[:0]
        self._order: DistributedSampler[int] = DistributedSampler(
            indices,  # type: ignore[arg-type]  # only its length is used
            num_replicas=spec.world_size,
            rank=spec.rank,
            shuffle=spec.training,
            seed=spec.seed,
            drop_last=spec.tail == "drop",
        )

    def __len__(self) -> int:
        return len(self.shares) - self.start

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        self._order.set_epoch(self.epoch)
        self._mine = self._indices[np.fromiter(self._order, dtype=np.int64)]
        for batch in range(self.start, len(self.shares)):
            yield [
                (index, sample_seed(self._spec.seed, self.epoch, index)) for index in self.indices_of(batch).tolist()
            ]

    def indices_of(self, batch: int) -> np.ndarray:
        """Return this rank's samples in a batch of the epoch that has begun."""
        return self._mine[batch * self._spec.batch_size : (batch + 1) * self._spec.batch_size]


def one_thread_per_worker(_worker: int) -> None:
    """Keep each worker process to one thread: the workers themselves are the parallelism."""
    torch.set_num_threads(1)


class StockLoader:
    """A tuned `torch.utils.data.DataLoader` behind the trainer's protocol.

    Parameters
    ----------
    spec : LoaderSpec
        What to deliver.
    fast : bool
        `torch-fast` instead of `torch`.
    """

    def __init__(self, spec: LoaderSpec, *, fast: bool) -> None:
        self.name = "torch-fast" if fast else "torch"
        # The fast variant ships bytes and normalises on the device, where there is one that does it for nothing.
        self.normalised = not (fast and spec.device.type == "cuda")
        source = open_images(spec.path)
        if isinstance(source, FileImages):
            source.locate()
        indices = np.arange(len(source), dtype=np.int64) if spec.indices is None else spec.indices
        self._spec = spec
        self._batches = KeyedBatches(spec, indices)
        self._position = 0
        workers: dict[str, Any] = {}
        if spec.num_workers > 0:
            workers = {
                "persistent_workers": True,
                "prefetch_factor": spec.prefetch,
                "worker_init_fn": one_thread_per_worker,
            }
        self._loader: DataLoader[Any] = DataLoader(
            StockDataset(source, spec, fast=fast, normalise=self.normalised),
            batch_sampler=self._batches,
            num_workers=spec.num_workers,
            pin_memory=spec.device.type == "cuda",
            # An iterator draws from its generator; torch's own belongs to the network.
            generator=torch.Generator(),
            **workers,
        )

    def __len__(self) -> int:
        return len(self._batches.shares)

    @property
    def batches_left(self) -> int:
        """How many batches the next iteration gives."""
        return len(self._batches)

    def __iter__(self) -> Iterator[TrainBatch]:
        start = self._batches.start
        shares = self._batches.shares
        self._position = start
        for batch, (images, labels) in enumerate(_to_device(self._loader, self._spec.device), start):
            self._position = batch + 1
            indices = self._batches.indices_of(batch)
            yield TrainBatch(images, labels, shares.num_valid(batch), shares.global_size(batch), indices)
        self._batches.start = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; it starts at its first batch."""
        if epoch != self._batches.epoch:
            self._batches.epoch = epoch
            self._batches.start = self._position = 0

    def _identity(self) -> dict[str, Any]:
        return {
            "loader": self.name,
            "num_samples": self._batches.shares.num_samples,
            "batch_size": self._spec.batch_size,
            "world_size": self._spec.world_size,
            "seed": self._spec.seed,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of its batches that were handed out."""
        return {**self._identity(), "epoch": self._batches.epoch, "batches": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in mid-epoch, without decoding what was seen."""
        self._batches.epoch, self._batches.start = check_position(state, self._identity())
        self._position = self._batches.start

    def close(self) -> None:
        """End the worker processes."""
        del self._loader


def _to_device(batches: Any, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if device.type != "cuda":
        yield from batches
        return
    # timm's PrefetchLoader: copy the next batch on a side stream while the network works on this one.
    stream = torch.cuda.Stream(device)
    ready: tuple[torch.Tensor, torch.Tensor] | None = None
    for images, labels in batches:
        with torch.cuda.stream(stream):
            coming = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        if ready is not None:
            yield ready
        torch.cuda.current_stream(device).wait_stream(stream)
        for tensor in coming:
            tensor.record_stream(torch.cuda.current_stream(device))
        ready = coming
    if ready is not None:
        yield ready
