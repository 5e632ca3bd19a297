"""Random decisions depend on seed and sample alone."""

from __future__ import annotations

import numpy as np

from converters.sample_random import sample_uniform, sample_uniforms


def reference(seed: int, index: int) -> float:
    """SplitMix64 in Python integers, after Steele, Lea and Flood."""
    mask = 2**64 - 1

    def mix(word: int) -> int:
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        return word ^ (word >> 31)

    golden = 0x9E3779B97F4A7C15
    state = (mix((seed + golden) & mask) + (index + 1) * golden) & mask
    return (mix(state) >> 11) / 2**53


def test_equals_splitmix64_in_python_integers() -> None:
    for seed in (0, 1, 2**63 - 1):
        indices = np.array([0, 1, 2, 17, 2**40])
        expected = [reference(seed, int(index)) for index in indices]
        assert sample_uniforms(seed, indices).tolist() == expected
        assert [sample_uniform(seed, int(index)) for index in indices] == expected


def test_spreads_evenly_and_differs_between_seeds() -> None:
    first, second = sample_uniforms(0, np.arange(20000)), sample_uniforms(1, np.arange(20000))
    assert abs(first.mean() - 0.5) < 0.01
    assert np.histogram(first, 10, (0, 1))[0].min() > 1800
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
