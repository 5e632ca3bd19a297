"""Subsets of a loader's samples, and the quality of their shuffling.

Works on the sampler and number columns; creates no loaders and reads no stored bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.checks import at_least
from dataloading.dataset.files import FileSet
from dataloading.dataset.info import label_field
from dataloading.dataset.open_files import Paths, open_files
from dataloading.dataset.page_layout import page_layout
from dataloading.errors import UsageError
from dataloading.sampling.sampler import Sampler, ShardSampler
from dataloading.sampling.shuffle_quality import (
    ShuffleQuality,
    WindowQuality,
    measure_shuffle,
    measure_windows,
    spread_out,
)
from dataloading.sampling.subsets import checked_indices, chosen_by

__all__ = ["compare_windows", "epoch_quality", "field_values", "filtered", "narrowed"]


def narrowed(sampler: Sampler, indices: Iterable[int]) -> ShardSampler:
    """Return a sampler of those `indices` that `sampler` uses, in their order."""
    own = _own(sampler)
    chosen = checked_indices(indices, own.num_samples)
    if own.subset is not None:
        used = np.zeros(own.num_samples, bool)
        used[own.subset] = True
        chosen = chosen[used[chosen]]
    return own.with_subset(chosen)


def filtered(sampler: Sampler, files: FileSet, predicate: Callable[[Any], Any], field: str | None) -> ShardSampler:
    """Return a sampler of those samples of `sampler` whose `field` satisfies `predicate`."""
    own = _own(sampler)
    if not callable(predicate):
        raise UsageError(
            f"filter takes a function of a field's values, such as lambda label: label < 10, got {predicate!r}; "
            "with_indices takes a list"
        )
    elements = own.elements
    return own.with_subset(elements[chosen_by(predicate, field_values(files, field)[elements])])


def epoch_quality(sampler: Sampler, files: FileSet, epoch: int, num_batches: int) -> ShuffleQuality:
    """Measure batches of one rank that are spread over `epoch`.

    Raises
    ------
    UsageError
        The epoch has no batches.
    """
    order = sampler.order(at_least("epoch", epoch, 0))
    num_batches = at_least("num_batches", num_batches, 1)
    batches = [order.step(k).indices for k in spread_out(len(order), num_batches)]
    batches = [batch for batch in batches if len(batch)]
    if not batches:
        raise UsageError("there is no batch to measure: the epoch is empty on this rank")
    return measure_shuffle(
        batches,
        None if label_field(files) is None else field_values(files),
        files.num_samples,
        population=sampler.elements if isinstance(sampler, ShardSampler) and not sampler.is_weighted else None,
    )


def compare_windows(
    path: Paths,
    *,
    batch_size: int,
    windows: Sequence[int] | None = None,
    seed: int = 0,
    num_nodes: int = 1,
    num_batches: int = 1000,
) -> list[WindowQuality]:
    """Measure the shuffling of ``shuffle="pages"`` for several windows, to choose ``window_pages``.

    Parameters
    ----------
    path : str, path-like or sequence of such
        As for the Loader; labels are read, images are not.
    batch_size : int
        Rows per batch and rank.
    windows : sequence of int, optional
        Values of ``window_pages``; by default powers of two up to the file's pages.
    seed, num_nodes : int
        As for the Loader.
    num_batches : int
        Batches to measure per window, spread over the epoch.

    Raises
    ------
    UsageError
        A number is below 1, or the file is empty.
    """
    batch_size, num_nodes = at_least("batch_size", batch_size, 1), at_least("num_nodes", num_nodes, 1)
    num_batches, seed = at_least("num_batches", num_batches, 1), at_least("seed", seed, 0)
    files = open_files(path)
    if files.num_samples == 0:
        raise UsageError(f"{files.path} has no samples: there is nothing to shuffle")
    layout = page_layout(files)
    if windows is None:
        powers = [1 << k for k in range((layout.num_pages - 1).bit_length())]
        windows = [*powers, layout.num_pages]
    if isinstance(windows, str | bytes) or not isinstance(windows, Iterable):
        raise UsageError(f"windows={windows!r} must be a list of numbers of pages")
    windows = [at_least("windows", window, 1) for window in windows]
    if not windows:
        raise UsageError("windows=[] must hold at least one number of pages")
    return measure_windows(
        layout,
        None if label_field(files) is None else field_values(files),
        batch_size=batch_size,
        windows=windows,
        key=seed,
        num_nodes=num_nodes,
        num_batches=num_batches,
    )


def field_values(files: FileSet, field: str | None = None) -> npt.NDArray[Any]:
    """Read the numbers of an integer or float field, by default the labels: shape (num_samples,).

    Raises
    ------
    UsageError
        The field does not exist, or does not hold one number per sample.
    """
    known = ", ".join(map(repr, files.fields))
    name = label_field(files) if field is None else field
    if name is None:
        raise UsageError(
            f"labels are needed: an integer field named 'label', or a single integer field; {files.path} has {known}"
        )
    if not isinstance(name, str) or name not in files.fields or files.fields[name].has_data:
        raise UsageError(f"{name!r} is not an integer or float field of {files.path}, which has {known}")
    return np.ascontiguousarray(files.column(name))


def _own(sampler: Sampler) -> ShardSampler:
    if not isinstance(sampler, ShardSampler):
        raise UsageError("sampler= decides which samples are used: a subset needs a loader made without it")
    return sampler
