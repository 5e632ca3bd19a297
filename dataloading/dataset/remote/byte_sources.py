"""Sources of the cache's bytes: local files, read bypassing the system's page cache, and objects in stores.

A source fills memory with a range of one file's bytes, or raises an error; it never returns wrong bytes silently.
Handles retries, time limits and checksums; clients.py talks to stores. Knows nothing of caches.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dataloading.dataset.remote.clients import RetryableError, StoreClient, error_text, version_of
from dataloading.errors import StorageError
from dataloading.format import Region
from dataloading.retry import Retry

__all__ = ["ByteSource", "LocalSource", "RemoteSource", "ask"]

Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")

_SECTOR_BYTES = 4096
_BEYOND_THE_END = 416  # HTTP: range not satisfiable


class ByteSource(Protocol):
    """A source of one file's bytes."""

    path: str
    num_bytes: int
    identity: str

    def fill(self, offset: int, out: Bytes) -> None:
        """Fill `out` with the bytes from `offset` on; called by many threads.

        Raises
        ------
        StorageError
            The bytes could not be read.
        """
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class LocalSource:
    """A file of a local or network file system, read without filling the system's page cache.

    Parameters
    ----------
    path : str
    """

    def __init__(self, path: str) -> None:
        self.path = path
        stat = os.stat(path)
        self.num_bytes = stat.st_size
        self.identity = f"{os.path.realpath(path)} {stat.st_ino} {self.num_bytes} {stat.st_mtime_ns}"

    def fill(self, offset: int, out: Bytes) -> None:
        """Fill `out` with the bytes from `offset` on: with direct I/O if the file system supports it."""
        try:
            done = self._fill_directly(offset, out)
            if done < len(out):
                done += self._fill_buffered(offset + done, out[done:])
        except OSError as error:
            raise StorageError(f"{self.path}: bytes {offset} to {offset + len(out) - 1}: {error}") from error
        if done < len(out):
            raise StorageError(
                f"{self.path}: the file ends at byte {offset + done}, where it had {self.num_bytes} bytes when it was "
                f"opened: it was replaced or cut short; restore it and start again"
            )

    def close(self) -> None:
        """Do nothing: files are open only during reads."""

    def _fill_directly(self, offset: int, out: Bytes) -> int:
        """Read with direct I/O; returns the number of bytes read, fewer where that is impossible."""
        direct = getattr(os, "O_DIRECT", 0)
        # Direct reads need whole sectors; the rest of `out` is read through the page cache.
        whole = len(out) - len(out) % _SECTOR_BYTES
        if not direct or offset % _SECTOR_BYTES or out.ctypes.data % _SECTOR_BYTES or not whole:
            return 0
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | direct)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return 0
            raise
        try:
            done = 0
            while done < whole:
                num = os.preadv(file, [out[done:whole].data], offset + done)
                done += num
                if num == 0 or done % _SECTOR_BYTES:
                    break
            return done
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return 0
            raise
        finally:
            os.close(file)

    def _fill_buffered(self, offset: int, out: Bytes) -> int:
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < len(out):
                num = os.preadv(file, [out[done:].data], offset + done)
                if num == 0:
                    break
                done += num
            os.posix_fadvise(file, offset, len(out), os.POSIX_FADV_DONTNEED)
            return done
        finally:
            os.close(file)


class RemoteSource:
    """An object of a store that fsspec supports (``s3://``, ``gs://``, ``https://`` ...), read in ranges.

    Parameters
    ----------
    url : str
    retry : Retry

    Attributes
    ----------
    identity : str
        Address, length and version of the object: changes with its content.
    pages : Region or None
        The file's pages with their checksums, if they were read. Without checksums the object's identity is checked
        after each range.

    Raises
    ------
    StorageError
        The store cannot be reached, or the object does not exist.
    UsageError
        The package for such stores is not installed.
    """

    def __init__(self, url: str, retry: Retry | None = None) -> None:
        self.path = url
        self.retry = retry or Retry()
        self.pages: Region | None = None
        self._client: StoreClient | None = None
        self._process = 0
        self.num_bytes, self.identity = ask(url, "asking for its size", self.retry, self._look)

    def fill(self, offset: int, out: Bytes) -> None:
        """Fill `out` with the bytes from `offset` on; retry if the answer is damaged, short or late."""
        what = f"bytes {offset} to {offset + len(out) - 1}"
        ask(self.path, what, self.retry, lambda: self._fill_once(offset, out))

    def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None and self._process == os.getpid():
            client.close()

    def _fill_once(self, offset: int, out: Bytes) -> None:
        limit = self.retry.timeout_seconds + len(out) / 1e6
        try:
            answer = self._connected().read(offset, offset + len(out), limit_seconds=limit)
        except Exception as error:
            if StoreClient.status_of(error) == _BEYOND_THE_END:
                self._check_identity()
            raise
        if len(answer) != len(out):
            self._check_identity()
            raise RetryableError(f"{len(answer)} bytes received, {len(out)} requested")
        out[:] = np.frombuffer(answer, np.uint8)
        if self.pages is None or self.pages.digests is None:
            self._check_identity()
        elif damaged := self.pages.damaged_blocks(offset, out):
            self._check_identity()
            raise RetryableError(f"the block at byte {damaged[0][0]} does not have its checksum")

    def _check_identity(self) -> None:
        num_bytes, identity = self._look()
        if identity != self.identity:
            raise _final(
                f"{self.path}: the object has changed while it was being read ({self.num_bytes} bytes then, "
                f"{num_bytes} now): start again, so that its old and new bytes are not mixed"
            )

    def _look(self) -> tuple[int, str]:
        info = self._connected().info(limit_seconds=self.retry.timeout_seconds)
        if info.get("size") is None:
            raise StorageError(f"{self.path}: the server does not say how long the file is, so it cannot be cached")
        if info.get("partial") is False:
            raise StorageError(
                f"{self.path}: the server does not answer range requests: download the file, or serve it from a store "
                f"that does"
            )
        return int(info["size"]), " ".join([self.path, *version_of(info)])

    def _connected(self) -> StoreClient:
        """Create the client on first use; a forked child needs its own."""
        if self._client is None or self._process != os.getpid():
            self._client, self._process = StoreClient(self.path), os.getpid()
        return self._client


def ask(url: str, what: str, retry: Retry, question: Callable[[], T]) -> T:
    """Ask a store until the answer is right or a retry is useless.

    Parameters
    ----------
    url, what : str
        For messages.
    retry : Retry
    question : callable
        Returns the answer, or raises what the store's client raises.

    Raises
    ------
    StorageError
        No right answer was received.
    """

    def failed(caught: Exception, is_final: bool) -> StorageError:
        told = error_text(StoreClient.reason(caught))
        if is_final:
            return _final(f"{url}: {what}: {told}; check the address and the credentials")
        return StorageError(
            f"{url}: {what}: no valid answer in {retry.num_tries} tries; the last one: {told}. Check the network and "
            f"the store, then start again: what has arrived in cache_dir is kept"
        )

    return retry.call(question, is_final=lambda caught: StoreClient.is_final(StoreClient.reason(caught)), failed=failed)


def _final(message: str) -> StorageError:
    error = StorageError(message)
    error.is_final = True
    return error
