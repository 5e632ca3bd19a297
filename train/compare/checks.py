"""Whether loaders delivered the same data: label frequencies and mean colours. Pure arithmetic on the runs' logs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["DataCheck", "check_data", "chi_square_chance"]

_SMALLEST_CHANCE = 1e-5
_STANDARD_ERRORS = 4.0
_LEVELS = 2.0  # decoders and resampling filters differ by less


@dataclass(frozen=True, kw_only=True)
class DataCheck:
    """What a loader delivered in all its runs.

    Parameters
    ----------
    loader : str
        Which.
    num_images : int
        Training images counted.
    labels : list of int
        How often each class came.
    mean : list of float
        Mean red, green and blue, in levels of 0 to 255.
    chance : float
        Of label counts at least as far from those of the data set, if images were drawn at random.
    gap : float
        Largest difference of a mean colour from the first loader's, levels.
    allowed_gap : float
        What chance and different decoders explain.
    problem : str
        What differs; empty where the data is the same.
    """

    loader: str
    num_images: int
    labels: list[int]
    mean: list[float]
    chance: float
    gap: float
    allowed_gap: float
    problem: str


def chi_square_chance(value: float, freedom: int) -> float:
    """Return the probability of a chi-square of at least `value` (Wilson and Hilferty's approximation).

    Examples
    --------
    >>> round(chi_square_chance(16.92, 9), 3), chi_square_chance(0.0, 9) > 0.99
    (0.05, True)
    """
    if freedom < 1:
        return 1.0
    share = 2.0 / (9.0 * freedom)
    return 0.5 * math.erfc(((value / freedom) ** (1 / 3) - (1 - share)) / math.sqrt(2.0 * share))


def check_data(seen: Mapping[str, Sequence[Mapping[str, Any]]], class_counts: Sequence[int]) -> list[DataCheck]:
    """Compare what loaders delivered with the data set's labels, and their colours with the first loader's.

    Parameters
    ----------
    seen : mapping
        The ``seen`` records of each loader's runs.
    class_counts : sequence of int
        Samples of each class in the data set.
    """
    checks: list[DataCheck] = []
    first: tuple[list[float], list[float], int] | None = None
    for loader, records in seen.items():
        count = sum(record["num_images"] for record in records)
        if not count:
            continue
        labels = [sum(each) for each in zip(*(record["labels"] for record in records), strict=True)]
        mean = [_mean(records, "mean", channel, count) for channel in range(3)]
        std = [_mean(records, "std", channel, count) for channel in range(3)]
        first = first or (mean, std, count)
        chance = _label_chance(labels, class_counts)
        gap, allowed = _gap((mean, std, count), first)
        problems = []
        if chance < _SMALLEST_CHANCE:
            problems.append(f"label frequencies are not those of the data (chance {chance:.1g})")
        if gap > allowed:
            problems.append(f"mean colour differs by {gap:.1f} levels (at most {allowed:.1f} expected)")
        checks.append(
            DataCheck(
                loader=loader,
                num_images=count,
                labels=labels,
                mean=mean,
                chance=chance,
                gap=gap,
                allowed_gap=allowed,
                problem="; ".join(problems),
            )
        )
    return checks


def _mean(records: Sequence[Mapping[str, Any]], name: str, channel: int, count: int) -> float:
    return math.fsum(record[name][channel] * record["num_images"] for record in records) / count


def _label_chance(labels: Sequence[int], class_counts: Sequence[int]) -> float:
    total, num_images = sum(class_counts), sum(labels)
    expected = [num_images * count / total for count in class_counts]
    pairs = list(zip(labels, expected, strict=False))
    if any(seen and not wanted for seen, wanted in pairs):
        return 0.0
    value = math.fsum((seen - wanted) ** 2 / wanted for seen, wanted in pairs if wanted)
    return chi_square_chance(value, sum(1 for wanted in expected if wanted) - 1)


def _gap(one: tuple[list[float], list[float], int], other: tuple[list[float], list[float], int]) -> tuple[float, float]:
    """Return the channel that differs most, measured by what is allowed: (its difference, what is allowed)."""
    pairs = []
    for channel in range(3):
        error = math.sqrt(one[1][channel] ** 2 / one[2] + other[1][channel] ** 2 / other[2])
        pairs.append((abs(one[0][channel] - other[0][channel]), _LEVELS + _STANDARD_ERRORS * error))
    return max(pairs, key=lambda pair: pair[0] / pair[1])
