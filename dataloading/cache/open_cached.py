"""Opens files whose pages come through the cache: local files directly, objects of a store by their head and tables.

Chooses the store and its unit size. Loads, checks and pins a remote file's tables before anything else is read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from dataloading._native import read_ahead
from dataloading.cache.memory_maps import read_no_neighbours
from dataloading.cache.memory_store import MemoryStore
from dataloading.cache.page_cache import CachedFile, PageCache, Units
from dataloading.cache.sparse_files import FolderStore, Store, num_units
from dataloading.dataset.remote.byte_sources import ByteSource, LocalSource, RemoteSource
from dataloading.dataset.remote.clients import is_url
from dataloading.errors import ChecksumError, FormatError
from dataloading.format import Reader, probe_file, probe_header, regions
from dataloading.retry import Retry

__all__ = ["open_cached"]

# Large enough to hide a store's round trip, small enough that several requests share a large page.
_LARGEST_UNIT_BYTES = 1 << 23
_NUM_CONNECTIONS = 16


def open_cached(
    paths: Sequence[str],
    *,
    folder: str | os.PathLike[str] | None,
    unit_bytes: int | None,
    name: str,
    custom_records: Mapping[str, npt.DTypeLike],
) -> tuple[list[Reader], PageCache]:
    """Open the files of a dataset so that their pages come through one cache, which is unbounded at first.

    Parameters
    ----------
    paths : sequence of str
    folder : path or None
        Where pages are kept between runs; None: in memory that the node's processes share.
    unit_bytes : int or None
        Size of units of local files in memory; by default that of a file's pages. Remote files and folders have units
        of pages of at most 8 MiB.
    name : str
        Identifies the job and node, so that others on this machine use other caches.
    custom_records : mapping
        See `Reader`.

    Raises
    ------
    StorageError
        A store cannot be reached, or has no such object.
    FormatError
        A file is not a complete ``.beton`` file.
    UsageError
        The folder cannot be used.
    """
    retry = Retry()
    with ThreadPoolExecutor(_NUM_CONNECTIONS, thread_name_prefix="beton-open") as pool:
        local = {path: _open_local(path, custom_records) for path in paths if not is_url(path)}
        sources = list(pool.map(lambda path: RemoteSource(path, retry) if is_url(path) else LocalSource(path), paths))
        page_sizes = list(
            pool.map(lambda each: (local.get(each.path) or probe_header(*_read(each))).page_size, sources)
        )
        store, files = _placed(sources, page_sizes, folder=folder, unit_bytes=unit_bytes, name=name)
        cache = PageCache(store, files, cache_bytes=None)
        try:
            return list(
                pool.map(
                    lambda k: local.get(files[k].source.path) or _open_remote(cache, k, retry, custom_records),
                    range(len(files)),
                )
            ), cache
        except BaseException:
            cache.close()
            raise


def _read(source: ByteSource) -> tuple[Callable[[int, int], bytes], int, str]:
    """Return the arguments of `probe_header`."""

    def read(start: int, stop: int) -> bytes:
        out = np.empty(stop - start, np.uint8)
        source.fill(start, out)
        return out.tobytes()

    return read, source.num_bytes, source.path


def _placed(
    sources: Sequence[ByteSource],
    page_sizes: Sequence[int],
    *,
    folder: str | os.PathLike[str] | None,
    unit_bytes: int | None,
    name: str,
) -> tuple[Store, list[CachedFile]]:
    """Assign each file its units in a store's sparse files."""
    units = [min(size, _LARGEST_UNIT_BYTES) for size in page_sizes]
    if folder is not None:
        kept = FolderStore(folder)
        return kept, [
            CachedFile(source, kept.add(source.path, source.identity, source.num_bytes, unit))
            for source, unit in zip(sources, units, strict=True)
        ]
    unit = min(units)
    if unit_bytes is not None and all(isinstance(source, LocalSource) for source in sources):
        unit = min(unit, unit_bytes)
    *firsts, total = np.cumsum([0, *(num_units(source.num_bytes, unit) for source in sources)]).tolist()
    memory = MemoryStore("\n".join([name, *(source.identity for source in sources)]), total, unit)
    return memory, [CachedFile(source, memory.files[0], first) for source, first in zip(sources, firsts, strict=True)]


def _open_remote(cache: PageCache, number: int, retry: Retry, custom_records: Mapping[str, npt.DTypeLike]) -> Reader:
    """Load, verify and pin the bytes that a reader of file `number` needs."""
    file = cache.files[number]
    source = file.source
    assert isinstance(source, RemoteSource)
    pinned: set[tuple[int, int]] = set()

    def units(*ranges: tuple[int, int]) -> Units:
        starts, stops = np.array(ranges, np.uint64).reshape(-1, 2).T
        return cache.units_of(np.full(len(ranges), number), starts, stops - starts)

    def pin(*ranges: tuple[int, int]) -> None:
        new = [each for each in ranges if each not in pinned]
        pinned.update(new)
        if new:
            cache.acquire(units(*new), exempt=True)

    def read(start: int, stop: int) -> bytes:
        pin((start, stop))
        return file.data[start:stop].tobytes()

    for attempt in range(1, retry.num_tries + 1):
        try:
            pin(*probe_file(read, source.num_bytes, source.path, custom_records).tables)
            reader = Reader(source.path, custom_records, stored=file.data)
            found = {region.name: region for region in regions(reader)}
            for table in (found["sample table"], found["allocation table"]):
                for start, _ in table.damaged_blocks(table.start, file.data[table.start : table.stop])[:1]:
                    raise ChecksumError(
                        f"{source.path}: the block of a table at byte {start} does not have its checksum"
                    )
            source.pages = found["pages"]
            return reader
        except FormatError:
            # The transfer has no checksum: the bytes may be damaged in transit and not in the store.
            if attempt == retry.num_tries:
                raise
            cache.fetch_again(units((0, source.num_bytes)), pinned=True)
    raise AssertionError("the last try returns or raises")


def _open_local(path: str, custom_records: Mapping[str, npt.DTypeLike]) -> Reader:
    """Open a file with its own map for the tables only, so that its pages stay out of memory."""
    reader = Reader(path, custom_records)
    read_no_neighbours(reader.data)
    starts, stops = np.array(reader.tables, np.uint64).reshape(-1, 2).T
    read_ahead(starts + np.uint64(reader.data.ctypes.data), stops - starts, mmap.PAGESIZE)
    return reader
