"""Shuffling for files larger than memory: pages in random order, samples in random order within a window of pages.

::

    pages of the file, permuted by (seed, epoch), cut among nodes by samples:

        7  2  9  4 | 0  5  8  1 | 3  6          node 0: windows of at most W = 4 pages
        '- window -' '- window -'
        every sample of the window, shuffled    ... while the next window's pages are read ahead

The pages of a node are cut into windows of equal size, so none is much smaller than W. While one window is in use, the
pages of the next are read one after another: at most two windows are needed in memory.

Every window's order is a function of its key, computed when its first sample is needed. An order takes memory for its
pages and two windows, whatever the number of samples. Nothing is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dataloading.arrays import Indices
from dataloading.sampling.random import child, shuffled

__all__ = ["PageLayout", "PageOrder"]

Pointers = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True, kw_only=True)
class PageLayout:
    """Which elements lie on which page of which file.

    Parameters
    ----------
    starts : ndarray of int64, shape (num_pages + 1,)
        Page k holds elements ``starts[k]`` to ``starts[k + 1]``, at least one, in the order of `elements`.
    offsets : ndarray of int64, shape (num_pages,)
        First byte of each page in its file.
    page_bytes : int or ndarray of int64, shape (num_pages,)
        Size of every page, or of each where files differ; 0 if nothing can be read ahead.
    elements : ndarray of int64, shape (num_elements,), optional
        Elements page by page; without it 0, 1, 2 and so on.
    files : ndarray of int64, shape (num_pages,), optional
        Number of each page's file; without it 0.
    """

    starts: Indices
    offsets: Indices
    page_bytes: int | Indices
    elements: Indices | None = None
    files: Indices | None = None

    @property
    def num_pages(self) -> int:
        """Pages that hold elements."""
        return len(self.offsets)

    @property
    def num_elements(self) -> int:
        """Elements on all pages."""
        return int(self.starts[-1])

    @classmethod
    def from_sorted_pointers(cls, pointers: Pointers, page_size: int) -> PageLayout:
        """Find the pages of samples whose pointers (first bytes) ascend, by bisection of a few pointers per page."""
        num = len(pointers)
        if num == 0:
            return cls(starts=np.zeros(1, np.int64), offsets=np.empty(0, np.int64), page_bytes=page_size)
        first, last = int(pointers[0]) // page_size, int(pointers[-1]) // page_size
        borders = np.arange(first + 1, last + 1, dtype=np.uint64) * np.uint64(page_size)
        # The number of pointers below each border; numpy.searchsorted would copy the whole strided column first.
        low, high = np.zeros(len(borders), np.int64), np.full(len(borders), num)
        for _ in range(num.bit_length()):
            middle = np.minimum((low + high) // 2, num - 1)
            below = (pointers[middle] < borders) & (low < high)
            low = np.where(below, middle + 1, low)
            high = np.where(below, high, np.minimum(high, middle))
        starts = np.concatenate([[0], low, [num]])
        numbers = np.arange(first, last + 1)
        filled = np.diff(starts) > 0
        return cls(
            starts=np.append(starts[:-1][filled], num), offsets=numbers[filled] * page_size, page_bytes=page_size
        )

    @classmethod
    def from_pointers(cls, pointers: Pointers, page_size: int) -> PageLayout:
        """Find the pages of samples in any order, as several workers of FFCV's writer store them."""
        return cls._grouped(np.asarray(pointers // np.uint64(page_size), np.int64), page_size)

    @classmethod
    def blocks(cls, num_samples: int, samples_per_block: int) -> PageLayout:
        """Use blocks of consecutive samples as pages, for a file without stored bytes outside its table."""
        starts = np.append(np.arange(0, num_samples, samples_per_block), num_samples)
        return cls(starts=starts, offsets=starts[:-1], page_bytes=0)

    @classmethod
    def joined(cls, layouts: Sequence[PageLayout]) -> PageLayout:
        """Lay out files one after another: layout k becomes file k, and elements are numbered across all."""
        before: Indices = np.cumsum([0, *(each.num_elements for each in layouts)])
        elements = None
        if any(each.elements is not None for each in layouts):
            elements = np.concatenate(
                [
                    start + (np.arange(each.num_elements) if each.elements is None else each.elements)
                    for start, each in zip(before, layouts, strict=False)
                ]
            )
        sizes = {int(size) for each in layouts for size in np.unique(each.page_bytes)}
        return cls(
            starts=np.concatenate(
                [*(start + each.starts[:-1] for start, each in zip(before, layouts, strict=False)), before[-1:]]
            ),
            offsets=np.concatenate([each.offsets for each in layouts]),
            page_bytes=sizes.pop() if len(sizes) == 1 else np.concatenate([each.sizes for each in layouts]),
            elements=elements,
            files=np.repeat(np.arange(len(layouts)), [each.num_pages for each in layouts]),
        )

    @property
    def sizes(self) -> Indices:
        """Bytes of each page, shape (num_pages,)."""
        return np.broadcast_to(np.asarray(self.page_bytes, np.int64), (self.num_pages,))

    def select(self, subset: Indices) -> PageLayout:
        """Lay out the positions 0..len(subset)-1 of a subset of this layout's elements; empty pages disappear."""
        page_of = np.repeat(np.arange(self.num_pages), np.diff(self.starts))
        if self.elements is not None:
            scattered = np.empty(int(self.elements.max(initial=-1)) + 1, np.int64)
            scattered[self.elements] = page_of
            page_of = scattered
        chosen = self._grouped(page_of[subset], 1)
        pages = chosen.offsets
        return PageLayout(
            starts=chosen.starts,
            offsets=self.offsets[pages],
            page_bytes=self.page_bytes if isinstance(self.page_bytes, int) else self.page_bytes[pages],
            elements=chosen.elements,
            files=None if self.files is None else self.files[pages],
        )

    @classmethod
    def _grouped(cls, numbers: Indices, page_size: int) -> PageLayout:
        """Group elements by the number of their page."""
        elements = None
        if (numbers[1:] < numbers[:-1]).any():
            elements = np.argsort(numbers, kind="stable")
            numbers = numbers[elements]
        starts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1])) if len(numbers) else np.empty(0, np.int64)
        return cls(
            starts=np.append(starts, len(numbers)),
            offsets=numbers[starts] * page_size,
            page_bytes=page_size,
            elements=elements,
        )

    def listed(self, pages: Indices) -> Indices:
        """List the elements of some pages, page by page."""
        starts, counts = self.starts[pages], self.starts[pages + 1] - self.starts[pages]
        before = np.cumsum(counts) - counts
        found = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        return np.asarray(found if self.elements is None else self.elements[found])


class PageOrder:
    """The order of one epoch, node by node: position p is number ``(p - origin) // num_nodes`` of one node.

    Parameters
    ----------
    layout : PageLayout
        Of the elements that remain from `origin` on.
    key : int
        Which order.
    num_nodes : int
        Nodes that divide the pages: each needs at most its part of them and one more.
    window_pages : int
        Pages open at a time.
    origin : int
        Position of the first element.
    size : int, optional
        Position past the last one, at most ``origin + layout.num_elements``, which is the default.
    """

    def __init__(
        self,
        layout: PageLayout,
        *,
        key: int,
        num_nodes: int,
        window_pages: int,
        origin: int = 0,
        size: int | None = None,
    ) -> None:
        self.origin = origin
        self.size = origin + layout.num_elements if size is None else size
        self.has_pages = bool(layout.sizes.any())
        self._layout = layout
        self._key = key
        self._num_nodes = num_nodes
        self._pages = shuffled(layout.num_pages, child(key, 0))
        self._ends = np.cumsum(np.diff(layout.starts)[self._pages])  # elements up to and with each permuted page
        self._parts = [self._part_of(node, window_pages) for node in range(num_nodes)]
        self._windows: dict[tuple[int, int], Indices] = {}

    def at(self, positions: Indices) -> tuple[Indices, None]:
        """Look up elements; padding repeats a node's last samples, whose pages are open."""
        nodes, numbers = self._by_node(positions)
        out = np.empty(len(positions), np.int64)
        for node in np.unique(nodes).tolist():
            mine = np.flatnonzero(nodes == node)
            edges = self._parts[node].edges
            windows = np.searchsorted(edges, numbers[mine], side="right") - 1
            for window in np.unique(windows).tolist():
                chosen = mine[windows == window]
                out[chosen] = self._window(node, window)[numbers[chosen] - edges[window]]
        return out, None

    def pages_due(self, node: int, position: int, first: bool) -> int:
        """Count the pages of `node` to request before `position` is read.

        That is all of the window in use, and as much of the next one as has been used of this one. With `first` count
        those before the window in use, which are not needed any more.
        """
        part = self._parts[node]
        if part.num_windows == 0:
            return 0
        number = min(max(-(-(position - self.origin - node) // self._num_nodes), 0), int(part.edges[-1]))
        window = min(int(np.searchsorted(part.edges, number, side="right")) - 1, part.num_windows - 1)
        if first:
            return int(part.borders[window])
        low, high = part.edges[window : window + 2].tolist()
        here, after = part.borders[window + 1], part.borders[min(window + 2, part.num_windows)]
        return int(here + -(-(after - here) * (number - low) // (high - low)))

    def pages(self, node: int, start: int, stop: int) -> list[tuple[int, int, int]]:
        """List the byte ranges of pages `start` to `stop`, counted as `pages_due` does: file, first byte, length."""
        layout, part = self._layout, self._parts[node]
        chosen = part.reading[start - part.borders[0] : stop - part.borders[0]]
        files = np.zeros(len(chosen), np.int64) if layout.files is None else layout.files[chosen]
        ranges = zip(files.tolist(), layout.offsets[chosen].tolist(), layout.sizes[chosen].tolist(), strict=True)
        return [each for each in ranges if each[2]]

    def remaining(self, consumed: int) -> PageLayout:
        """Lay out what is left after `consumed` positions, for an epoch that continues with another number of nodes."""
        rest = np.sort(self.at(np.arange(consumed, self.size))[0])
        chosen = self._layout.select(rest)
        return replace(chosen, elements=rest if chosen.elements is None else rest[chosen.elements])

    def _part_of(self, node: int, window_pages: int) -> _NodePages:
        """Cut the node's elements out of the permuted pages, and its pages into windows of equal size."""
        total = self._layout.num_elements
        first = sum(_share(total, self._num_nodes, k) for k in range(node))
        last = first + _share(total, self._num_nodes, node)
        if first == last:
            nothing = np.zeros(1, np.int64)
            return _NodePages(first=first, borders=nothing, edges=nothing, reading=nothing[:0])
        start = int(np.searchsorted(self._ends, first, side="right"))
        stop = int(np.searchsorted(self._ends, last, side="left")) + 1
        num_windows = -(-(stop - start) // window_pages)
        borders = start + np.arange(num_windows + 1) * (stop - start) // num_windows
        edges = np.concatenate([[first], self._ends[borders[1:-1] - 1], [last]]) - first
        # Within a window any order of reading will do; ascending is fastest for disks.
        windows = [np.sort(part) for part in np.split(self._pages[start:stop], borders[1:-1] - start)]
        return _NodePages(first=first, borders=borders, edges=edges, reading=np.concatenate(windows))

    def _window(self, node: int, window: int) -> Indices:
        """Shuffle the elements of one window; two are kept, as batches cross from one to the next."""
        if (node, window) not in self._windows:
            part = self._parts[node]
            low, high = part.borders[window : window + 2].tolist()
            before = int(self._ends[low - 1]) if low else 0
            first, last = (part.first + part.edges[window : window + 2] - before).tolist()
            elements = self._layout.listed(self._pages[low:high])[first:last]
            if len(self._windows) >= 2:
                del self._windows[next(iter(self._windows))]
            self._windows[node, window] = elements[shuffled(len(elements), child(self._key, 1, node, window))]
        return self._windows[node, window]

    def _by_node(self, positions: Indices) -> tuple[Indices, Indices]:
        """Find the node of each position and its number in the node's order, with padding moved back inside."""
        length = self.size - self.origin
        positions = positions - self.origin
        nodes, numbers = positions % self._num_nodes, positions // self._num_nodes
        outside = np.flatnonzero(positions >= length)
        if len(outside):
            counts = _share(length, self._num_nodes, nodes[outside])
            over = numbers[outside] - counts
            numbers[outside] = counts - 1 - over % np.maximum(counts, 1)
            empty = outside[counts == 0]  # fewer samples than nodes: borrow another node's
            nodes[empty] = positions[empty] % length % self._num_nodes
            numbers[empty] = positions[empty] % length // self._num_nodes
        return nodes, numbers


@dataclass(frozen=True, kw_only=True)
class _NodePages:
    """A node's part of an epoch.

    Parameters
    ----------
    first : int
        Elements of the nodes before it.
    borders : ndarray of int64, shape (num_windows + 1,)
        Where its windows begin and end, in permuted pages.
    edges : ndarray of int64, shape (num_windows + 1,)
        The same in elements, counted from `first`.
    reading : ndarray of int64, shape (borders[-1] - borders[0],)
        Its pages in the order of reading. The first and the last may also be another node's.
    """

    first: int
    borders: Indices
    edges: Indices
    reading: Indices

    @property
    def num_windows(self) -> int:
        """Windows."""
        return len(self.borders) - 1


N = TypeVar("N", int, npt.NDArray[np.int64])


def _share(total: int, num_nodes: int, node: N) -> N:
    """Count the positions below `total` that are `node`'s."""
    return (total + num_nodes - 1 - node) // num_nodes
