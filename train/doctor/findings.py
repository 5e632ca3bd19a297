"""What the doctor reports: one finding per cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["NOTE", "PROBLEM", "Finding", "Level", "in_order", "problems"]

Level = Literal["problem", "note"]
PROBLEM: Level = "problem"
NOTE: Level = "note"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that costs speed or will fail.

    Parameters
    ----------
    name : str
        Of the cause or the check, such as ``workers``; stable, for scripts.
    what : str
        The statement, one sentence.
    measured, expected : str
        The value found, and the one that would be right.
    advice : str
        What to change.
    level : {"problem", "note"}
        A problem makes ``beton doctor`` exit with 1.
    gain : float
        How many times faster training would be without it, by the arithmetic of `judge`; 0 where nobody can tell.
    """

    name: str
    what: str
    measured: str
    expected: str
    advice: str
    level: Level = PROBLEM
    gain: float = 0.0


def problems(findings: Iterable[Finding]) -> list[Finding]:
    """Return those that are no mere notes."""
    return [finding for finding in findings if finding.level == PROBLEM]


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sort: problems first, and among them the largest gain."""
    return sorted(findings, key=lambda finding: (finding.level != PROBLEM, -finding.gain))
