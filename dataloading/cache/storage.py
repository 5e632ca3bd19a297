"""Chooses how a dataset's bytes are cached: from the Loader's options to open files.

By default files are mapped and cached by the system. With ``os_cache=False``, ``cache_dir=`` or addresses in a store,
pages come through a cache of our own. Also computes its default size; knows no samples.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy.typing as npt

from dataloading.cache.open_cached import open_cached
from dataloading.cache.page_cache import PageCache
from dataloading.cache.prefetch import PageSource
from dataloading.checks import at_least, true_or_false
from dataloading.dataset.files import FileSet
from dataloading.dataset.open_files import Paths, open_groups
from dataloading.dataset.remote.clients import is_url
from dataloading.errors import UsageError
from dataloading.format import Reader
from dataloading.keeper import Kept, on_own_thread
from dataloading.limits import memory_bytes

__all__ = ["Storage", "StorageOptions", "open_storage"]

# Page-by-page orders read whole pages; other orders read little more than a sample.
_SMALL_UNIT_BYTES = 1 << 18
_LEAST_BYTES = 1 << 28
_SPARE_PAGES = 6

# Identify a run among those of a user on one machine, whatever launched it.
_JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """How a dataset's bytes are cached.

    Parameters
    ----------
    os_cache : bool
        Leave local files to the system's page cache.
    cache_dir : path, optional
        Folder on a local disk that keeps pages between runs.
    cache_bytes : int, optional
        Maximum size of the cache.
    by_page : bool
        Whether the order of samples goes through the files page by page.
    node : int
        This node's number in the order.
    custom_records : mapping
        See `Reader`.
    """

    os_cache: bool = True
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: int | None = None
    by_page: bool = False
    node: int = 0
    custom_records: Mapping[str, npt.DTypeLike] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.cache_dir is not None and not isinstance(self.cache_dir, str | os.PathLike):
            raise UsageError(f"cache_dir={self.cache_dir!r} must be the path of a folder")
        object.__setattr__(self, "os_cache", true_or_false("os_cache", self.os_cache))
        if self.cache_bytes is not None:
            object.__setattr__(self, "cache_bytes", at_least("cache_bytes", self.cache_bytes, 1))


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The open files of a dataset, and the cache of their pages, if it is not the system's.

    Parameters
    ----------
    files : FileSet
    sizes : tuple of int
        Samples of each dataset.
    options : StorageOptions
    cache : PageCache or None
        Closed with the last use of `files`.
    """

    files: FileSet
    sizes: tuple[int, ...]
    options: StorageOptions
    cache: PageCache | None = None

    def page_source(
        self, *, fields: Sequence[str], window_pages: int, rows_in_flight: int, num_local_ranks: int
    ) -> PageSource | None:
        """Set the cache's size limit and return its page source; None if the system's page cache is used.

        Parameters
        ----------
        fields : sequence of str
            The fields to read.
        window_pages : int
            Pages that the order keeps open; 0 if it has no window.
        rows_in_flight : int
            Samples of all batches in progress in one process.
        num_local_ranks : int
            Processes that share the cache.
        """
        if self.cache is None:
            return None
        if self.options.cache_bytes is not None:
            self.cache.bound(self.options.cache_bytes, grows=False)
        elif self.options.cache_dir is None:
            wanted = _default_bytes(self.cache, self.files, window_pages, rows_in_flight, num_local_ranks)
            self.cache.bound(wanted, grows=True)
        return PageSource(self.cache, self.files, fields, num_local_ranks)


def open_storage(groups: Sequence[Paths], options: StorageOptions) -> Storage:
    """Open the files of one or several datasets as one.

    Raises
    ------
    UsageError
        Files are missing, do not fit together, or options contradict each other.
    StorageError
        A store cannot be reached.
    FormatError
        A file is not a complete ``.beton`` file.
    """
    kept: list[Kept[_Opened]] = []

    def opened(paths: Sequence[str]) -> list[Reader]:
        if options.os_cache and options.cache_dir is None and not any(map(is_url, paths)):
            if options.cache_bytes is not None:
                raise UsageError("cache_bytes= bounds a cache of our own: pass os_cache=False or cache_dir= as well")
            return [Reader(path, options.custom_records) for path in paths]
        job = [f"{name}={os.environ.get(name)}" for name in _JOB_VARIABLES]
        opening = functools.partial(
            open_cached,
            paths,
            folder=options.cache_dir,
            unit_bytes=None if options.by_page else _SMALL_UNIT_BYTES,
            custom_records=options.custom_records,
            name=" ".join([*job, f"node={options.node}", f"cache_bytes={options.cache_bytes}"]),
        )
        kept.append(Kept(lambda: on_own_thread(opening, "beton-open"), _close))
        return kept[0].value[0]

    try:
        files, sizes = open_groups(groups, opened)
    except BaseException:
        for each in kept:
            each.end()
        raise
    cache = kept[0].value[1] if kept else None
    if cache is not None:
        files.use_memory([each.data for each in cache.files], owner=kept[0])
    return Storage(files=files, sizes=sizes, options=options, cache=cache)


_Opened: TypeAlias = "tuple[list[Reader], PageCache]"


def _close(opened: _Opened) -> None:
    on_own_thread(opened[1].close, "beton-close")


def _default_bytes(
    cache: PageCache, files: FileSet, window_pages: int, rows_in_flight: int, num_local_ranks: int
) -> int:
    """Return a default cache size: for two windows of pages, or for the batches in progress of all ranks."""
    total = sum(file.source.num_bytes + cache.unit_bytes for file in cache.files)
    if window_pages:
        page_size = max(reader.page_size for reader in files.readers)
        wanted = (2 * window_pages + 2 * num_local_ranks + _SPARE_PAGES) * page_size
    else:
        mean = total // max(files.num_samples, 1)
        each = (mean // cache.unit_bytes + 2) * cache.unit_bytes
        wanted = max(_LEAST_BYTES, rows_in_flight * each * num_local_ranks)
    return min(wanted, total, memory_bytes() // 2)
