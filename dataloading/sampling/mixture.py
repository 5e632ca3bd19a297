"""Mixtures: an endless stream of draws from several datasets in fixed proportions, cut into epochs.

::

    weights 0.7 and 0.3     draws so far      10     20     30 ...
                            of the first       7     14     21          at every border of a block
                            of the second      3      6      9

    first dataset    permuted | permuted again | ...      each sample once before any comes again
    second dataset   permuted | permuted again | ...      however epochs cut the stream

A draw is a function of its position in the stream, which is ``epoch * size + position``, so that any world size,
batch size or restart is a view of the same stream:

1. An epoch is cut into *blocks* of up to 1,024 positions. How many draws each dataset has had by the end of a block is
   the apportionment of that many seats by the rule of Webster (Sainte-Lague). It is a divisor rule: no count falls as
   the total grows (with largest remainders one can), any total is computed by itself, and it is the unbiased one of its
   kind (Balinski and Young, "Fair representation", 1982). It uses integers, with the weights as fractions, so nothing
   drifts in 10**12 draws. With up to three datasets each is less than one draw off at every border; of D datasets one
   with share w is at most (1 + w D) / 2 draws off, because all others may round the same way.
2. Within a block the order of datasets is shuffled.
3. Draw number k of a dataset of n samples is sample ``k % n`` of its pass ``k // n``, and every pass has a permutation
   of its own. An epoch continues where the one before left each dataset.

Blocks of fixed counts would be simpler but never give 1/3 exactly; independent draws would be off by the square root of
their number. Knows sizes and weights; no files, ranks or steps.
"""

from __future__ import annotations

import itertools
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

import numpy as np

from dataloading.arrays import Indices
from dataloading.checks import one_of
from dataloading.errors import UsageError
from dataloading.sampling.orders import Unpaged
from dataloading.sampling.random import Cipher, child, children, shuffled

__all__ = ["Mixture", "MixtureOrder", "Parts", "apportion"]

Stop = Literal["sum", "first_exhausted", "all_exhausted"]
Source: TypeAlias = "str | os.PathLike[str] | tuple[str | os.PathLike[str], ...]"

# Long enough for a step of many ranks to be shuffled well, short enough for proportions to hold within a few steps.
_BLOCK = 1024
# Permutations of datasets up to this size are made whole, many passes at a time; larger ones position by position.
_SMALL = 4096


@dataclass(frozen=True)
class Mixture:
    """Several datasets in fixed proportions, for the Loader in place of a path.

    Parameters
    ----------
    weights : mapping of path to number
        Positive; each dataset's share of the draws is in proportion. A dataset is whatever the Loader takes: a file, a
        pattern, a manifest, or a tuple of such. Fields and class names of all must be equal.
    stop : {"sum", "first_exhausted", "all_exhausted"}
        The length of an epoch: as many draws as there are samples in all; or until the first dataset is used up; or
        until all are. The Loader's `num_draws` sets any other length. In any case an epoch continues where the one
        before left each dataset: none repeats a sample before it has given all.

    Notes
    -----
    With the Loader's ``shuffle="global"`` every pass over a dataset is a new permutation; with ``"none"`` every dataset
    gives its samples in their order. Which dataset is next is shuffled either way. ``shuffle="pages"``, ``weights=``
    and ``sampler=`` contradict a mixture. A subset (``indices=``, `Loader.filter`) keeps the proportions, and must
    include samples of each dataset. Repetitions of a sample within an epoch are augmented differently.

    Raises
    ------
    UsageError
        A weight is not a positive finite number, or there is no dataset.

    Examples
    --------
    >>> Mixture({"photos.beton": 0.7, "drawings-*.beton": 0.3}).shares
    (7, 3)
    """

    weights: Mapping[Source, float]
    stop: Stop = field(default="sum", kw_only=True)

    def __post_init__(self) -> None:
        one_of("stop", self.stop, get_args(Stop))
        if not isinstance(self.weights, Mapping) or not self.weights:
            raise UsageError(
                f"a mixture is a mapping of at least one path to its weight, such as "
                f"{{'a.beton': 0.7, 'b.beton': 0.3}}; got {self.weights!r}"
            )
        for source, weight in self.weights.items():
            is_number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
            if not (is_number and math.isfinite(weight) and weight > 0):
                raise UsageError(f"the weight of {source!r} must be a positive number, got {weight!r}")
        object.__setattr__(self, "weights", dict(self.weights))  # the caller may change theirs

    @property
    def sources(self) -> tuple[Source, ...]:
        """The datasets, in order."""
        return tuple(self.weights)

    @property
    def shares(self) -> tuple[int, ...]:
        """The weights as integers without a common divisor; a float counts as the decimal number it prints as."""
        exact = [
            Fraction(weight) if isinstance(weight, numbers.Rational) else Fraction(str(float(weight)))
            for weight in self.weights.values()
        ]
        scale = math.lcm(*(each.denominator for each in exact))
        whole = [int(each * scale) for each in exact]
        divisor = math.gcd(*whole)
        return tuple(each // divisor for each in whole)

    def of_sizes(self, sizes: Sequence[int]) -> Parts:
        """Return the datasets as ranges of sample indices, given the number of samples of each."""
        names = tuple(str(source) for source in self.sources)
        return Parts(names=names, shares=self.shares, sizes=tuple(sizes), stop=self.stop)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A mixture's datasets as ranges of sample indices.

    Parameters
    ----------
    names : tuple of str
        For messages.
    shares : tuple of int
        Positive weights.
    sizes : tuple of int
        Samples; the datasets follow one another.
    stop : {"sum", "first_exhausted", "all_exhausted"}
    """

    names: tuple[str, ...]
    shares: tuple[int, ...]
    sizes: tuple[int, ...]
    stop: Stop

    @property
    def identity(self) -> str:
        """What the stream depends on, as text."""
        return ",".join(f"{share}:{size}" for share, size in zip(self.shares, self.sizes, strict=True))

    def members(self, subset: Indices | None) -> list[range | Indices]:
        """List the elements of each dataset: sample indices, or positions in `subset`.

        Raises
        ------
        UsageError
            The subset leaves nothing of one of them.
        """
        starts = np.cumsum([0, *self.sizes]).tolist()
        if subset is None:
            return [range(low, high) for low, high in itertools.pairwise(starts)]
        owner = np.searchsorted(starts, subset, side="right") - 1
        found: list[range | Indices] = [np.flatnonzero(owner == number) for number in range(len(self.sizes))]
        for name, each in zip(self.names, found, strict=True):
            if len(each) == 0 and len(subset):
                raise UsageError(
                    f"no sample of {name} is left, so its share of the mixture cannot be drawn; make a mixture without "
                    f"it, or a subset with some of it"
                )
        return found

    def epoch_size(self, counts: Sequence[int]) -> int:
        """Compute the draws of an epoch over datasets of `counts` samples."""
        if self.stop == "sum":
            return sum(counts)
        total = sum(self.shares)
        needed = [Fraction(count * total, share) for count, share in zip(counts, self.shares, strict=True)]
        return int(min(needed)) if self.stop == "first_exhausted" else math.ceil(max(needed))


def apportion(num_draws: int, shares: Sequence[int]) -> list[int]:
    """Divide `num_draws` in proportion to `shares`: whole numbers that never fall as `num_draws` grows.

    Seats go one by one to the highest quotient ``share / (2 * seats + 1)``, ties to the first. Rounding the exact
    shares gives the same up to a few seats, so only these are given out one by one.

    Examples
    --------
    >>> apportion(10, [7, 3]), apportion(11, [7, 3]), apportion(100, [1, 1, 1])
    ([7, 3], [8, 3], [34, 33, 33])
    """
    total = sum(shares)
    seats = [(2 * share * num_draws + total) // (2 * total) for share in shares]
    while (missing := num_draws - sum(seats)) != 0:
        if missing > 0:
            best = max(range(len(shares)), key=lambda d: (Fraction(shares[d], 2 * seats[d] + 1), -d))
            seats[best] += 1
        else:
            held = [d for d in range(len(shares)) if seats[d]]
            seats[min(held, key=lambda d: (Fraction(shares[d], 2 * seats[d] - 1), -d))] -= 1
    return seats


class MixtureOrder(Unpaged):
    """The draws of one epoch.

    Parameters
    ----------
    members : sequence of ranges or of int64 arrays
        Elements of each dataset, at least one.
    shares : sequence of int
        Positive weights.
    key : int
        Which stream; the same for all epochs.
    epoch : int
        Selects draws ``epoch * size`` to ``(epoch + 1) * size`` of it.
    size : int
        Draws of an epoch.
    shuffle : bool
        Whether each dataset is permuted; otherwise its elements keep their order, pass after pass.
    copies : ndarray of int64, shape (elements,), optional
        Which occurrence of its sample each element is.
    """

    def __init__(
        self,
        members: Sequence[range | Indices],
        shares: Sequence[int],
        *,
        key: int,
        epoch: int,
        size: int,
        shuffle: bool = True,
        copies: Indices | None = None,
    ) -> None:
        super().__init__(size)
        self._members = members
        self._shares = shares
        self._key = key
        self._start = epoch * size
        self._shuffle = shuffle
        self._copies = copies
        self._num_blocks = max(-(-size // _BLOCK), 1)
        self._blocks: dict[int, tuple[Indices, Indices]] = {}

    def at(self, positions: Indices) -> tuple[Indices, Indices]:
        """Look up elements and views: the pass of its dataset that a draw belongs to is the view."""
        positions = positions % self.size
        blocks = ((positions + 1) * self._num_blocks - 1) // self.size  # border j is at j * size // num_blocks
        datasets, draws = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        for block in np.unique(blocks).tolist():
            mine = np.flatnonzero(blocks == block)
            inside = positions[mine] - block * self.size // self._num_blocks
            datasets[mine], draws[mine] = (each[inside] for each in self._block(block))
        elements, views = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        for dataset in np.unique(datasets).tolist():
            mine = np.flatnonzero(datasets == dataset)
            members = self._members[dataset]
            passes, numbers_ = np.divmod(draws[mine], len(members))
            chosen = self._permuted(dataset, passes, numbers_) if self._shuffle else numbers_
            elements[mine] = members.start + chosen if isinstance(members, range) else members[chosen]
            views[mine] = passes
        if self._copies is not None:
            views = views * (int(self._copies.max()) + 1) + self._copies[elements]
        return elements, views

    def _block(self, block: int) -> tuple[Indices, Indices]:
        """List the dataset of each position of a block, and the number of each draw in its dataset's stream."""
        if block not in self._blocks:
            low, high = (border * self.size // self._num_blocks for border in (block, block + 1))
            before, after = (apportion(self._start + each, self._shares) for each in (low, high))
            counts = np.subtract(after, before)
            order = shuffled(high - low, child(self._key, 0, self._start + low))
            datasets = np.repeat(np.arange(len(counts)), counts)[order]
            draws = np.empty(high - low, np.int64)
            # Numbers ascend with positions, so that a dataset's next pass begins where the last one ended.
            draws[np.argsort(datasets, kind="stable")] = np.concatenate(
                [np.arange(first, last) for first, last in zip(before, after, strict=True)]
            )
            if len(self._blocks) >= 2:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[block] = datasets, draws
        return self._blocks[block]

    def _permuted(self, dataset: int, passes: Indices, numbers_: Indices) -> Indices:
        """Look up positions in the permutations of some passes of a dataset."""
        num, key = len(self._members[dataset]), child(self._key, 1, dataset)
        some, which = np.unique(passes, return_inverse=True)
        if num <= _SMALL:
            random_bits = children(children(key, some)[:, None], np.arange(num)[None, :])
            table = np.argsort(random_bits, axis=1, kind="stable")
            return np.asarray(table[which, numbers_], np.int64)
        out = np.empty(len(passes), np.int64)
        for row, each in enumerate(some.tolist()):
            mine = np.flatnonzero(which == row)
            out[mine] = Cipher(num, child(key, each))(numbers_[mine])
        return out
