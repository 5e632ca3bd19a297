"""What speaks to a store: fsspec's file system for an address, made to answer once, and ranges as ranges.

The packages behind fsspec try again by themselves, each in its own way and for minutes; here they are kept to one try,
so that who asks decides how often and how long. A server that sends the whole file where a part is asked for is refused
before the file comes. Owns those differences between packages and the meaning of their exceptions; knows nothing of
caches and checksums. fsspec is imported when the first address is opened.
"""

from __future__ import annotations

import asyncio
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
    """An answer that is late or wrong, and worth asking for again; the text says how."""


def is_url(path: str | bytes) -> bool:
    """Whether a path is an address in a store rather than a file of this machine; ``file://`` is the latter."""
    if isinstance(path, bytes):
        return False
    protocol, separator, _ = path.partition("://")
    return bool(separator) and protocol.isalnum() and protocol not in _LOCAL_PROTOCOLS


class StoreClient:
    """One object of a store that fsspec knows, asked without further tries; for any number of threads.

    Options come from fsspec's configuration (``FSSPEC_S3``, ``~/.config/fsspec``) and from where the store's package
    looks for them.

    Parameters
    ----------
    url : str
    shared : bool
        Use the file system that others in this process use for such addresses, with the listings it keeps, rather than
        one of its own.
    configured : bool
        Take the user's options.

    Attributes
    ----------
    filesystem, target
        fsspec's, and the address in its words.

    Raises
    ------
    UsageError
        The package that speaks to such stores is not installed, or nothing is known of such addresses.
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
            raise UsageError(f"{url} cannot be opened: {error}, to fsspec and the packages that are here") from error
        self.target: str = self.filesystem._strip_protocol(url)
        # Ranges of the hub's files come over HTTP: its own file object reads 5 MiB more than it is asked for. What the
        # user has configured for web servers, such as a password, is not for the hub.
        self._http = StoreClient("https://", shared=shared, configured=False) if self.protocol == "hf" else None
        self._hub_address: tuple[str, dict[str, str]] | None = None
        if self.protocol in ("s3", "s3a"):
            self.filesystem.retries = 1
        if self.protocol in ("gs", "gcs"):
            _try_once(self.filesystem)

    def info(self, *, limit_seconds: float | None = None) -> dict[str, Any]:
        """Return what the store says of the object now: ``size``, and whatever tells its version."""
        if self.protocol == "hf":
            return self._hub_info()
        self.filesystem.invalidate_cache(self.target)  # what was listed earlier would be believed
        return dict(self._ask("info", limit_seconds))

    def read(self, start: int, stop: int, *, limit_seconds: float | None = None) -> bytes:
        """Return the bytes from `start` up to `stop`, fewer at the end of the object.

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
        """Return all bytes of an object that is known to be small."""
        if self._http is not None:
            address, headers = self._hub_file()
            return bytes(self._http._ask("cat_file", limit_seconds, target=address, headers=headers))
        return bytes(self._ask("cat_file", limit_seconds))

    def version(self, *, limit_seconds: float | None = None) -> str:
        """Return whatever the store says of the object that changes with its bytes: size, checksum, time of change."""
        return " ".join(version_of(self.info(limit_seconds=limit_seconds)))

    def close(self) -> None:
        """End the connections of a file system of its own.

        By itself it refers to itself, and its finaliser, which waits for its connections, would run in whatever thread
        collects the garbage: an exception such as Ctrl-C would be lost there.
        """
        own = vars(self.filesystem)
        for name in [name for name, value in own.items() if callable(value)]:
            del own[name]
        if self._http is not None:
            self._http.close()

    # ---- what an exception of these methods means

    @staticmethod
    def reason(error: BaseException) -> BaseException:
        """Return what is behind an exception: over HTTP whatever goes wrong is told as a missing file."""
        cause = error.__cause__
        is_told = isinstance(error, FileNotFoundError) and isinstance(cause, Exception)
        return cause if cause is not None and is_told and not isinstance(cause, LookupError) else error

    @staticmethod
    def status_of(error: BaseException) -> int | None:
        """Return the HTTP status that a store's package tells by an exception, if any."""
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

    # ---- asking

    def _ask(self, method: str, limit_seconds: float | None, *, target: str | None = None, **arguments: Any) -> Any:
        target = self.target if target is None else target
        if not getattr(self.filesystem, "async_impl", False):
            return getattr(self.filesystem, method)(target, **arguments)
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
            # Looked at before the body is read, which may be all of a huge file.
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
                # A compressed answer has no bytes at the places that were asked for.
                headers={**self.filesystem.kwargs.get("headers", {}), **headers, "Accept-Encoding": "identity"},
            )
        )  # fmt: skip

    # ---- Hugging Face's hub

    def _hub_file(self) -> tuple[str, dict[str, str]]:
        """Find where the hub serves the file, and what shows who asks."""
        if self._hub_address is None:
            utils: Any = importlib.import_module("huggingface_hub.utils")  # which names it, but not to type checkers
            headers = utils.build_hf_headers(token=self.filesystem.token, library_name="beton")
            self._hub_address = self.filesystem.url(self.target), headers
        return self._hub_address

    def _hub_info(self) -> dict[str, Any]:
        """Ask for this file alone: the file system would list its folder, and believe that listing from then on."""
        from huggingface_hub import HfApi

        place = self.filesystem.resolve_path(self.target)
        if not hasattr(place, "repo_id"):  # one of the hub's buckets
            return dict(self.filesystem.info(self.target, refresh=True))
        api: Any = HfApi(endpoint=self.filesystem.endpoint, token=self.filesystem.token)
        found = api.get_paths_info(
            place.repo_id, [place.path_in_repo], revision=place.revision, repo_type=place.repo_type
        )  # fmt: skip
        if not found or not hasattr(found[0], "blob_id"):
            raise FileNotFoundError(f"{self.target} is no file of the repository")
        return {"size": found[0].size, "blob_id": found[0].blob_id}


def _options(fsspec: Any, protocol: str, *, configured: bool) -> dict[str, Any]:
    """Return a store's options that end a wait and keep it to one try; what the user has configured goes before."""
    ours: dict[str, Any] = {}
    if protocol in ("s3", "s3a"):
        limits = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": _SILENCE_SECONDS}
        ours = {"config_kwargs": {"retries": {"max_attempts": 1}, **limits}}
    elif protocol in ("http", "https", "gs", "gcs"):
        import aiohttp

        limit = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
        if protocol in ("gs", "gcs"):
            # It also tells these file systems from those of the caller's own, which keep their tries.
            return {"requests_timeout": limit}
        ours = {"client_kwargs": {"timeout": limit, "trust_env": True}}  # the proxies that other programs use
        if not configured:
            return {**ours, "headers": {}}
    names = fsspec.get_filesystem_class(protocol).protocol
    theirs: dict[str, Any] = {}
    for name in (names,) if isinstance(names, str) else names:
        theirs |= fsspec.config.conf.get(name, {})
    return {name: {**values, **(theirs.get(name) or {})} for name, values in ours.items()}


def _try_once(filesystem: Any) -> None:
    """Take gcsfs's six tries, half a minute of them, from one of its file systems."""
    request = getattr(type(filesystem)._request, "__wrapped__", None)
    if request is not None:
        filesystem._request = types.MethodType(request, filesystem)


def version_of(info: Mapping[str, Any]) -> list[str]:
    """List what a store tells of an object that changes with its bytes: a version, a checksum, a time, its size."""
    known = {name.lower(): value for name, value in info.items()}
    version = [f"{name}={known[name]}" for name in _VERSIONS if known.get(name) is not None]
    return [f"size={known.get('size')}", *version]


def error_text(error: BaseException) -> str:
    """Say in one line what a store's package complains of."""
    if isinstance(error, RetryableError):
        return str(error)
    message = (str(getattr(error, "message", "") or error).strip() or "no reason given").split("\n")[0]
    status = StoreClient.status_of(error)
    return f"{status} {message.removeprefix(f'{status} ')}" if status else f"{type(error).__name__} ({message})"
