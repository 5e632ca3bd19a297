"""Which samples, in which order, on which rank: arithmetic on integers, no I/O, no threads.

One epoch has one global order, a function of (seed, epoch, number of samples) alone. A step takes the
next slice of it and the ranks share that slice, so the world size is a view of the order, not part of it::

    global order   17  4 21  8 | 30  2  9 11 | 25  6  1 19 | 3
                   `- step 0 -'  `- step 1 -'  `- step 2 -'  step 3
    rank 0 of 2    17    21    | 30     9    | 25     1    | 3
    rank 1 of 2        4     8 |     2    11 |     6    19 |    (17 with tail="pad")

``consumed``, the number of positions of the global order that earlier steps took, is therefore the whole
position: any world size, batch size or number of workers can go on from it.

What becomes of the last, incomplete part is the tail:

- ``"pad"``   positions past the end wrap around to the start, so that every rank gets as many samples;
  index for index what `torch.utils.data.DistributedSampler` gives.
- ``"drop"``  samples that do not fill one row for every rank are left out (its ``drop_last=True``).
- ``"even"``  every sample exactly once and as many steps on every rank: the sizes of all batches,
  over steps and ranks, differ by at most one.

This module knows no files, fields or pixels. It does not import torch: whoever wants torch's permutation
passes it in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dataloading.errors import UsageError

__all__ = [
    "Cursor",
    "EpochOrder",
    "ForeignSampler",
    "Permutation",
    "ShardSampler",
    "Shuffle",
    "Slicing",
    "Step",
    "Tail",
]

Shuffle = Literal["none", "global"]
Tail = Literal["pad", "drop", "even"]
Indices = npt.NDArray[np.int64]
Permutation = Callable[[int, int], Indices]
"""``permutation(num, seed)`` returns the numbers 0..num-1 in an order that only depends on its arguments."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One rank's part of one step.

    Parameters
    ----------
    indices : ndarray of int64, shape (rows,)
        Sample indices in the dataset, in the order of the batch's rows.
    num_valid : int
        Rows that are not padding; they come first.
    global_size : int
        Rows of this step over all ranks that are not padding.
    consumed : int
        Positions of the global order that are used up once this step is done.
    """

    indices: Indices
    num_valid: int
    global_size: int
    consumed: int


@dataclass(frozen=True, kw_only=True)
class Slicing:
    """Where each step begins and ends in a global order: all the arithmetic there is.

    Parameters
    ----------
    num_samples : int
        Length of the global order.
    world_size, batch_size : int
        Ranks, and rows a rank and step.
    tail, drop_last
        See the module; `drop_last` also leaves out a last step with fewer than `batch_size` rows.
    consumed : int
        Positions that earlier steps took, perhaps on another world size.

    Examples
    --------
    >>> s = Slicing(num_samples=13, world_size=2, batch_size=2, tail="pad")
    >>> s.num_steps, s.bounds(0), s.bounds(3)
    (4, (0, 4), (12, 14))
    """

    num_samples: int
    world_size: int
    batch_size: int
    tail: Tail
    drop_last: bool = False
    consumed: int = 0

    @property
    def num_rows(self) -> int:
        """Positions the remaining steps use over all ranks, padding included."""
        left = max(self.num_samples - self.consumed, 0)
        if self.tail == "pad":
            return -(-left // self.world_size) * self.world_size
        if self.tail == "drop":
            return left // self.world_size * self.world_size
        return left

    @property
    def num_steps(self) -> int:
        """Steps that remain, equal on all ranks."""
        per_step = self.world_size * self.batch_size
        return self.num_rows // per_step if self.drop_last else -(-self.num_rows // per_step)

    def bounds(self, step: int) -> tuple[int, int]:
        """First and past-the-last position that `step` takes over all ranks."""
        per_step = self.world_size * self.batch_size
        if self.tail != "even":
            low = self.consumed + step * per_step
            return low, min(low + per_step, self.consumed + self.num_rows)
        # Cells, one a step and rank, in the order they are filled: the first `extra` hold one sample more.
        base, extra = divmod(self.num_rows, self.num_steps * self.world_size)
        first, last = step * self.world_size, (step + 1) * self.world_size
        return (
            self.consumed + first * base + min(first, extra),
            self.consumed + last * base + min(last, extra),
        )

    def num_rank_rows(self, rank: int) -> int:
        """Rows that remain for one rank."""
        return sum(
            len(range(low + rank, high, self.world_size)) for low, high in map(self.bounds, range(self.num_steps))
        )


class EpochOrder:
    """One epoch as one rank sees it: a global order, its slicing, and a rank. Immutable.

    Parameters
    ----------
    order : ndarray of int64, shape (num_samples,)
        The global order: sample indices in the dataset.
    slicing : Slicing
        How steps cut it; ``slicing.num_samples == len(order)``.
    rank : int
        The rank whose rows are wanted.
    """

    def __init__(self, order: Indices, slicing: Slicing, rank: int) -> None:
        assert slicing.num_samples == len(order)
        self._order = order
        self._rank = rank
        self.slicing = slicing

    def __len__(self) -> int:
        return self.slicing.num_steps

    def step(self, step: int) -> Step:
        """Compute the part of `step` (0 <= step < len) that is this rank's."""
        low, high = self.slicing.bounds(step)
        positions = np.arange(low + self._rank, high, self.slicing.world_size)
        num = len(self._order)
        return Step(
            indices=self._order[positions % num],
            num_valid=int(np.count_nonzero(positions < num)),
            global_size=max(min(high, num) - low, 0),
            consumed=min(high, num),
        )

    def indices(self) -> Indices:
        """All indices of this rank that remain, steps joined."""
        parts = [self.step(k).indices for k in range(len(self))]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class Cursor:
    """Where iteration stands: the epoch, and how much of it has been received.

    An iteration *begins* an epoch: the one set by `set_epoch`, otherwise the one after the last that began.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.consumed = 0
        self._begun = False

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch the next iteration gives, as `DistributedSampler.set_epoch` does.

        Naming the epoch that a resumed state points into keeps the position in it.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int | np.integer) or epoch < 0:
            raise UsageError(f"epoch={epoch!r} must be an integer of at least 0")
        if epoch != self.epoch or self._begun:
            self.consumed = 0
        self.epoch = int(epoch)
        self._begun = False

    def resume(self, epoch: int, consumed: int) -> None:
        """Make the next iteration begin `epoch` at `consumed` positions of the global order."""
        self.epoch, self.consumed, self._begun = epoch, consumed, False

    def begin(self) -> tuple[int, int]:
        """Begin an epoch: its number and the positions of it that are consumed."""
        if self._begun:
            self.set_epoch(self.epoch + 1)
        self._begun = True
        return self.epoch, self.consumed

    def finish(self) -> None:
        """Note that the epoch has been received to its end."""
        self.resume(self.epoch + 1, 0)


class ShardSampler(Cursor):
    """The thin stateful shell: options, the current epoch, and the orders that follow from them.

    Parameters
    ----------
    num_samples : int
        Samples in the dataset, before `indices`.
    permutation : callable
        ``permutation(num, seed) -> ndarray of int64``, used with ``seed + epoch`` as torch does.
    shuffle : {"none", "global"}
        File order (or the order of `indices`), or one permutation of all samples an epoch.
    seed : int
        0 <= seed < 2**63.
    rank, world_size, batch_size : int
        This rank, the number of ranks, rows a rank and step.
    tail : {"pad", "drop", "even"}
        See the module.
    drop_last : bool
        Leave out a last step with fewer than `batch_size` rows a rank.
    indices : sequence of int, optional
        The subset to use; an index may occur more than once.

    Raises
    ------
    UsageError
        An option is out of range, with the value and the range.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        permutation: Permutation,
        shuffle: Shuffle = "none",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        batch_size: int = 1,
        tail: Tail = "pad",
        drop_last: bool = False,
        indices: Sequence[int] | Indices | None = None,
    ) -> None:
        _one_of("shuffle", shuffle, get_args(Shuffle))
        _one_of("tail", tail, get_args(Tail))
        for name, value, low in (("batch_size", batch_size, 1), ("world_size", world_size, 1), ("seed", seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
                raise UsageError(f"{name}={value!r} must be an integer of at least {low}")
        if not 0 <= rank < world_size:
            raise UsageError(f"rank={rank} must be in 0..{world_size - 1}, as world_size is {world_size}")
        if drop_last and tail == "even":
            raise UsageError('tail="even" keeps every sample: drop_last=True contradicts it, use tail="drop"')
        super().__init__()
        self.num_samples = num_samples
        self.shuffle: Shuffle = shuffle
        self.seed = int(seed)
        self.rank = int(rank)
        self.world_size = int(world_size)
        self.batch_size = int(batch_size)
        self.tail: Tail = tail
        self.drop_last = drop_last
        self._permutation = permutation
        self.subset = None if indices is None else _subset(indices, num_samples)

    @property
    def size(self) -> int:
        """Samples an epoch has over all ranks, before padding or dropping."""
        return self.num_samples if self.subset is None else len(self.subset)

    def slicing(self, consumed: int = 0) -> Slicing:
        """Compute where steps begin and end, from `consumed` positions of the global order on."""
        return Slicing(
            num_samples=self.size,
            world_size=self.world_size,
            batch_size=self.batch_size,
            tail=self.tail,
            drop_last=self.drop_last,
            consumed=consumed,
        )

    def order(self, epoch: int, consumed: int = 0) -> EpochOrder:
        """Compute this rank's view of `epoch`, from `consumed` positions of the global order on."""
        size = self.size
        if self.shuffle == "global" and size:
            order = self._permutation(size, self.seed + epoch)
            if self.subset is not None:
                order = self.subset[order]
        else:
            order = np.arange(size) if self.subset is None else self.subset
        return EpochOrder(order, self.slicing(consumed), self.rank)

    def __iter__(self) -> Iterator[int]:
        """Give this rank's indices of the current epoch, as `DistributedSampler` does."""
        return iter(self.order(self.epoch).indices().tolist())

    def __len__(self) -> int:
        return self.slicing().num_rank_rows(self.rank)


class ForeignSampler(Cursor):
    """The same shell around somebody else's sampler, which decides this rank's indices by itself.

    Parameters
    ----------
    sampler : iterable of int
        Any torch Sampler; iterated once when an epoch begins.
    num_samples, batch_size, drop_last
        As for `ShardSampler`; batches are cut from what the sampler gives.
    """

    def __init__(self, sampler: Iterable[int], num_samples: int, *, batch_size: int, drop_last: bool) -> None:
        super().__init__()
        self.sampler = sampler
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.drop_last = drop_last

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and pass it on to a sampler that wants to know."""
        super().set_epoch(epoch)
        forward = getattr(self.sampler, "set_epoch", None)
        if forward is not None:
            forward(epoch)

    @property
    def size(self) -> int:
        """Indices an epoch has, as the sampler's own length says."""
        return len(self.sampler)  # type: ignore[arg-type]  # a sampler without a length raises TypeError, as in torch

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
        order = _subset(listed, self.num_samples)
        return EpochOrder(order, self._slicing(len(order), consumed), rank=0)

    def _slicing(self, size: int, consumed: int) -> Slicing:
        return Slicing(
            num_samples=size,
            world_size=1,
            batch_size=self.batch_size,
            tail="pad",
            drop_last=self.drop_last,
            consumed=consumed,
        )


def _subset(indices: Iterable[int] | Indices, num_samples: int) -> Indices:
    given = np.asarray(indices if isinstance(indices, np.ndarray | list | tuple) else list(indices))
    if given.size == 0:
        return np.empty(0, np.int64)
    if given.dtype == np.bool_ or not np.issubdtype(given.dtype, np.integer) or given.ndim != 1:
        hint = "; use numpy.flatnonzero(mask) for a mask" if given.dtype == np.bool_ else ""
        raise UsageError(f"indices must be a flat list of integers, got {given.dtype} of shape {given.shape}{hint}")
    low, high = int(given.min()), int(given.max())
    if low < 0 or high >= num_samples:
        wrong = low if low < 0 else high
        raise UsageError(f"index {wrong} is outside the dataset: it has {num_samples} samples, 0..{num_samples - 1}")
    subset = given.astype(np.int64)  # a copy: the caller may change theirs
    subset.flags.writeable = False
    return subset


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}")
