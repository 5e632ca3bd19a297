"""What a rank takes over of the ranks that saved a checkpoint, when there were more or fewer of them.

Weights, optimiser and averaged weights are `torch.distributed.checkpoint`'s business, and the place in the data is one
number for all ranks. What is left is what each rank had for itself: this module says what becomes of it. Knows no
files and no processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


def merge_rank_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make one state of those of all saving ranks.

    Parameters
    ----------
    states : sequence of mapping
        In the order of the ranks, at least one. ``buffers`` and ``ema_buffers`` map names to tensors, ``tally`` is a
        tensor of sums; anything else is alike on all ranks, but for ``random``.

    Returns
    -------
    dict
        Floating-point buffers (batch-norm statistics) are the ranks' mean, other buffers those of the first; sums
        are added up, for one rank to go on from; ``random`` is left out, since generators cannot be merged.
    """
    first = states[0]
    merged = {name: value for name, value in first.items() if name != "random"}
    for kind in ("buffers", "ema_buffers"):
        merged[kind] = {name: _mean([state[kind][name] for state in states]) for name in first[kind]}
    merged["tally"] = torch.stack([state["tally"] for state in states]).sum(0)
    return merged


def _mean(tensors: list[torch.Tensor]) -> torch.Tensor:
    if not tensors[0].is_floating_point():
        return tensors[0]
    return torch.stack([tensor.double() for tensor in tensors]).mean(0).to(tensors[0].dtype)


def seed_rank(seed: int, step: int, rank: int) -> None:
    """Seed torch's generators for this rank's dropout, from optimiser step `step` on: differently on every rank."""
    torch.manual_seed(int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1)))
