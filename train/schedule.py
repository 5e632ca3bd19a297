"""The learning rate as a pure function of the step: nothing to save, nothing to get out of step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dataloading import UsageError


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Linear warm-up, then a cosine to zero (Loshchilov and Hutter, arXiv:1608.03983, without restarts).

    Parameters
    ----------
    peak : float
        Learning rate at the end of the warm-up.
    warmup_steps, total_steps : int
        Optimiser steps; the warm-up is cut to half of the total.

    Raises
    ------
    UsageError
        There is no step to take.

    Examples
    --------
    >>> [round(Schedule(peak=1.0, warmup_steps=2, total_steps=6)(step), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """

    peak: float
    warmup_steps: int
    total_steps: int

    def __post_init__(self) -> None:
        if self.total_steps < 1 or self.warmup_steps < 0:
            raise UsageError(f"a schedule needs at least one step, got {self}")

    def __call__(self, step: int) -> float:
        """Return the learning rate of optimiser step `step`, counted from 0."""
        warmup = min(self.warmup_steps, self.total_steps // 2)
        if step < warmup:
            return self.peak * (step + 1) / warmup
        progress = min(1.0, (step - warmup) / (self.total_steps - warmup))
        return self.peak * 0.5 * (1.0 + math.cos(math.pi * progress))
