"""A cache in memory that the processes of a node share; it ends with the last of them.

Three anonymous files (memfd) hold roster, table and pages. The first process to bind an abstract socket named after the
cache creates them and sends their descriptors to every process that connects. When that process ends, another one takes
over the socket's name, so that later processes still find the cache. Nothing remains on disk. Linux.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import select
import socket
import struct
import threading
import time
import warnings

from dataloading._native import this_thread_is_own
from dataloading.cache.shared_state import PageTable, Roster
from dataloading.cache.sparse_files import CacheFile
from dataloading.errors import UsageError
from dataloading.finalisers import Living
from dataloading.format.mapping import map_file

__all__ = ["MemoryStore"]

_JOIN_SECONDS = 10.0
_ANSWER_SECONDS = 2.0


class MemoryStore:
    """Memory for units, shared by all processes that use the same name.

    Parameters
    ----------
    name : str
        Names the dataset, the node and the job.
    num_units, unit_bytes : int
        Of the sparse file; only used units take memory.
    """

    shown = "os_cache=False"

    def __init__(self, name: str, num_units: int, unit_bytes: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise UsageError("os_cache=False and cache_bytes= need Linux")
        digest = hashlib.sha256(f"{name} {num_units} {unit_bytes}".encode()).hexdigest()[:32]
        address = f"\0beton-{os.getuid()}-{digest}"
        files = _find_or_make(address, num_units, unit_bytes)
        # Locks belong to an open file description, so this object needs its own.
        own = os.open(f"/proc/self/fd/{files.roster}", os.O_RDWR | os.O_CLOEXEC)
        self.roster = Roster(own, self.shown)
        with self.roster.locked():
            table = PageTable(self.roster, files.table, num_units, unit_bytes, self.shown)
            table.attach()
        self.files = [CacheFile(table, map_file(files.pages, num_units * unit_bytes, writable=True), None)]
        self._keeper = _Keeper(address, files)

    def resident_bytes(self) -> int:
        """Count the bytes of memory that the pages take."""
        return os.fstat(self._keeper.files.pages).st_blocks * 512

    @property
    def hands_out(self) -> bool:
        """Whether this process sends the descriptors to new processes."""
        return self._keeper.files.listener is not None

    def other_files(self) -> list[CacheFile]:
        """Return the page files of other datasets: none."""
        return []

    def close(self) -> None:
        """Release the seat and all pins, and stop sending descriptors."""
        self._keeper.close()
        self.roster.close()


class _Files:
    """The three descriptors, and the listening socket of the process that created them."""

    def __init__(self, roster: int, table: int, pages: int, listener: socket.socket | None = None) -> None:
        self.roster, self.table, self.pages = roster, table, pages
        self.listener = listener

    def close(self) -> None:
        for file in (self.roster, self.table, self.pages):
            os.close(file)


class _Keeper:
    """A thread that sends the descriptors, or waits to take over when the process that sends them dies."""

    def __init__(self, address: str, files: _Files) -> None:
        self.files = files
        self._close_signal, self._close_watch = socket.socketpair()
        self._thread = threading.Thread(
            target=_keep, args=(address, files, self._close_watch), name="beton-cache-keeper", daemon=True
        )
        self._process = os.getpid()
        self._closed = False
        _close_in_children()
        _keepers.add(self)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close the descriptors."""
        if self._closed:
            return
        self._closed = True
        if self._process == os.getpid():
            self._close_signal.shutdown(socket.SHUT_WR)  # close() is not enough: a forked child may have it too
        self._close_signal.close()
        if self._process == os.getpid():
            self._thread.join()
            del self._thread  # freed here, not by a caller: see _Crew.end in workers.py
        elif self.files.listener is not None:
            self.files.listener.close()
        self._close_watch.close()
        self.files.close()


_keepers: Living[_Keeper] = Living()


@functools.cache
def _close_in_children() -> None:
    """Make forked children close the socket, which would keep the parent's name bound after its death."""

    def close_all() -> None:
        for keeper in list(_keepers):
            keeper.close()

    os.register_at_fork(after_in_child=close_all)


def _keep(address: str, files: _Files, asleep: socket.socket) -> None:
    this_thread_is_own()
    while True:
        listener, files.listener = files.listener or _bound(address), None
        if listener is not None:
            files.listener = listener
            _hand_out(listener, files, asleep)
            listener.close()
            return
        with socket.socket(socket.AF_UNIX) as giver:
            giver.settimeout(_ANSWER_SECONDS)
            try:
                giver.connect(address)
                giver.send(b"w")
            except OSError:
                if select.select([asleep], [], [], 0.05)[0]:
                    return
                continue
            # Readable when it is closed, that is when the sender has died. Ignore any data.
            if asleep in select.select([giver, asleep], [], [])[0]:
                return


def _hand_out(listener: socket.socket, files: _Files, asleep: socket.socket) -> None:
    """Answer a connection: "g" gets the descriptors, "w" stays connected to notice our death."""
    watchers: list[socket.socket] = []
    listener.settimeout(_ANSWER_SECONDS)
    try:
        while True:
            ready = select.select([listener, asleep, *watchers], [], [])[0]
            if asleep in ready:
                return
            for gone in [each for each in watchers if each in ready]:
                watchers.remove(gone)
                gone.close()
            if listener not in ready:
                continue
            with contextlib.suppress(OSError):
                guest, _ = listener.accept()
                guest.settimeout(_ANSWER_SECONDS)
                if _peer(guest) != os.getuid():
                    guest.close()
                elif guest.recv(1) == b"w":
                    watchers.append(guest)
                else:
                    socket.send_fds(guest, [b"f"], [files.roster, files.table, files.pages])
                    guest.close()
    finally:
        for each in watchers:
            each.close()


def _find_or_make(address: str, num_units: int, unit_bytes: int) -> _Files:
    deadline = time.monotonic() + _JOIN_SECONDS
    while time.monotonic() < deadline:
        listener = _bound(address)
        if listener is not None:
            return _make(num_units, unit_bytes, listener)
        files = _received(address)
        if files is not None:
            return files
        time.sleep(0.02)
    warnings.warn(
        f"the process that holds this dataset's cache does not answer within {_JOIN_SECONDS:.0f} s: this one uses a "
        f"cache of its own, which needs as much memory again",
        stacklevel=2,
    )
    return _make(num_units, unit_bytes, None)


def _make(num_units: int, unit_bytes: int, listener: socket.socket | None) -> _Files:
    files: list[int] = []
    sizes = {"roster": Roster.NUM_BYTES, "table": PageTable.size_for(num_units), "pages": num_units * unit_bytes}
    for name, num_bytes in sizes.items():
        file = os.memfd_create(f"beton-{name}", os.MFD_CLOEXEC)
        os.ftruncate(file, num_bytes)
        files.append(file)
    roster, table, pages = files
    return _Files(roster, table, pages, listener)


def _bound(address: str) -> socket.socket | None:
    """Bind the name, or return None if another process has it."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError:
        listener.close()
        return None
    return listener


def _received(address: str) -> _Files | None:
    """Request the descriptors from the process that has the name; None if it does not answer."""
    with socket.socket(socket.AF_UNIX) as giver:
        giver.settimeout(_ANSWER_SECONDS)
        try:
            giver.connect(address)
            if _peer(giver) != os.getuid():
                return None
            giver.send(b"g")
            message, files, _, _ = socket.recv_fds(giver, 1, 3)
        except OSError:
            return None
    if message != b"f" or len(files) != 3:
        for file in files:
            os.close(file)
        return None
    for file in files:
        os.set_inheritable(file, False)
    roster, table, pages = files
    return _Files(roster, table, pages)


def _peer(connection: socket.socket) -> int:
    """Return the user id of the connected process."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
