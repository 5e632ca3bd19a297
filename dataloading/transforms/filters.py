"""The transforms that mix pixels with their neighbours or with noise."""

from __future__ import annotations

import math
import statistics

__all__ = ["normal_quantiles"]


def normal_quantiles(count: int, variance: float) -> list[float]:
    """Return ``count`` equally likely numbers, normally distributed about 0 with exactly this variance."""
    normal = statistics.NormalDist()
    quantiles = [normal.inv_cdf((i + 0.5) / count) for i in range(count)]
    scale = math.sqrt(variance * count / math.fsum(q * q for q in quantiles))
    return [scale * q for q in quantiles]
