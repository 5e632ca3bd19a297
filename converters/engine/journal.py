"""The journal of a conversion, from which another process can resume.

Manages two hidden files beside a destination, ``.NAME.beton.part`` (the unfinished file) and ``.NAME.beton.journal``,
and the lock on the journal, which the system releases when the process ends. The journal is only appended to. Each
record has a checksum, and is written after the bytes that it describes are on the disk. So after any interruption, the
journal's valid beginning describes bytes that exist. ``one_file.py`` defines the meaning of records.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from dataloading import ConvertError, UsageError
from dataloading.tools import open_locked, sync_folder

__all__ = ["Journal", "journal_path", "part_path"]

State = Mapping[str, Any]
"""The content of a record, as JSON values."""
Record = tuple[State, bytes]
"""A state, and the writer's checkpoint."""

MAGIC = b"beton journal 2\n"
_FRAME = struct.Struct("<QQ")  # length and checksum of the record
_LARGEST_RECORD = 1 << 40


def part_path(path: str) -> str:
    """Return the path of the unfinished file of the destination ``path``.

    Examples
    --------
    >>> part_path("data/train.beton")
    'data/.train.beton.part'
    """
    return _hidden(path, "part")


def journal_path(path: str) -> str:
    """Return the path of the journal of the destination ``path``."""
    return _hidden(path, "journal")


def _hidden(path: str, ending: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name.removesuffix('.beton')}.beton.{ending}")


class Journal:
    """The journal of one destination, locked for this process.

    Parameters
    ----------
    path : str
        The destination.
    wait_seconds : float
        How long to wait for a process that holds the lock but may be ending.

    Raises
    ------
    UsageError
        If another process is converting to the same destination.
    ConvertError
        If the file with the journal's name is not a journal.
    OSError
        If it cannot be created.

    Attributes
    ----------
    header : mapping or None
        The first record's state; None in a new journal.
    last : mapping or None
        The state of the newest valid record after the header.
    """

    def __init__(self, path: str, *, wait_seconds: float = 0.0) -> None:
        self.path = path
        self.name = journal_path(path)
        self.part = part_path(path)
        self.header: State | None = None
        self.last: State | None = None
        self._end = len(MAGIC)
        try:
            self._fd = open_locked(self.name, wait_seconds=wait_seconds)
        except BlockingIOError:
            raise UsageError(
                f"another process is converting to {path} at this moment (it holds {self.name}); wait for it, end it, "
                "or name another file"
            ) from None
        self._saver: threading.Thread | None = None
        self._failure: BaseException | None = None
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        start = os.pread(self._fd, len(MAGIC), 0)
        if start != MAGIC[: len(start)]:
            raise ConvertError(f"{self.name} is not a journal of this version; remove it, or name another destination")
        for end, (state, _) in self._records():
            self._end = end
            if self.header is None:
                self.header = state
            else:
                self.last = state

    def _records(self) -> Iterator[tuple[int, Record]]:
        """Yield the valid records, each with its end offset; an incomplete or damaged record ends the journal."""
        position = len(MAGIC)
        while len(frame := os.pread(self._fd, _FRAME.size, position)) == _FRAME.size:
            length, checksum = _FRAME.unpack(frame)
            position += _FRAME.size
            if length > min(_LARGEST_RECORD, os.fstat(self._fd).st_size - position):
                return
            body = os.pread(self._fd, length, position)
            if xxhash.xxh3_64_intdigest(body) != checksum:
                return
            position += length
            text, _, checkpoint = body.partition(b"\n")
            yield position, (json.loads(text), checkpoint)

    @property
    def has_work(self) -> bool:
        """Whether there is a checkpoint and the unfinished file that it describes."""
        return self.last is not None and os.path.exists(self.part)

    def records(self) -> Iterator[Record]:
        """Yield the records after the header, oldest first."""
        for number, (end, record) in enumerate(self._records()):
            if end > self._end:
                return
            if number:
                yield record

    def begin(self, header: State) -> None:
        """Start over: remove the unfinished file and all records, and write the header."""
        with contextlib.suppress(FileNotFoundError):
            Path(self.part).unlink()
        os.ftruncate(self._fd, 0)
        self.header, self.last, self._end = header, None, len(MAGIC)
        _write_all(self._fd, MAGIC, 0)
        self._append(header)
        sync_folder(os.path.dirname(self.name))

    def reopen(self) -> None:
        """Truncate the journal after the newest valid record, before records are appended."""
        os.ftruncate(self._fd, self._end)

    def save(self, state: State, checkpoint: bytes, sync: Callable[[], object], *, wait: bool = False) -> None:
        """Call ``sync``, which syncs the unfinished file to disk, and append a record, in another thread.

        Parameters
        ----------
        wait : bool
            Return only when the record is on the disk.

        Raises
        ------
        OSError
            If this or an earlier record could not be written.
        """
        self.settle()

        def run() -> None:
            try:
                sync()
                self._append(state, checkpoint)
                self.last = state
            except BaseException as error:
                self._failure = error

        # The disk may need seconds for the output of one second; the conversion does not wait for it.
        self._saver = threading.Thread(target=run, name="beton-journal")
        self._saver.start()
        if wait:
            self.settle()

    @property
    def is_broken(self) -> bool:
        """Whether saving a record failed; none may follow, as each record is a difference from the previous one."""
        return self._failure is not None

    @property
    def is_saving(self) -> bool:
        """Whether a record is being written."""
        return self._saver is not None and self._saver.is_alive()

    def settle(self) -> None:
        """Wait for the record that is being written, and raise its error."""
        self._join()
        if self._failure is not None:
            raise self._failure

    def _append(self, state: State, checkpoint: bytes = b"") -> None:
        body = json.dumps(state, allow_nan=False).encode("ascii") + b"\n" + checkpoint
        data = _FRAME.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body
        _write_all(self._fd, data, self._end)
        os.fdatasync(self._fd)
        self._end += len(data)

    def remove(self) -> None:
        """Remove journal and unfinished file, and release the lock."""
        self._join()
        for name in (self.part, self.name):
            with contextlib.suppress(FileNotFoundError):
                Path(name).unlink()
        self.close()

    def close(self) -> None:
        """Release the lock and keep the files. Does nothing on a second call."""
        self._join()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _join(self) -> None:
        if self._saver is not None:
            self._saver.join()
            self._saver = None


def _write_all(descriptor: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while len(view):
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written
