"""Merges the states of ranks for a run that resumes with more or fewer ranks.

`torch.distributed.checkpoint` handles weights, optimiser and averaged weights, and the position in the data is one
number for all ranks. What remains is each rank's own state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


def merge_rank_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states of all saving ranks into one.

    Parameters
    ----------
    states : sequence of mapping
        One per rank, in order. ``buffers`` and ``ema_buffers`` map names to tensors, ``tally`` is a tensor of sums;
        ``random`` differs, and anything else is the same on all ranks.

    Returns
    -------
    dict
        Floating-point buffers (batch-norm statistics) are the mean over ranks, other buffers are rank 0's; sums are
        added, for one rank to continue; ``random`` is dropped, since generators cannot be merged.
    """
    first = states[0]
    merged = {name: value for name, value in first.items() if name != "random"}
    for kind in ("buffers", "ema_buffers"):
        # Stages of a pipeline have different names.
        names = dict.fromkeys(name for state in states for name in state[kind])
        merged[kind] = {name: _mean([state[kind][name] for state in states if name in state[kind]]) for name in names}
    merged["tally"] = torch.stack([state["tally"] for state in states]).sum(0)
    return merged


def _mean(tensors: list[torch.Tensor]) -> torch.Tensor:
    if not tensors[0].is_floating_point():
        return tensors[0]
    return torch.stack([tensor.double() for tensor in tensors]).mean(0).to(tensors[0].dtype)


def seed_rank(seed: int, step: int, rank: int) -> None:
    """Seed torch's generators for this rank's dropout, from optimiser step `step` on: differently on every rank."""
    torch.manual_seed(int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1)))
