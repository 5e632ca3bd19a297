"""The stock PyTorch loader, as most scripts have it and as fast as it goes; and what other peers share with it.

Tuning, after PyTorch's and torchvision's own advice: ``persistent_workers``, ``prefetch_factor=4``, one thread a
worker (DataLoader sets that itself), v2 transforms, which are the faster ones, uint8 until the end, and for
``torch-fast`` tensors from the decoder on (``torchvision.io.decode_image`` needs no copy out of a Pillow image, and
v2's resize of uint8 tensors is vectorised). Neither has a way to decode only the crop. The number of workers is the
harness's; it can search for the best one (``--search-workers``).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from train.bench.contenders.base import Contender
from train.bench.spec import IMAGENET_MEAN, IMAGENET_STD, BenchSpec
from train.loaders.stored_images import FileImages, StoredImage

__all__ = [
    "PREFETCH",
    "PillowContender",
    "TensorContender",
    "decode_pillow",
    "decode_tensor",
    "decode_tensor_item",
    "torch_transform",
    "worker_options",
]

PREFETCH = 4


def torch_transform(spec: BenchSpec, *, pillow: bool) -> v2.Compose:
    """Return the pipeline in torchvision's words, for Pillow images or uint8 CHW tensors."""
    if spec.training:
        steps: list[torch.nn.Module] = [
            v2.RandomResizedCrop(spec.image_size, antialias=True),
            v2.RandomHorizontalFlip(),
        ]
    else:
        steps = [v2.Resize(spec.resize_size, antialias=True), v2.CenterCrop(spec.image_size)]
    if pillow:
        steps.append(v2.PILToTensor())
    if spec.normalized:
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    return v2.Compose(steps)


def decode_pillow(data: bytes) -> Image.Image:
    """Decode with Pillow, to RGB."""
    with Image.open(io.BytesIO(data)) as image:
        rgb: Image.Image = image.convert("RGB")
        return rgb


def decode_tensor(data: bytes) -> torch.Tensor:
    """Decode with torchvision.io, to a uint8 tensor of shape (3, H, W)."""
    with warnings.catch_warnings():
        # The bytes are read-only and decode_image only reads them.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        encoded = torch.frombuffer(data, dtype=torch.uint8)
    image: torch.Tensor = decode_image(encoded, mode=ImageReadMode.RGB)
    return image


def decode_tensor_item(item: StoredImage) -> torch.Tensor:
    """Return the pixels of a stored sample, uint8 of shape (3, H, W)."""
    if item.encoded is not None:
        return decode_tensor(item.encoded)
    assert item.raw is not None
    return torch.from_numpy(np.ascontiguousarray(item.raw.transpose(2, 0, 1)))


def _decode_pillow_item(item: StoredImage) -> Image.Image:
    if item.encoded is not None:
        return decode_pillow(item.encoded)
    assert item.raw is not None
    return Image.fromarray(item.raw)


class _Images(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, spec: BenchSpec, *, pillow: bool) -> None:
        self._source = FileImages(spec.path)
        self._transform = torch_transform(spec, pillow=pillow)
        self._decode: Any = _decode_pillow_item if pillow else decode_tensor_item

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        item = self._source[index]
        return self._transform(self._decode(item)), item.label


class _InOrder(Sampler[int]):
    def __init__(self, size: int, repeats: int) -> None:
        self._size, self._repeats = size, repeats

    def __len__(self) -> int:
        return self._size * self._repeats

    def __iter__(self) -> Iterator[int]:
        for _ in range(self._repeats):
            yield from range(self._size)


def worker_options(spec: BenchSpec) -> dict[str, Any]:
    """Return the DataLoader's options about workers."""
    return {"num_workers": spec.num_workers, "persistent_workers": True, "prefetch_factor": PREFETCH}


class _DataLoaderContender(Contender):
    pillow = True

    def __init__(self, spec: BenchSpec) -> None:
        dataset = _Images(spec, pillow=self.pillow)
        repeats = spec.repeats(len(dataset))
        sampler: Sampler[int] = _InOrder(len(dataset), repeats)
        if spec.training:
            generator = torch.Generator().manual_seed(spec.seed)
            sampler = RandomSampler(dataset, num_samples=len(dataset) * repeats, generator=generator)
        self._loader = DataLoader(
            dataset, batch_size=spec.batch_size, sampler=sampler, drop_last=True, **worker_options(spec)
        )
        self.num_ahead = spec.num_workers * PREFETCH

    def batches(self) -> Iterator[Any]:
        """Go through one epoch."""
        for images, _labels in self._loader:
            yield images


class PillowContender(_DataLoaderContender):
    """``torch``: Pillow and v2 on Pillow images."""


class TensorContender(_DataLoaderContender):
    """``torch-fast``: `decode_image` and v2 on tensors."""

    pillow = False
