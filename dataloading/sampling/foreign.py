"""A sampler of the user's (``sampler=``): what it gives is cut into this rank's steps."""

from __future__ import annotations

from collections.abc import Iterable

from dataloading.errors import UsageError
from dataloading.sampling.orders import ListedOrder
from dataloading.sampling.sampler import Sampler
from dataloading.sampling.slicing import EpochOrder, Seat, Slicing
from dataloading.sampling.subsets import checked_indices

__all__ = ["ForeignSampler"]


class ForeignSampler(Sampler):
    """Wraps any torch Sampler, which decides this rank's indices by itself.

    Parameters
    ----------
    sampler : iterable of int
        Iterated once when an epoch begins.
    num_samples, batch_size, drop_last, seed
        As for `Sampler`.
    """

    def __init__(
        self, sampler: Iterable[int], num_samples: int, *, batch_size: int, drop_last: bool, seed: int = 0
    ) -> None:
        super().__init__(num_samples, batch_size=batch_size, drop_last=drop_last, seed=seed)
        self.sampler = sampler
        self._check_sampler()

    def _check_sampler(self) -> None:
        kind = type(self.sampler).__name__
        if hasattr(self.sampler, "sampler") and hasattr(self.sampler, "batch_size"):
            raise UsageError(f"sampler= is a {kind}, which yields lists: pass the sampler itself, not a batch sampler")
        try:
            num = len(self.sampler)  # type: ignore[arg-type]  # may have no length
        except (TypeError, NotImplementedError):
            num = None
        if num is None or not (hasattr(self.sampler, "__iter__") or hasattr(self.sampler, "__getitem__")):
            raise UsageError(
                f"sampler= must be iterable, with a length that says how many batches there are, got {kind}. Pass a "
                f"torch Sampler with __len__, or a list of indices: sampler=list(...)"
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and pass it on to a sampler that has `set_epoch` as well."""
        super().set_epoch(epoch)
        forward = getattr(self.sampler, "set_epoch", None)
        if forward is not None:
            forward(int(epoch))

    @property
    def size(self) -> int:
        """See `Sampler`."""
        return len(self.sampler)  # type: ignore[arg-type]  # was checked above

    @property
    def identity(self) -> str:
        """See `Sampler`."""
        return f"sampler={type(self.sampler).__name__}"

    def slicing(self, consumed: int = 0) -> Slicing:
        """See `Sampler`; positions are this rank's."""
        return self._slicing(self.size, consumed)

    def order(self, epoch: int, consumed: int = 0) -> EpochOrder:
        """List what the sampler gives now and cut it into steps.

        Raises
        ------
        UsageError
            It yields something other than indices below `num_samples`.
        """
        listed = list(self.sampler)
        if listed and isinstance(listed[0], list | tuple):
            raise UsageError("sampler= yields lists: pass the sampler itself, not a batch sampler")
        order = checked_indices(listed, self.num_samples)
        return EpochOrder(ListedOrder(order), self._slicing(len(order), consumed), Seat.alone(0, 1))

    def _slicing(self, size: int, consumed: int) -> Slicing:
        return Slicing(
            num_samples=size,
            world_size=1,
            batch_size=self.batch_size,
            tail="pad",
            drop_last=self.drop_last,
            consumed=consumed,
        )
