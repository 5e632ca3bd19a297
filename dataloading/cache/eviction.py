"""Which units to evict: first those that are no longer needed; then, for a waiting batch, those needed last.

The caller holds the lock; nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dataloading.cache.shared_state import NEVER
from dataloading.cache.sparse_files import CacheFile

__all__ = ["choose"]


def choose(
    page_files: Sequence[CacheFile], excess: int, alive: dict[int, int], horizon: int, *, ahead: bool
) -> list[tuple[CacheFile, npt.NDArray[np.int64]]]:
    """Choose units to evict, of at least `excess` bytes together; none if that is impossible.

    Parameters
    ----------
    page_files : sequence of CacheFile
    excess : int
    alive : dict
        Generation of each live seat, from `Roster.alive`.
    horizon : int
        Units with this stamp or an earlier one are no longer needed. They are evicted first, oldest first.
    ahead : bool
        Whether the space is for units that are only needed later: then only units that are not needed may be evicted.
    """
    candidates = []
    for page_file in page_files:
        units = page_file.table.evictable(alive)
        if len(units):
            candidates.append((page_file, units, page_file.table.stamp[units]))
    if not candidates:
        return []
    owners = np.repeat(np.arange(len(candidates)), [len(units) for _, units, _ in candidates])
    units = np.concatenate([each[1] for each in candidates])
    stamps = np.concatenate([each[2] for each in candidates])
    sizes = np.array([each[0].unit_bytes for each in candidates])[owners]
    past = stamps <= horizon
    order = np.argsort(np.where(past, stamps - NEVER, -stamps), kind="stable")
    if ahead:
        order = order[past[order]]
    room = np.cumsum(sizes[order])
    if not len(room) or room[-1] < excess:
        return []
    chosen = order[: int(np.searchsorted(room, excess)) + 1]
    result = []
    for number, (page_file, _, _) in enumerate(candidates):
        mine = units[chosen[owners[chosen] == number]]
        if len(mine):
            result.append((page_file, mine))
    return result
