"""Units of files, loaded once for all processes of a node and kept while needed, within a size limit.

::

    announce(units)     "I shall need these": brought ahead, in this order, if that costs nobody anything needed sooner
    acquire(units)      pins them, waits until they are there   -> addresses in the map stay good
    release(units)      they may go again

A unit that no process pins or has announced for later is *past*. Past units are evicted first, oldest announcement
first. Announced units are evicted only for a waiting batch, in reverse order of need. So a dataset that fits stays in
the cache, and each unit of a larger one is read once for all ranks per pass.

`acquire` reserves space for all of its units at once, or waits with nothing reserved. Releasing needs no other units.
So ranks cannot deadlock.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.arrays import Indices
from dataloading.cache.eviction import choose
from dataloading.cache.failures import Failures
from dataloading.cache.fetchers import Fetchers, nothing
from dataloading.cache.shared_state import ABSENT, LOADING, READY, STORED, WANTED
from dataloading.cache.sparse_files import CacheFile, Store, checksum, is_full
from dataloading.dataset.remote.byte_sources import ByteSource
from dataloading.errors import BetonError, StorageError, UsageError
from dataloading.finalisers import Note

__all__ = ["CachedFile", "PageCache", "StoppedError"]

Units = npt.NDArray[np.int64]

_POLL_SECONDS = 0.003
_LOOK_AGAIN_SECONDS = 0.25
_ROOM_SECONDS = 600.0
_COLLECT_SECONDS = 2.0


class StoppedError(BetonError):
    """A wait was cancelled; never raised to users."""


class CachedFile:
    """One file of the dataset, and its units in a page file.

    Parameters
    ----------
    source : ByteSource
        Reads its bytes.
    page_file : CacheFile
    first_unit : int
        Its first unit there.
    """

    def __init__(self, source: ByteSource, page_file: CacheFile, first_unit: int = 0) -> None:
        self.source = source
        self.page_file = page_file
        self.first_unit = first_unit

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The file's bytes, read-only; only acquired units are valid."""
        start = self.first_unit * self.page_file.unit_bytes
        view = self.page_file.data[start : start + self.source.num_bytes]
        view.flags.writeable = False
        return view


class PageCache:
    """A cache of the units of some files.

    Parameters
    ----------
    store : Store
    files : sequence of CachedFile
        In the dataset's order.
    cache_bytes : int or None
        Maximum size over all processes and, in a folder, all its datasets; None: unlimited.
    grows : bool
        Whether the limit grows for a batch that needs more; otherwise that is an error.
    num_threads : int
        Maximum number of fetching threads in this process.
    """

    def __init__(
        self,
        store: Store,
        files: Sequence[CachedFile],
        *,
        cache_bytes: int | None,
        grows: bool = False,
        num_threads: int = 4,
    ) -> None:
        self._store = store
        self._roster = store.roster
        self.files = tuple(files)
        self.cache_bytes = cache_bytes
        self._grows = grows
        self._exempt: set[int] = set()
        self._exempt_bytes = 0
        # Units are numbered over all page files: the number of the page file's first unit plus the position in it.
        self._firsts = np.cumsum([0, *(each.table.num_units for each in store.files)])
        numbers = {id(page_file): number for number, page_file in enumerate(store.files)}
        homes = [numbers[id(each.page_file)] for each in self.files]
        self._bases: Indices = np.array(
            [self._firsts[home] + each.first_unit for home, each in zip(homes, self.files, strict=True)], np.int64
        )
        self._unit_bytes = np.array([each.page_file.unit_bytes for each in self.files], np.int64)
        self._file_order = np.argsort(self._bases, kind="stable")
        self._fetchers = Fetchers(self._begin, num_threads)
        self._changed = threading.Condition()
        self._failures = Failures()
        # By owner, oldest first: the stamp and the units of each announcement.
        self._announced: dict[object, deque[tuple[int, Units]]] = {}
        # Pinned units by the weak reference to their owner, and the references of dead owners.
        self._held: dict[int, Note] = {}
        self._dropped: deque[Note] = deque()

    # ---- lookup

    def units_of(self, files: Indices, pointers: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64]) -> Units:
        """Find the units that hold byte ranges of files, ascending and unique.

        Parameters
        ----------
        files : ndarray of int64, shape (n,)
            Numbers of files.
        pointers, sizes : ndarray of uint64, shape (n,)
            First byte, and number of bytes.
        """
        used = sizes > 0
        files, starts, counts = files[used], pointers[used].astype(np.int64), sizes[used].astype(np.int64)
        unit_bytes, bases = self._unit_bytes[files], self._bases[files]
        first, last = bases + starts // unit_bytes, bases + (starts + counts - 1) // unit_bytes
        longest = int((last - first).max(initial=0))
        parts = [np.minimum(first + step, last) for step in range(longest + 1)]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def are_present(self, units: Units) -> bool:
        """Whether all units are loaded, for tests and statistics."""
        return all((part.table.state[places] == READY).all() for part, places in self._parts(units))

    def bound(self, cache_bytes: int | None, *, grows: bool) -> None:
        """Set the size limit, and whether it grows for a batch that needs more."""
        self.cache_bytes, self._grows = cache_bytes, grows

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or made before this process was forked."""
        return self._roster.is_closed

    @property
    def unit_bytes(self) -> int:
        """Size of the largest units."""
        return int(self._unit_bytes.max())

    @property
    def fetched_bytes(self) -> int:
        """Bytes of units that all processes of this cache have read from storage."""
        return self._roster.fetched_bytes

    @property
    def taken_bytes(self) -> int:
        """Bytes of all units in the cache, including those of other datasets in the same folder."""
        with self._roster.locked():
            return self._taken_bytes()

    def _taken_bytes(self) -> int:
        return sum(each.taken_bytes for each in [*self._store.files, *self._store.other_files()])

    # ---- announcements

    def announce(self, owner: object, units: Units, *, bring: Units | None = None) -> int:
        """Announce that units will be needed; returns a stamp for `forget_until`.

        Parameters
        ----------
        owner : object
            Owner of the announcement; see `forget_until` and `forget`.
        units : ndarray of int64
            Units that read-ahead must not evict.
        bring : ndarray of int64, optional
            The units that this process loads, in order; by default all.
        """
        with self._roster.locked():
            stamp = self._roster.tick()
            for page_file, places in self._parts(units):
                page_file.table.announce(places, stamp)
            self._announced.setdefault(owner, deque()).append((stamp, units))
        self._fetchers.plan(owner, (units if bring is None else bring).tolist())
        return stamp

    def plan(self, owner: object, units: Units) -> None:
        """Load announced units in this order."""
        self._fetchers.plan(owner, units.tolist())

    def forget_until(self, owner: object, stamp: int) -> None:
        """Withdraw this owner's announcements up to a stamp."""
        with self._roster.locked():
            self._withdraw(owner, stamp)
        self._fetchers.wake()

    def forget(self, owner: object) -> None:
        """Withdraw all announcements of an owner."""
        if self._roster.is_closed:
            return
        self.release_dropped()
        self._fetchers.forget(owner)
        self._failures.forget_untold()
        with self._roster.locked():
            self._withdraw(owner, self._roster.clock)
        self._fetchers.wake()

    def _withdraw(self, owner: object, stamp: int) -> None:
        announced = self._announced.get(owner, deque())
        while announced and announced[0][0] <= stamp:
            for page_file, places in self._parts(announced.popleft()[1]):
                page_file.table.withdraw(places)
        if not announced:
            self._announced.pop(owner, None)

    # ---- pins

    def acquire(self, units: Units, stopped: Callable[[], bool] = bool, *, exempt: bool = False) -> None:
        """Pin units and wait until they are loaded.

        Parameters
        ----------
        units : ndarray of int64
            Ascending and unique. Each `acquire` needs one `release`.
        stopped : callable
            Polled while waiting; True cancels the wait.
        exempt : bool
            Do not count their size: for tables, which are needed while the file is open.

        Raises
        ------
        UsageError
            The cache is too small for them.
        StorageError
            A unit could not be loaded.
        StoppedError
            `stopped` returned True.
        """
        if exempt:
            with self._changed:
                new = [unit for unit in units.tolist() if unit not in self._exempt]
                self._exempt.update(new)
                self._exempt_bytes += self.num_bytes_of(np.array(new, np.int64))
        self._reserve(units, stopped, count=not exempt)
        try:
            self._complete(units, stopped)
        except BaseException:
            self.release(units)
            raise

    def release(self, units: Units) -> None:
        """Unpin units."""
        if not self._roster.is_closed:
            with self._roster.locked():
                self._unpin(units)
        self.release_dropped()
        self._fetchers.wake()

    def release_when_dropped(self, owner: object, units: Units) -> Note:
        """Unpin units at the next `release` or `release_dropped` after `owner` is garbage-collected."""
        note = Note(owner, self._dropped.append, units)
        self._held[id(note)] = note
        return note

    def release_held(self, note: Note) -> None:
        """Unpin an owner's units now; may be called twice."""
        if self._held.pop(id(note), None) is not None:
            self.release(note.attached)

    def release_dropped(self) -> None:
        """Unpin the units of owners that were garbage-collected."""
        if self._dropped and not self._roster.is_closed:
            with self._roster.locked():
                while self._dropped:
                    note = self._dropped.popleft()
                    if self._held.pop(id(note), None) is not None:
                        self._unpin(note.attached)

    def _unpin(self, units: Units) -> None:
        for page_file, places in self._parts(units):
            page_file.table.unpin(places)

    def _reserve(self, units: Units, stopped: Callable[[], bool], *, count: bool) -> None:
        needed = self.num_bytes_of(units)
        if self._grows and self.cache_bytes is not None:
            self.cache_bytes = max(self.cache_bytes, 2 * needed)
        if self.cache_bytes is not None and count and needed > self.cache_bytes:
            unit_bytes = self.unit_bytes
            raise UsageError(
                f"a batch needs {len(units)} parts of {unit_bytes:,} bytes of {self._shown_files()} at once, and "
                f"cache_bytes={self.cache_bytes:,} holds {self.cache_bytes // unit_bytes}: set cache_bytes to at least "
                f'{needed:,}, make batches smaller, or pass shuffle="pages", whose batches share few parts'
            )
        deadline = time.monotonic() + _ROOM_SECONDS
        collect_at = time.monotonic() + _COLLECT_SECONDS
        while not self._try_reserve(units):
            if stopped():
                raise StoppedError
            if time.monotonic() > collect_at:
                collect_at = float("inf")
                gc.collect()  # a loader that failed holds its pins until it is collected
            if time.monotonic() > deadline:
                raise StorageError(
                    f"{self._store.shown}: no space for {needed:,} bytes within {_ROOM_SECONDS:.0f} s: other batches "
                    f"and ranks hold all of cache_bytes={self.cache_bytes:,}; make it larger"
                )
            with self._changed:
                self._changed.wait(_POLL_SECONDS)

    def _try_reserve(self, units: Units) -> bool:
        """Pin all units if there is space, else none."""
        parts = list(self._parts(units))
        self.release_dropped()
        with self._roster.locked():
            absent = sum(
                int(np.count_nonzero(page_file.table.state[places] == ABSENT)) * page_file.unit_bytes
                for page_file, places in parts
            )
            # Units that were not announced are evicted in order of last use.
            latest = min([self._roster.clock, *(announced[0][0] for announced in self._announced.values())])
            # Pinned before eviction, so that none of them is evicted.
            for page_file, places in parts:
                page_file.table.pin(places)
                stamp = page_file.table.stamp
                stamp[places] = np.maximum(stamp[places], latest)
            if not absent or self._make_room(0, self._roster.living(), ahead=False):
                return True
            for page_file, places in parts:
                page_file.table.unpin(places)
            return False

    def _complete(self, units: Units, stopped: Callable[[], bool]) -> None:
        """Wait until all units are loaded; load those that no process is loading."""
        since = self._failures.num
        parts = [(page_file, places, units[start:stop]) for page_file, places, start, stop in self._cut(units)]
        look_at = 0.0
        while True:
            self._failures.raise_since(units.tolist(), since)
            missing = False
            look_again = time.monotonic() >= look_at
            for page_file, places, numbers in parts:
                state = page_file.table.state[places]
                idle = (state == WANTED) | (state == STORED)
                if look_again:
                    idle |= state == LOADING  # the process that loads them may have died
                missing |= bool((state != READY).any())
                if idle.any():
                    self._fetchers.want(numbers[idle].tolist())
            if not missing:
                with self._roster.locked():  # taking the lock makes other processes' writes visible
                    return
            if look_again:
                look_at = time.monotonic() + _LOOK_AGAIN_SECONDS
            if stopped():
                raise StoppedError
            with self._changed:
                self._changed.wait(_POLL_SECONDS)

    # ---- loading

    def _begin(self, unit: int, ahead: bool) -> Callable[[], None] | None:
        """Claim a unit, reserve space and return a callable that loads it; None: no space for read-ahead."""
        begun = self._guarded(unit, lambda: self._claim(unit, ahead))
        return None if begun is None else lambda: self._guarded(unit, begun)

    def _guarded(self, unit: int, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except BaseException as error:  # raised again to the caller that waits for this unit
            self._failures.note(unit, error)
            return nothing
        finally:
            with self._changed:
                self._changed.notify_all()

    def _claim(self, unit: int, ahead: bool) -> Callable[[], None] | None:
        page_file, place = self._place(unit)
        table = page_file.table
        with self._roster.locked():
            alive = self._roster.living()
            if ahead and not table.is_needed_here(place):
                return nothing
            if ahead and self._failures.is_untold(unit):
                return nothing
            if table.state[place] == ABSENT:
                if not ahead:
                    return nothing  # no caller wants it any more
                if not self._make_room(page_file.unit_bytes, alive, ahead=True):
                    return None
                table.reserve(place)
            stored = table.claim(place, alive)
        return nothing if stored is None else lambda: self._fill(unit, page_file, place, bool(stored))

    def _fill(self, unit: int, page_file: CacheFile, place: int, stored: bool) -> None:
        table = page_file.table
        num_bytes = 0
        arrived = False
        try:
            file, offset, size = self._source_of(unit)
            if not (stored and checksum(page_file.part(place, size)) == int(table.digest[place])):
                self._fetch(file, page_file, place, offset, size)
                num_bytes = size
            arrived = True
        except BaseException as error:  # recorded before others can request the unit again
            self._failures.note(unit, error)
        finally:
            with self._roster.locked():
                table.settle(place, arrived=arrived)
                self._roster.count_fetched(num_bytes)

    def _fetch(self, file: CachedFile, page_file: CacheFile, place: int, offset: int, size: int) -> None:
        room = page_file.room_for(place, size)
        file.source.fill(offset, room)
        page_file.table.digest[place] = checksum(room)
        while True:
            try:
                page_file.keep(place, room)
                return
            except OSError as error:
                with self._roster.locked():
                    freed = is_full(error) and self._evict(size, self._roster.living(), ahead=False)
                if not freed:
                    raise StorageError(
                        f"{self._store.shown}: {page_file.path} cannot be written: {error.strerror}; free space on the "
                        f"disk, or set cache_bytes= below its free space"
                    ) from error

    def fetch_again(self, units: Units, *, pinned: bool) -> None:
        """Reload units whose bytes are wrong.

        Parameters
        ----------
        units : ndarray of int64
        pinned : bool
            Only units that are pinned.
        """
        for page_file, places, start, stop in self._cut(units):
            with self._roster.locked():
                keep = page_file.table.state[places] == READY
                if pinned:
                    keep &= page_file.table.pinned(places, self._roster.living())
            for place, unit in zip(places[keep].tolist(), units[start:stop][keep].tolist(), strict=True):
                file, offset, size = self._source_of(unit)
                self._fetch(file, page_file, place, offset, size)
                with self._roster.locked():
                    self._roster.count_fetched(size)

    # ---- eviction

    def _make_room(self, needed: int, alive: dict[int, int], *, ahead: bool) -> bool:
        """Evict until `needed` more bytes fit the limit; False, without evicting, if that is impossible."""
        if self.cache_bytes is None:
            return True
        excess = self._taken_bytes() + needed - self.cache_bytes - self._exempt_bytes
        return excess <= 0 or self._evict(excess, alive, ahead=ahead)

    def _evict(self, excess: int, alive: dict[int, int], *, ahead: bool) -> bool:
        """Evict units of at least `excess` bytes in total, or none."""
        page_files = [*self._store.files, *self._store.other_files()]
        chosen = choose(page_files, excess, alive, ahead=ahead)
        for page_file, places in chosen:
            page_file.evict(places)
        return bool(chosen)

    # ---- unit numbers

    def _cut(self, units: Units) -> Iterator[tuple[CacheFile, Units, int, int]]:
        """Split ascending units by page file: the file, the positions in it, and the range of `units`."""
        if len(self._store.files) == 1:
            if len(units):
                yield self._store.files[0], units, 0, len(units)
            return
        borders = np.searchsorted(units, self._firsts)
        for number in np.flatnonzero(np.diff(borders)).tolist():
            start, stop = int(borders[number]), int(borders[number + 1])
            yield self._store.files[number], units[start:stop] - self._firsts[number], start, stop

    def _parts(self, units: Units) -> Iterator[tuple[CacheFile, Units]]:
        for page_file, places, _, _ in self._cut(np.sort(units)):
            yield page_file, places

    def _place(self, unit: int) -> tuple[CacheFile, int]:
        number = int(np.searchsorted(self._firsts, unit, side="right")) - 1
        return self._store.files[number], unit - int(self._firsts[number])

    def _source_of(self, unit: int) -> tuple[CachedFile, int, int]:
        """Find a unit's file, first byte and length."""
        order = self._file_order
        number = int(order[np.searchsorted(self._bases[order], unit, side="right") - 1])
        file = self.files[number]
        offset = (unit - int(self._bases[number])) * file.page_file.unit_bytes
        return file, offset, min(file.page_file.unit_bytes, file.source.num_bytes - offset)

    def num_bytes_of(self, units: Units) -> int:
        """Return the total size of units."""
        return sum(len(places) * page_file.unit_bytes for page_file, places in self._parts(units))

    def _shown_files(self) -> str:
        more = len(self.files) - 1
        return self.files[0].source.path + (f" and {more} more files" if more else "")

    def close(self) -> None:
        """Stop loading, and release all pins. Maps live as long as their views. May be called twice."""
        self._fetchers.close()
        self._store.close()
        for file in self.files:
            file.source.close()
