"""Calling kernels of the augmentation engine directly, as its runner does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Odd sizes, one row, one column, images wider and higher than the other way round; gray, RGB and many channels.
SHAPES = [(3, 37, 53), (1, 61, 40), (5, 24, 24), (3, 1, 9), (3, 8, 1)]


def smooth(shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    """Pixels that change slowly, like a photograph's, with a little noise."""
    rng = np.random.default_rng(seed)
    channels, height, width = shape
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (5 + c) + c) * np.cos(y / (7 - c / 2)) for c in range(channels)]
    return np.clip(128 + 110 * np.stack(waves) + rng.normal(0, 6, shape), 0, 255).astype(np.uint8)


def apply_kernel(
    kernel: Callable[..., None],
    source: np.ndarray,
    params: Sequence[float] | np.ndarray,
    constants: Sequence[float] | np.ndarray = (),
    *,
    shape: tuple[int, int, int] | None = None,
) -> np.ndarray:
    """Run a kernel on one image; target and scratch memory start with garbage."""
    rng = np.random.default_rng(99)
    target = np.full(shape or source.shape, 77, source.dtype)
    work = rng.integers(0, 256, 64 * (source.size + target.size) + 4096, dtype=np.uint8)
    before = source.copy()
    kernel(source, target, np.array(params, np.float64), np.array(constants, np.float64), work)
    assert np.array_equal(source, before)
    return target


def apply_table(
    kernel: Callable[..., None],
    source: np.ndarray,
    params: Sequence[float] = (),
    constants: Sequence[float] = (),
    *,
    tables: np.ndarray | None = None,
) -> np.ndarray:
    """Run a point operation on one image, through the tables of those before it."""
    start = np.tile(np.arange(256, dtype=np.uint8), (len(source), 1)) if tables is None else tables.copy()
    kernel(source, start, np.array(params, np.float64), np.array(constants, np.float64))
    return np.stack([table[plane] for table, plane in zip(start, source, strict=True)])


def stream_bits(key: int) -> float:
    """Return the param that holds the key of a random stream."""
    return float(np.array([key], np.uint64).view(np.float64)[0])


def differences(got: np.ndarray, want: Any) -> np.ndarray:
    """Return how many levels each value is off."""
    return np.abs(got.astype(int) - np.asarray(want).astype(int))
