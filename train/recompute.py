"""Activation checkpointing: blocks keep their input only and are computed again in the backward pass.

(Chen et al., arXiv:1604.06174.)
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from train.model import blocks_of


def recompute_blocks(model: nn.Module) -> int:
    """Checkpoint each innermost block of a network, in place, and return how many there are; names do not change."""
    blocks = blocks_of(model)
    innermost = [block for block in blocks if not any(other in blocks for other in list(block.modules())[1:])]
    for block in innermost:
        contexts = functools.partial(_contexts, block)
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
    return len(innermost)


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the forward pass and of computing it again."""
    return nullcontext(), _keeping_statistics(block)


@contextmanager
def _keeping_statistics(block: nn.Module) -> Iterator[None]:
    """Keep batch norm from counting the same batch twice."""
    norms = [part for part in block.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked = norm.num_batches_tracked.clone()
    try:
        yield
    finally:
        for norm, momentum, count in kept:
            norm.momentum, norm.num_batches_tracked = momentum, count
