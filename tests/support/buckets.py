"""Google's storage on loopback (gcp-storage-emulator), and what goes wrong between us and an S3 server.

::

    with gcs_server() as store:          # STORAGE_EMULATOR_HOST is set meanwhile, also for processes started inside
        store.put("train/a.beton", path_or_bytes)
        fsspec.open(f"gs://{store.bucket}/train/a.beton")

    with s3_server() as store, troubled(store) as trouble:    # AWS_ENDPOINT_URL leads through it meanwhile
        trouble.plan["UploadPart"] = ["slow down", "reset", "damage"]     # what happens to the next ones, in turn
        trouble.calls                    # names of the calls that came
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import logging
import os
import socket
import struct
import threading
import urllib.parse
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .servers import S3Server, forget_connections

__all__ = ["GCSServer", "Trouble", "gcs_server", "troubled"]

_S3_ERROR = "<Error><Code>{code}</Code><Message>{code} was planned</Message></Error>"
_STATUS = {"SlowDown": 503, "InternalError": 500, "BadDigest": 400, "AccessDenied": 403, "ExpiredToken": 400}
_PLANNED = {"slow down": "SlowDown", "error": "InternalError", "denied": "AccessDenied", "expired": "ExpiredToken"}


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables of this process and those it starts until the block ends."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class GCSServer:
    """A running server that speaks Google's JSON API, with one bucket; see `gcs_server`."""

    def __init__(self, endpoint_url: str, bucket: str) -> None:
        self.endpoint_url = endpoint_url
        self.bucket = bucket

    def url(self, key: str = "") -> str:
        """The address of an object."""
        return f"gs://{self.bucket}/{key}"

    def put(self, key: str, content: bytes | Path) -> str:
        """Store an object and return its address."""
        data = content.read_bytes() if isinstance(content, Path) else content
        name = urllib.parse.quote(key, safe="")
        self._ask("POST", f"/upload/storage/v1/b/{self.bucket}/o?uploadType=media&name={name}", data)
        return self.url(key)

    def get(self, key: str) -> bytes:
        """Return an object's bytes."""
        return self._ask("GET", f"/storage/v1/b/{self.bucket}/o/{urllib.parse.quote(key, safe='')}?alt=media")

    def remove(self, key: str) -> None:
        """Take an object away."""
        self._ask("DELETE", f"/storage/v1/b/{self.bucket}/o/{urllib.parse.quote(key, safe='')}")

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.endpoint_url).netloc, timeout=30)
        try:
            connection.request(method, path, body, {"Content-Type": "application/octet-stream"})
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status < 300, (answer.status, data[:200])
            return data
        finally:
            connection.close()


@contextlib.contextmanager
def gcs_server(bucket: str = "bucket") -> Iterator[GCSServer]:
    """Run an emulator of Google's storage with an empty bucket, in memory, until the block ends."""
    from gcp_storage_emulator.server import create_server

    logger = logging.getLogger("gcp_storage_emulator")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # says a line on stderr for every answer
    server: Any = create_server("127.0.0.1", 0, in_memory=True, default_bucket=bucket)
    server.start()
    running = server._api._httpd
    running.handle_error = lambda *_: None  # clients that leave early are part of what gcsfs does
    variables = {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{running.server_address[1]}",
        # No search for credentials on this machine and its network, and no question over gRPC, which it does not speak.
        "NO_GCE_CHECK": "true",
        "GOOGLE_APPLICATION_CREDENTIALS": "",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    try:
        with environment(variables):
            forget_connections("gs")
            yield GCSServer(variables["STORAGE_EMULATOR_HOST"], bucket)
    finally:
        forget_connections("gs")
        server.stop()
        logger.setLevel(level)


class Trouble:
    """What stands between us and an S3 server; see `troubled`.

    Attributes
    ----------
    plan : dict of str to list of str
        For each call (``"UploadPart"``, ``"PutObject"``, ``"CompleteMultipartUpload"``, ``"GetObject"``, ...) what
        happens to the next ones, in turn: ``"slow down"`` (503), ``"error"`` (500), ``"denied"`` (403), ``"expired"``
        (400 ExpiredToken), ``"reset"`` (the connection), ``"damage"`` (a bit of the body; as S3 does, a body that
        does not have its Content-MD5 is refused), ``"keep damage"`` (a bit, after that comparison), ``"wait"`` (until
        `release`), ``"lost"`` (it is done, and its answer lost).
    calls : list of str
        What was asked, in order.
    """

    def __init__(self, target: str) -> None:
        self.plan: dict[str, list[str]] = defaultdict(list)
        self.calls: list[str] = []
        self.released = threading.Event()
        self.target = urllib.parse.urlsplit(target).netloc
        self.lock = threading.Lock()
        self._server = _Proxies(("127.0.0.1", 0), _Proxy)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="trouble", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where clients are to connect to."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, call: str) -> str:
        """Note a call, and return what is planned for it."""
        with self.lock:
            self.calls.append(call)
            planned = self.plan[call]
            return planned.pop(0) if planned else ""

    def stop(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class _Proxies(ThreadingHTTPServer):
    daemon_threads = True
    owner: Trouble

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that leave early are part of the tests."""


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxies

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # all methods alike
            return self._pass_on
        raise AttributeError(name)

    def _pass_on(self) -> None:
        owner = self.server.owner
        if "100-continue" in self.headers.get("Expect", ""):
            self.send_response_only(100)
            self.end_headers()
        body = bytearray(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        call = self._call()
        what = owner.take(call)
        if what == "reset":
            # With a linger time of nothing, closing sends a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        if what == "wait":
            owner.released.wait(250)
        if what in _PLANNED:
            self._refuse(_PLANNED[what])
            return
        if what == "damage" and body:
            body[len(body) // 2] ^= 1
        digest = self.headers.get("Content-MD5")
        if digest is not None and base64.b64decode(digest) != hashlib.md5(body).digest():
            self._refuse("BadDigest")
            return
        if what == "keep damage" and body:
            body[len(body) // 2] ^= 1
        skipped = ["connection", "expect", *(["x-amz-checksum-crc32"] if what == "keep damage" else [])]
        headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
        connection = http.client.HTTPConnection(owner.target, timeout=60)
        try:
            connection.request(self.command, self.path, bytes(body) if body else None, headers)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if what == "lost":
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _call(self) -> str:
        """Name a call as S3 does, as far as uploads and reading go."""
        address = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(address.query, keep_blank_values=True)
        if "uploads" in query:
            return "CreateMultipartUpload" if self.command == "POST" else "ListMultipartUploads"
        if "uploadId" in query:
            names = {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}
            return names.get(self.command, "ListParts")
        if "/" not in address.path.strip("/"):
            return "ListObjects"
        return {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject"}.get(self.command, "DeleteObject")

    def _refuse(self, code: str) -> None:
        data = _S3_ERROR.format(code=code).encode()
        self.send_response(_STATUS[code])
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextlib.contextmanager
def troubled(store: S3Server) -> Iterator[Trouble]:
    """Lead all that goes to an S3 server through something that spoils it as planned, until the block ends."""
    trouble = Trouble(store.endpoint_url)
    try:
        with environment({"AWS_ENDPOINT_URL": trouble.url}):
            forget_connections()
            yield trouble
    finally:
        trouble.stop()
        forget_connections()
