"""What is asked of a loader, and what it must do to be measured or to train. Knows no loader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
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
        The first so many rows count; the rest is padding that evens out the ranks. May be 0.
    global_size : int
        Sum of `num_valid` over all ranks: the divisor that makes a mean loss exact.
    indices : numpy.ndarray or None
        Number of each row's sample in the data set, int64; None where the loader does not say.
    """

    images: torch.Tensor
    labels: torch.Tensor
    num_valid: int
    global_size: int
    indices: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """What is asked of a loader; the same for all of them.

    Parameters
    ----------
    path : str
        A ``.beton`` file, or a directory of class folders where the loader can read one.
    training : bool
        Shuffled, random crops and flips; else in order with a centre crop, every sample counted once.
    indices : numpy.ndarray or None
        Samples to use, int64; all when None.
    batch_size : int
        Images per rank and batch.
    num_workers : int
        Workers of this process.
    prefetch : int or None
        Batches ahead per worker; None means what the loader's documentation advises.
    seed, rank, world_size : int
        Order and augmentation depend on the seed; the shares on the other two.
    device : torch.device
        Where batches must arrive.
    image_size, resize_size : int
        Side of the crop; shorter side before the validation crop (pixels).
    tail : {"even", "pad", "drop"}
        What becomes of an epoch's incomplete end: spread over all batches, a last batch with padding that is not
        counted, or left out.
    steps : tuple or None
        Our transforms of single images in training, instead of RandomResizedCrop and flip; the last ones normalise.
    normalised : bool or None
        Whether images arrive as normalised float32 or as uint8; None lets the loader choose what suits the device.
    epoch_images : int
        Repeat a small data set until an epoch has so many images (benchmarks).
    work_dir : str
        Folder for copies in other formats (benchmarks).
    throughput_only : bool
        Only images per second count: a loader may leave out what it takes to resume with the same images.
    """

    path: str
    training: bool
    batch_size: int
    num_workers: int
    seed: int
    rank: int = 0
    world_size: int = 1
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
        """Return how often a data set of `num_samples` goes into an epoch."""
        return max(1, -(-self.epoch_images // max(1, num_samples)))

    def epoch_indices(self, num_samples: int) -> np.ndarray:
        """Return the samples of an epoch in the order of the data set, int64, repeated as often as asked."""
        indices = np.arange(num_samples, dtype=np.int64) if self.indices is None else self.indices
        return np.tile(indices, self.repeats(len(indices)))


class MeasuredLoader:
    """A loader that ``beton bench`` can measure.

    Attributes
    ----------
    num_ahead : int
        Batches it may have ready before they are asked for; so many are thrown away before the clock starts.
    """

    num_ahead: int = 0

    def image_batches(self) -> Iterator[Any]:
        """Go through one epoch, or on without end: tensors or arrays of `batch_size` images."""
        raise NotImplementedError

    def clock_starts(self) -> None:
        """Note that a timed round begins."""

    def clock_stops(self) -> None:
        """Note that a timed round has ended."""

    def report(self) -> dict[str, Any]:
        """Return what the loader itself has to say about the timed rounds, JSON-able."""
        return {}

    def close(self) -> None:
        """End threads and processes."""


class TrainingLoader(MeasuredLoader, ABC):
    """A loader that can train as well.

    ``len`` is the number of batches of a whole epoch, equal on all ranks. Iterating goes through one epoch, from its
    start or from where ``load_state_dict`` put it; ``state_dict`` taken after k batches resumes at batch k, whatever
    was prefetched.

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
        """How many batches the next iteration gives, equal on all ranks."""

    @abstractmethod
    def __iter__(self) -> Iterator[TrainBatch]: ...

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration goes through; another epoch starts at its first batch."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return where the current epoch stands."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` at the next iteration."""

    def image_batches(self) -> Iterator[Any]:
        """Go through one epoch, images only."""
        for batch in self:
            yield batch.images


def wants_normalised(spec: LoaderSpec) -> bool:
    """Return whether a loader that can do either normalises: on a GPU that costs nothing, and bytes arrive faster."""
    if spec.steps is not None:
        return True
    return spec.device.type != "cuda" if spec.normalised is None else spec.normalised


class Normaliser:
    """Turn batches into what the network wants, on the device: float, normalised, in the right memory layout.

    Parameters
    ----------
    spec : LoaderSpec
        Device, mean and standard deviation.
    normalised : bool
        Whether images arrive normalised already.
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
    """Return ``(epoch, batches)`` of a saved position after checking that it fits this loader.

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
