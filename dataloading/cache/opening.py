"""Opening files whose pages come through a cache: local ones as they are, objects of a store by their head and tables.

Owns which store is used, how large its units are, and what of a remote file is brought before anything can be read: the
header, the sample table, the extension block and the allocation table, which stay pinned while the file is open.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from dataloading.cache.memory_maps import read_no_neighbours
from dataloading.cache.memory_store import MemoryStore
from dataloading.cache.page_cache import CachedFile, PageCache
from dataloading.cache.sparse_files import FolderStore, Store, num_units
from dataloading.dataset.remote.clients import is_url
from dataloading.dataset.remote.sources import Blocks, ByteSource, LocalSource, RemoteSource
from dataloading.errors import ChecksumError, FormatError
from dataloading.format import Reader
from dataloading.format import extension as ext
from dataloading.format.layout import DESCRIPTOR, HEADER, align_up, parse_header
from dataloading.retry import Retry

__all__ = ["CachedOpener"]

# Large enough for a store's round trip to be short beside it, small enough that a large page is brought by several.
_LARGEST_UNIT_BYTES = 1 << 23
_NUM_CONNECTIONS = 16


class CachedOpener:
    """Opens the files of a dataset so that their pages come through one cache.

    Parameters
    ----------
    folder : path or None
        Where pages are kept between runs; None: in memory that the node's processes share.
    unit_bytes : int or None
        Size of units of local files in memory; by default that of a file's pages. Remote files and folders have units
        of pages of at most 8 MiB.
    name : str
        What tells caches of other jobs and nodes on this machine apart.
    retry : Retry, optional
        How stores are asked.

    Attributes
    ----------
    cache : PageCache
        Once `open` has been called; unbounded at first.
    """

    def __init__(
        self, *, folder: str | os.PathLike[str] | None, unit_bytes: int | None, name: str, retry: Retry | None = None
    ) -> None:
        self._folder = folder
        self._unit_bytes = unit_bytes
        self._name = name
        self._retry = retry or Retry()
        self.cache: PageCache

    def open(self, paths: Sequence[str]) -> list[Reader]:
        """Open all files, in this order.

        Raises
        ------
        StorageError
            A store cannot be reached, or has no such object.
        FormatError
            A file is not a complete ``.beton`` file.
        UsageError
            The folder cannot be used.
        """
        with ThreadPoolExecutor(_NUM_CONNECTIONS, thread_name_prefix="beton-open") as pool:
            local = {path: _open_local(path) for path in paths if not is_url(path)}
            sources = list(pool.map(self._source, paths))
            page_sizes = list(pool.map(_page_size, sources, (local.get(path) for path in paths)))
            store, files = self._store(sources, page_sizes)
            self.cache = PageCache(store, files, cache_bytes=None)
            try:
                return list(pool.map(lambda file: local.get(file.source.path) or self._open_remote(file), files))
            except BaseException:
                self.cache.close()
                raise

    def _source(self, path: str) -> ByteSource:
        if is_url(path):
            return RemoteSource(path, self._retry)
        return LocalSource(path, os.stat(path).st_size)  # a path as a string

    def _store(self, sources: Sequence[ByteSource], page_sizes: Sequence[int]) -> tuple[Store, list[CachedFile]]:
        units = [min(size, _LARGEST_UNIT_BYTES) for size in page_sizes]
        if self._folder is not None:
            folder = FolderStore(self._folder)
            return folder, [
                CachedFile(source, folder.add(source.path, source.identity, source.num_bytes, unit))
                for source, unit in zip(sources, units, strict=True)
            ]
        unit = min(units)
        if self._unit_bytes is not None and all(isinstance(source, LocalSource) for source in sources):
            unit = min(unit, self._unit_bytes)
        counts = [num_units(source.num_bytes, unit) for source in sources]
        firsts = np.cumsum([0, *counts]).tolist()
        name = "\n".join([self._name, *(source.identity for source in sources)])
        memory = MemoryStore(name, firsts[-1], unit)
        return memory, [
            CachedFile(source, memory.files[0], first) for source, first in zip(sources, firsts[:-1], strict=True)
        ]

    # ---- remote files

    def _open_remote(self, file: CachedFile) -> Reader:
        """Bring what a reader needs, make sure that it is right, and keep it pinned."""
        number = next(k for k, each in enumerate(self.cache.files) if each is file)
        size = file.source.num_bytes
        path = file.source.path

        def need(start: int, stop: int) -> None:
            if stop > start:
                self.cache.acquire(self._units(number, start, stop), exempt=True)

        need(0, min(size, HEADER.itemsize + DESCRIPTOR.itemsize))
        for attempt in range(1, self._retry.num_tries + 1):
            try:
                header = parse_header(file.data[: HEADER.itemsize].tobytes(), size, path)
                end = min(_extension_start(file.data), header.alloc_table_ptr)
                if attempt == 1:
                    need(0, header.table_start)
                    need(end, size)
                reader = Reader(path, stored=file.data)
                if attempt == 1:
                    need(header.table_start, reader.table_end)
                blocks = _blocks(reader)
                break
            except FormatError:
                # Bytes on their way have no checksum yet: perhaps they were damaged there, and not in the store.
                if attempt == self._retry.num_tries:
                    raise
                self.cache.bring_again(self._units(number, 0, size), pinned=True)
        assert isinstance(file.source, RemoteSource)
        file.source.blocks = blocks
        return reader

    def _units(self, file: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        return self.cache.units_of(np.array([file]), np.array([start], np.uint64), np.array([stop - start], np.uint64))


def _open_local(path: str) -> Reader:
    """Open a file whose tables are read through its map, and nothing else, so that its pages stay out of memory."""
    reader = Reader(path)
    read_no_neighbours(reader.data)
    with open(path, "rb") as file:
        for start, stop in ((0, reader.table_end), (reader.header.alloc_table_ptr, reader.num_bytes)):
            os.posix_fadvise(file.fileno(), start, stop - start, os.POSIX_FADV_WILLNEED)
    return reader


def _page_size(source: ByteSource, reader: Reader | None) -> int:
    if reader is not None:
        return reader.page_size
    head = np.empty(min(HEADER.itemsize, source.num_bytes), np.uint8)
    if len(head):
        source.fill(0, head)
    return parse_header(head.tobytes(), source.num_bytes, source.path).page_size


def _extension_start(data: npt.NDArray[np.uint8]) -> int:
    """Find where the extension block begins, or what is beyond every file: the reader will look closely."""
    raw = data[ext.LOCATOR_POSITION : ext.LOCATOR_POSITION + ext.LOCATOR.itemsize]
    if len(raw) < ext.LOCATOR.itemsize or not raw.any():
        return 1 << 62
    return int(raw.view(ext.LOCATOR)[0]["ptr"])


def _blocks(reader: Reader) -> Blocks | None:
    """Compare the tables with their checksums, and give those of the pages; None for a file that FFCV wrote.

    Raises
    ------
    ChecksumError
        A table is damaged.
    """
    extension, locator = reader.extension, reader.locator
    if extension is None or locator is None:
        return None
    start = align_up(locator.ptr + locator.text_bytes, 8)
    counts = [extension.num_blocks[region] for region in ext.REGIONS]
    raw = reader.data[start : start + 8 * sum(counts)].tobytes()
    if ext.digest(raw) != extension.digests_xxh3:
        raise ChecksumError(f"{reader.path}: the list of checksums at byte {start} is damaged")
    digests = np.split(np.frombuffer(raw, "<u8"), np.cumsum(counts)[:-1])
    bounds = [
        (reader.header.table_start, reader.table_end),
        (extension.data_start, locator.ptr),
        (reader.header.alloc_table_ptr, reader.num_bytes),
    ]
    regions = [
        Blocks(start=low, stop=high, block_bytes=extension.block_bytes, digests=each)
        for (low, high), each in zip(bounds, digests, strict=True)
    ]
    for blocks in (regions[0], regions[2]):
        damaged = blocks.first_damaged(blocks.start, reader.data[blocks.start : blocks.stop])
        if damaged is not None:
            raise ChecksumError(f"{reader.path}: the block of a table at byte {damaged} does not have its checksum")
    return regions[1]
