"""Patterns, folders and small files in stores, read without the cache. Imports fsspec when called."""

from __future__ import annotations

import re

from dataloading.dataset.remote.byte_sources import RemoteSource, ask
from dataloading.dataset.remote.clients import StoreClient
from dataloading.errors import UsageError
from dataloading.retry import Retry

__all__ = ["match_urls", "read_url"]


def match_urls(url: str, retry: Retry | None = None) -> list[str]:
    """Expand a pattern (``s3://bucket/train-*.beton``); an address without one stands for itself.

    Raises
    ------
    UsageError
        Nothing matches.
    StorageError
        The store cannot be reached.
    """
    if not re.search(r"[*?\\[]", url.partition("://")[2]):
        return [url]
    found = ask(url, "listing what matches it", retry or Retry(), lambda: _glob(url))
    if not found:
        raise UsageError(f"no object matches the pattern {url!r}")
    return found


def _glob(url: str) -> list[str]:
    client = StoreClient(url)
    return sorted(str(client.filesystem.unstrip_protocol(each)) for each in client.filesystem.glob(client.target))


def read_url(url: str, retry: Retry | None = None) -> bytes:
    """Read a small file whole.

    Raises
    ------
    StorageError
        The store cannot be reached, or has no such object.
    """
    import numpy as np

    source = RemoteSource(url, retry)
    out = np.empty(source.num_bytes, np.uint8)
    if len(out):
        source.fill(0, out)
    return out.tobytes()
