"""Types of arrays that many modules share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Indices", "UInt64s"]

Indices = npt.NDArray[np.int64]
"""Indices of samples or files, or positions of an order."""
Floats = npt.NDArray[np.float64]
UInt64s = npt.NDArray[np.uint64]
