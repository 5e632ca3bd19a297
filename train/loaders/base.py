"""Protocols of loaders for benchmarks and for training, and their options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from dataloading import UsageError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class TrainBatch(NamedTuple):
    """One micro-batch of one rank, on the device.

    Parameters
    ----------
    images : torch.Tensor
        Shape (B, 3, S, S): float32 and normalised, or uint8, as the loader's `normalised` says.
    labels : torch.Tensor
        Shape (B,), int64.
    num_valid : int
        The first `num_valid` rows count; the rest is padding, so that ranks have equal batches. May be 0.
    global_size : int
        Sum of `num_valid` over all ranks: the divisor that makes a mean loss exact.
    indices : numpy.ndarray or None
        Index of each row's sample in the dataset, int64; None if the loader does not report it.
    """

    images: torch.Tensor
    labels: torch.Tensor
    num_valid: int
    global_size: int
    indices: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """The options of a loader, the same for all loaders.

    Parameters
    ----------
    path : str
        A ``.beton`` file, or a directory of class folders if the loader can read one.
    training : bool
        Shuffled, with random crops and flips; else in order, with a centre crop, every sample counted once.
    indices : numpy.ndarray or None
        Samples to use, int64; None means all.
    batch_size : int
        Images per rank and batch.
    num_workers : int
        Workers of this process.
    prefetch : int or None
        Batches ahead per worker; None means the value that the loader's documentation advises.
    seed, rank, world_size : int
        Order and augmentation depend on the seed; the rank's share on the other two.
    mesh : DeviceMesh or None
        The arrangement of the processes that `rank` and `world_size` follow from, for loaders that read it.
    images : bool
        False: labels alone are needed; a loader that can leaves the images out (empty tensors).
    device : torch.device
        Device of the batches.
    image_size, resize_size : int
        Side of the crop; shorter side before the validation crop (pixels).
    tail : {"even", "pad", "drop"}
        How the incomplete end of an epoch is handled: spread over all batches, padded (padding is not counted), or
        dropped.
    steps : tuple or None
        Our image transforms for training, instead of RandomResizedCrop and flip; the last ones normalise.
    normalised : bool or None
        Whether images arrive as normalised float32 or as uint8; None lets the loader choose by device.
    epoch_images : int
        Repeat a small dataset until an epoch has this many images (benchmarks).
    work_dir : str
        Folder for copies in other formats (benchmarks).
    throughput_only : bool
        Only images per second matter: a loader may skip the work needed to resume with the same images.
    """

    path: str
    training: bool
    batch_size: int
    num_workers: int
    seed: int
    rank: int = 0
    world_size: int = 1
    mesh: Any = None
    images: bool = True
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    indices: np.ndarray | None = None
    prefetch: int | None = None
    image_size: int = 224
    resize_size: int = 256
    tail: Literal["even", "pad", "drop"] = "pad"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    steps: tuple[Any, ...] | None = None
    normalised: bool | None = None
    epoch_images: int = 1
    work_dir: str = ""
    throughput_only: bool = False

    def repeats(self, num_samples: int) -> int:
        """Return how often an epoch repeats a dataset of `num_samples`."""
        return max(1, -(-self.epoch_images // max(1, num_samples)))

    def epoch_indices(self, num_samples: int) -> np.ndarray:
        """Return the samples of an epoch in dataset order, int64, with repetitions."""
        indices = np.arange(num_samples, dtype=np.int64) if self.indices is None else self.indices
        return np.tile(indices, self.repeats(len(indices)))


class MeasuredLoader:
    """A loader that ``beton bench`` can measure.

    Attributes
    ----------
    num_ahead : int
        Number of batches it may prefetch; that many are discarded before the clock starts.
    """

    num_ahead: int = 0

    def image_batches(self) -> Iterator[Any]:
        """Yield one epoch, or an endless stream, of tensors or arrays of `batch_size` images."""
        raise NotImplementedError

    def clock_starts(self) -> None:
        """Start a timed round."""

    def clock_stops(self) -> None:
        """End a timed round."""

    def report(self) -> dict[str, Any]:
        """Return the loader's own report of the timed rounds, as JSON values."""
        return {}

    def close(self) -> None:
        """Stop threads and processes."""


class TrainingLoader(MeasuredLoader, ABC):
    """A loader that can also train.

    ``len`` is the number of batches of a whole epoch, equal on all ranks. Iterating yields one epoch, from its start or
    from the position of ``load_state_dict``; a ``state_dict`` taken after k batches resumes at batch k, whatever was
    prefetched.

    Attributes
    ----------
    normalised : bool
        Whether images arrive normalised.
    """

    normalised: bool

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def batches_left(self) -> int:
        """Number of batches of the next iteration, equal on all ranks."""

    @abstractmethod
    def __iter__(self) -> Iterator[TrainBatch]: ...

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; a different epoch starts at its first batch."""

    def set_image_size(self, size: int) -> None:
        """Cut training crops of `size` pixels from the next epoch on; only a loader that can is asked."""
        raise NotImplementedError

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the position in the current epoch."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` at the next iteration."""

    def trace(self, observer: Callable[[str, float, float], None]) -> None:
        """Report each hop's work as ``observer(hop, start, end)``, where the loader can."""

    def work_done(self) -> tuple[dict[str, float], int] | None:
        """Return the seconds per hop and the stored bytes read so far, where the loader counts them."""
        return None

    def image_batches(self) -> Iterator[Any]:
        """Yield the images of one epoch."""
        for batch in self:
            yield batch.images


def wants_normalised(spec: LoaderSpec) -> bool:
    """Return whether a loader that supports both delivers normalised images.

    On a GPU uint8 is faster to copy, and normalising costs nothing.
    """
    if spec.steps is not None:
        return True
    return spec.device.type != "cuda" if spec.normalised is None else spec.normalised


class Normaliser:
    """Convert images on the device to normalised floats in the network's memory layout.

    Parameters
    ----------
    spec : LoaderSpec
        Device, mean and standard deviation.
    normalised : bool
        Whether images are already normalised.
    channels_last : bool
        Memory layout of the result.
    """

    def __init__(self, spec: LoaderSpec, *, normalised: bool, channels_last: bool) -> None:
        self._normalised = normalised
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        scale = 1.0 / (255.0 * torch.tensor(spec.std, dtype=torch.float64))
        shift = -torch.tensor(spec.mean, dtype=torch.float64) / torch.tensor(spec.std, dtype=torch.float64)
        self._scale = scale.float().view(1, 3, 1, 1).to(spec.device)
        self._shift = shift.float().view(1, 3, 1, 1).to(spec.device)

    def __call__(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        """Return float32 images, shape unchanged."""
        images = images_NCHW.contiguous(memory_format=self._format)
        if self._normalised:
            return images
        return torch.addcmul(self._shift, images.float(), self._scale)


def check_position(state: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[int, int]:
    """Return ``(epoch, batches)`` of a saved position after checking that it matches this loader.

    Raises
    ------
    UsageError
        The state was saved by another loader or with other data, batch size, seed or world size.
    """
    for key, value in expected.items():
        if state.get(key) != value:
            raise UsageError(
                f"the saved loader state has {key} = {state.get(key)!r}, this run has {value!r}; "
                "inside an epoch only --loader beton resumes with others; use those of the interrupted run, or a "
                "checkpoint from the end of an epoch"
            )
    return int(state["epoch"]), int(state["batches"])


def to_device(batches: Any, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (images, labels) on the device, copied one batch ahead on a side stream."""
    if device.type != "cuda":
        yield from batches
        return
    # As timm's PrefetchLoader: copy the next batch on a side stream while the network computes this one.
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
