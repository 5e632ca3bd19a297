"""Where a step begins and ends in a global order, and which of its rows are one rank's: arithmetic on integers.

One epoch has one global order. Each step takes the next slice of it, which the ranks share. The order itself does not
depend on the world size::

    global order   17  4 21  8 | 30  2  9 11 | 25  6  1 19 | 3
                   `- step 0 -'  `- step 1 -'  `- step 2 -'  step 3
    rank 0 of 2    17    21    | 30     9    | 25     1    | 3
    rank 1 of 2        4     8 |     2    11 |     6    19 |    (17 with tail="pad")

So ``consumed``, the number of positions of the global order that earlier steps took, is the whole state: any world
size, batch size or number of workers can go on from it.

The tail decides about the last, incomplete part:

- ``"pad"``   positions past the end wrap around to the start, so that every rank gets as many samples: index for index
  what `torch.utils.data.DistributedSampler` gives.
- ``"drop"``  samples that do not fill one row on every rank are left out (its ``drop_last=True``).
- ``"even"``  every sample exactly once and as many steps on every rank: the sizes of all batches, over steps and
  ranks, differ by at most one.

Knows nothing of how an order is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from dataloading.arrays import Indices

__all__ = ["EpochOrder", "Order", "Ranges", "Seat", "Slicing", "Step", "Tail"]

Tail = Literal["pad", "drop", "even"]
Ranges = list[tuple[int, int, int]]
"""Byte ranges of the dataset's files: (number of the file, first byte, number of bytes)."""

# Positions looked up at a time: enough to hide the cost of a NumPy call, too few to delay the first batch.
_LOOK_UP = 4096


class Order(Protocol):
    """A global order, looked up by position."""

    @property
    def size(self) -> int:
        """Positions of the epoch."""
        ...

    @property
    def origin(self) -> int:
        """Position from which nodes take turns; 0 unless the epoch was resumed on another number of nodes."""
        ...

    @property
    def has_pages(self) -> bool:
        """Whether pages are read one after another, so that `pages` has something to list."""
        ...

    def at(self, positions: Indices) -> tuple[Indices, Indices | None]:
        """Look up elements and the number of each one's view (None: all 0).

        Positions from `size` on are padding, which the order fills as it likes.
        """
        ...

    def pages_due(self, node: int, position: int, first: bool) -> int:
        """Count the pages of `node` to request before `position` is read; with `first` those not needed any more."""
        ...

    def pages(self, node: int, start: int, stop: int) -> Ranges:
        """List the byte ranges of a node's pages `start` to `stop`, in the order of their use."""
        ...


@dataclass(frozen=True, kw_only=True)
class Step:
    """One rank's part of one step.

    Parameters
    ----------
    indices : ndarray of int64, shape (rows,)
        Sample indices in the dataset.
    num_valid : int
        Rows that are not padding; they come first.
    global_size : int
        Rows of this step over all ranks that are not padding.
    consumed : int
        Positions of the global order that are consumed after this step.
    views : ndarray of int64, shape (rows,), optional
        Which occurrence of its sample in the epoch a row is, so that each is augmented differently. None: all 0.
    """

    indices: Indices
    num_valid: int
    global_size: int
    consumed: int
    views: Indices | None = None


@dataclass(frozen=True, kw_only=True)
class Slicing:
    """Where each step begins and ends in a global order.

    Parameters
    ----------
    num_samples : int
        Length of the global order.
    world_size, batch_size : int
        Ranks, and rows per rank and step.
    tail, drop_last
        See the module; `drop_last` also leaves out a last step with fewer than `batch_size` rows.
    consumed : int
        Positions that earlier steps took, perhaps on another world size.
    equal_rows : bool
        Every rank gets as many rows in every step, and padding comes last when the ranks' rows of the last step are
        joined. Changes "even" where ranks would differ, and "pad" where more than one row is padding.

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
    equal_rows: bool = False

    @property
    def num_rows(self) -> int:
        """Positions the remaining steps use over all ranks, padding included."""
        left = max(self.num_samples - self.consumed, 0)
        if self.tail == "pad" or (self.tail == "even" and self.equal_rows):
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
        """Return the first position that `step` takes over all ranks, and the one past its last."""
        per_step = self.world_size * self.batch_size
        if self.tail != "even":
            low = self.consumed + step * per_step
            return low, min(low + per_step, self.consumed + self.num_rows)
        # Of the cells, one per step and rank in the order they are filled, the first `extra` hold one sample more.
        base, extra = divmod(self.num_rows, self.num_steps * self.world_size)
        first, last = step * self.world_size, (step + 1) * self.world_size
        return (
            self.consumed + first * base + min(first, extra),
            self.consumed + last * base + min(last, extra),
        )


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Which positions of a step are one rank's.

    Ranks take turns. With several nodes, nodes take turns first and the ranks of a node share its positions: position p
    belongs to node ``p % num_nodes``, and a node opens only its own pages::

        position      0    1    2    3    4    5    6    7      2 nodes of 2 ranks
        node          0    1    0    1    0    1    0    1
        rank          0    2    1    3    0    2    1    3

    Parameters
    ----------
    rank, world_size : int
    num_nodes : int
        Nodes that take turns; divides `world_size`. 1 if the order does not depend on nodes.
    node, local_rank : int
        This rank's node, and its number there.
    """

    rank: int
    world_size: int
    num_nodes: int = 1
    node: int = 0
    local_rank: int = 0

    @classmethod
    def alone(cls, rank: int, world_size: int) -> Seat:
        """Make the seat of a rank whose order does not depend on nodes."""
        return cls(rank=rank, world_size=world_size, local_rank=rank)

    @property
    def local_world_size(self) -> int:
        """Ranks that share a node's positions."""
        return self.world_size // self.num_nodes

    def positions(self, low: int, high: int, origin: int = 0) -> Indices:
        """List this rank's positions in a step that takes `low` to `high`; nodes take turns from `origin` on."""
        first = low + (self.node - (low - origin)) % self.num_nodes + self.local_rank * self.num_nodes
        return np.arange(first, max(high, first), self.world_size)


class EpochOrder:
    """One rank's part of an epoch.

    Parameters
    ----------
    order : Order
        The global order, of elements.
    slicing : Slicing
        How steps cut it; ``slicing.num_samples == order.size``.
    seat : Seat
        The rank.
    subset : ndarray of int64, shape (elements,), optional
        Sample index of each element; without it elements are sample indices.
    views : ndarray of int64, shape (elements,), optional
        Which occurrence of its sample an element is.

    Notes
    -----
    Steps are functions of their number. Some are looked up ahead and kept, so only one thread at a time may use it.
    """

    def __init__(
        self, order: Order, slicing: Slicing, seat: Seat, subset: Indices | None = None, views: Indices | None = None
    ) -> None:
        assert slicing.num_samples == order.size
        self._order = order
        self._seat = seat
        self._subset = subset
        self._views = views
        self.slicing = slicing
        self._num_ahead = max(1, _LOOK_UP // slicing.batch_size)
        self._ahead: dict[int, tuple[Indices, Indices | None]] = {}

    def __len__(self) -> int:
        return self.slicing.num_steps

    def step(self, step: int) -> Step:
        """Compute this rank's part of `step`, 0 <= step < len."""
        if step not in self._ahead:
            self._look_up(step)
        indices, views = self._ahead.pop(step)
        low, high = self.slicing.bounds(step)
        num = self.slicing.num_samples
        positions = self._positions(step)
        return Step(
            indices=indices,
            num_valid=int(np.count_nonzero(positions < num)),
            global_size=max(min(high, num) - low, 0),
            consumed=min(high, num),
            views=views,
        )

    def indices(self) -> Indices:
        """Return the indices of this rank that remain, steps joined."""
        parts = [self.step(k).indices for k in range(len(self))]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def readahead(self, step: int) -> Ranges:
        """List the byte ranges that this rank should ask the system to read when it makes `step`.

        Over the steps of an epoch and the ranks of a node every page is listed once, ahead of its use; the pages of the
        first window are spread over the first steps. Empty unless the order goes by pages.
        """
        if not self._order.has_pages:
            return []
        due, before = self._pages_due(step), self._pages_due(step - 1)
        if due <= before:
            return []
        seat = self._seat
        start = before + (seat.local_rank - before) % seat.local_world_size
        pages = range(start, due, seat.local_world_size)
        return [each for page in pages for each in self._order.pages(seat.node, page, page + 1)]

    @property
    def goes_by_pages(self) -> bool:
        """Whether pages are read one after another, so that `readahead` has something to list."""
        return self._order.has_pages

    def pages_needed(self, step: int) -> tuple[int, int]:
        """Count this node's pages, in reading order: those not needed from `step` on, and those to request by then.

        The pages in between are needed by some rank of the node, now or soon.
        """
        low = self.slicing.bounds(min(step, len(self)))[0] if len(self) else 0
        node = self._seat.node
        return self._order.pages_due(node, low, first=True), self._order.pages_due(node, low, first=False)

    def node_pages(self, start: int, stop: int) -> Ranges:
        """List the byte ranges of this node's pages `start` to `stop`, counted as `pages_needed` does."""
        return self._order.pages(self._seat.node, start, stop)

    def _pages_due(self, step: int) -> int:
        low = self.slicing.bounds(max(step, 0))[0]
        if step < 0:
            return self._order.pages_due(self._seat.node, low, first=True)
        start = self._order.pages_due(self._seat.node, self.slicing.consumed, first=True)
        due = self._order.pages_due(self._seat.node, low, first=False)
        total = self._order.pages_due(self._seat.node, self.slicing.num_samples, first=False) - start
        # Twice the average pace catches up with the first window without flooding the disk before the first batch.
        pace = 2 * -(-total // max(len(self), 1)) + 4 * self._seat.local_world_size
        return min(due, start + pace * (step + 1))

    def _positions(self, step: int) -> Indices:
        """List this rank's positions in `step`."""
        low, high = self.slicing.bounds(step)
        if self.slicing.equal_rows and high > self.slicing.num_samples + 1:
            rows = (high - low) // self._seat.world_size
            return np.arange(low + self._seat.rank * rows, low + (self._seat.rank + 1) * rows)
        return self._seat.positions(low, high, self._order.origin)

    def _look_up(self, first: int) -> None:
        steps = range(first, min(first + self._num_ahead, len(self)))
        parts = [self._positions(k) for k in steps]
        elements, views = self._order.at(np.concatenate(parts))
        if self._views is not None:
            assert views is None
            views = self._views[elements]
        indices = elements if self._subset is None else self._subset[elements]
        ends = np.cumsum([len(part) for part in parts])[:-1]
        split = np.split(indices, ends)
        split_views = [None] * len(split) if views is None else np.split(views, ends)
        self._ahead = dict(zip(steps, zip(split, split_views, strict=True), strict=True))
