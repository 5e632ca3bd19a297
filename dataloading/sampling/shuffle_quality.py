"""How good a shuffle is, as numbers computed from the order and the labels.

Pure functions of arrays; knows no files, ranks or epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dataloading.arrays import Indices
from dataloading.sampling.page_order import PageLayout, PageOrder

__all__ = ["ShuffleQuality", "WindowQuality", "expected_distinct", "measure_shuffle", "measure_windows", "spread_out"]


@dataclass(frozen=True, kw_only=True)
class ShuffleQuality:
    """What distinguishes an order from a true shuffle of the same samples.

    Parameters
    ----------
    num_batches : int
        Batches measured.
    batch_size : int
        Rows of the largest.
    num_classes : int or None
        Classes among the samples measured; None without labels, and then the next two are None as well.
    mean_distinct_classes, expected_distinct_classes : float or None
        Distinct classes per batch, on average: in this order, and in a true shuffle of the same samples.
    rank_correlation : float
        Spearman's, between the position in the order and in the file: 1 is file order, 0 a true shuffle.
    neighbour_distance : float
        How far apart in the file successive rows of a batch are, on average, as a fraction of what a true shuffle
        gives, which is a third of the file: near 0 is file order, 1 a true shuffle.
    """

    num_batches: int
    batch_size: int
    num_classes: int | None
    mean_distinct_classes: float | None
    expected_distinct_classes: float | None
    rank_correlation: float
    neighbour_distance: float

    @property
    def missing_classes(self) -> float | None:
        """How many more distinct classes per batch a true shuffle would have."""
        if self.mean_distinct_classes is None or self.expected_distinct_classes is None:
            return None
        return self.expected_distinct_classes - self.mean_distinct_classes

    def __str__(self) -> str:
        text = (
            f"rank correlation with the file {self.rank_correlation:+.3f} (a true shuffle: 0), "
            f"distance of neighbours {self.neighbour_distance:.2f} (1)"
        )
        if self.mean_distinct_classes is None:
            return text
        return (
            f"{self.mean_distinct_classes:.2f} distinct classes in batches of {self.batch_size} "
            f"(a true shuffle: {self.expected_distinct_classes:.2f}), {text}"
        )


@dataclass(frozen=True, kw_only=True)
class WindowQuality:
    """What a window of pages costs, and the shuffle it gives.

    Parameters
    ----------
    window_pages : int
        Pages open at a time.
    window_bytes : int
        Their size.
    memory_bytes : int
        Memory needed: two windows, one in use and one being read ahead; at most all pages.
    quality : ShuffleQuality
    """

    window_pages: int
    window_bytes: int
    memory_bytes: int
    quality: ShuffleQuality


def measure_shuffle(
    batches: Sequence[Indices],
    labels: npt.NDArray[np.integer] | None,
    num_samples: int,
    population: Indices | None = None,
) -> ShuffleQuality:
    """Measure some batches of an order.

    Parameters
    ----------
    batches : sequence of int64 arrays
        Sample indices of each batch, in the order of the epoch; at least one batch.
    labels : ndarray of int, shape (num_samples,), optional
        The class of every sample of the file.
    num_samples : int
        Samples in the file.
    population : ndarray of int64, optional
        Samples that a true shuffle would draw from; by default those of `batches`, which is right for a whole epoch and
        close for a large part of it.

    Examples
    --------
    >>> quality = measure_shuffle([np.array([0, 1]), np.array([2, 3])], np.array([5, 5, 6, 7]), 4)
    >>> quality.mean_distinct_classes, round(quality.expected_distinct_classes, 3), quality.rank_correlation
    (1.5, 1.833, 1.0)
    """
    indices = np.concatenate(batches)
    lengths = np.array([len(batch) for batch in batches])
    classes = mean = expected = None
    if labels is not None:
        names, numbers, counts = np.unique(labels[indices], return_inverse=True, return_counts=True)
        classes = len(names)
        batch_of = np.repeat(np.arange(len(batches)), lengths)
        mean = len(np.unique(batch_of * classes + numbers)) / len(batches)
        sizes, times = np.unique(lengths, return_counts=True)
        if population is not None:
            counts = np.unique(labels[population], return_counts=True)[1]
        each = [expected_distinct(counts, size) for size in sizes.tolist()]
        expected = float(np.dot(each, times) / len(batches))
    inside = np.ones(len(indices), bool)
    inside[np.cumsum(lengths)[:-1]] = False  # the first row of a batch follows the last of another
    steps = np.abs(np.diff(indices))[inside[1:]]
    third = max((num_samples**2 - 1) / (3 * num_samples), 1e-9)
    return ShuffleQuality(
        num_batches=len(batches),
        batch_size=int(lengths.max()),
        num_classes=classes,
        mean_distinct_classes=mean,
        expected_distinct_classes=expected,
        rank_correlation=_rank_correlation(indices),
        neighbour_distance=float(steps.mean() / third) if len(steps) else 1.0,
    )


def measure_windows(
    layout: PageLayout,
    labels: npt.NDArray[np.integer] | None,
    *,
    batch_size: int,
    windows: Sequence[int],
    key: int = 0,
    num_nodes: int = 1,
    num_batches: int = 1000,
) -> list[WindowQuality]:
    """Measure ``shuffle="pages"`` for several sizes of the window.

    Parameters
    ----------
    layout : PageLayout
        Of the whole file.
    labels : ndarray of int, shape (num_samples,), optional
    batch_size : int
        Rows per batch and rank.
    windows : sequence of int
        Values of ``window_pages``.
    key : int
        Which order.
    num_nodes : int
        Nodes that divide the pages; one node's batches are measured.
    num_batches : int
        Batches to measure, spread over the epoch.
    """
    num = layout.num_elements
    rows = max(num // num_nodes // batch_size, 1)
    measured = []
    largest = np.sort(layout.sizes)[::-1]
    for window_pages in windows:
        order = PageOrder(layout, key=key, num_nodes=num_nodes, window_pages=window_pages)
        batches = []
        for batch in spread_out(rows, num_batches):
            positions = np.arange(batch * batch_size, min((batch + 1) * batch_size, -(-num // num_nodes)))
            batches.append(order.at(positions * num_nodes)[0])
        measured.append(
            WindowQuality(
                window_pages=window_pages,
                window_bytes=int(largest[:window_pages].sum()),
                memory_bytes=int(largest[: 2 * window_pages].sum()),
                quality=measure_shuffle(batches, labels, num, np.arange(num)),
            )
        )
    return measured


def spread_out(num: int, wanted: int) -> list[int]:
    """Choose at most `wanted` of the numbers 0..num-1, evenly spread, in ascending order."""
    return np.unique(np.linspace(0, num - 1, min(num, wanted)).astype(np.int64)).tolist() if num else []


def expected_distinct(counts: npt.NDArray[np.integer], size: int) -> float:
    """Compute how many classes `size` samples have on average, drawn without replacement.

    A class of n_c among n samples is missed with the probability C(n - n_c, b) / C(n, b).

    Parameters
    ----------
    counts : ndarray of int, shape (num_classes,)
        Samples of each class.
    size : int
        Samples drawn, at most ``counts.sum()``.

    Examples
    --------
    >>> expected_distinct(np.array([1, 1]), 2), expected_distinct(np.array([8]), 4)
    (2.0, 1.0)
    """
    kinds, times = np.unique(counts, return_counts=True)
    total = int(counts.sum())
    missed = np.ones(len(kinds))
    for k in range(size):
        missed *= np.maximum(total - kinds - k, 0) / (total - k)
    return float(np.dot(times, 1 - missed))


def _rank_correlation(indices: Indices) -> float:
    """Correlate positions with the ranks of the indices there."""
    num = len(indices)
    if num < 2:
        return 0.0
    ranks = np.empty(num)
    ranks[np.argsort(indices, kind="stable")] = np.arange(num)
    centred = np.arange(num) - (num - 1) / 2
    return float(np.dot(centred, ranks - (num - 1) / 2) / np.dot(centred, centred))
