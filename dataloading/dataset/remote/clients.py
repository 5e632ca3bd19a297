"""Store clients: fsspec's file system for an address, without its own retries, and with strict range requests.

The packages behind fsspec retry by themselves, each in its own way and for minutes; here retries are disabled, so that
the caller decides on them. A server that answers a range request with the whole file is refused before the transfer.
Handles the differences between packages and interprets their exceptions; knows no caches or checksums. fsspec is
imported when the first address is opened.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import types
from collections.abc import Mapping
from typing import Any

from dataloading.errors import StorageError, UsageError

__all__ = ["RetryableError", "StoreClient", "error_text", "is_url", "version_of"]

_LOCAL_PROTOCOLS = ("", "file", "local")
_CONNECT_SECONDS, _SILENCE_SECONDS = 10, 30
_VERSIONS = (
    "etag", "version_id", "generation", "md5hash", "crc32c", "blob_id", "lastmodified", "last-modified", "mtime"
)  # fmt: skip
_WORTH_ANOTHER_TRY = (408, 409, 425, 429)


class RetryableError(Exception):
    """A late or wrong answer that is worth a retry."""


def is_url(path: str | bytes) -> bool:
    """Whether a path is an address in a store; ``file://`` addresses are local files."""
    if isinstance(path, bytes):
        return False
    protocol, separator, _ = path.partition("://")
    return bool(separator) and protocol.isalnum() and protocol not in _LOCAL_PROTOCOLS


class StoreClient:
    """One object of a store that fsspec supports, accessed without retries. Thread-safe.

    Options come from fsspec's configuration (``FSSPEC_S3``, ``~/.config/fsspec``) and from the configuration of the
    store's package.

    Parameters
    ----------
    url : str
    shared : bool
        Use fsspec's shared file system, with its cached listings, instead of a private one.
    configured : bool
        Use the user's fsspec configuration.

    Attributes
    ----------
    filesystem, target
        fsspec's file system, and the address in its notation.

    Raises
    ------
    UsageError
        The package for such stores is not installed, or the protocol is unknown.
    """

    def __init__(self, url: str, *, shared: bool = False, configured: bool = True) -> None:
        self.url = url
        self.protocol = url.partition("://")[0]
        try:
            import fsspec
        except ImportError as error:
            raise UsageError(f'{url}: reading from stores needs fsspec: pip install "beton[remote]"') from error
        try:
            options = _options(fsspec, self.protocol, configured=configured)
            self.filesystem: Any = fsspec.filesystem(self.protocol, skip_instance_cache=not shared, **options)
        except ImportError as error:
            extra = {"gs": "gcs", "gcs": "gcs", "hf": "hf"}.get(self.protocol, "remote")
            raise UsageError(f'{url}: {error}; pip install "beton[{extra}]"') from error
        except ValueError as error:
            raise UsageError(f"{url} cannot be opened by fsspec with the installed packages: {error}") from error
        self.target: str = self.filesystem._strip_protocol(url)
        # The hub's files are read over HTTP, since its own file object reads 5 MiB more than requested. The user's HTTP
        # configuration, such as a password, must not be sent to the hub.
        self._http = StoreClient("https://", shared=shared, configured=False) if self.protocol == "hf" else None
        self._hub_address: tuple[str, dict[str, str]] | None = None
        if self.protocol in ("s3", "s3a"):
            self.filesystem.retries = 1
        if self.protocol in ("gs", "gcs"):
            _try_once(self.filesystem)

    def info(self, *, limit_seconds: float | None = None) -> dict[str, Any]:
        """Return the store's current information on the object: ``size``, and its version."""
        if self.protocol == "hf":
            return self._hub_info()
        self.filesystem.invalidate_cache(self.target)  # do not use cached listings
        return dict(self._ask("info", limit_seconds))

    def read(self, start: int, stop: int, *, limit_seconds: float | None = None) -> bytes:
        """Return the bytes from `start` to `stop`, fewer at the end of the object.

        Raises
        ------
        StorageError
            The server sends the whole file instead.
        RetryableError
            No answer within `limit_seconds`.
        Exception
            Whatever the store's package raises.
        """
        if stop <= start:
            return b""
        if self._http is not None:
            address, headers = self._hub_file()
            return self._http._read_http(address, start, stop, headers, limit_seconds)
        if self.protocol in ("http", "https"):
            return self._read_http(self.target, start, stop, {}, limit_seconds)
        return bytes(self._ask("cat_file", limit_seconds, start=start, end=stop))

    def read_all(self, *, limit_seconds: float | None = None) -> bytes:
        """Return all bytes of a small object."""
        if self._http is not None:
            address, headers = self._hub_file()
            return bytes(self._http._ask("cat_file", limit_seconds, target=address, headers=headers))
        return bytes(self._ask("cat_file", limit_seconds))

    def version(self, *, limit_seconds: float | None = None) -> str:
        """Return the object's size, checksum and modification time, as far as the store has them."""
        return " ".join(version_of(self.info(limit_seconds=limit_seconds)))

    def close(self) -> None:
        """Close the connections of a private file system.

        Without this, its finaliser would run in any thread that collects garbage and wait there for connections; an
        exception such as Ctrl-C would be lost.
        """
        own = vars(self.filesystem)
        for name in [name for name, value in own.items() if callable(value)]:
            del own[name]
        if self._http is not None:
            self._http.close()

    # ---- interpreting exceptions

    @staticmethod
    def reason(error: BaseException) -> BaseException:
        """Return the cause of an exception: over HTTP every failure is reported as a missing file."""
        cause = error.__cause__
        is_told = isinstance(error, FileNotFoundError) and isinstance(cause, Exception)
        return cause if cause is not None and is_told and not isinstance(cause, LookupError) else error

    @staticmethod
    def status_of(error: BaseException) -> int | None:
        """Return the HTTP status in an exception of a store's package, if any."""
        response = getattr(error, "response", None)
        if isinstance(response, dict):  # botocore's
            found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            status = getattr(error, "status", None)
            found = status or getattr(response, "status_code", None) or getattr(error, "code", None)
        if found is None and str(error).startswith("Forbidden"):  # gcsfs
            return 403
        return int(found) if isinstance(found, int | str) and str(found).isdecimal() else None

    @staticmethod
    def is_final(error: BaseException) -> bool:
        """Whether no further try will change the answer."""
        status = StoreClient.status_of(error)
        if status is not None:
            return 400 <= status < 500 and status not in _WORTH_ANOTHER_TRY
        kinds = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
        return isinstance(error, kinds)

    # ---- requests

    def _ask(self, method: str, limit_seconds: float | None, *, target: str | None = None, **arguments: Any) -> Any:
        target = self.target if target is None else target
        if not getattr(self.filesystem, "async_impl", False):
            return getattr(self.filesystem, method)(target, **arguments)
        import asyncio  # here, since every program that reads local files only would wait for it

        call = getattr(self.filesystem, f"_{method}")(target, **arguments)
        future = asyncio.run_coroutine_threadsafe(call, self.filesystem.loop)
        try:
            return future.result(limit_seconds)
        except concurrent.futures.TimeoutError as error:
            raise RetryableError(f"no answer within {limit_seconds:.0f} s") from error
        finally:
            future.cancel()

    def _read_http(
        self, target: str, start: int, stop: int, headers: Mapping[str, str], limit_seconds: float | None
    ) -> bytes:
        async def parts_only(response: Any) -> None:
            # Checked before the body is read, which may be a whole huge file.
            got = response.headers.get("Content-Range", f"bytes {start}-")
            if response.status == 206 and not got.startswith(f"bytes {start}-"):
                response.close()
                raise RetryableError(f"the server sent {got} where bytes {start} to {stop - 1} were asked for")
            if response.status == 200 and (start > 0 or int(response.headers.get("Content-Length", stop + 1)) > stop):
                response.close()
                raise StorageError(
                    f"{self.url if target == self.target else target}: the server ignores ranges and sends the whole "
                    f"file: it cannot be read in parts; download the file, or serve it from a store that answers range "
                    f"requests"
                )

        return bytes(
            self._ask(
                "cat_file", limit_seconds, target=target, start=start, end=stop, raise_for_status=parts_only,
                # Byte ranges do not apply to a compressed answer.
                headers={**self.filesystem.kwargs.get("headers", {}), **headers, "Accept-Encoding": "identity"},
            )
        )  # fmt: skip

    # ---- Hugging Face's hub

    def _hub_file(self) -> tuple[str, dict[str, str]]:
        """Return the URL of the file on the hub, and the headers with the user's token."""
        if self._hub_address is None:
            utils: Any = importlib.import_module("huggingface_hub.utils")  # not exported for type checkers
            headers = utils.build_hf_headers(token=self.filesystem.token, library_name="beton")
            self._hub_address = self.filesystem.url(self.target), headers
        return self._hub_address

    def _hub_info(self) -> dict[str, Any]:
        """Request information on this file only: the file system would list its folder and cache the listing."""
        from huggingface_hub import HfApi

        place = self.filesystem.resolve_path(self.target)
        if not hasattr(place, "repo_id"):  # one of the hub's buckets
            return dict(self.filesystem.info(self.target, refresh=True))
        api: Any = HfApi(endpoint=self.filesystem.endpoint, token=self.filesystem.token)
        found = api.get_paths_info(
            place.repo_id, [place.path_in_repo], revision=place.revision, repo_type=place.repo_type
        )  # fmt: skip
        if not found or not hasattr(found[0], "blob_id"):
            raise FileNotFoundError(f"{self.target} is not a file of the repository")
        return {"size": found[0].size, "blob_id": found[0].blob_id}


def _options(fsspec: Any, protocol: str, *, configured: bool) -> dict[str, Any]:
    """Return a store's options for time limits and no retries; the user's configuration takes precedence."""
    ours: dict[str, Any] = {}
    if protocol in ("s3", "s3a"):
        limits = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": _SILENCE_SECONDS}
        ours = {"config_kwargs": {"retries": {"max_attempts": 1}, **limits}}
    elif protocol in ("http", "https", "gs", "gcs"):
        import aiohttp

        limit = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
        if protocol in ("gs", "gcs"):
            # This also distinguishes these file systems from the caller's own, which keep their retries.
            return {"requests_timeout": limit}
        ours = {"client_kwargs": {"timeout": limit, "trust_env": True}}  # use the proxies of the environment
        if not configured:
            return {**ours, "headers": {}}
    names = fsspec.get_filesystem_class(protocol).protocol
    theirs: dict[str, Any] = {}
    for name in (names,) if isinstance(names, str) else names:
        theirs |= fsspec.config.conf.get(name, {})
    return {name: {**values, **(theirs.get(name) or {})} for name, values in ours.items()}


def _try_once(filesystem: Any) -> None:
    """Disable gcsfs's retries (six tries in half a minute) for one file system."""
    request = getattr(type(filesystem)._request, "__wrapped__", None)
    if request is not None:
        filesystem._request = types.MethodType(request, filesystem)


def version_of(info: Mapping[str, Any]) -> list[str]:
    """List the information that changes with an object's bytes: version, checksum, time, size."""
    known = {name.lower(): value for name, value in info.items()}
    version = [f"{name}={known[name]}" for name in _VERSIONS if known.get(name) is not None]
    return [f"size={known.get('size')}", *version]


def error_text(error: BaseException) -> str:
    """Return the error of a store's package in one line."""
    if isinstance(error, RetryableError):
        return str(error)
    message = (str(getattr(error, "message", "") or error).strip() or "no reason given").split("\n")[0]
    status = StoreClient.status_of(error)
    return f"{status} {message.removeprefix(f'{status} ')}" if status else f"{type(error).__name__} ({message})"
