"""Where the bytes of units come from: a local file read past the system's page cache, or an object in a store.

A source fills memory with a range of one file's bytes, or raises; it never gives other bytes without a word. Retrying,
time limits and checksums are here. Knows nothing of caches. fsspec is imported when the first URL is opened.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from dataloading.errors import StorageError, UsageError

__all__ = ["Blocks", "LocalSource", "RemoteSource", "Retry", "Source", "ask", "connect", "is_url"]

Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")

_SECTOR_BYTES = 4096
_LOCAL_PROTOCOLS = ("", "file", "local")


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Checksums of a run of blocks, as the extension block of our files has them.

    Parameters
    ----------
    start, stop : int
        Position of the first byte, and past the last one.
    block_bytes : int
        Bytes that each checksum covers; the last one fewer.
    digests : uint64 array
    """

    start: int
    stop: int
    block_bytes: int
    digests: npt.NDArray[np.uint64]

    def first_damaged(self, offset: int, data: Bytes) -> int | None:
        """Find the first byte of a block that differs, among those that lie wholly in `data` from `offset` on."""
        size = self.block_bytes
        first = -(-max(offset - self.start, 0) // size)
        for block in range(first, len(self.digests)):
            low = self.start + block * size
            high = min(low + size, self.stop)
            if high > offset + len(data):
                break
            if xxhash.xxh3_64_intdigest(data[low - offset : high - offset].data) != int(self.digests[block]):
                return low
        return None


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and how long a store is asked.

    Parameters
    ----------
    num_tries : int
    first_wait_seconds : float
        Before the second try; doubled for each one after it, and varied so that ranks do not ask in step.
    max_wait_seconds : float
    timeout_seconds : float
        For one answer, and a second more for each megabyte of it.
    """

    num_tries: int = 5
    first_wait_seconds: float = 0.5
    max_wait_seconds: float = 10.0
    timeout_seconds: float = 30.0

    def wait_seconds(self, num_failed: int) -> float:
        """Choose how long to wait after so many failed tries."""
        longest: float = min(self.first_wait_seconds * 2 ** (num_failed - 1), self.max_wait_seconds)
        return longest * random.uniform(0.5, 1.0)


class Source(Protocol):
    """One file's bytes, wherever they are kept."""

    path: str
    num_bytes: int
    identity: str

    def fill(self, offset: int, out: Bytes) -> None:
        """Write the bytes from `offset` on to `out`; called by many threads.

        Raises
        ------
        StorageError
            They could not be brought.
        """
        ...


class LocalSource:
    """A file of this machine or of a network file system, read without leaving it in the system's page cache.

    Parameters
    ----------
    path : str
    num_bytes : int
        Its length.
    """

    def __init__(self, path: str, num_bytes: int) -> None:
        self.path = path
        self.num_bytes = num_bytes
        stat = os.stat(path)  # noqa: PTH116  # a path as a string, like everywhere in this module
        self.identity = f"{os.path.realpath(path)} {stat.st_ino} {num_bytes} {stat.st_mtime_ns}"

    def fill(self, offset: int, out: Bytes) -> None:
        """Write the bytes from `offset` on to `out`: directly from the device where the file system does that."""
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

    def _fill_directly(self, offset: int, out: Bytes) -> int:
        """Read past the page cache; returns how much, which is less where that is not possible."""
        direct = getattr(os, "O_DIRECT", 0)
        # The last sector may be incomplete: asked for whole, it comes short. `out` is then too short to ask.
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
    """An object of a store that fsspec knows (``s3://``, ``gs://``, ``https://`` ...), read range by range.

    Parameters
    ----------
    url : str
    retry : Retry

    Attributes
    ----------
    identity : str
        Address, length and what the store says of the content's version: changes with the object.
    blocks : Blocks or None
        What every range is compared with, once somebody has read it from the file. Without it the object's identity
        is asked again after each range.

    Raises
    ------
    StorageError
        The store cannot be reached, or has no such object.
    UsageError
        The package that speaks to such stores is not installed.
    """

    def __init__(self, url: str, retry: Retry | None = None) -> None:
        self.path = url
        self.retry = retry or Retry()
        self.blocks: Blocks | None = None
        self._filesystem: Any = None
        self._process = 0
        self._target = ""
        self.num_bytes, self.identity = ask(url, "asking for its size", self.retry, self._look)

    def fill(self, offset: int, out: Bytes) -> None:
        """Write the bytes from `offset` on to `out`, asking again when the answer is damaged, short or late."""
        what = f"bytes {offset} to {offset + len(out) - 1}"
        ask(self.path, what, self.retry, lambda: self._fill_once(offset, out))

    def _fill_once(self, offset: int, out: Bytes) -> None:
        answer = self._ask(len(out), "cat_file", start=offset, end=offset + len(out))
        if len(answer) != len(out):
            if len(answer) == self.num_bytes:
                raise StorageError(
                    f"{self.path}: the server ignores ranges and sends the whole file: it cannot be read in parts; "
                    f"download the file, or serve it from a store that answers range requests"
                )
            raise _RetryableError(f"{len(answer)} bytes came where {len(out)} were asked for")
        out[:] = np.frombuffer(answer, np.uint8)
        if self.blocks is not None:
            damaged = self.blocks.first_damaged(offset, out)
            if damaged is not None:
                self._check_identity()
                raise _RetryableError(f"the block at byte {damaged} does not have its checksum")
        else:
            self._check_identity()

    def _check_identity(self) -> None:
        num_bytes, identity = self._look()
        if identity != self.identity:
            raise StorageError(
                f"{self.path}: the object has changed while it was being read ({self.num_bytes} bytes then, "
                f"{num_bytes} now): start again, so that its old and new bytes are not mixed"
            )

    def _look(self) -> tuple[int, str]:
        info = self._ask(0, "info")
        if info.get("size") is None:
            raise StorageError(f"{self.path}: the server does not say how long the file is, so it cannot be cached")
        if info.get("partial") is False:
            raise StorageError(
                f"{self.path}: the server does not answer range requests: download the file, or serve it from a store "
                f"that does"
            )
        # Whatever the store has of these; a version, a checksum or a time of change.
        names = ("etag", "version_id", "generation", "md5hash", "crc32c", "lastmodified", "last-modified", "mtime")
        known = {name.lower(): value for name, value in info.items()}
        version = [f"{name}={known[name]}" for name in names if known.get(name) is not None]
        return int(info["size"]), " ".join([self.path, f"size={info['size']}", *version])

    # ---- asking

    def _ask(self, num_bytes: int, method: str, **arguments: Any) -> Any:
        filesystem = self._connected()
        limit = self.retry.timeout_seconds + num_bytes / 1e6
        if not getattr(filesystem, "async_impl", False):
            return getattr(filesystem, method)(self._target, **arguments)
        call = getattr(filesystem, f"_{method}")(self._target, **arguments)
        future = asyncio.run_coroutine_threadsafe(call, filesystem.loop)
        try:
            return future.result(limit)
        except concurrent.futures.TimeoutError as error:
            raise _RetryableError(f"no answer within {limit:.0f} s") from error
        finally:
            future.cancel()

    def _connected(self) -> Any:
        """Make the file system when first needed; a forked child needs its own."""
        if self._process != os.getpid():
            self._filesystem, self._target = connect(self.path)
            self._process = os.getpid()
        return self._filesystem


def ask(url: str, what: str, retry: Retry, question: Callable[[], T]) -> T:
    """Ask a store until there is a right answer, or asking again is of no use.

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
        There was none.
    """
    last = ""
    for attempt in range(1, retry.num_tries + 1):
        try:
            return question()
        except (StorageError, UsageError):
            raise
        except Exception as caught:
            error: BaseException = caught
            if isinstance(caught, FileNotFoundError) and isinstance(caught.__cause__, Exception):
                error = caught.__cause__  # over HTTP, whatever goes wrong is reported as a missing file
            if isinstance(error, FileNotFoundError | PermissionError):
                raise StorageError(
                    f"{url}: {what}: {_in_words(error)}; check the address and the credentials"
                ) from error
            status = getattr(error, "status", None)
            if isinstance(status, int) and 400 <= status < 500 and status not in (408, 429):
                raise StorageError(f"{url}: {what}: the server says {_in_words(error)}") from error
            last = _in_words(error)
            if attempt < retry.num_tries:
                time.sleep(retry.wait_seconds(attempt))
    raise StorageError(
        f"{url}: {what}: no right answer in {retry.num_tries} tries; the last one: {last}. Check the network and the "
        f"store, then start again: what has arrived in cache_dir is kept"
    )


class _RetryableError(Exception):
    """An answer that is worth asking for again."""


def _in_words(error: BaseException) -> str:
    if isinstance(error, _RetryableError):
        return str(error)
    status = getattr(error, "status", None)
    message = str(getattr(error, "message", "") or error).split("\n")[0]
    return f"{status} {message}" if isinstance(status, int) else f"{type(error).__name__} ({message})"


def is_url(path: str) -> bool:
    """Whether a path is an address in a store rather than a file of this machine."""
    protocol, separator, _ = path.partition("://")
    return bool(separator) and protocol.isalnum() and protocol not in _LOCAL_PROTOCOLS


def connect(url: str) -> tuple[Any, str]:
    """Make a file system of our own for an address; returns it and the address in its words."""
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(f'{url}: reading from stores needs fsspec: pip install "beton[remote]"') from error
    protocol = url.partition("://")[0]
    options: dict[str, Any] = {}
    if protocol in ("s3", "s3a"):
        # We do the retrying: theirs would multiply with ours.
        options["config_kwargs"] = {"retries": {"max_attempts": 1}, "connect_timeout": 10, "read_timeout": 30}
    try:
        filesystem = fsspec.filesystem(protocol, skip_instance_cache=True, **options)
    except ImportError as error:
        raise UsageError(f'{url}: {error}; for S3 and HTTP: pip install "beton[remote]"') from error
    except ValueError as error:
        raise UsageError(f"{url}: {error}") from error
    if protocol in ("s3", "s3a"):
        filesystem.retries = 1
    return filesystem, filesystem._strip_protocol(url)
