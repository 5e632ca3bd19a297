"""Reads local files and URLs (``s3://``, ``gs://``, ``https://``, ``hf://``, ...) for sources.

Reads whole files, ranges and seekable streams, retries URLs, and formats a store's errors; ``listing.py`` uses it to
find names. URLs are read with fsspec, imported and connected on first use in the reading process. Errors are
`SampleFault` in the workers and `ConvertError` in the parent.
"""

from __future__ import annotations

import dataclasses
import io
import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, unquote, urlsplit

from converters.source import SampleFault, printable
from dataloading import ConvertError, StorageError
from dataloading.tools import Retry, StoreClient, is_url

__all__ = [
    "RETRY",
    "Identity",
    "Ranges",
    "absolute",
    "child",
    "exists",
    "folder_of",
    "identity",
    "is_folder",
    "name_of",
    "normalised",
    "open_stream",
    "read_file",
    "version",
    "with_retries",
    "without_scheme",
]  # fmt: skip

RETRY = Retry(num_tries=3, first_wait_seconds=1.0)
_STREAM_BYTES = 4 << 20
_OPEN_AT_MOST = 64

_T = TypeVar("_T")


def normalised(path: str | os.PathLike[str]) -> str:
    """Return a path or URL in normal form: ``file://`` URLs as paths, folders without a trailing slash.

    Examples
    --------
    >>> normalised("file:///data/train/"), normalised("s3://bucket/train/"), normalised("/")
    ('/data/train', 's3://bucket/train', '/')
    """
    text = os.fspath(path)
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    return text if is_url(text) and text.endswith("://") else text.rstrip("/") or text[:1]


def without_scheme(path: str) -> str:
    """Return a ``file://`` URL as a path, and other URLs without a trailing slash; paths unchanged."""
    return normalised(path) if "://" in path else path


def child(root: str, relative: str) -> str:
    """Return the path or URL of ``relative``, a path below the folder ``root``.

    Examples
    --------
    >>> child("/data", "a b/1.jpg"), child("https://host/data", "a b/1.jpg"), child("s3://bucket", "a b/1.jpg")
    ('/data/a b/1.jpg', 'https://host/data/a%20b/1.jpg', 's3://bucket/a b/1.jpg')
    """
    if root.startswith(("http://", "https://")):
        relative = quote(relative, errors="surrogateescape")
    return os.path.join(root, relative) if not is_url(root) else f"{root.rstrip('/')}/{relative}"


def name_of(path: str) -> str:
    """Return the last part of a path or URL, without a URL's query."""
    if not is_url(path):
        return os.path.basename(os.path.abspath(path))
    last = path.rstrip("/").rpartition("/")[2]
    return unquote(last.partition("?")[0]) if path.startswith("http") else last


def folder_of(path: str) -> str:
    """Return the path or URL of a file's folder."""
    return path.rpartition("/")[0] if is_url(path) else os.path.dirname(path) or os.curdir


@dataclasses.dataclass(frozen=True)
class Identity:
    """Size in bytes and time of the last change (0 if a store does not report it): they identify a file's contents."""

    size: int
    mtime_ns: int = 0


def identity(path: str) -> Identity:
    """Return size and age of a file or object; raise `ConvertError` if it cannot be reached."""
    if is_url(path):
        size = _with_retries(path, StoreClient.info, ConvertError).get("size")
        if size is None:
            raise ConvertError(
                f"{path}: the server does not tell its size, so ranges of it cannot be read; download it"
            )
        return Identity(int(size))
    status = _locally(path, lambda: os.stat(path))
    return Identity(status.st_size, status.st_mtime_ns)


def absolute(path: str) -> str:
    """Return the absolute path of a local file; URLs unchanged.

    Tasks use it, so that the engine can check whether a file has changed since an interrupted conversion.
    """
    return path if is_url(path) else os.path.abspath(path)


def exists(path: str) -> bool:
    """Return whether a file, folder or object exists."""
    if not is_url(path):
        return os.path.exists(path)
    return bool(with_retries(path, lambda store, key: store.exists(key), ConvertError))


def is_folder(path: str) -> bool:
    """Return whether ``path`` is a folder, or a prefix of objects."""
    if not is_url(path):
        return os.path.isdir(path)
    return bool(with_retries(path, lambda store, key: store.isdir(key), ConvertError))


def read_file(path: str | bytes) -> bytes:
    """Return the bytes of a regular file or of a URL; links are followed.

    Raises
    ------
    SampleFault
        If it is a pipe, device or socket, which could block forever, or a URL that cannot be read.
    OSError
        If a local file cannot be read.
    """
    if isinstance(path, str) and is_url(path):
        return _with_retries(path, StoreClient.read_all, SampleFault)
    # O_NONBLOCK: otherwise opening a pipe without a writer would block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SampleFault("it is not a regular file")
        # A file object would make twice as many system calls.
        data = os.read(descriptor, status.st_size + 1)
        if len(data) == status.st_size:
            return data
        parts = [data]  # of a file that grows, or of more than one read returns
        while parts[-1]:
            parts.append(os.read(descriptor, _STREAM_BYTES))
        return b"".join(parts)
    finally:
        os.close(descriptor)


class Ranges:
    """Reads ranges of files in a worker; keeps a few files open, and is pickled without them."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, path: str, start: int, size: int, expected: Identity) -> bytes:
        """Return ``size`` bytes from ``start``; ``expected`` is the file's identity when it was indexed.

        Raises
        ------
        SampleFault
            If it cannot be read, is too short, or has changed since.
        """
        if is_url(path):
            return _fetch_range(path, start, size, SampleFault)
        try:
            data = os.pread(self._descriptor(path, expected), size, start)
        except OSError as error:
            raise SampleFault(f"{printable(path)} cannot be read: {error.strerror or error}") from error
        if len(data) != size:
            raise SampleFault(f"{printable(path)} ends {size - len(data)} bytes before the end of this sample")
        return data

    def _descriptor(self, path: str, expected: Identity) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            while len(self._open) >= _OPEN_AT_MOST:
                os.close(self._open.popitem(last=False)[1])
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(descriptor)
            if Identity(status.st_size, status.st_mtime_ns) != expected:
                os.close(descriptor)
                raise SampleFault(f"{printable(path)} has been changed since the conversion began")
            self._open[path] = descriptor
        self._open.move_to_end(path)
        return descriptor

    def __getstate__(self) -> dict[str, object]:
        return {"_open": OrderedDict()}

    def __del__(self) -> None:
        for descriptor in self.__dict__.get("_open", {}).values():
            os.close(descriptor)


def open_stream(path: str) -> BinaryIO:
    """Open a seekable file or URL for the parent's pass over it; close it after use.

    Raises `ConvertError` if it cannot be opened, and for a URL also if it cannot be read later.
    """
    if is_url(path):
        return io.BufferedReader(_RemoteFile(path), _STREAM_BYTES)
    return _locally(path, lambda: open(path, "rb"))


class _RemoteFile(io.RawIOBase):
    """A URL as a file; each read is a range request with its own retries."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._size = identity(url).size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._size - self._position))
        if size:
            buffer[:size] = _fetch_range(self._url, self._position, size, ConvertError)
            self._position += size
        return size


def _locally(path: str, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except OSError as error:
        raise ConvertError(f"{printable(path)} cannot be read: {error.strerror or error}") from error


def _fetch_range(url: str, start: int, size: int, kind: type[Exception]) -> bytes:
    if size == 0:
        return b""
    data = _with_retries(url, lambda client: client.read(start, start + size), kind)
    if len(data) < size:
        raise kind(f"{url}: ends {size - len(data)} bytes early; it has been changed or cut short")
    return data


def with_retries(url: str, call: Callable[[Any, str], _T], kind: type[Exception]) -> _T:
    """Return ``call(store, key)`` with retries, given fsspec's file system and the URL's key in it.

    A final error is raised as ``kind``: `SampleFault` in a worker, `ConvertError` in the parent.
    """
    return _with_retries(url, lambda client: call(client.filesystem, client.target), kind)


def version(url: str) -> str:
    """Return an object's ETag or similar, which changes with its bytes, if the store has one; raises `ConvertError`."""
    return _with_retries(url, StoreClient.version, ConvertError)


def _with_retries(url: str, call: Callable[[StoreClient], _T], kind: type[Exception]) -> _T:
    client = StoreClient(url, shared=True)

    def failed(error: Exception, is_final: bool) -> Exception:
        tries = "" if is_final else f", {RETRY.num_tries} tries failed; the last"
        return kind(f"{url} cannot be read{tries}: {_words(client.reason(error))}")

    def wait(seconds: float) -> None:
        client.filesystem.invalidate_cache()  # a cached listing may be wrong after an error
        time.sleep(seconds)

    try:
        return RETRY.call(
            lambda: call(client), is_final=lambda error: client.is_final(client.reason(error)), failed=failed, wait=wait
        )
    except StorageError as refusal:
        raise kind(str(refusal)) from refusal


def _words(error: BaseException) -> str:
    kinds: dict[type[BaseException], int] = {FileNotFoundError: 404, PermissionError: 403}
    status = kinds.get(type(error)) or StoreClient.status_of(error) or 0
    text = str(error).strip() or "no reason given"
    plain = {404: "it does not exist", 401: "access is denied", 403: "access is denied"}.get(status)
    return f"{plain} ({text})" if plain else f"{type(error).__name__}: {text}"
