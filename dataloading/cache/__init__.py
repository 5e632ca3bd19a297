"""A cache of dataset pages that replaces the system's page cache: in memory, or in a local folder.

The rest of the library uses only the names below. `open_storage` opens a dataset. Its `Storage.page_source` loads pages
for a loader if this cache is in use: `PageSource.prefetch` starts a pass over the data, which pins the pages of each
step (`PinnedPages`).

From the bottom up: `memory_maps` (madvise), `shared_state` (state shared by processes), `sparse_files` and
`memory_store` (where pages are stored), `eviction`, `fetchers` (threads), `page_cache`, `open_cached` and `storage`
(from paths to open files), `prefetch` (the pages of a pass).
"""

from dataloading.cache.prefetch import PageSource, PinnedPages, Prefetch
from dataloading.cache.storage import Storage, StorageOptions, open_storage

__all__ = ["PageSource", "PinnedPages", "Prefetch", "Storage", "StorageOptions", "open_storage"]
