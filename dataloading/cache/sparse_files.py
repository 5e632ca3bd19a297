"""The sparse files of a cache, and a folder of them.

A store owns the roster and one or more `CacheFile`s. In a folder each cached file has its own sparse file and table,
which outlive the run; all loaders that use the folder share its size limit. In memory there is one sparse file for the
whole dataset (`memory_store`). Knows no sources and no orders.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from dataloading.cache.memory_maps import give_back
from dataloading.cache.shared_state import PageTable, Roster
from dataloading.errors import FormatError, UsageError
from dataloading.format.mapping import map_file

__all__ = ["CacheFile", "FolderStore", "Store", "checksum", "is_full", "num_units"]

Bytes = npt.NDArray[np.uint8]
Units = npt.NDArray[np.int64]

# Maps are not coherent between machines, and not every network file system can punch holes.
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "9p", "afs", "fuse.sshfs")


def num_units(num_bytes: int, unit_bytes: int) -> int:
    """Count the units of a file."""
    return -(-num_bytes // unit_bytes)


class CacheFile:
    """A sparse file and its table.

    Parameters
    ----------
    table : PageTable
    data : uint8 array
        The whole sparse file, mapped for writing.
    path : str or None
        Path, if bytes are written with write calls; None: directly into memory.
    """

    def __init__(self, table: PageTable, data: Bytes, path: str | None) -> None:
        self.table = table
        self.data = data
        self.path = path

    @property
    def unit_bytes(self) -> int:
        """Size of a unit; the file's last unit may be shorter."""
        return self.table.unit_bytes

    @property
    def taken_bytes(self) -> int:
        """Space that its units take."""
        return self.table.num_taken * self.table.unit_bytes

    def part(self, unit: int, num_bytes: int) -> Bytes:
        """View the first bytes of a unit."""
        start = unit * self.unit_bytes
        return self.data[start : start + num_bytes]

    def room_for(self, unit: int, num_bytes: int) -> Bytes:
        """Return memory to load a unit into; call `keep` afterwards."""
        return self.part(unit, num_bytes) if self.path is None else _aligned(num_bytes)

    def keep(self, unit: int, arrived: Bytes) -> None:
        """Write bytes to their position, if they are not there yet.

        Raises
        ------
        OSError
            The disk is full or broken. Uses write calls, since a failed write to a map kills the process.
        """
        if self.path is None:
            return
        file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < len(arrived):
                done += os.pwrite(file, arrived[done:].data, unit * self.unit_bytes + done)
        finally:
            os.close(file)

    def evict(self, units: Units) -> None:
        """Free the space of units; requires the lock."""
        for unit in units.tolist():
            give_back(self.part(unit, self.unit_bytes))
        self.table.drop(units)


class Store(Protocol):
    """A roster and sparse files."""

    shown: str
    roster: Roster
    files: list[CacheFile]

    def other_files(self) -> list[CacheFile]:
        """Return the store's page files of other datasets, which share its size limit."""
        ...

    def close(self) -> None:
        """Release the seat and all pins; maps live as long as their views."""
        ...


class FolderStore:
    """Sparse files in a folder on a disk of this machine.

    Parameters
    ----------
    folder : path
        Created if missing.

    Raises
    ------
    UsageError
        It lies on a network file system, or on one that cannot punch holes in files.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).expanduser()
        self.shown = f"cache_dir={os.fspath(folder)!r}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.shown} cannot be created: {error}") from error
        _refuse_network(self._folder, self.shown)
        self._check_holes()
        self.roster = Roster(self._open("roster", Roster.NUM_BYTES), self.shown)
        self.files: list[CacheFile] = []
        self._others: dict[str, CacheFile] = {}
        self._own: set[str] = set()
        self._seen_ns = -1

    def add(self, path: str, identity: str, num_bytes: int, unit_bytes: int) -> CacheFile:
        """Open or create the page file of one file; remove unused page files of its older versions.

        Parameters
        ----------
        path : str
            The file's own path or address.
        identity : str
            Changes with its content.
        num_bytes, unit_bytes : int
        """
        stem = f"{_readable(path)}-{_digest(path)}"
        name = f"{stem}-{_digest(identity)}-{unit_bytes}"
        with self.roster.locked():
            for other in self._folder.glob(f"{stem}-*.table"):
                if not other.stem.startswith(f"{stem}-{_digest(identity)}"):
                    self._remove_unused(other.stem)
            units = num_units(num_bytes, unit_bytes)
            table_file = self._open(f"{name}.table", PageTable.size_for(units))
            pages_file = self._open(f"{name}.pages", units * unit_bytes)
            try:
                table = PageTable(self.roster, table_file, units, unit_bytes, str(self._folder / f"{name}.table"))
                table.attach()
                data = map_file(pages_file, units * unit_bytes, writable=True)
            finally:
                os.close(table_file)
                os.close(pages_file)
        self._own.add(name)
        self._others.pop(name, None)
        self.files.append(CacheFile(table, data, str(self._folder / f"{name}.pages")))
        return self.files[-1]

    def other_files(self) -> list[CacheFile]:
        """Return the other page files of the folder."""
        changed_ns = self._folder.stat().st_mtime_ns
        if changed_ns != self._seen_ns:
            self._seen_ns = changed_ns
            names = {each.stem for each in self._folder.glob("*.table")} - self._own
            found = {name: self._others.get(name) or self._open_other(name) for name in sorted(names)}
            self._others = {name: page_file for name, page_file in found.items() if page_file is not None}
        return list(self._others.values())

    def _open_other(self, name: str) -> CacheFile | None:
        try:
            table_file = self._open(f"{name}.table")
            try:
                table = PageTable(self.roster, table_file, 0, 0, name)
            finally:
                os.close(table_file)
            pages_file = self._open(f"{name}.pages")
            try:
                data = map_file(pages_file, table.num_units * table.unit_bytes, writable=True)
            finally:
                os.close(pages_file)
        except (OSError, FormatError, ValueError):  # not a cache file, or being removed
            return None
        return CacheFile(table, data, str(self._folder / f"{name}.pages"))

    def _remove_unused(self, name: str) -> None:
        other = self._open_other(name)
        if other is not None and not other.table.in_use():
            for suffix in ("pages", "table"):
                (self._folder / f"{name}.{suffix}").unlink(missing_ok=True)

    def _open(self, name: str, num_bytes: int = 0) -> int:
        """Open a file of the folder; create it with `num_bytes` bytes if it is missing."""
        make = os.O_CREAT if num_bytes else 0
        file = os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC | make, 0o600)
        size = os.fstat(file).st_size
        if num_bytes and size == 0:
            os.ftruncate(file, num_bytes)
        elif num_bytes and size != num_bytes:
            os.close(file)
            raise UsageError(f"{self.shown}: {name} was made by another version of this library: remove the folder")
        return file

    def _check_holes(self) -> None:
        name = f".holes-{os.getpid()}"
        file = self._open(name, 1 << 16)
        try:
            block = map_file(file, 1 << 16, writable=True)
            block[:] = 1
            give_back(block)
        except OSError as error:
            raise UsageError(
                f"{self.shown} lies on a file system that cannot punch holes in files ({error}): choose a folder "
                f"on a local disk (ext4, xfs, btrfs, tmpfs)"
            ) from error
        finally:
            os.close(file)
            with contextlib.suppress(FileNotFoundError):
                (self._folder / name).unlink()

    def close(self) -> None:
        """Release the seat and all pins; cached bytes stay."""
        self.roster.close()


def _aligned(num_bytes: int, alignment: int = 4096) -> Bytes:
    """Allocate memory that a device can write to directly."""
    block = np.empty(num_bytes + alignment, np.uint8)
    start = -block.ctypes.data % alignment
    return block[start : start + num_bytes]


def checksum(data: Bytes) -> int:
    """Return the checksum of cached bytes."""
    return int(xxhash.xxh3_64_intdigest(data.data))


def is_full(error: OSError) -> bool:
    """Whether an error says that the disk is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _refuse_network(folder: Path, shown: str) -> None:
    """Raise UsageError for a folder on a network file system."""
    target = os.path.realpath(folder)
    best, kind = "", ""
    with contextlib.suppress(OSError), open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            fields, _, rest = line.partition(" - ")
            point = fields.split()[4].encode().decode("unicode_escape")
            inside = target == point or target.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, rest.split()[0]
    if kind in _NETWORK_FILE_SYSTEMS:
        raise UsageError(
            f"{shown} lies on a network file system ({kind} at {best}): choose a folder on a disk of this machine"
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _readable(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "_", path.rstrip("/").rpartition("/")[2])[:60] or "file"
