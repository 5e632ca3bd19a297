"""The learning rate as a pure function of the completed fraction of the run, without state to save.

With fractions instead of steps, a run that resumes with another batch size stays on its curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dataloading import UsageError


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Linear warm-up, then a cosine (Loshchilov and Hutter, arXiv:1608.03983, without restarts), a line, or steps.

    Parameters
    ----------
    peak : float
        Learning rate at the end of the warm-up.
    warmup : float
        Fraction of the run spent warming up, 0 to 0.5.

    Raises
    ------
    UsageError
        The fraction is out of range.

    Examples
    --------
    >>> schedule = Schedule(peak=1.0, warmup=2 / 6)
    >>> [round(schedule(step / 6, (step + 1) / 6), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """

    peak: float
    warmup: float
    kind: str = "cosine"
    drop_every: float = 1.0
    drop: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup <= 0.5:
            raise UsageError(f"the warm-up must be 0 to 0.5 of the run, got {self.warmup}")

    def __call__(self, start: float, end: float) -> float:
        """Return the learning rate of the step that takes the run from fraction `start` to `end` (0 to 1)."""
        if start < self.warmup:
            return self.peak * min(1.0, end / self.warmup)
        progress = min(1.0, (start - self.warmup) / (1.0 - self.warmup))
        if self.kind == "linear":
            return self.peak * (1.0 - progress)
        if self.kind == "step":
            return float(self.peak * self.drop ** math.floor(start / self.drop_every + 1e-9))
        return self.peak * 0.5 * (1.0 + math.cos(math.pi * progress))
