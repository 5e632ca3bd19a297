"""Real servers on loopback: HTTP with byte ranges and faults on demand, and one that speaks S3 (moto).

Others are in `buckets.py` (Google's storage, S3 with faults) and `hub.py` (Hugging Face's hub).
All run on threads of the test's process and are reached by any process of the machine::

    with http_range_server(folder) as server:
        server.url                       # "http://127.0.0.1:PORT", so f"{server.url}/a.beton" is folder/a.beton
        server.faults.fail_first = 2     # may change at any time
        server.requests                  # what was asked: Request(method, path, start, stop, status)

    with s3_server() as store:           # AWS_... variables are set meanwhile, also for processes started inside
        store.put("train/a.beton", path_or_bytes)
        fsspec.open(f"s3://{store.bucket}/train/a.beton")
"""

from __future__ import annotations

import contextlib
import dataclasses
import email.utils
import gzip
import hashlib
import logging
import os
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = [
    "Faults", "FileHandler", "HTTPServer", "Request", "S3Server", "forget_connections",
    "http_range_server", "s3_server",
]  # fmt: skip


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclasses.dataclass(kw_only=True)
class Faults:
    """What goes wrong; every number counts down with the GET requests it spoils.

    Parameters
    ----------
    fail_first : int
        Answer so many with 503.
    cut_first : int
        Close the connection after half of the body, so many times.
    corrupt_first : int
        Flip a bit in the middle of so many bodies.
    delay_seconds : float
        Wait before each answer.
    go_on : threading.Event
        Wait for it before each answer; set at first.
    ranges : bool
        False: ignore ranges and send whole files with 200, as simple servers do.
    ranges_promised : bool
        True: say that ranges are answered, also where `ranges` is False, as a proxy does before a good server.
    gzipped : bool
        Compress bodies and say so in Content-Encoding, also those nobody wanted so.
    refuse_after : int
        Answer with 403 when so many have been answered well, as for a signature that expires; -1: never.
    down : bool
        Close every connection without an answer.
    only_above_bytes : int
        Spoil only bodies larger than this.
    """

    fail_first: int = 0
    cut_first: int = 0
    corrupt_first: int = 0
    delay_seconds: float = 0.0
    go_on: threading.Event = dataclasses.field(default_factory=_set_event)
    ranges: bool = True
    ranges_promised: bool = False
    gzipped: bool = False
    refuse_after: int = -1
    down: bool = False
    only_above_bytes: int = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """One request that was answered: bytes `start` to `stop` of a file; none from `start` on if it was refused."""

    method: str
    path: str
    start: int
    stop: int
    status: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the body."""
        return self.stop - self.start


class HTTPServer:
    """A running server; see `http_range_server`."""

    def __init__(self, folder: Path, faults: Faults, handler: type[FileHandler] | None = None) -> None:
        self.folder = folder
        self.faults = faults
        self.requests: list[Request] = []
        self.seen_headers: list[str] = []  # of each request, as text
        self._lock = threading.Lock()
        self._server = _Threads(("127.0.0.1", 0), handler or FileHandler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="http", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Address of the folder, without a final slash."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fetched_bytes(self, path: str | None = None) -> int:
        """Count the bytes of bodies sent to GET requests, of all files or one."""
        with self._lock:
            return sum(r.num_bytes for r in self.requests if r.method == "GET" and path in (None, r.path.lstrip("/")))

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def note(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)

    def spoils(self, fault: str) -> bool:
        """Take one from a fault's count; False when it is used up."""
        with self._lock:
            left = getattr(self.faults, fault)
            setattr(self.faults, fault, max(left - 1, 0))
            return left > 0

    def expired(self) -> bool:
        """Count a request that `refuse_after` lets pass; True when there is none left."""
        with self._lock:
            left = self.faults.refuse_after
            self.faults.refuse_after = left - 1 if left > 0 else left
            return left == 0


class _Threads(ThreadingHTTPServer):
    daemon_threads = True
    owner: HTTPServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that leave early are part of the tests."""


class FileHandler(BaseHTTPRequestHandler):
    """Answers with the files of its server's folder."""

    protocol_version = "HTTP/1.1"
    server: _Threads

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        faults = self.server.owner.faults
        self.server.owner.seen_headers.append(str(self.headers))
        if faults.down:
            self.close_connection = True
            return
        faults.go_on.wait()
        if faults.delay_seconds:
            time.sleep(faults.delay_seconds)
        self.answer(urllib.parse.unquote(urllib.parse.urlsplit(self.path).path), with_body=with_body)

    def answer(self, name: str, *, with_body: bool) -> None:
        """Answer a request for the file `name`, or its absence, with whatever is to go wrong."""
        owner, faults = self.server.owner, self.server.owner.faults
        path = owner.folder / name.lstrip("/")
        if path.is_dir():
            self._index(path)
            return
        if not path.is_file() or owner.folder.resolve() not in path.resolve().parents:
            self.refuse(404, name)
            return
        size = path.stat().st_size
        span = self._range(size) if faults.ranges else None
        start, stop = span or (0, size)
        if start >= stop and size:
            self.refuse(416, name)
            return
        spoilt = with_body and stop - start > faults.only_above_bytes
        if spoilt and owner.spoils("fail_first"):
            self.refuse(503, name, start)
            return
        if spoilt and owner.expired():
            self.refuse(403, name, start)
            return
        stat = path.stat()
        with path.open("rb") as file:
            file.seek(start)
            body = bytearray(file.read(stop - start)) if with_body else bytearray()
        if faults.gzipped and with_body:
            body = bytearray(gzip.compress(bytes(body)))
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(body) if with_body else stop - start))
        self.send_header("Accept-Ranges", "bytes" if faults.ranges or faults.ranges_promised else "none")
        if faults.gzipped and with_body:
            self.send_header("Content-Encoding", "gzip")
        if span:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("ETag", '"' + hashlib.md5(f"{stat.st_mtime_ns} {size}".encode()).hexdigest() + '"')
        self.send_header("Last-Modified", email.utils.formatdate(stat.st_mtime, usegmt=True))
        self.end_headers()
        if spoilt and owner.spoils("corrupt_first"):
            body[len(body) // 2] ^= 1
        if spoilt and owner.spoils("cut_first"):
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            return
        # Before the client can have the answer: a test that has it finds the request here.
        owner.note(
            Request(
                method=self.command,
                path=name,
                start=start,
                stop=stop if with_body else start,
                status=200 + 6 * bool(span),
            )
        )
        self.wfile.write(body)

    def _range(self, size: int) -> tuple[int, int] | None:
        text = self.headers.get("Range", "")
        if not text.startswith("bytes="):
            return None
        first, _, last = text[len("bytes=") :].partition("-")
        if not first:
            return max(size - int(last), 0), size
        return int(first), min(int(last) + 1, size) if last else size

    def _index(self, folder: Path) -> None:
        """List a folder as links, which is what globs over HTTP read."""
        names = sorted(each.name + "/" * each.is_dir() for each in folder.iterdir())
        text = "".join(f'<a href="{urllib.parse.quote(name)}">{name}</a>\n' for name in names).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def refuse(self, status: int, name: str, start: int = 0) -> None:
        """Answer with a status and nothing else."""
        self.server.owner.note(Request(method=self.command, path=name, start=start, stop=start, status=status))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextlib.contextmanager
def http_range_server(folder: str | os.PathLike[str], faults: Faults | None = None) -> Iterator[HTTPServer]:
    """Serve a folder on a free port of loopback until the block ends."""
    server = HTTPServer(Path(folder), faults or Faults())
    try:
        yield server
    finally:
        server.stop()


class S3Server:
    """A running S3-speaking server with one bucket; see `s3_server`."""

    def __init__(self, endpoint_url: str, bucket: str) -> None:
        import boto3

        self.endpoint_url = endpoint_url
        self.bucket = bucket
        # What botocore, s3fs and pyarrow need to reach it, in this process and in those it starts.
        self.environment = {
            "AWS_ENDPOINT_URL": endpoint_url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint_url,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            region_name="us-east-1",
        )
        self.client.create_bucket(Bucket=bucket)

    def url(self, key: str = "") -> str:
        """The address of an object."""
        return f"s3://{self.bucket}/{key}"

    def put(self, key: str, content: bytes | Path) -> str:
        """Store an object and return its address."""
        self.client.put_object(
            Bucket=self.bucket, Key=key, Body=content.read_bytes() if isinstance(content, Path) else content
        )
        return self.url(key)

    def get(self, key: str) -> bytes:
        """Return an object's bytes."""
        content: bytes = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return content

    def keys(self) -> list[str]:
        """Names of all objects."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def uploads(self) -> list[str]:
        """Keys of multipart uploads that were begun and neither completed nor aborted."""
        return [each["Key"] for each in self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ())]


@contextlib.contextmanager
def s3_server(bucket: str = "bucket") -> Iterator[S3Server]:
    """Run moto's server with an empty bucket; the AWS variables of the environment point to it inside the block."""
    from moto.server import ThreadedMotoServer

    requests = logging.getLogger("werkzeug")  # says a line on stderr for every request
    level = requests.level
    requests.setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    before: dict[str, str | None] = {}
    try:
        host, port = server.get_host_and_port()
        # What earlier servers of this process were given is still there otherwise.
        urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"", timeout=10).close()
        store = S3Server(f"http://{host}:{port}", bucket)
        before = {name: os.environ.get(name) for name in [*store.environment, "AWS_PROFILE", "AWS_SESSION_TOKEN"]}
        for name in before:
            os.environ.pop(name, None)
        os.environ.update(store.environment)
        forget_connections()
        yield store
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        forget_connections()
        server.stop()
        requests.setLevel(level)


def forget_connections(protocol: str = "s3") -> None:
    """Make fsspec look at the environment again: it keeps file systems by their arguments only."""
    with contextlib.suppress(ImportError):
        import fsspec

        fsspec.get_filesystem_class(protocol).clear_instance_cache()
