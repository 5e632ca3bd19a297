"""Connects an order of samples to the page cache: announces pages ahead of their use, and pins them for each batch.

Finds the pages of each step's samples, announces them early, and releases them when the batch is finished. Knows no
pixels and no threads; the cache knows no samples.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dataloading.cache.page_cache import PageCache
from dataloading.dataset.files import FileSet
from dataloading.errors import FormatError
from dataloading.finalisers import Note
from dataloading.sampling.slicing import EpochOrder, Ranges, Step
from dataloading.stats import CacheStats

__all__ = ["PageSource", "PinnedPages", "Prefetch"]

Units = npt.NDArray[np.int64]

# Steps announced ahead if the order is not page by page, limited to a part of the cache.
_MAX_STEPS_AHEAD = 32
_MAX_BYTES_AHEAD = 1 << 30


class PinnedPages:
    """Pages that stay pinned until `release`, or until this object is garbage-collected.

    Parameters
    ----------
    cache : PageCache
    units : ndarray of int64
        Acquired units.
    """

    def __init__(self, cache: PageCache, units: Units) -> None:
        self._cache = cache
        # The thread that drops this object may hold the cache's lock, so the weak reference only records it.
        self._note: Note | None = cache.release_when_dropped(self, units)

    @property
    def released(self) -> bool:
        """Whether the pages were released."""
        return self._note is None

    def release(self) -> None:
        """Unpin the pages; may be called twice, and by any thread."""
        note, self._note = self._note, None
        if note is not None:
            self._cache.release_held(note)


class PageSource:
    """A cache, and the fields that are read from it.

    Parameters
    ----------
    cache : PageCache
    files : FileSet
        The files of the cache.
    fields : sequence of str
        Fields to be delivered.
    num_local_ranks : int
        Processes that share the cache.
    """

    def __init__(self, cache: PageCache, files: FileSet, fields: Sequence[str], num_local_ranks: int) -> None:
        self.cache = cache
        self._files = files
        self._fields = [name for name in fields if files.fields[name].has_data]
        self._num_local_ranks = num_local_ranks

    def units(self, indices: npt.NDArray[np.int64]) -> Units:
        """Find the pages of some samples; samples with damaged records have none, and fail when decoded."""
        parts = []
        for name in self._fields:
            try:
                parts.append(self.cache.units_of(*self._files.locate(name, indices)))
            except FormatError:
                parts += [self._units_of_one(name, index) for index in indices.tolist()]
        return parts[0] if len(parts) == 1 else np.unique(np.concatenate([*parts, np.empty(0, np.int64)]))

    def _units_of_one(self, name: str, index: int) -> Units:
        try:
            return self.cache.units_of(*self._files.locate(name, np.array([index])))
        except FormatError:
            return np.empty(0, np.int64)

    def units_of_ranges(self, ranges: Ranges) -> Units:
        """Find the pages of byte ranges, in order."""
        parts = []
        for file, start, num_bytes in ranges:
            size = min(num_bytes, self.cache.files[file].source.num_bytes - start)
            parts.append(
                self.cache.units_of(np.array([file]), np.array([start], np.uint64), np.array([size], np.uint64))
            )
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def ahead_bytes(self) -> int:
        """Maximum bytes that one process announces ahead, step by step."""
        bound = self.cache.cache_bytes
        return _MAX_BYTES_AHEAD if bound is None else min(_MAX_BYTES_AHEAD, bound // (2 * self._num_local_ranks))

    def prefetch(self, stopped: Callable[[], bool]) -> Prefetch:
        """Start a pass; `stopped` returns True when its batches are no longer wanted."""
        return Prefetch(self, stopped)

    def stats(self) -> CacheStats | None:
        """Return the cache's sizes; None in a forked child, which cannot use it."""
        cache = self.cache
        if cache.is_closed:
            return None
        return CacheStats(fetched_bytes=cache.fetched_bytes, taken_bytes=cache.taken_bytes, max_bytes=cache.cache_bytes)

    def release_dropped(self) -> None:
        """Unpin the pages of batches that were dropped before they were finished."""
        self.cache.release_dropped()


class Prefetch:
    """The pages of one pass over one or more epochs.

    Parameters
    ----------
    source : PageSource
    stopped : callable
        Polled while waiting for pages; True cancels the wait.
    """

    def __init__(self, source: PageSource, stopped: Callable[[], bool]) -> None:
        self._source = source
        self._cache = source.cache
        self._stopped = stopped
        self._owner = object()  # not self: the cache's threads must not keep this object alive
        self._in_use: deque[tuple[int, weakref.ref[PinnedPages]]] = deque()
        # Announcements as (step, stamp): no longer needed when all steps before `step` are released.
        self._announced: deque[tuple[int, int]] = deque()
        self._num_before = 0  # steps of earlier epochs

    def steps(self, order: EpochOrder) -> Iterator[tuple[Step, PinnedPages]]:
        """Yield each step of an epoch once its pages are loaded and pinned."""
        plan = self._by_pages(order) if order.goes_by_pages else self._by_steps(order)
        for number, (step, units) in enumerate(plan):
            self._cache.acquire(units, self._stopped)
            pins = PinnedPages(self._cache, units)
            self._in_use.append((self._num_before + number, weakref.ref(pins)))
            yield step, pins
        self._num_before += len(order)

    def close(self) -> None:
        """Withdraw all announcements. Unfinished batches keep their pinned pages."""
        self._announced.clear()
        self._cache.forget(self._owner)

    def _by_pages(self, order: EpochOrder) -> Iterator[tuple[Step, Units]]:
        """Announce a node's pages window by window."""
        known = order.pages_needed(0)[0]
        windows: deque[tuple[int, int]] = deque()  # announcements as (number of pages, stamp)
        for number in range(len(order)):
            passed = order.pages_needed(max(0, self._oldest(self._num_before + number) - self._num_before))[0]
            self._forget_passed(self._num_before + number)
            while windows and windows[0][0] <= passed:
                self._cache.forget_until(self._owner, windows.popleft()[1])
            due = order.pages_needed(number)[1]
            bring = self._source.units_of_ranges(order.readahead(number))
            if due > known:
                units = self._source.units_of_ranges(order.node_pages(known, due))
                windows.append((due, self._cache.announce(self._owner, np.unique(units), bring=bring)))
                known = due
            elif len(bring):
                self._cache.plan(self._owner, bring)
            step = order.step(number)
            yield step, self._source.units(step.indices)
        # The last window is needed until the last batch is finished.
        self._announced.extend((self._num_before + len(order), stamp) for _, stamp in windows)

    def _by_steps(self, order: EpochOrder) -> Iterator[tuple[Step, Units]]:
        """Announce the pages of some steps ahead."""
        ahead: deque[tuple[Step, Units, int]] = deque()
        ahead_bytes = 0
        begun = 0
        for number in range(len(order)):
            while begun < len(order) and (
                begun <= number or (begun < number + _MAX_STEPS_AHEAD and ahead_bytes < self._source.ahead_bytes())
            ):
                step = order.step(begun)
                units = self._source.units(step.indices)
                num_bytes = self._cache.num_bytes_of(units)
                self._announced.append((self._num_before + begun + 1, self._cache.announce(self._owner, units)))
                ahead.append((step, units, num_bytes))
                ahead_bytes += num_bytes
                begun += 1
            self._forget_passed(self._num_before + number)
            step, units, num_bytes = ahead.popleft()
            ahead_bytes -= num_bytes
            yield step, units

    def _oldest(self, coming: int) -> int:
        """Return the first unfinished step, counted over all epochs; `coming` if all earlier steps are finished."""
        while self._in_use:
            number, reference = self._in_use[0]
            pins = reference()
            if pins is not None and not pins.released:
                return number
            self._in_use.popleft()
        return coming

    def _forget_passed(self, coming: int) -> None:
        oldest = self._oldest(coming)
        while self._announced and self._announced[0][0] <= oldest:
            stamp = self._announced.popleft()[1]
            if not self._announced or self._announced[0][0] > oldest:
                self._cache.forget_until(self._owner, stamp)
