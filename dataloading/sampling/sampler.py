"""Which samples, in which order, on which rank: options and the current epoch, over pure functions.

`ShardSampler` turns options into one global order per epoch (orders.py, page_order.py, mixture.py), cuts it into steps
(slicing.py) and gives this rank's part. The order is a function of (seed, epoch, number of samples, options) alone.

Knows no files, fields or pixels, and does not import torch: torch's permutation is passed in.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dataloading.arrays import Indices
from dataloading.checks import at_least, one_of, true_or_false
from dataloading.errors import StateError, UsageError
from dataloading.sampling.mixture import MixtureOrder, Parts
from dataloading.sampling.orders import (
    CipherOrder,
    DrawnOrder,
    FileOrder,
    ListedOrder,
    RepeatedOrder,
    draw_without_replacement,
)
from dataloading.sampling.page_order import PageLayout, PageOrder
from dataloading.sampling.random import child
from dataloading.sampling.slicing import EpochOrder, Order, Seat, Slicing, Step, Tail
from dataloading.sampling.subsets import balanced_weights, checked_indices, checked_weights, digest, occurrences

__all__ = [
    "DEFAULT_WINDOW_PAGES",
    "EpochOrder",
    "Permutation",
    "Sampler",
    "ShardSampler",
    "Shuffle",
    "Slicing",
    "Step",
    "Tail",
]

Shuffle = Literal["none", "global", "pages"]
Permutation = Callable[[int, int], npt.NDArray[np.integer[Any]]]
"""``permutation(num, seed)`` returns the numbers 0..num-1 in an order that only depends on its arguments."""
Legs = tuple[tuple[int, int], ...]
"""An epoch's history: (number of nodes, positions consumed when they were replaced by others)."""

# Two samples of a batch lie on one page with a probability of at most 2 / window. 512 keeps the distinct classes of
# 16 samples within 0.5 of a true shuffle's where every page holds one class (docs/order.md has the figures).
DEFAULT_WINDOW_PAGES = 512

# Any constant would do; this one spells its purpose.
_ROOT = int.from_bytes(b"order/v1", "big")


class Sampler(ABC):
    """An order of samples for each epoch, the current epoch, and how much of it has been received.

    An iteration *begins* an epoch: the one set by `set_epoch`, otherwise the one after the last of which a batch was
    received. An iterator that gave no batch has begun nothing: frameworks make one only to see whether they can.

    Parameters
    ----------
    num_samples : int
        Samples in the dataset.
    batch_size : int
        Rows per rank and step.
    drop_last : bool
        Leave out a last step with fewer rows.
    seed : int
        0 <= seed < 2**63.
    """

    def __init__(self, num_samples: int, *, batch_size: int, drop_last: bool, seed: int) -> None:
        self.num_samples = num_samples
        self.batch_size = at_least("batch_size", batch_size, 1)
        self.drop_last = true_or_false("drop_last", drop_last)
        self.seed = at_least("seed", seed, 0)
        self.epoch = 0
        self.consumed = 0
        self._begun = False
        self._chosen: int | None = None  # by set_epoch, while the next iteration has not begun

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch the next iteration gives, as `DistributedSampler.set_epoch` does.

        The epoch of a state that was loaded keeps its position. An iteration under way is not affected.
        """
        epoch = at_least("epoch", epoch, 0)
        if epoch != self.epoch or self._begun:
            self.epoch, self.consumed, self._begun = epoch, 0, False
            self._chosen = self.epoch

    def resume(self, epoch: int, consumed: int, history: str = "1") -> None:
        """Make the next iteration begin `epoch` at `consumed` positions of the global order.

        `history` is what :meth:`history` returned when the position was saved.
        """
        self.epoch, self.consumed, self._begun = epoch, consumed, False
        self._chosen = None

    def history(self) -> str:
        """Return what the epoch's order depends on besides options: the nodes so far, for orders by pages."""
        return "1"

    def begin(self) -> tuple[int, int]:
        """Begin an epoch; return its number and how many of its positions are consumed."""
        if self._begun:
            self.set_epoch(self.epoch + 1 if self._chosen is None else self._chosen)
        self._chosen = None
        return self.epoch, self.consumed

    def receive(self, epoch: int, consumed: int) -> None:
        """Note that a batch of `epoch` was received, and how many positions are consumed with it."""
        self.epoch, self.consumed, self._begun = epoch, consumed, True

    def finish(self, epoch: int) -> None:
        """Note that `epoch` was received to its end."""
        self.resume(epoch + 1 if self._chosen is None else self._chosen, 0)

    @property
    @abstractmethod
    def size(self) -> int:
        """Positions an epoch has over all ranks, before padding or dropping."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What the order depends on besides seed and dataset, as text: a state fits where this is equal."""

    @abstractmethod
    def slicing(self, consumed: int = 0) -> Slicing:
        """Compute where steps begin and end, from `consumed` positions of the order on."""

    @abstractmethod
    def order(self, epoch: int, consumed: int = 0) -> EpochOrder:
        """Compute this rank's view of `epoch`, from `consumed` positions of the order on."""


class ShardSampler(Sampler):
    """The orders that follow from the Loader's options.

    Parameters
    ----------
    permutation : callable or "cipher"
        ``permutation(num, seed) -> ndarray of int``, called with ``seed + epoch`` as torch does; or a permutation
        that is computed position by position (`dataloading.sampling.random.Cipher`).
    labels : ndarray of int, shape (num_samples,), optional
        Classes, for ``weights="balanced"``.
    mixture : Parts, optional
        Datasets that the samples belong to and their proportions; with ``shuffle="none"`` each gives its samples in
        their order. An epoch is then as long as `Parts` says.
    layout : callable, optional
        Returns the `PageLayout` of the dataset; for ``shuffle="pages"``. Called once, when first needed.
    num_nodes, node, local_rank : int, optional
        Nodes that divide the pages, this rank's node and its number there, for ``shuffle="pages"``; by default ranks
        fill one node after the other.
    others
        As for `Sampler` and the Loader.

    Raises
    ------
    UsageError
        An option is out of range or contradicts another; the message shows the value and what to do.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        permutation: Permutation | Literal["cipher"],
        shuffle: Shuffle = "none",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        batch_size: int = 1,
        tail: Tail = "pad",
        drop_last: bool = False,
        indices: Sequence[int] | Indices | None = None,
        weights: Sequence[float] | npt.NDArray[np.floating[Any]] | Literal["balanced"] | None = None,
        replacement: bool = True,
        num_draws: int | None = None,
        num_repeats: int = 1,
        labels: npt.NDArray[np.integer[Any]] | None = None,
        mixture: Parts | None = None,
        layout: Callable[[], PageLayout] | None = None,
        window_pages: int = DEFAULT_WINDOW_PAGES,
        num_nodes: int = 1,
        node: int | None = None,
        local_rank: int | None = None,
    ) -> None:
        one_of("shuffle", shuffle, get_args(Shuffle))
        one_of("tail", tail, get_args(Tail))
        super().__init__(num_samples, batch_size=batch_size, drop_last=drop_last, seed=seed)
        rank, world_size = at_least("rank", rank, 0), at_least("world_size", world_size, 1)
        num_repeats = at_least("num_repeats", num_repeats, 1)
        window_pages = at_least("window_pages", window_pages, 1)
        num_nodes = at_least("num_nodes", num_nodes, 1)
        num_draws = None if num_draws is None else at_least("num_draws", num_draws, 0)
        replacement = true_or_false("replacement", replacement)
        if rank >= world_size:
            raise UsageError(f"rank={rank} must be in 0..{world_size - 1}, as world_size is {world_size}")
        if self.drop_last and tail == "even":
            raise UsageError('tail="even" keeps every sample: drop_last=True contradicts it, use tail="drop"')
        if shuffle == "pages" and (weights is not None or num_repeats > 1):
            option = "weights=" if weights is not None else "num_repeats="
            raise UsageError(f'{option} draws from the whole file: use shuffle="global" with it, not "pages"')
        if mixture is not None and (shuffle == "pages" or weights is not None):
            option = 'shuffle="pages"' if shuffle == "pages" else "weights="
            raise UsageError(f'a Mixture decides what is drawn from where: use shuffle="global" with it, not {option}')
        self.shuffle: Shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.tail: Tail = tail
        self.equal_rows = False  # set for frameworks that gather batches: see Slicing
        self.replacement = replacement
        self.num_repeats = num_repeats
        self.window_pages = window_pages
        self.num_nodes = num_nodes if shuffle == "pages" else 1
        self._num_draws = num_draws
        self._permutation = permutation
        self._weights = checked_weights(weights, num_samples, labels)
        self._labels = labels
        self._mixture = mixture
        self._file_layout = layout
        self._seat = _seat(self.rank, self.world_size, self.num_nodes, node, local_rank)
        self._legs: Legs = ()
        self.subset = None if indices is None else checked_indices(indices, num_samples)
        self._check_size()

    def with_subset(self, indices: Sequence[int] | Indices) -> ShardSampler:
        """Make a sampler with the same options for another subset, at the same epoch."""
        other = copy.copy(self)
        for name, value in vars(ShardSampler).items():
            if isinstance(value, cached_property):  # computed for this one's subset
                other.__dict__.pop(name, None)
        other.subset = checked_indices(indices, self.num_samples)
        other.resume(self.epoch, 0)
        other._legs = ()
        other._check_size()
        return other

    @property
    def elements(self) -> Indices:
        """Sample indices in use, before shuffling."""
        return np.arange(self.num_samples) if self.subset is None else self.subset

    @property
    def is_weighted(self) -> bool:
        """Whether samples are drawn with unequal probabilities."""
        return self._weights is not None or self._mixture is not None

    @cached_property
    def size(self) -> int:
        """See `Sampler`."""
        return self._num_available if self._num_draws is None else self._num_draws

    @property
    def _num_elements(self) -> int:
        return self.num_samples if self.subset is None else len(self.subset)

    @property
    def _num_available(self) -> int:
        num = self._num_elements
        if self._mixture is not None and num:
            num = self._mixture.epoch_size([len(each) for each in self._members])
        if self._weights is not None and not self.replacement:
            num = int(np.count_nonzero(self._drawn_from))
        return num * self.num_repeats

    def _check_size(self) -> None:
        if self._weights is not None and self._num_elements and not self._drawn_from.any():
            raise UsageError("weights= are zero for all samples in use: nothing can be drawn")
        endless = self._mixture is not None or (self._weights is not None and self.replacement)
        endless = endless and self._num_elements > 0
        if self._num_draws is not None and not endless and self._num_draws > self._num_available:
            raise UsageError(
                f"num_draws={self._num_draws} is more than the {self._num_available} samples an epoch can give: "
                f"pass at most that, a larger num_repeats=, or weights= with replacement=True"
            )

    def slicing(self, consumed: int = 0) -> Slicing:
        """See `Sampler`."""
        return Slicing(
            num_samples=self.size,
            world_size=self.world_size,
            batch_size=self.batch_size,
            tail=self.tail,
            drop_last=self.drop_last,
            consumed=consumed,
            equal_rows=self.equal_rows,
        )

    def order(self, epoch: int, consumed: int = 0) -> EpochOrder:
        """See `Sampler`."""
        order = self._paged_order(epoch, consumed) if self.shuffle == "pages" else self._global_order(epoch)
        # Draws number their own views; otherwise an index that is listed twice is two views.
        views = None if self.is_weighted or self.num_repeats > 1 else self._views
        return EpochOrder(order, self.slicing(consumed), self._seat, self.subset, views)

    def _global_order(self, epoch: int) -> Order:
        num, key = self._num_elements, child(_ROOT, self.seed, epoch)
        draws = -(-self.size // self.num_repeats)
        order: CipherOrder | DrawnOrder | FileOrder | ListedOrder | MixtureOrder
        if num == 0 or (not self.is_weighted and self.shuffle == "none"):
            order = FileOrder(draws)
        elif self._mixture is not None:
            order = MixtureOrder(
                self._members,
                self._mixture.shares,
                key=child(_ROOT, self.seed),
                epoch=epoch,
                size=draws,
                shuffle=self.shuffle == "global",
                copies=self._views,
            )
        elif self._weights is not None and self.replacement:
            order = DrawnOrder(self._cumulative, key, draws)
        elif self._weights is not None:
            order = ListedOrder(draw_without_replacement(self._drawn_from, draws, key))
        elif isinstance(self._permutation, str):
            order = CipherOrder(num, key, draws)
        else:
            order = ListedOrder(self._permutation(num, self.seed + epoch)[:draws])
        return order if self.num_repeats == 1 else RepeatedOrder(order, self.num_repeats, self.size)

    def _paged_order(self, epoch: int, consumed: int) -> Order:
        """Order by pages; the rest that earlier legs of this epoch left is redistributed among the present nodes."""
        layout, origin = self._layout, 0
        for number, (num_nodes, end) in enumerate(self._active_legs(consumed)):
            earlier = self._page_order(layout, epoch, number, num_nodes, origin)
            layout, origin = earlier.remaining(end), end
        return self._page_order(layout, epoch, len(self._active_legs(consumed)), self.num_nodes, origin)

    def _page_order(self, layout: PageLayout, epoch: int, leg: int, num_nodes: int, origin: int) -> PageOrder:
        return PageOrder(
            layout,
            key=child(_ROOT, self.seed, epoch, leg),
            num_nodes=num_nodes,
            window_pages=self.window_pages,
            origin=origin,
            size=self.size,
        )

    @cached_property
    def _layout(self) -> PageLayout:
        layout = PageLayout.blocks(self.num_samples, 1) if self._file_layout is None else self._file_layout()
        return layout if self.subset is None else layout.select(self.subset)

    @cached_property
    def _members(self) -> list[range | Indices]:
        """Elements of each dataset of the mixture."""
        assert self._mixture is not None
        return self._mixture.members(self.subset)

    @cached_property
    def _drawn_from(self) -> npt.NDArray[np.float64]:
        """Weights of the elements."""
        assert self._weights is not None
        if isinstance(self._weights, str):
            assert self._labels is not None
            return balanced_weights(self._labels if self.subset is None else self._labels[self.subset])
        return self._weights if self.subset is None else self._weights[self.subset]

    @cached_property
    def _cumulative(self) -> npt.NDArray[np.float64]:
        """Sums of the weights of the elements up to each."""
        return np.cumsum(self._drawn_from)

    @cached_property
    def _views(self) -> Indices | None:
        """Which occurrence of its sample each element is; None if none occurs twice."""
        return None if self.subset is None else occurrences(self.subset)

    # ---- position in the run

    @cached_property
    def identity(self) -> str:
        """See `Sampler`."""
        parts = [f"shuffle={self.shuffle}"]
        if self.shuffle == "pages":
            parts.append(f"window_pages={self.window_pages}")
        if self.shuffle == "global" and isinstance(self._permutation, str):
            parts.append(f"permutation={self._permutation}")
        if self._weights is not None:
            weights = self._weights if isinstance(self._weights, str) else digest(self._weights)
            parts.append(f"weights={weights} replacement={self.replacement}")
        if self._mixture is not None:
            parts.append(f"mixture={self._mixture.identity}")
        if self.num_repeats > 1:
            parts.append(f"num_repeats={self.num_repeats}")
        if self.subset is not None:
            parts.append(f"indices={digest(self.subset)}")
        return " ".join([*parts, f"num_samples={self.size}"])

    def history(self) -> str:
        """Return the nodes of this epoch so far, as ``"2:480 3"``: 2 up to position 480, then 3."""
        legs = [f"{num_nodes}:{end}" for num_nodes, end in self._active_legs(self.consumed)]
        return " ".join([*legs, str(self.num_nodes)])

    def resume(self, epoch: int, consumed: int, history: str = "1") -> None:
        """See `Sampler`.

        If the number of nodes has changed, the rest of the epoch is redistributed: every sample still exactly once, in
        another order than an uninterrupted run's.

        Raises
        ------
        StateError
            `history` is malformed.
        """
        super().resume(epoch, consumed)
        try:
            *past, last = history.split()
            legs = [(int(nodes), int(end)) for nodes, end in (leg.split(":") for leg in past)]
            num_nodes = int(last)
            ends = [end for _, end in legs]
            if min([num_nodes, *(nodes for nodes, _ in legs)]) < 1 or ends != sorted({*ends} - {0}):
                raise ValueError
        except ValueError:
            raise StateError(f"the state's nodes={history!r} is not of the form '2:480 3'") from None
        if num_nodes != self.num_nodes and consumed > (legs[-1][1] if legs else 0):
            legs.append((num_nodes, consumed))
        self._legs = tuple(legs) if self.shuffle == "pages" else ()

    def _active_legs(self, consumed: int) -> Legs:
        """Return the legs of the epoch at `consumed`: none if another epoch, or this one again, has begun."""
        return self._legs if self._legs and consumed >= self._legs[-1][1] else ()

    def __iter__(self) -> Iterator[int]:
        """Iterate over this rank's indices of the current epoch, as `DistributedSampler` does."""
        return iter(self.order(self.epoch).indices().tolist())

    def __len__(self) -> int:
        """Count this rank's rows in an epoch."""
        slicing = self.slicing()
        return sum(len(self._seat.positions(*slicing.bounds(step))) for step in range(slicing.num_steps))


def _seat(rank: int, world_size: int, num_nodes: int, node: int | None, local_rank: int | None) -> Seat:
    if world_size % num_nodes:
        raise UsageError(
            f"num_nodes={num_nodes} does not divide world_size={world_size}: shuffle='pages' needs as many ranks on "
            f"every node"
        )
    if num_nodes == 1:
        return Seat.alone(rank, world_size)
    local_world_size = world_size // num_nodes
    node = rank // local_world_size if node is None else node
    local_rank = rank % local_world_size if local_rank is None else local_rank
    if not (0 <= node < num_nodes and 0 <= local_rank < local_world_size):
        raise UsageError(
            f"node {node} and local rank {local_rank} do not fit {num_nodes} nodes of {local_world_size} ranks"
        )
    return Seat(rank=rank, world_size=world_size, num_nodes=num_nodes, node=node, local_rank=local_rank)
