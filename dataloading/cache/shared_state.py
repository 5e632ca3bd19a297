"""State shared by the processes of a node: a robust lock, the live processes, and the state of every page.

Defines the layout of two kinds of shared blocks. A `Roster` belongs to a whole cache: its lock, its clock and its
processes. A `PageTable` belongs to one sparse file and records for each unit (page of the cache) its state, the process
that loads it, and the processes that pin it or have announced that they will need it::

    ABSENT --- reserved ---> WANTED --- claimed ---> LOADING --- arrived ---> READY --- evicted ---> ABSENT
                                ^                       |                       |
                                '----- failed, died ----'      first use by a new run: STORED (bytes to be compared
                                                               with the checksum taken when they arrived)

A unit counts towards the cache's size once it is reserved; an ABSENT one takes no space and has no pins. All changes
are made with the lock held. The lock and every process's seat are record locks of open file descriptions: the kernel
releases them when the process ends for any reason, so no process ids are compared.

Does not know where bytes come from.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.errors import FormatError, StorageError, UsageError
from dataloading.finalisers import Living
from dataloading.format.mapping import map_file

__all__ = ["ABSENT", "LOADING", "READY", "STORED", "WANTED", "PageTable", "Roster"]

ABSENT, WANTED, LOADING, STORED, READY = range(5)

NUM_SEATS = 256
_LOCK_SECONDS = 60.0
_VERSION = 2
_FLOCK = "@hhqqi4x"  # struct flock: type, whence, start, length, pid (0 for locks of an open file description)

Units = npt.NDArray[np.int64]


class Roster:
    """The lock, the clock and the processes of one cache.

    Parameters
    ----------
    file : int
        Descriptor of the block, with its own open file description. Closed with this object.

    Notes ----- Every object takes a seat: two loaders of one process have two.
    """

    RECORD = np.dtype(
        [
            ("magic", "S8"),
            ("version", "<u8"),
            ("clock", "<i8"),
            ("holder", "<i8"),
            ("fetched_bytes", "<i8"),
            ("generation", "<i8", (NUM_SEATS,)),
            ("pid", "<i8", (NUM_SEATS,)),
        ]
    )
    NUM_BYTES = RECORD.itemsize

    def __init__(self, file: int, shown: str) -> None:
        self._file = file
        self._process = os.getpid()
        self._shown = shown
        self._thread_lock = threading.Lock()
        self._record = map_file(file, self.NUM_BYTES, writable=True).view(self.RECORD)[0]
        self.seat = -1
        with self.locked():
            if not self._record["magic"]:
                self._record["magic"], self._record["version"] = b"beton-ro", _VERSION
            if bytes(self._record["magic"]) != b"beton-ro" or self._record["version"] != _VERSION:
                raise FormatError(f"{shown} was made by another version of this library: remove it")
            self._take_place()
        _close_in_children()
        _rosters.add(self)

    def _take_place(self) -> None:
        for seat in range(NUM_SEATS):
            if not self._is_taken(seat):
                self._set_lock(1 + seat, fcntl.F_WRLCK)
                self.seat = seat
                self.generation = self.tick()
                self._record["generation"][seat] = self.generation
                self._record["pid"][seat] = os.getpid()
                return
        raise StorageError(f"{self._shown}: {NUM_SEATS} loaders share it already, and there is no seat for another")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the cache's lock; only briefly, never while reading or writing pages.

        Raises
        ------
        StorageError
            Another process holds the lock for too long (it may have been stopped).
        """
        with self._thread_lock:
            if self._file < 0:
                raise UsageError(
                    f"{self._shown}: the loader was closed, or made before this process was forked: make it in the "
                    f"process that iterates it"
                )
            deadline = time.monotonic() + _LOCK_SECONDS
            wait = 0.0001
            while not self._set_lock(0, fcntl.F_WRLCK):
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"{self._shown}: process {self._record['holder']} has held the cache's lock for "
                        f"{_LOCK_SECONDS:.0f} s; it may have been stopped: resume or end it"
                    )
                time.sleep(wait)
                wait = min(2 * wait, 0.005)
            self._record["holder"] = os.getpid()
            try:
                yield
            finally:
                self._set_lock(0, fcntl.F_UNLCK)

    def tick(self) -> int:
        """Advance the clock; requires the lock."""
        self._record["clock"] += 1
        return int(self._record["clock"])

    @property
    def clock(self) -> int:
        """The last tick."""
        return int(self._record["clock"])

    def count_fetched(self, num_bytes: int) -> None:
        """Add to the bytes read from storage; requires the lock."""
        self._record["fetched_bytes"] += num_bytes

    @property
    def fetched_bytes(self) -> int:
        """Bytes that all processes have read from storage."""
        return int(self._record["fetched_bytes"])

    def living(self) -> dict[int, int]:
        """Return the generation of every seat whose process is alive; requires the lock."""
        seats = np.flatnonzero(self._record["generation"]).tolist()
        generations = self._record["generation"]
        alive = {}
        for seat in seats:
            if seat == self.seat or self._is_taken(seat):
                alive[seat] = int(generations[seat])
            else:
                generations[seat] = 0
        return alive

    @property
    def is_closed(self) -> bool:
        """Whether the seat was released, or belongs to the parent of this forked process."""
        return self._file < 0

    def close(self) -> None:
        """Release the seat and all its pins. In a forked child: forget the parent's seat, which stays taken."""
        if self._file >= 0:
            if os.getpid() == self._process:
                self._set_lock(1 + self.seat, fcntl.F_UNLCK)  # forked children may hold the description too
            file, self._file = self._file, -1
            os.close(file)

    def _set_lock(self, byte: int, kind: int) -> bool:
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def _is_taken(self, seat: int) -> bool:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 1 + seat, 1, 0)
        answer = fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, asked)
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


_rosters: Living[Roster] = Living()


@functools.cache
def _close_in_children() -> None:
    """Make forked children close the lock's file, so that a parent's seat is released when the parent dies."""

    def close_all() -> None:
        for roster in list(_rosters):
            roster.close()

    os.register_at_fork(after_in_child=close_all)


class PageTable:
    """The state of the units of one sparse file.

    Parameters
    ----------
    roster : Roster
        The cache's roster; its lock is held for every change below.
    file : int
        Descriptor of the block of `size_for` bytes; may be closed afterwards.
    num_units, unit_bytes : int
        Expected size; 0 accepts the stored one.
    shown : str
        Its name in messages.

    Attributes
    ----------
    state : uint8 array, shape (num_units,)
    stamp : int64 array, shape (num_units,)
        When a unit was last announced or requested.
    owner : int64 array, shape (num_units,)
        Generation of the process that is loading it.
    digest : uint64 array, shape (num_units,)
        Checksum of the bytes as loaded.
    """

    _HEAD = np.dtype(
        [
            ("magic", "S8"),
            ("version", "<u8"),
            ("num_units", "<i8"),
            ("unit_bytes", "<i8"),
            ("attached", "<i8", (NUM_SEATS,)),
        ]
    )

    def __init__(self, roster: Roster, file: int, num_units: int, unit_bytes: int, shown: str) -> None:
        self._roster = roster
        num_bytes = os.fstat(file).st_size
        block = map_file(file, num_bytes, writable=True)
        self._head = block[: self._HEAD.itemsize].view(self._HEAD)[0]
        if not self._head["magic"] and num_units:
            self._head["magic"], self._head["version"] = b"beton-pt", _VERSION
            self._head["num_units"], self._head["unit_bytes"] = num_units, unit_bytes
        self.num_units, self.unit_bytes = int(self._head["num_units"]), int(self._head["unit_bytes"])
        fits = bytes(self._head["magic"]) == b"beton-pt" and self._head["version"] == _VERSION
        fits &= num_bytes == self.size_for(self.num_units)
        if not fits or (num_units and (num_units, unit_bytes) != (self.num_units, self.unit_bytes)):
            raise FormatError(f"{shown} does not fit the file that is cached here: remove it")
        position = self._HEAD.itemsize

        def part(dtype: str, *shape: int) -> npt.NDArray[Any]:
            nonlocal position
            position = -(-position // 8) * 8
            num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
            array = block[position : position + num_bytes].view(dtype).reshape(shape)
            position += num_bytes
            return array

        self.state: npt.NDArray[np.uint8] = part("<u1", self.num_units)
        self.stamp: npt.NDArray[np.int64] = part("<i8", self.num_units)
        self.owner: npt.NDArray[np.int64] = part("<i8", self.num_units)
        self.digest: npt.NDArray[np.uint64] = part("<u8", self.num_units)
        self._pins: npt.NDArray[np.uint16] = part("<u2", NUM_SEATS, self.num_units)
        self._needs: npt.NDArray[np.uint16] = part("<u2", NUM_SEATS, self.num_units)  # announcements

    @classmethod
    def size_for(cls, num_units: int) -> int:
        """Return the size of a table in bytes; untouched parts take no memory."""
        return cls._HEAD.itemsize + 8 * 6 + num_units * (1 + 8 + 8 + 8 + 4 * NUM_SEATS)

    @property
    def num_taken(self) -> int:
        """Number of units that take space. Recounted each time, so that a process death cannot corrupt it."""
        return int(np.count_nonzero(self.state))

    def attach(self) -> None:
        """Join this table, as pins and announcements require. The first process marks existing units as unverified."""
        seat = self._roster.seat
        if not self._attached(self._roster.living()):
            self.state[(self.state == LOADING) | (self.state == WANTED)] = ABSENT
            self.state[self.state == READY] = STORED
        self._pins[seat] = self._needs[seat] = 0
        self._head["attached"][seat] = self._roster.generation

    def in_use(self) -> bool:
        """Whether any live process has joined."""
        return bool(self._attached(self._roster.living()))

    def _attached(self, alive: dict[int, int]) -> list[int]:
        attached = self._head["attached"]
        return [seat for seat, generation in alive.items() if attached[seat] == generation]

    # ---- announcements

    def announce(self, units: Units, stamp: int) -> None:
        """Record that this process will need units; each `announce` needs one `withdraw`."""
        self._needs[self._roster.seat, units] += 1
        self.stamp[units] = stamp

    def withdraw(self, units: Units) -> None:
        """Record that this process has no more need of units that it announced."""
        self._needs[self._roster.seat, units] -= 1

    def is_needed_here(self, unit: int) -> bool:
        """Whether this process has announced a unit."""
        return bool(self._needs[self._roster.seat, unit])

    def needed(self, units: Units, alive: dict[int, int]) -> npt.NDArray[np.bool_]:
        """Return which of some units a live process has announced."""
        return self._counted(self._needs, units, alive)

    # ---- pins

    def pin(self, units: Units) -> int:
        """Pin units for this process, and reserve space for absent ones; returns how many were absent."""
        absent = units[self.state[units] == ABSENT]
        self.state[absent] = WANTED
        self._pins[self._roster.seat, units] += 1
        return len(absent)

    def unpin(self, units: Units) -> None:
        """Unpin units; unpinned units that are not loaded become absent."""
        self._pins[self._roster.seat, units] -= 1
        wanted = units[self.state[units] == WANTED]
        if len(wanted):
            self.drop(wanted[~self.pinned(wanted, self._roster.living())])

    def reserve(self, unit: int) -> None:
        """Reserve space for an absent unit without a pin, to load it at once."""
        self.state[unit] = WANTED

    def pinned(self, units: Units, alive: dict[int, int]) -> npt.NDArray[np.bool_]:
        """Return which of some units a live process has pinned."""
        return self._counted(self._pins, units, alive)

    def _counted(self, counts: npt.NDArray[np.uint16], units: Units, alive: dict[int, int]) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(units), np.bool_)
        for seat in self._attached(alive):
            found |= counts[seat, units] > 0
        return found

    # ---- loading

    def claim(self, unit: int, alive: dict[int, int]) -> bool | None:
        """Claim a unit for loading; None if that is not needed, else whether its bytes only need checking."""
        state = self.state[unit]
        if state == LOADING and int(self.owner[unit]) not in alive.values():
            state = np.uint8(WANTED)  # the process that was loading it is dead
        if state not in (WANTED, STORED):
            return None
        self.state[unit], self.owner[unit] = LOADING, self._roster.generation
        return bool(state == STORED)

    def settle(self, unit: int, *, arrived: bool) -> None:
        """Finish loading a unit: it is READY; or, after a failure, WANTED if pinned, else ABSENT."""
        self.owner[unit] = 0
        if arrived:
            self.state[unit] = READY
        elif self.pinned(np.array([unit]), self._roster.living())[0]:
            self.state[unit] = WANTED
        else:
            self.drop(np.array([unit]))

    def drop(self, units: Units) -> None:
        """Mark units as absent; their bytes have been freed."""
        self.state[units] = ABSENT

    def evictable(self, alive: dict[int, int]) -> Units:
        """List the units that take space and are neither pinned nor loading."""
        units = np.flatnonzero((self.state == READY) | (self.state == STORED))
        if len(units) < self.num_taken:  # some are loading: the process may have died
            loading = np.flatnonzero((self.state == LOADING) | (self.state == WANTED))
            orphans = loading[~np.isin(self.owner[loading], list(alive.values()))]
            units = np.concatenate([units, orphans])
        return units[~self.pinned(units, alive)]
