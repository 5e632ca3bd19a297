"""Uploads to S3 in parts, and removes the parts of failed uploads, which cost money and are not listed.

The upload's id is saved beside the local file before the first part is sent. After an error, Ctrl-C or SIGTERM its
parts are removed; after ``kill -9`` the next run with the same destination removes them. Uploads of others are not
touched. Each part is sent with its MD5, which S3 verifies. Knows files and S3's calls, but no samples.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dataloading import ConvertError
from dataloading.cli import note
from dataloading.tools import open_locked, sync_folder

__all__ = ["abort_left", "upload_to_s3"]

_PART_BYTES, _MOST_PARTS = 16 << 20, 10_000
_NUM_THREADS = 4
_WAIT_SECONDS = 120.0

Retrying = Callable[..., Any]


def _part_bytes(size: int) -> int:
    """Return the size of all parts but the last; S3 allows 10,000 parts.

    Examples
    --------
    >>> _part_bytes(1 << 30) >> 20, _part_bytes(1 << 40) >> 20
    (16, 105)
    """
    return max(_PART_BYTES, math.ceil(size / _MOST_PARTS / (1 << 20)) << 20)


class UploadNote:
    """The saved id of a local file's upload, and the lock that lets one process at a time upload it.

    Parameters
    ----------
    local : str
        The file that is uploaded; the note lies beside it.
    """

    def __init__(self, local: str) -> None:
        self.path = f"{local}.upload"

    @contextlib.contextmanager
    def held(self) -> Iterator[dict[str, str] | None]:
        """Lock the file's upload; yields the upload that an earlier, dead process had started.

        Raises
        ------
        ConvertError
            If another process is still uploading it after two minutes.
        """
        try:
            descriptor = open_locked(self.path, wait_seconds=_WAIT_SECONDS, mode=0o600)
        except BlockingIOError:
            raise ConvertError(
                f"another process is uploading {self.path.removesuffix('.upload')}; wait for it"
            ) from None
        try:
            yield self._read()
            Path(self.path).unlink(missing_ok=True)
        finally:
            if not os.fstat(descriptor).st_size:
                Path(self.path).unlink(missing_ok=True)  # nothing is noted
            os.close(descriptor)

    def is_there(self) -> bool:
        """Return whether an upload was started, and neither completed nor removed."""
        return os.path.exists(self.path)

    def save(self, begun: dict[str, str] | None) -> None:
        """Save an upload's id on disk, or that there is none."""
        with open(self.path, "r+b") as file:
            file.truncate(0)
            file.write(json.dumps(begun).encode() if begun else b"")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(os.path.dirname(self.path))

    def _read(self) -> dict[str, str] | None:
        try:
            found = json.loads(Path(self.path).read_bytes())
        except ValueError:
            return None  # killed while saving: no part had been sent
        return found if isinstance(found, dict) else None


def abort_left(system: Any, url: str, path: str, with_retries: Retrying) -> None:
    """Remove the parts that an earlier upload of this file left in the store, if any."""
    noted = UploadNote(path)
    if noted.is_there():
        with noted.held() as left:
            with_retries("cleaned up after an interrupted upload", lambda: _abort(system, left, url))
            noted.save(None)


def upload_to_s3(system: Any, key: str, url: str, path: str, with_retries: Retrying) -> str:
    """Upload a file as an object, which appears when it is complete.

    Parameters
    ----------
    system : s3fs.S3FileSystem
        Without its own retries.
    key : str
        ``BUCKET/KEY``.
    url : str
        For messages.
    path : str
        The file.
    with_retries : callable
        ``with_retries(what, call, wait)`` returns what ``call()`` does, trying again after ``wait(seconds)``.

    Returns
    -------
    str
        The expected ETag of the object.

    Raises
    ------
    ConvertError
        If the store refuses. All parts are removed; if the store cannot be reached, the next run removes them.
    """
    bucket, _, name = key.partition("/")
    noted = UploadNote(path)
    with noted.held() as left:
        with_retries("cleaned up after an interrupted upload", lambda: _abort(system, left, url))
        noted.save(None)
        size = os.stat(path).st_size
        if size <= _PART_BYTES:
            data = Path(path).read_bytes()
            digest = _md5(data)
            with_retries(
                "written",
                lambda: system.call_s3("put_object", Bucket=bucket, Key=name, Body=data, ContentMD5=_header(digest)),
            )
            return _etag([digest])
        begun = with_retries("written", lambda: system.call_s3("create_multipart_upload", Bucket=bucket, Key=name))
        upload = {"Bucket": bucket, "Key": name, "UploadId": begun["UploadId"]}
        noted.save({"bucket": bucket, "key": name, "upload_id": begun["UploadId"]})
        try:
            parts = _send_parts(system, upload, path, size, with_retries)
            _complete(system, upload, [facts for facts, _ in parts], with_retries)
        except BaseException:
            with contextlib.suppress(Exception):
                system.call_s3("abort_multipart_upload", **upload)
                noted.save(None)
            raise
        return _etag([digest for _, digest in parts])


def _send_parts(
    system: Any, upload: dict[str, str], path: str, size: int, with_retries: Retrying
) -> list[tuple[dict[str, Any], bytes]]:
    """Send all parts; returns for each the entry for S3's completion request, and its MD5."""
    part_bytes = _part_bytes(size)
    stopped = threading.Event()
    with open(path, "rb") as file, ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="beton-upload") as pool:

        def send(number: int) -> tuple[dict[str, Any], bytes]:
            if stopped.is_set():
                raise ConvertError("the upload was aborted")
            data = os.pread(file.fileno(), part_bytes, number * part_bytes)
            digest = _md5(data)

            def once() -> Any:
                if stopped.is_set():
                    raise NotImplementedError("the upload was aborted")  # no further try
                return system.call_s3(
                    "upload_part", PartNumber=number + 1, Body=data, ContentMD5=_header(digest), **upload
                )

            answer = with_retries(f"written (part {number + 1})", once, stopped.wait)
            sums = {name: answer[name] for name in answer if name.startswith("Checksum") and name != "ChecksumType"}
            return {"PartNumber": number + 1, "ETag": answer["ETag"], **sums}, digest

        try:
            return list(pool.map(send, range(-(-size // part_bytes))))
        except BaseException:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)  # a part that arrived later would remain
            raise


def _complete(system: Any, upload: dict[str, str], parts: list[dict[str, Any]], with_retries: Retrying) -> None:
    def once() -> None:
        try:
            system.call_s3("complete_multipart_upload", MultipartUpload={"Parts": parts}, **upload)
        except FileNotFoundError:
            # An earlier try may have succeeded although its answer was lost.
            found = system.call_s3("head_object", Bucket=upload["Bucket"], Key=upload["Key"])
            if not found["ETag"].strip('"').endswith(f"-{len(parts)}"):
                raise

    with_retries("completed", once)


def _etag(digests: Sequence[bytes]) -> str:
    """Return the ETag of an object of these parts, unless S3 encrypts with its own keys."""
    if len(digests) == 1:
        return digests[0].hex()
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _header(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _abort(system: Any, begun: dict[str, str] | None, url: str) -> None:
    if begun is None:
        return
    arguments = {"Bucket": begun["bucket"], "Key": begun["key"], "UploadId": begun["upload_id"]}
    try:
        system.call_s3("abort_multipart_upload", **arguments)
    except FileNotFoundError:
        return  # completed, or removed by a bucket rule
    note(f"{url}: removed the parts of an interrupted upload")
