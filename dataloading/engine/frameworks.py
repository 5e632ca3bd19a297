"""What Hugging Face Accelerate must know of an epoch that it does not iterate itself.

``accelerator.prepare`` changes torch's own DataLoader only and returns a Loader as it is. What it would have arranged
is done here, in processes that have an Accelerator, through what Accelerate offers to loaders of other kinds:
`accelerate.data_loader.DataLoaderStateMixin` (``begin``, ``end``, ``end_of_dataloader``, ``remainder``) tells its
GradientState where the epoch ends, for ``accumulate``, and how many rows of the last gathered batch are no padding, for
``gather_for_metrics``. Accelerate is never imported here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

from dataloading.batch import Batch
from dataloading.engine.epoch import EpochIterator
from dataloading.sampling.sampler import Sampler, ShardSampler

__all__ = ["FollowedEpoch", "SkippedBatches", "followed", "has_accelerator", "teach_skip_first_batches"]

# Accelerate holds weak references; these keep an epoch's place alive until it is told that the epoch is over.
_open_places: set[Any] = set()


def has_accelerator() -> bool:
    """Whether this process has made an Accelerator, whose ``gather`` needs as many rows from every rank."""
    state: Any = sys.modules.get("accelerate.state")
    return state is not None and "accelerate.data_loader" in sys.modules and bool(state.is_initialized())


def followed(epoch: EpochIterator, sampler: Sampler, consumed: int, *, world_size: int) -> Iterator[Batch]:
    """Return an epoch that Accelerate follows, if there is an Accelerator; else the epoch itself.

    Parameters
    ----------
    epoch : EpochIterator
    sampler : Sampler
        Whose epoch it is.
    consumed : int
        Where in the global order it begins.
    world_size : int
        Ranks that divide the order.
    """
    if not has_accelerator():
        return epoch
    modules: Any = sys.modules
    state = modules["accelerate.state"]
    remainder = -1  # not known: Accelerate then leaves gathered rows as they are
    if isinstance(sampler, ShardSampler) and world_size == state.PartialState().num_processes:
        cut = sampler.slicing(consumed)
        low, high = cut.bounds(cut.num_steps - 1) if cut.num_steps else (0, 0)
        valid = min(high, cut.num_samples) - low
        remainder = valid if valid < high - low else 0
    place = type("LoaderEpoch", (modules["accelerate.data_loader"].DataLoaderStateMixin,), {})()
    place.gradient_state = state.GradientState()
    return FollowedEpoch(epoch, place, remainder)


class FollowedEpoch(Iterator[Batch]):
    """An epoch that says where it stands.

    Parameters
    ----------
    epoch : EpochIterator
    place : DataLoaderStateMixin
        What Accelerate looks at.
    remainder : int
        Rows of the last step over all ranks that are not padding; 0 where none is, -1 where that is not known.
    """

    def __init__(self, epoch: EpochIterator, place: Any, remainder: int) -> None:
        self._epoch = epoch
        self._place = place
        self._remainder = remainder

    def __next__(self) -> Batch:
        if self._place not in _open_places and len(self._epoch):
            self._place.begin()
            self._place.remainder = self._remainder
            _open_places.add(self._place)
        try:
            batch = next(self._epoch)
        except BaseException:
            self._end()
            raise
        self._place.end_of_dataloader = len(self._epoch) == 0
        return batch

    def __len__(self) -> int:
        return len(self._epoch)

    def close(self) -> None:
        """Stop the workers, drop what they have prefetched, and be followed no more."""
        self._end()
        self._epoch.close()

    def _end(self) -> None:
        if self._place in _open_places:
            _open_places.discard(self._place)
            self._place.end()

    def __del__(self) -> None:
        self._end()


class SkippedBatches:
    """A loader whose next epoch begins later: what ``skip_first_batches`` returns.

    Parameters
    ----------
    loader : Loader
        Goes on by itself: its place in the run and its epochs are the same object's.
    num_batches : int
        Batches of the epoch, counted from its beginning, that are not loaded.
    """

    def __init__(self, loader: Any, num_batches: int) -> None:
        self._loader = loader
        self._num_batches = num_batches

    def __len__(self) -> int:
        return max(0, len(self._loader) - self._num_batches)

    def __iter__(self) -> Iterator[Batch]:
        epoch: Iterator[Batch] = self._loader._begin_epoch(self._num_batches)
        return epoch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


def teach_skip_first_batches() -> None:
    """Let ``accelerate.skip_first_batches`` leave loaders of ours to themselves: it takes a DataLoader apart.

    The function is replaced wherever it has been imported to, in processes that have imported Accelerate.
    """
    accelerate: Any = sys.modules.get("accelerate")
    original = getattr(accelerate, "skip_first_batches", None)
    if original is None or hasattr(original, "knows_loaders_that_skip"):
        return

    @functools.wraps(original)
    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        own = getattr(type(dataloader), "skip_first_batches", None)
        return original(dataloader, num_batches) if own is None else own(dataloader, num_batches)

    skip_first_batches.knows_loaders_that_skip = True  # type: ignore[attr-defined]
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("skip_first_batches") is original:
            module.skip_first_batches = skip_first_batches  # type: ignore[attr-defined]
