"""Loaders that cannot start inside an epoch: their position is the epoch, and they resume only at its ends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from dataloading import UsageError

from .base import LoaderSpec, TrainBatch, TrainingLoader, check_position, to_device, wants_normalised

__all__ = ["StreamLoader", "WholeEpochLoader"]


class WholeEpochLoader(TrainingLoader):
    """The bookkeeping of whole epochs.

    Parameters
    ----------
    spec : LoaderSpec
        What is asked for.
    name : str
        Of ``--loader``.
    num_samples : int
        Samples of an epoch, on all ranks.
    num_batches : int
        Batches of an epoch, equal on all ranks.
    """

    def __init__(self, spec: LoaderSpec, *, name: str, num_samples: int, num_batches: int) -> None:
        self.normalised = wants_normalised(spec)
        self._spec = spec
        self._name = name
        self._num_samples = num_samples
        self._length = num_batches
        self._epoch = self._start = self._position = 0

    def __len__(self) -> int:
        return self._length

    @property
    def batches_left(self) -> int:
        """Number of batches of the next iteration: all, or none after the last."""
        return self._length - self._start

    @abstractmethod
    def epoch_batches(self) -> Iterator[TrainBatch]:
        """Yield at least as many batches as an epoch has, from the start of epoch ``_epoch``."""

    def __iter__(self) -> Iterator[TrainBatch]:
        if self._start:  # resumed after the last batch of an epoch, before its end
            self._start = 0
            return
        self._position = 0
        batches = self.epoch_batches()
        for number in range(self._length):
            batch = next(batches)
            self._position = number + 1
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        if epoch != self._epoch:
            self._epoch, self._start, self._position = epoch, 0, 0

    def _identity(self) -> dict[str, Any]:
        return {"loader": self._name, "num_samples": self._num_samples, "world_size": self._spec.world_size}

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of batches delivered in it."""
        return {**self._identity(), "epoch": self._epoch, "batches": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the start or the end of an epoch.

        Raises
        ------
        UsageError
            The state lies inside an epoch: the loader cannot start there.
        """
        epoch, batches = check_position(state, self._identity())
        if batches % max(1, self._length):
            raise UsageError(
                f"--loader {self._name} cannot resume inside an epoch (saved at batch {batches} of {self._length}); "
                "resume from a checkpoint at the end of an epoch, or use --loader beton"
            )
        self._epoch, self._start, self._position = epoch, batches, batches


class StreamLoader(WholeEpochLoader):
    """A loader that is a stream of whole batches, shuffled and divided among ranks in its own way.

    An epoch is as many batches as go into the data set. Where an epoch ends in the stream is the library's affair: most
    go on without end.
    """

    def __init__(self, spec: LoaderSpec, *, name: str, num_samples: int) -> None:
        per_step = spec.batch_size * spec.world_size
        super().__init__(spec, name=name, num_samples=num_samples, num_batches=num_samples // per_step)
        self._stream: Iterator[tuple[torch.Tensor, torch.Tensor]] | None = None

    @abstractmethod
    def labelled_batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield (images, labels), for one epoch or without end."""

    def image_batches(self) -> Iterator[Any]:
        """Yield the images of `labelled_batches`."""
        for images, _labels in self.labelled_batches():
            yield images

    def _endless(self) -> Iterator[tuple[Any, Any]]:
        while True:
            yield from self.labelled_batches()

    def epoch_batches(self) -> Iterator[TrainBatch]:
        """Go on in the stream, so that no epoch's end interrupts it."""
        if self._stream is None:
            self._stream = to_device(self._endless(), self._spec.device)
        for images, labels in self._stream:
            count = len(labels)
            yield TrainBatch(images, labels.reshape(-1).long(), count, count * self._spec.world_size)

    def close(self) -> None:
        """Drop the stream, and with it worker processes."""
        self._stream = None
