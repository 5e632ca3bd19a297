"""Two curves fitted to measured points: the cost of a message, and the speed of several processes. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["MessageCost", "Scalability", "fit_messages", "fit_scaling"]


@dataclass(frozen=True, kw_only=True)
class MessageCost:
    """``seconds = latency + bytes / bandwidth``: Hockney, Parallel Computing 20 (1994), pages 389-398."""

    latency_seconds: float
    bytes_per_second: float


def fit_messages(num_bytes: Sequence[float], seconds: Sequence[float]) -> MessageCost:
    """Fit the line with the least relative errors; the latency is at least 0.

    Examples
    --------
    >>> fit_messages([0.0, 1e6, 2e6], [1e-3, 2e-3, 3e-3]).latency_seconds
    0.001
    """
    sizes, times = np.asarray(num_bytes, np.float64), np.asarray(seconds, np.float64)
    equations = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    latency, slope = np.linalg.lstsq(equations, np.ones_like(times), rcond=None)[0].tolist()
    if latency < 0 or slope <= 0:
        latency, slope = max(0.0, float(times.min()) if slope <= 0 else 0.0), max(0.0, float((times / sizes).min()))
    return MessageCost(latency_seconds=round(latency, 12), bytes_per_second=1 / slope if slope > 0 else math.inf)


@dataclass(frozen=True, kw_only=True)
class Scalability:
    """Speed of N processes: ``rate(N) = N rate(1) / (1 + serial (N - 1) + crosstalk N (N - 1))``.

    Gunther's universal scalability law (https://arxiv.org/abs/0808.1431); with a crosstalk of 0 it is Amdahl's law
    (AFIPS 1967), and `serial` the share of the work that does not run in parallel.

    Parameters
    ----------
    rate : float
        Of one process.
    serial, crosstalk : float
        At least 0.
    """

    rate: float
    serial: float
    crosstalk: float

    def predict(self, processes: float) -> float:
        """Return the rate of so many processes."""
        others = processes - 1
        return processes * self.rate / (1 + self.serial * others + self.crosstalk * processes * others)

    @property
    def limit(self) -> float:
        """The highest rate, for any number of processes."""
        if self.crosstalk > 0:
            return self.predict(max(1.0, math.sqrt(max(0.0, 1 - self.serial) / self.crosstalk)))
        return self.rate / self.serial if self.serial > 0 else math.inf


def fit_scaling(rates: Mapping[int, float]) -> Scalability:
    """Fit the law to the rates of 1 and more processes.

    Parameters
    ----------
    rates : mapping of int to float
        Rate by number of processes; 1 must be among them.

    Examples
    --------
    >>> law = fit_scaling({1: 100.0, 2: 100.0 * 2 / 1.1, 4: 100.0 * 4 / 1.3})
    >>> round(law.serial, 6), round(law.crosstalk, 6)
    (0.1, 0.0)
    """
    one = rates[1]
    # N rate(1) / rate(N) - 1 is linear in both: serial (N - 1) + crosstalk N (N - 1).
    points = [(n, n * one / rate - 1) for n, rate in rates.items() if n > 1]
    others, excess = np.array([n - 1 for n, _ in points], np.float64), np.array([lost for _, lost in points])
    both = others * (others + 1)

    def alone(column: np.ndarray) -> float:
        return max(0.0, float(column @ excess / (column @ column))) if len(column) else 0.0

    candidates = [(alone(others), 0.0), (0.0, alone(both))]
    if len(points) > 1:
        serial, crosstalk = np.linalg.lstsq(np.stack([others, both], 1), excess, rcond=None)[0].tolist()
        if serial >= 0 and crosstalk >= 0:
            candidates.insert(0, (serial, crosstalk))
    # With one point, or where the best solution is negative: the better of the two that have one term only.
    best = min(candidates, key=lambda each: float(((each[0] * others + each[1] * both - excess) ** 2).sum()))
    return Scalability(rate=one, serial=best[0], crosstalk=best[1])
