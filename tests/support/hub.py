"""Hugging Face's hub on loopback, as far as reading goes: facts of a repository, listings, files by redirect.

::

    with hub_server(folder) as hub:      # folder/datasets/me/set/... is hf://datasets/me/set/...
        fsspec.open("hf://datasets/me/set/train.parquet")     # HF_ENDPOINT is set meanwhile

Files are sent by another address than the hub's, to which it redirects, as its stores do. Listings come in pages of a
few entries. Its content store (Xet) is not there: a hub may leave it out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .buckets import environment
from .servers import Faults, FileHandler, HTTPServer, forget_connections

__all__ = ["hub_server"]

_PAGE_ENTRIES = 7


class _HubHandler(FileHandler):
    def answer(self, name: str, *, with_body: bool) -> None:
        parts = name.strip("/").split("/")
        if parts[0] == "api":
            self._facts(parts[1:])
        elif len(parts) > 4 and parts[3] == "resolve":
            self._redirect([*parts[:3], *parts[5:]])
        elif parts[0] == "store":
            super().answer("/" + "/".join(parts[1:]), with_body=with_body)
        else:
            self.refuse(404, name)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        asked = self.rfile.read(length)
        parts = urllib.parse.unquote(self.path.strip("/")).split("/")[1:]
        if len(parts) < 4 or parts[3] != "paths-info":
            self.refuse(404, self.path)
            return
        body = json.loads(asked) if asked.startswith(b"{") else dict(urllib.parse.parse_qsl(asked.decode()))
        wanted = body["paths"] if isinstance(body["paths"], list) else [body["paths"]]
        folder = self._repository(parts)
        self._json([_entry(folder, folder / each) for each in wanted if (folder / each).exists()])

    def _repository(self, parts: list[str]) -> Path:
        return self.server.owner.folder.joinpath(*parts[:3])

    def _facts(self, parts: list[str]) -> None:
        """Answer with what the hub knows of a repository (``/api/datasets/me/set[/revision/main]``), or its tree."""
        folder = self._repository(parts)
        if not folder.is_dir():
            self._error(404, "RepoNotFound", "Repository not found")
        elif len(parts) > 4 and parts[4] != "main":
            self._error(404, "RevisionNotFound", f"Invalid rev id: {parts[4]}")
        elif len(parts) > 3 and parts[3] == "tree":
            self._tree(folder, "/".join(parts[5:]))
        else:
            files = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
            facts = {"id": "/".join(parts[1:3]), "sha": "0" * 40, "private": False, "tags": [], "downloads": 0}
            self._json({**facts, "siblings": [{"rfilename": each} for each in files]})

    def _tree(self, folder: Path, below: str) -> None:
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        top = folder / below
        if not top.is_dir():
            self._error(404, "EntryNotFound", f"{below} does not exist on main")
            return
        found = sorted(top.rglob("*") if query.get("recursive", "").lower() == "true" else top.iterdir())
        start = int(query.get("cursor", 0))
        page = [_entry(folder, each) for each in found[start : start + _PAGE_ENTRIES]]
        further = start + _PAGE_ENTRIES < len(found)
        query["cursor"] = str(start + _PAGE_ENTRIES)
        address = f"{self._own()}{urllib.parse.urlsplit(self.path).path}?{urllib.parse.urlencode(query)}"
        self._json(page, {"Link": f'<{address}>; rel="next"'} if further else {})

    def _redirect(self, parts: list[str]) -> None:
        path = self.server.owner.folder.joinpath(*parts)
        if not path.is_file():
            self._error(404, "EntryNotFound", "Entry not found")
            return
        self.send_response(302)
        self.send_header("Location", f"{self._own()}/store/{urllib.parse.quote('/'.join(parts))}")
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("X-Linked-Size", str(path.stat().st_size))
        self.send_header("X-Linked-ETag", f'"{_digest(path)}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _own(self) -> str:
        return self.server.owner.url

    def _json(self, facts: Any, headers: dict[str, str] | None = None, status: int = 200) -> None:
        text = json.dumps(facts).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _error(self, status: int, code: str, message: str) -> None:
        self._json({"error": message}, {"X-Error-Code": code, "X-Error-Message": message}, status)


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


def _entry(folder: Path, path: Path) -> dict[str, Any]:
    name = str(path.relative_to(folder))
    if path.is_dir():
        return {"type": "directory", "oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0, "path": name}
    size = path.stat().st_size
    lfs = {"oid": hashlib.sha256(path.read_bytes()).hexdigest(), "size": size, "pointerSize": 134}
    return {"type": "file", "oid": _digest(path), "size": size, "path": name, "lfs": lfs}


@contextlib.contextmanager
def hub_server(folder: str | os.PathLike[str], faults: Faults | None = None) -> Iterator[HTTPServer]:
    """Serve the repositories below a folder on a free port of loopback until the block ends."""
    import huggingface_hub.constants as constants

    server = HTTPServer(Path(folder), faults or Faults(), _HubHandler)
    before = constants.ENDPOINT, constants.HUGGINGFACE_CO_URL_TEMPLATE
    try:
        with environment({"HF_ENDPOINT": server.url, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": ""}):
            # Read from the environment when the package is imported, which was perhaps long ago.
            constants.ENDPOINT = server.url
            constants.HUGGINGFACE_CO_URL_TEMPLATE = server.url + "/{repo_id}/resolve/{revision}/{filename}"
            forget_connections("hf")
            yield server
    finally:
        constants.ENDPOINT, constants.HUGGINGFACE_CO_URL_TEMPLATE = before
        forget_connections("hf")
        server.stop()
