"""Pages in random order, and samples shuffled among the pages that are open."""

from __future__ import annotations

from typing import Any

from dataloading.ffcv.traversal_order.base import EngineOrder

__all__ = ["QuasiRandom"]


class QuasiRandom(EngineOrder):
    """The order of ``OrderOption.QUASI_RANDOM``: our engine's, of pages in a window; for ranks, too."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader, loader.sampler("pages"))
