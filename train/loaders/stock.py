"""The stock PyTorch loaders, well tuned: `torch` (Pillow) and `torch-fast` (torchvision.io).

Tuning, after PyTorch's and torchvision's own advice: ``persistent_workers``, ``prefetch_factor`` (4 unless set), one
thread per worker (DataLoader sets that itself), v2 transforms, uint8 until the end, pinned memory and, on CUDA, a copy
one batch ahead on a side stream. ``torch-fast`` decodes to tensors: ``decode_image`` needs no copy out of a Pillow
image, and v2's resize of uint8 tensors is vectorised. Neither can decode only the crop.

The order is `DistributedSampler`'s. Augmentation is seeded per (seed, epoch, sample index), so that a run stopped
within an epoch resumes with the same images. Stock scripts do not do that, so benchmarks do not either: it reseeds
torch's CPU generator per image (microseconds).
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

from dataloading import tools
from train.batch_shares import Shares

from .base import LoaderSpec, TrainBatch, TrainingLoader, check_position, to_device, wants_normalised
from .stored_images import FileImages, StoredImage, StoredImages, open_images
from .torchvision_steps import torchvision_steps

PREFETCH = 4


def torch_transform(spec: LoaderSpec, *, pillow: bool, normalise: bool) -> v2.Compose:
    """Return the common pipeline as torchvision's transforms, for Pillow images or uint8 CHW tensors."""
    steps: list[torch.nn.Module]
    if spec.steps is not None:
        return v2.Compose(torchvision_steps(spec.steps, pillow=pillow))
    if spec.training:
        steps = [v2.RandomResizedCrop(spec.image_size, antialias=True), v2.RandomHorizontalFlip()]
    else:
        steps = [v2.Resize(spec.resize_size, antialias=True), v2.CenterCrop(spec.image_size)]
    if pillow:
        steps.append(v2.PILToTensor())
    if normalise:
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(spec.mean, spec.std)]
    return v2.Compose(steps)


def decode_pillow(image: StoredImage) -> Image.Image:
    """Return a stored image as an RGB Pillow image."""
    if image.raw is not None:
        return Image.fromarray(image.raw)
    assert image.encoded is not None
    with Image.open(io.BytesIO(image.encoded)) as opened:
        pixels: Image.Image = opened.convert("RGB")
    return pixels


def decode_tensor(image: StoredImage) -> torch.Tensor:
    """Return the pixels of a stored image, uint8 of shape (3, H, W), decoded by torchvision.io."""
    if image.raw is not None:
        return torch.from_numpy(np.ascontiguousarray(image.raw.transpose(2, 0, 1)))
    assert image.encoded is not None
    return decode_bytes(image.encoded)


def decode_bytes(data: bytes | memoryview) -> torch.Tensor:
    """Decode a compressed image with torchvision.io, to a uint8 tensor of shape (3, H, W)."""
    with warnings.catch_warnings():
        # The buffer is read-only, and decode_image does not write to it.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        # torchvision 0.29 recommends torchcodec instead; until decode_image is removed, it is the stock decoder.
        warnings.filterwarnings("ignore", message="The image decoding", category=DeprecationWarning)
        encoded = torch.frombuffer(data, dtype=torch.uint8)
        pixels: torch.Tensor = decode_image(encoded, mode=ImageReadMode.RGB)
    return pixels


class DecodeAndCrop:
    """Decodes and transforms a compressed image, for peers without a decoder; picklable, for worker processes."""

    def __init__(self, spec: LoaderSpec) -> None:
        self._transform = torch_transform(spec, pillow=False, normalise=wants_normalised(spec))

    def __call__(self, image: bytes | memoryview | StoredImage) -> torch.Tensor:
        """Return the pixels, shape (3, S, S)."""
        pixels = decode_tensor(image) if isinstance(image, StoredImage) else decode_bytes(image)
        cropped: torch.Tensor = self._transform(pixels)
        return cropped


def worker_options(spec: LoaderSpec) -> dict[str, Any]:
    """Return the DataLoader's worker options."""
    if spec.num_workers == 0:
        return {"num_workers": 0}
    prefetch = PREFETCH if spec.prefetch is None else spec.prefetch
    return {"num_workers": spec.num_workers, "persistent_workers": True, "prefetch_factor": prefetch}


class StockDataset(Dataset[tuple[torch.Tensor, int]]):
    """Decode and transform one sample, as a training script would."""

    def __init__(self, images: StoredImages, spec: LoaderSpec, *, pillow: bool, normalise: bool) -> None:
        self._images = images
        self._decode: Any = decode_pillow if pillow else decode_tensor
        self._transform = torch_transform(spec, pillow=pillow, normalise=normalise)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, key: tuple[int, int | None]) -> tuple[torch.Tensor, int]:
        index, seed = key
        image = self._images[index]
        pixels = self._decode(image)
        if seed is None:
            return self._transform(pixels), image.label
        if get_worker_info() is not None:
            torch.manual_seed(seed)
            return self._transform(pixels), image.label
        # In the training process the network uses the generator (dropout).
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._transform(pixels), image.label


class KeyedBatches(Sampler[list[tuple[int, int | None]]]):
    """Yields batches of (sample index, seed), in `DistributedSampler`'s order, from any batch of an epoch on."""

    def __init__(self, spec: LoaderSpec, indices: np.ndarray) -> None:
        self._spec = spec
        self._indices = indices
        self.epoch = 0
        self.start = 0
        drop_last = spec.tail == "drop"
        self.shares = Shares(
            num_samples=len(indices),
            rank=spec.rank,
            world_size=spec.world_size,
            batch_size=spec.batch_size,
            drop_last=drop_last,
        )
        self._mine = indices[:0]
        self._order: DistributedSampler[int] = DistributedSampler(
            indices,  # type: ignore[arg-type]  # only its length is used
            num_replicas=spec.world_size,
            rank=spec.rank,
            shuffle=spec.training,
            seed=spec.seed,
            drop_last=drop_last,
        )

    def __len__(self) -> int:
        return len(self.shares) - self.start

    def __iter__(self) -> Iterator[list[tuple[int, int | None]]]:
        self._order.set_epoch(self.epoch)
        self._mine = self._indices[np.fromiter(self._order, dtype=np.int64)]
        epoch_key = tools.random.child(self._spec.seed, self.epoch)
        for batch in range(self.start, len(self.shares)):
            indices = self.indices_of(batch).tolist()
            if self._spec.throughput_only:
                yield [(index, None) for index in indices]
            else:
                yield [(index, tools.random.child(epoch_key, index) >> 1) for index in indices]

    def indices_of(self, batch: int) -> np.ndarray:
        """Return this rank's samples in a batch of the current epoch."""
        return self._mine[batch * self._spec.batch_size : (batch + 1) * self._spec.batch_size]


class PillowLoader(TrainingLoader):
    """``torch``: Pillow, and v2 on Pillow images; normalises in its workers."""

    name = "torch"
    pillow = True

    def __init__(self, spec: LoaderSpec) -> None:
        self.normalised = spec.normalised is not False if self.pillow and spec.steps is None else wants_normalised(spec)
        images = open_images(spec.path)
        if isinstance(images, FileImages):
            images.locate()
        self._spec = spec
        self._batches = KeyedBatches(spec, spec.epoch_indices(len(images)))
        self._position = 0
        options = worker_options(spec)
        self.num_ahead = spec.num_workers * options.get("prefetch_factor", 0)
        self._loader: DataLoader[Any] = DataLoader(
            StockDataset(images, spec, pillow=self.pillow, normalise=self.normalised),
            batch_sampler=self._batches,
            pin_memory=spec.device.type == "cuda",
            # A DataLoader iterator draws from its generator; the network uses torch's default one.
            generator=torch.Generator(),
            **options,
        )

    def __len__(self) -> int:
        return len(self._batches.shares)

    @property
    def batches_left(self) -> int:
        """Number of batches of the next iteration."""
        return len(self._batches)

    def __iter__(self) -> Iterator[TrainBatch]:
        start = self._batches.start
        shares = self._batches.shares
        self._position = start
        for batch, (images, labels) in enumerate(to_device(self._loader, self._spec.device), start):
            self._position = batch + 1
            indices = self._batches.indices_of(batch)
            yield TrainBatch(images, labels, shares.num_valid(batch), shares.global_size(batch), indices)
        self._batches.start = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, which starts at its first batch."""
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
        """Return the epoch and the number of batches delivered in it."""
        return {**self._identity(), "epoch": self._batches.epoch, "batches": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume within an epoch, without decoding samples already delivered."""
        self._batches.epoch, self._batches.start = check_position(state, self._identity())
        self._position = self._batches.start

    def close(self) -> None:
        """Stop the worker processes."""
        del self._loader


class TensorLoader(PillowLoader):
    """``torch-fast``: `decode_image` and v2 on tensors; on CUDA it copies uint8 and normalises on the device."""

    name = "torch-fast"
    pillow = False
