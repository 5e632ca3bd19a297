"""Statistics of repeated measurements: summaries, ratios, the order of rounds. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Ratio", "Summary", "compare", "interleave", "percentile", "summarise"]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A summary of repeated measurements: mean, sample standard deviation (0 for one value), extremes."""

    mean: float
    std: float
    low: float
    high: float
    values: list[float]

    @property
    def median(self) -> float:
        """Middle value."""
        return statistics.median(self.values)

    @property
    def count(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def spread(self) -> float:
        """Largest minus smallest, as a fraction of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def summarise(values: Sequence[float]) -> Summary:
    """Summarise the values of one quantity.

    Raises
    ------
    ValueError
        There are none.

    Examples
    --------
    >>> summarise([3.0, 1.0, 2.0]).median
    2.0
    """
    if not values:
        raise ValueError("no values to summarise")
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return Summary(mean=mean, std=math.sqrt(variance), low=min(values), high=max(values), values=list(values))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest of ordered values that `percent` of them do not exceed; 0 without values.

    Examples
    --------
    >>> percentile([1.0, 2.0, 3.0, 4.0], 50), percentile([1.0, 2.0, 3.0, 4.0], 99)
    (2.0, 4.0)
    """
    return ordered[max(0, math.ceil(percent / 100.0 * len(ordered)) - 1)] if ordered else 0.0


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One loader's rate divided by another's.

    Parameters
    ----------
    of_medians : float
        Median divided by median: the figure to quote.
    low, high : float
        Smallest and largest ratio of two adjacent rounds: the effect of noise.
    """

    of_medians: float
    low: float
    high: float


def compare(rates: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """Return the ratio of `rates` to `baseline`; round k of one ran next to round k of the other.

    Raises
    ------
    ValueError
        A list is empty or the baseline has a rate of zero.

    Examples
    --------
    >>> compare([40.0, 44.0, 36.0], [10.0, 11.0, 12.0])
    Ratio(of_medians=3.6363636363636362, low=3.0, high=4.0)
    """
    if not rates or not baseline or min(baseline) <= 0:
        raise ValueError("both sides need at least one round, and the baseline's rates must be positive")
    paired = [one / other for one, other in zip(rates, baseline, strict=False)]
    return Ratio(of_medians=statistics.median(rates) / statistics.median(baseline), low=min(paired), high=max(paired))


def interleave(names: Sequence[str], num_rounds: int) -> Iterator[tuple[int, str]]:
    """Return ``(round, name)`` in the order of measurement: A B C, A B C, ... so that drift affects all equally.

    Examples
    --------
    >>> list(interleave(["a", "b"], 2))
    [(0, 'a'), (0, 'b'), (1, 'a'), (1, 'b')]
    """
    return ((number, name) for number in range(num_rounds) for name in names)
