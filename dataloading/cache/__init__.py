"""Pages of dataset files, kept by us instead of by the system: in memory, or in a folder of this machine.

The names below are all that the rest of the library uses. `open_storage` opens a dataset; its `Storage.page_source`
brings pages for a loader, where the system's page cache does not: `PageSource.prefetch` begins a pass over the data,
whose steps come with their pages pinned (`PinnedPages`).

From below: `memory_maps` (what the system is told of maps), `shared_state` (what processes tell each other),
`sparse_files` and `memory_store` (where pages are kept), `eviction` (what has to go), `fetchers` (threads),
`page_cache` (who needs what), `opening` and `storage` (from paths to open files), `prefetch` (what a pass needs).
"""

from dataloading.cache.prefetch import PageSource, PinnedPages, Prefetch
from dataloading.cache.storage import Storage, StorageOptions, open_storage

__all__ = ["PageSource", "PinnedPages", "Prefetch", "Storage", "StorageOptions", "open_storage"]
