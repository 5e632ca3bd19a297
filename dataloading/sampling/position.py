"""Where iteration stands, and the shell around somebody else's sampler.

`Cursor` counts epochs and positions; `ForeignSampler` cuts what any torch Sampler gives into steps. Neither
knows files, ranks or how an order comes about.
"""

from __future__ import annotations

from collections.abc import Iterable

from dataloading.checks import at_least, true_or_false
from dataloading.errors import UsageError
from dataloading.sampling.orders import ListedOrder
from dataloading.sampling.slicing import EpochOrder, Seat, Slicing
from dataloading.sampling.subsets import checked_indices

__all__ = ["Cursor", "ForeignSampler"]


class Cursor:
    """Where iteration stands: the epoch, and how much of it has been received.

    An iteration *begins* an epoch: the one set by `set_epoch`, otherwise the one after the last of which a batch was
    received. An iterator that gave nothing has begun nothing: frameworks make one only to see whether they can.

    Parameters
    ----------
    seed : int
        Of the run.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.epoch = 0
        self.consumed = 0
        self._begun = False
        self._chosen: int | None = None  # by set_epoch, while the next iteration has not begun

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch the next iteration gives, as `DistributedSampler.set_epoch` does.

        Naming the epoch that a resumed state points into keeps the position in it. An iteration that is under way
        goes on as it is.
        """
        epoch = at_least("epoch", epoch, 0)
        if epoch != self.epoch or self._begun:
            self.epoch, self.consumed, self._begun = epoch, 0, False
            self._chosen = self.epoch

    def resume(self, epoch: int, consumed: int, history: str = "1") -> None:
        """Make the next iteration begin `epoch` at `consumed` positions of the global order.

        `history` is what :meth:`history` gave when the place was saved.
        """
        self.epoch, self.consumed, self._begun = epoch, consumed, False
        self._chosen = None

    def history(self) -> str:
        """Write down what the epoch's order depends on besides options: the nodes so far, for orders that care."""
        return "1"

    def begin(self) -> tuple[int, int]:
        """Begin an epoch: its number and the positions of it that are consumed."""
        if self._begun:
            self.set_epoch(self.epoch + 1 if self._chosen is None else self._chosen)
        self._chosen = None
        return self.epoch, self.consumed

    def receive(self, epoch: int, consumed: int) -> None:
        """Note that a batch of `epoch` has been received, with which so many of its positions are consumed."""
        self.epoch, self.consumed, self._begun = epoch, consumed, True

    def finish(self, epoch: int) -> None:
        """Note that `epoch` has been received to its end."""
        self.resume(epoch + 1 if self._chosen is None else self._chosen, 0)


class ForeignSampler(Cursor):
    """The same shell around somebody else's sampler, which decides this rank's indices by itself.

    Parameters
    ----------
    sampler : iterable of int
        Any torch Sampler; iterated once when an epoch begins.
    num_samples, batch_size, drop_last, seed
        As for `ShardSampler`; batches are cut from what the sampler gives, and the seed is not its own.
    """

    def __init__(
        self, sampler: Iterable[int], num_samples: int, *, batch_size: int, drop_last: bool, seed: int = 0
    ) -> None:
        super().__init__(at_least("seed", seed, 0))
        self.sampler = sampler
        self.num_samples = num_samples
        self.batch_size = at_least("batch_size", batch_size, 1)
        self.drop_last = true_or_false("drop_last", drop_last)
        self._check_sampler()

    def _check_sampler(self) -> None:
        kind = type(self.sampler).__name__
        if hasattr(self.sampler, "sampler") and hasattr(self.sampler, "batch_size"):
            raise UsageError(f"sampler= is a {kind}, which yields lists: pass the sampler itself, not a batch sampler")
        try:
            num = len(self.sampler)  # type: ignore[arg-type]  # that is what is asked
        except (TypeError, NotImplementedError):
            num = None
        if num is None or not (hasattr(self.sampler, "__iter__") or hasattr(self.sampler, "__getitem__")):
            raise UsageError(
                f"sampler= must be iterable, with a length that says how many batches there are, got {kind}. Pass a "
                f"torch Sampler with __len__, or a list of indices: sampler=list(...)"
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and pass it on to a sampler that wants to know."""
        super().set_epoch(epoch)
        forward = getattr(self.sampler, "set_epoch", None)
        if forward is not None:
            forward(int(epoch))

    @property
    def size(self) -> int:
        """Indices an epoch has, as the sampler's own length says."""
        return len(self.sampler)  # type: ignore[arg-type]  # it has been asked for

    @property
    def identity(self) -> str:
        """What a saved place must have in common with this sampler, in words."""
        return f"sampler={type(self.sampler).__name__}"

    def slicing(self, consumed: int = 0) -> Slicing:
        """Compute where steps begin and end, from `consumed` of this rank's indices on."""
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
