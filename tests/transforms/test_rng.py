"""Random numbers: the published generator, the same from NumPy, Python and compiled code, and random enough."""

import numpy as np
import pytest

from dataloading import transforms as T
from dataloading.transforms import rng


def test_child_is_splitmix64_as_published():
    # First outputs for seed 1234567, from the reference C code (Vigna, splitmix64.c).
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [rng.child(1234567, n) for n in range(4)] == published


def test_keys_of_a_batch_are_the_keys_of_its_samples():
    indices = np.array([0, 5, 5, 2**40, 123456789])
    keys = rng.sample_keys(seed=-3, epoch=9, indices=indices, view=2)
    assert keys.dtype == np.uint64
    root = int.from_bytes(b"beton/v1", "big")
    for index, key in zip(indices.tolist(), keys.tolist(), strict=True):
        assert key == rng.child(rng.child(rng.child(rng.child(root, -3), 9), index), 2)


def test_keys_differ_in_every_argument():
    base = {"seed": 0, "epoch": 0, "view": 0}
    seen = {tuple(rng.sample_keys(indices=np.arange(50), **{**base, name: v})) for name in base for v in range(20)}
    assert len(seen) == 1 + 3 * 19
    assert len(np.unique(rng.sample_keys(0, 0, np.arange(100_000)))) == 100_000
    assert len({rng.batch_key(0, epoch, step) for epoch in range(50) for step in range(50)}) == 2500


def test_compiled_numbers_are_the_reference_numbers():
    for key in (0, 1, 2**63 + 11, 2**64 - 1):
        for counter in (0, 1, 77, 2**31):
            assert T.uniform(np.uint64(key), counter) == rng.uniform(key, counter)
            for bound in (1, 2, 7, 2**31 - 1):
                assert T.randint(np.uint64(key), counter, bound) == rng.randint(key, counter, bound)


def test_uniform_numbers_fill_the_unit_interval_evenly():
    numbers = np.array([rng.uniform(rng.child(5, n % 100), n // 100) for n in range(20_000)])
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    # Chi-square with 19 degrees of freedom: 43.8 is exceeded once in a thousand; the numbers are fixed.
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_normal_numbers_have_the_right_moments():
    numbers = np.array([T.normal(np.uint64(9), n) for n in range(20_000)])
    assert abs(numbers.mean()) < 0.03 and abs(numbers.std() - 1) < 0.03
    assert abs((np.abs(numbers) < 1).mean() - 0.6827) < 0.015


def test_integers_take_every_value_equally_often():
    counts = np.bincount([rng.randint(3, n, 7) for n in range(14_000)], minlength=7)
    assert len(counts) == 7
    assert ((counts - 2000) ** 2 / 2000).sum() < 22.5  # chi-square, 6 degrees of freedom, once in a thousand


def test_transforms_has_no_other_lazy_names():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = T.nothing
