"""Tell Hugging Face Accelerate about an epoch that it does not iterate itself.

``accelerator.prepare`` changes torch's own DataLoader only and returns a Loader as it is. This module does what
Accelerate would have arranged, in processes that have an Accelerator, through what Accelerate offers to loaders of
other kinds: `accelerate.data_loader.DataLoaderStateMixin` (``begin``, ``end``, ``end_of_dataloader``, ``remainder``)
tells its GradientState where the epoch ends, for ``accumulate``, and how many rows of the last gathered batch are not
padding, for ``gather_for_metrics``. Accelerate is never imported here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

from dataloading.batch import Batch
from dataloading.engine.epoch import EpochIterator
from dataloading.sampling.sampler import Sampler, ShardSampler

__all__ = ["FollowedEpoch", "SkippedBatches", "followed", "has_accelerator", "patch_skip_first_batches"]

# Accelerate holds weak references: these keep its view of an epoch alive until it is told that the epoch is over.
_open_epochs: set[Any] = set()


def has_accelerator() -> bool:
    """Whether this process has made an Accelerator, whose ``gather`` needs as many rows from every rank."""
    state: Any = sys.modules.get("accelerate.state")
    return state is not None and "accelerate.data_loader" in sys.modules and bool(state.is_initialized())


def followed(epoch: EpochIterator, sampler: Sampler, consumed: int, *, world_size: int) -> Iterator[Batch]:
    """Return an epoch that Accelerate follows, if there is an Accelerator; else the epoch itself.

    It begins at position `consumed` of the sampler's order, which `world_size` ranks share.
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
    follower = type("LoaderEpoch", (modules["accelerate.data_loader"].DataLoaderStateMixin,), {})()
    follower.gradient_state = state.GradientState()
    return FollowedEpoch(epoch, follower, remainder)


class FollowedEpoch(Iterator[Batch]):
    """An epoch that tells Accelerate how far it is.

    Parameters
    ----------
    epoch : EpochIterator
    follower : DataLoaderStateMixin
        Accelerate's view of the epoch.
    remainder : int
        Rows of the last step over all ranks that are not padding; 0 if none is padding, -1 if that is not known.
    """

    def __init__(self, epoch: EpochIterator, follower: Any, remainder: int) -> None:
        self._epoch = epoch
        self._follower = follower
        self._remainder = remainder

    def __next__(self) -> Batch:
        if self._follower not in _open_epochs and len(self._epoch):
            self._follower.begin()
            self._follower.remainder = self._remainder
            _open_epochs.add(self._follower)
        try:
            batch = next(self._epoch)
        except BaseException:
            self._end()
            raise
        self._follower.end_of_dataloader = len(self._epoch) == 0
        return batch

    def __len__(self) -> int:
        return len(self._epoch)

    def close(self) -> None:
        """Stop the workers, drop what they have prefetched, and tell Accelerate that the epoch is over."""
        self._end()
        self._epoch.close()

    def _end(self) -> None:
        if self._follower in _open_epochs:
            _open_epochs.discard(self._follower)
            self._follower.end()

    def __del__(self) -> None:
        self._end()


class SkippedBatches:
    """A loader whose next epoch begins later: what ``skip_first_batches`` returns.

    Parameters
    ----------
    loader : Loader
        Shared: iterating here moves its position in the run.
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


def patch_skip_first_batches() -> None:
    """Have ``accelerate.skip_first_batches``, which takes a DataLoader apart, call a Loader's own method instead.

    Replaces the function wherever it was imported to, in processes that have imported Accelerate.
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
