"""Global orders of one epoch, looked up by position, and stored as a list only where that is unavoidable.

An order maps positions 0..size-1 to *elements* (positions in the subset in use, or sample indices) and says which view
of its sample an element is. Knows no ranks, steps or files.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dataloading.arrays import Floats, Indices
from dataloading.sampling.random import Cipher, exponential, uniform

__all__ = [
    "CipherOrder",
    "DrawnOrder",
    "FileOrder",
    "ListedOrder",
    "RepeatedOrder",
    "Unpaged",
    "draw_without_replacement",
]

_PART = 1 << 16  # elements at a time, where results need much less memory than what they are computed of


class Elements(Protocol):
    """An order that can be repeated."""

    def at(self, positions: Indices) -> tuple[Indices, Indices | None]:
        """Look up elements and views."""
        ...


class Unpaged:
    """Base of orders that do not go by pages: padding repeats the start, nothing is read ahead."""

    origin = 0
    has_pages = False

    def __init__(self, size: int) -> None:
        self.size = size

    def pages_due(self, node: int, position: int, first: bool) -> int:
        """Count pages to request: none."""
        return 0

    def pages(self, node: int, start: int, stop: int) -> list[tuple[int, int, int]]:
        """List pages: none."""
        return []


class FileOrder(Unpaged):
    """Elements in their order; `size` positions."""

    def at(self, positions: Indices) -> tuple[Indices, None]:
        """Look up elements."""
        return positions % self.size, None


class ListedOrder(Unpaged):
    """An order given as a list."""

    def __init__(self, elements: npt.NDArray[np.integer[Any]]) -> None:
        super().__init__(len(elements))
        self._elements = elements

    def at(self, positions: Indices) -> tuple[Indices, None]:
        """Look up elements."""
        return self._elements[positions % self.size].astype(np.int64, copy=False), None


class CipherOrder(Unpaged):
    """Permutation `key` of `num` elements, computed position by position; the first `size` positions of it."""

    def __init__(self, num: int, key: int, size: int) -> None:
        super().__init__(size)
        self._cipher = Cipher(num, key)

    def at(self, positions: Indices) -> tuple[Indices, None]:
        """Look up elements."""
        return self._cipher(positions % self.size), None


class DrawnOrder(Unpaged):
    """Independent draws with probabilities in proportion to weights (with replacement).

    Position p holds the element whose interval of the cumulative weights contains uniform number p of `key`, so draws
    need no list. Every draw is a view of its own: its position.
    """

    def __init__(self, cumulative: Floats, key: int, size: int) -> None:
        super().__init__(size)
        self._cumulative = cumulative
        self._key = key

    def at(self, positions: Indices) -> tuple[Indices, Indices]:
        """Look up elements and views."""
        positions = positions % self.size
        total = self._cumulative[-1]
        # Rounding may reach the total itself, which is past the last element of positive weight.
        targets = np.minimum(uniform(self._key, positions) * total, np.nextafter(total, 0))
        return np.searchsorted(self._cumulative, targets, side="right").astype(np.int64), positions


class RepeatedOrder(Unpaged):
    """Each position of another order several times in a row: consecutive, so that ranks share the copies.

    Repeated augmentation: Hoffer et al., "Augment your batch", CVPR 2020; Touvron et al. (DeiT), ICML 2021, whose
    sampler gives the same order.
    """

    def __init__(self, order: Elements, num_repeats: int, size: int) -> None:
        super().__init__(size)
        self._order = order
        self._num_repeats = num_repeats

    def at(self, positions: Indices) -> tuple[Indices, Indices]:
        """Look up elements and views: each copy of a draw is a view of its own."""
        positions = positions % self.size
        elements, views = self._order.at(positions // self._num_repeats)
        copies = positions % self._num_repeats
        return elements, copies if views is None else views * self._num_repeats + copies


def draw_without_replacement(weights: Floats, num_draws: int, key: int) -> Indices:
    """Draw elements one after another, each with a probability in proportion to its weight among those left.

    Elements in ascending order of E / w, where E is exponential: Efraimidis and Spirakis, "Weighted random
    sampling with a reservoir", Information Processing Letters 97(5), 2006 (their key u**(1/w) is exp(-E / w)).

    Parameters
    ----------
    weights : ndarray of float64, shape (elements,)
        Not negative; those of weight 0 are never drawn.
    num_draws : int
        At most the number of positive weights.
    key : int
        Which draws.

    Returns
    -------
    ndarray of int64, shape (num_draws,)
    """
    positive = np.flatnonzero(weights > 0)
    keys = np.empty(len(positive))
    for start in range(0, len(positive), _PART):
        part = positive[start : start + _PART]
        keys[start : start + _PART] = exponential(key, part) / weights[part]
    return np.asarray(positive[np.argsort(keys, kind="stable")[:num_draws]], np.int64)
