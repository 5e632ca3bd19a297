"""Which units to evict: first those that no process needs, oldest first; then, for a waiting batch, those needed last.

The caller holds the lock; nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dataloading.cache.sparse_files import CacheFile

__all__ = ["choose"]


def choose(
    page_files: Sequence[CacheFile], excess: int, alive: dict[int, int], *, ahead: bool
) -> list[tuple[CacheFile, npt.NDArray[np.int64]]]:
    """Choose units to evict, of at least `excess` bytes together; none if that is impossible.

    Parameters
    ----------
    page_files : sequence of CacheFile
    excess : int
    alive : dict
        Generation of each live seat, from `Roster.alive`.
    ahead : bool
        Whether the space is for units that are only needed later: then only units that no process has announced may be
        evicted.
    """
    candidates = []
    for page_file in page_files:
        units = page_file.table.evictable(alive)
        if len(units):
            candidates.append((page_file, units, page_file.table.stamp[units], page_file.table.needed(units, alive)))
    if not candidates:
        return []
    owners = np.repeat(np.arange(len(candidates)), [len(each[1]) for each in candidates])
    units = np.concatenate([each[1] for each in candidates])
    stamps = np.concatenate([each[2] for each in candidates])
    sizes = np.array([each[0].unit_bytes for each in candidates])[owners]
    needed = np.concatenate([each[3] for each in candidates])
    order = np.lexsort((np.where(needed, -stamps, stamps), needed))
    if ahead:
        order = order[~needed[order]]
    room = np.cumsum(sizes[order])
    if not len(room) or room[-1] < excess:
        return []
    chosen = order[: int(np.searchsorted(room, excess)) + 1]
    result = []
    for number, (page_file, *_) in enumerate(candidates):
        mine = units[chosen[owners[chosen] == number]]
        if len(mine):
            result.append((page_file, mine))
    return result
