"""Computes the number of images in each rank's batch when a dataset does not divide evenly.

The trainer uses it to weight losses and to count correct answers without the padding, for loaders that do not report
these numbers. The layout is that of ``torch.utils.data.DistributedSampler``: the order of the epoch is padded (or cut)
to a multiple of the world size and divided round-robin, so entry ``j`` of rank ``r`` is position ``j * world_size + r``
of the epoch, and is padding if that position is not below the number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataloading import UsageError


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The division of one epoch.

    Parameters
    ----------
    num_samples : int
        Samples of the epoch, all ranks together.
    rank, world_size, batch_size : int
        As usual; the batch size is per rank.
    drop_last : bool
        Drop the images that do not fill a batch on every rank; otherwise pad.

    Raises
    ------
    UsageError
        A count is not positive, or the rank is outside the world.
    """

    num_samples: int
    rank: int
    world_size: int
    batch_size: int
    drop_last: bool

    def __post_init__(self) -> None:
        if self.num_samples < 1 or self.batch_size < 1 or not 0 <= self.rank < self.world_size:
            raise UsageError(f"an epoch cannot be divided like this: {self}")

    @property
    def per_rank(self) -> int:
        """Entries per rank, padding included."""
        if self.drop_last:
            return self.num_samples // self.world_size
        return -(-self.num_samples // self.world_size)

    def __len__(self) -> int:
        """Return the number of batches of one epoch, the same on every rank."""
        if self.drop_last:
            return self.per_rank // self.batch_size
        return -(-self.per_rank // self.batch_size)

    def size(self, batch: int) -> int:
        """Return the entries of one batch of this rank, padding included."""
        low, high = self._bounds(batch)
        return high - low

    def num_valid(self, batch: int) -> int:
        """Return the entries of one batch of this rank that are not padding; they come first."""
        low, high = self._bounds(batch)
        # Entries j with j * world_size + rank < num_samples.
        valid = -((self.rank - self.num_samples) // self.world_size)
        return max(0, min(high, valid) - low)

    def global_size(self, batch: int) -> int:
        """Return the entries that are not padding in one batch of all ranks together."""
        low, high = self._bounds(batch)
        return max(0, min(self.num_samples, high * self.world_size) - low * self.world_size)

    def _bounds(self, batch: int) -> tuple[int, int]:
        if not 0 <= batch < len(self):
            raise UsageError(f"batch {batch} of an epoch of {len(self)} batches")
        low = batch * self.batch_size
        return low, min(low + self.batch_size, self.per_rank)
