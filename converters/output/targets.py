"""Output destinations: local folders, or object stores (``s3://``, ``gs://``, ...) by way of a local file.

Handles the local file of a remote destination and its upload, which is retried with growing pauses, verified against
the stored object, and visible only when complete. Knows files and URLs, but no samples.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import xxhash

from converters.options import Options
from converters.output.uploads import abort_left, upload_to_s3
from converters.sources.reading import without_scheme
from dataloading import ConvertError, UsageError
from dataloading.tools import FileInfo, Retry, StoreClient, is_url, probe_file

__all__ = ["Destination", "Store", "check_target", "resolve_destination"]

RETRY = Retry(first_wait_seconds=1.5, max_wait_seconds=15.0)
_COMPARED_BYTES, _NUM_COMPARED = 1 << 20, 16
# Stores in which an object appears when its upload is complete; elsewhere a rename does that.
_ATOMIC = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"})
_S3, _GOOGLE = frozenset({"s3", "s3a"}), frozenset({"gs", "gcs"})
_READ_ONLY = {"http": "", "https": "", "hf": "; write a file and `hf upload` it"}

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Destination:
    """Where a file is written.

    Parameters
    ----------
    path : str
        The destination, a path or URL.
    local : str
        The file on this machine: the destination itself, or what will be uploaded.
    """

    path: str
    local: str

    @property
    def is_remote(self) -> bool:
        """Whether the complete file is uploaded."""
        return self.path != self.local

    @property
    def folder(self) -> str:
        """The local file's folder."""
        return os.path.dirname(self.local) or os.curdir


def resolve_destination(path: str, options: Options) -> Destination:
    """Return where a destination's file is written: always the same path, so that a run can resume.

    Parameters
    ----------
    path : str
        A path or URL.
    options : Options
        ``temp_dir``.
    """
    path = without_scheme(path)
    if not is_url(path):
        return Destination(path=path, local=path)
    folder = Path(options.temp_dir or tempfile.gettempdir()) / f"beton-{os.getuid()}"
    # Other users must not be able to replace it with a link.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UsageError(f"{folder} belongs to another user; name a folder with --temp-dir")
    name = path.rpartition("/")[2]
    return Destination(path=path, local=str(folder / f"{xxhash.xxh3_64_hexdigest(path.encode())}-{name}"))


def check_target(path: str, options: Options) -> None:
    """Refuse an invalid destination before the conversion starts.

    Parameters
    ----------
    path : str
        A path or URL.
    options : Options
        Whether a file may exist there: ``overwrite``, ``resume``.

    Raises
    ------
    UsageError
        If it is a folder, its folder is missing, or it exists and must be kept.
    """
    destination = resolve_destination(path, options)
    if destination.is_remote:
        protocol = destination.path.partition("://")[0]
        if protocol in _READ_ONLY:
            raise UsageError(f"{path}: {protocol}:// can be read, not written{_READ_ONLY[protocol]}")
        store = Store(destination.path)
        store.check_bucket()
        if not (options.overwrite or options.resume) and store.size() is not None:
            raise UsageError(f"{path} exists; --overwrite (overwrite=True) replaces it when the new file is complete")
        if not (options.overwrite or options.resume) and os.path.exists(destination.local):
            raise UsageError(
                f"{path} is converted but was not uploaded (it is {destination.local}): --resume uploads it, "
                "--overwrite starts over"
            )
        store.clear(destination.local)
        return
    if os.path.isdir(destination.local):
        raise UsageError(f"{path} is a folder; name the file to write, such as {os.path.join(path, 'train.beton')}")
    if os.path.lexists(destination.local) and not (options.overwrite or options.resume):
        raise UsageError(f"{path} exists; --overwrite (overwrite=True) replaces it when the new file is complete")
    if not os.path.isdir(destination.folder):
        raise UsageError(f"the folder {destination.folder} {_why_no_folder(destination.folder)}")


def _why_no_folder(path: str) -> str:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist; make it first"
    except OSError as error:  # its path is too long, or leads through a folder that is closed to us
        return f"cannot be used: {error.strerror or error}"
    return "is a file"


class Store:
    """One object of a store.

    Parameters
    ----------
    url : str
        Such as ``s3://bucket/train.beton``.

    Raises
    ------
    UsageError
        If the packages that its kind of URL needs are not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            import fsspec

            protocol = url.partition("://")[0]
            self._is_s3 = protocol in _S3
            if protocol in _S3 | _GOOGLE:
                client = StoreClient(url, shared=True)  # without its own retries: they are counted here
                self._system, self._key = client.filesystem, client.target
            else:
                self._system, self._key = fsspec.url_to_fs(url, skip_instance_cache=False)
            # For large files Google's package should retry only the failed part, not everything.
            self._sender = (
                fsspec.filesystem(protocol, skip_instance_cache=True) if protocol in _GOOGLE else self._system
            )
        except (ImportError, ValueError) as error:
            raise UsageError(f'{url} cannot be written: {error}. pip install "beton[remote]" serves s3') from error

    def size(self) -> int | None:
        """Return the object's size in bytes, or None if there is none.

        Raises
        ------
        ConvertError
            If the store cannot be reached.
        """

        def ask() -> int | None:
            self._system.invalidate_cache()
            try:
                return int(self._system.info(self._key)["size"])
            except FileNotFoundError:
                return None

        return self._with_retries("looked up", ask)

    def read(self, start: int, size: int) -> bytes:
        """Return ``size`` bytes from ``start``."""
        return self._with_retries(
            "read", lambda: bytes(self._system.cat_file(self._key, start=start, end=start + size))
        )

    def remove(self) -> None:
        """Delete the object."""
        self._with_retries("removed", lambda: self._system.rm_file(self._key))

    def write(self, data: bytes) -> None:
        """Store a small object with one request."""
        self._with_retries("written", lambda: self._system.pipe_file(self._key, data))

    def check_bucket(self) -> None:
        """Refuse a missing bucket before the conversion starts, if the store reports it."""
        if self._is_s3:
            bucket = self._key.partition("/")[0]
            try:
                self._with_retries("looked up", lambda: self._system.call_s3("head_bucket", Bucket=bucket))
            except ConvertError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    raise UsageError(f"{self.url}: there is no bucket '{bucket}'") from error
                if not isinstance(error.__cause__, PermissionError):  # writing may still be allowed
                    raise

    def clear(self, path: str) -> None:
        """Remove the parts that an interrupted upload of this local file left in the store."""
        if self._is_s3:
            abort_left(self._system, self.url, path, self._with_retries)

    def upload(self, path: str) -> None:
        """Upload a file and verify the object; large files are sent in parts.

        Parameters
        ----------
        path : str
            The file.

        Raises
        ------
        ConvertError
            If the store refuses, cannot be reached, or its object differs afterwards.
        """
        protocol = self._system.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        hidden = self._key if names & _ATOMIC else f"{self._key}.part"

        def put() -> None:
            try:
                self._sender.put_file(path, hidden)
            except BaseException:
                if hidden != self._key:
                    with contextlib.suppress(Exception):
                        self._system.rm_file(hidden)
                raise
            if hidden != self._key:
                self._system.mv(hidden, self._key)

        expected = ""
        if self._is_s3:
            expected = upload_to_s3(self._system, self._key, self.url, path, self._with_retries)
        else:
            self._with_retries("written", put)
        try:
            self._compare(path, expected)
        except ConvertError:
            with contextlib.suppress(Exception):  # it must not be taken for the file
                self._system.rm_file(self._key)
            raise

    def _compare(self, path: str, etag: str) -> None:
        size = os.stat(path).st_size
        found = self.size()
        if found != size:
            raise ConvertError(f"{self.url} has {found} bytes after the upload of {size}; upload it again (--resume)")
        whole = self._is_whole(path, etag)
        if whole:
            return
        last = max(0, size - _COMPARED_BYTES)
        starts: Sequence[int] = range(0, size, _COMPARED_BYTES)  # the checksums differ
        if whole is None:  # the store has no checksum
            starts = sorted({last * step // (_NUM_COMPARED - 1) for step in range(_NUM_COMPARED)})
        with open(path, "rb") as file:
            for start in starts:
                file.seek(start)
                mine = file.read(_COMPARED_BYTES)
                if self.read(start, len(mine)) != mine:
                    raise ConvertError(
                        f"{self.url} does not hold what was uploaded (bytes {start} and after differ) and was removed; "
                        "upload it again (--resume)"
                    )

    def _is_whole(self, path: str, etag: str) -> bool | None:
        """Return whether the store's checksum matches a file; None if the store has none."""
        if self._is_s3:
            bucket, _, name = self._key.partition("/")
            head = self._with_retries("looked up", lambda: self._system.call_s3("head_object", Bucket=bucket, Key=name))
            if head["ETag"].strip('"') == etag:
                return True
            has_own_key = str(head.get("ServerSideEncryption", "")).startswith("aws:") or "SSECustomerAlgorithm" in head
            return None if has_own_key else False
        facts = self._with_retries("looked up", lambda: self._system.info(self._key))
        if facts.get("md5Hash") is None:  # Google's
            return None
        with open(path, "rb") as file:
            digest = hashlib.md5(usedforsecurity=False)
            while block := file.read(1 << 20):
                digest.update(block)
        return bool(base64.b64decode(facts["md5Hash"]) == digest.digest())

    def info(self) -> FileInfo:
        """Read the object's metadata: fields, provenance, fingerprint.

        Raises
        ------
        FormatError
            If it is not a ``.beton`` file.
        """
        return probe_file(lambda start, stop: self.read(start, stop - start), self.size() or 0, self.url)

    def _with_retries(self, what: str, call: Callable[[], _T], wait: Callable[[float], object] = time.sleep) -> _T:
        def failed(error: Exception, is_final: bool) -> ConvertError:
            if is_final:
                return ConvertError(f"{self.url} cannot be {what}: {str(error) or type(error).__name__}")
            told = f"{type(error).__name__}: {error}"
            return ConvertError(f"{self.url} cannot be {what}, {RETRY.num_tries} tries failed; the last: {told}")

        # A part that was damaged on its way is refused with 400: `StoreClient.is_final` would not send it again.
        final = (PermissionError, NotImplementedError, FileNotFoundError)
        return RETRY.call(call, is_final=lambda error: isinstance(error, final), failed=failed, wait=wait)
