"""Point operations of the policies: torchvision's pixels, also one on top of the other."""

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional

from dataloading.transforms.kernels import histograms

from .kernel_calls import apply_table, smooth


def images_of_all_kinds():
    rng = np.random.default_rng(8)
    yield rng.integers(0, 256, (3, 37, 53), dtype=np.uint8)
    yield smooth((5, 64, 61))
    yield np.full((3, 9, 9), 200, np.uint8)
    yield np.full((1, 30, 30), 200, np.uint8) + (np.arange(900).reshape(1, 30, 30) < 2).astype(np.uint8)
    yield rng.choice(np.array([0, 255], np.uint8), (3, 31, 40), p=[0.9, 0.1])
    yield rng.integers(0, 256, (1, 1, 1), dtype=np.uint8)


def test_equalize_is_torchvisions_to_the_bit():
    for source in images_of_all_kinds():
        got = apply_table(histograms.equalize, source)
        assert np.array_equal(got, functional.equalize(torch.from_numpy(source)))


def test_equalize_sees_the_values_that_the_operations_before_it_made():
    tables = np.stack([255 - np.arange(256), np.arange(256) & 0xE0, np.minimum(np.arange(256) * 2, 255)])
    for source in images_of_all_kinds():
        if len(source) != 3:
            continue
        before = np.stack([tables[c].astype(np.uint8)[source[c]] for c in range(3)])
        got = apply_table(histograms.equalize, source, tables=tables.astype(np.uint8))
        assert np.array_equal(got, functional.equalize(torch.from_numpy(before)))


def test_equalize_makes_all_values_equally_frequent():
    source = np.repeat(np.arange(100, 132, dtype=np.uint8), 128).reshape(1, 64, 64)
    got = np.unique(apply_table(histograms.equalize, source))
    # 32 values become 32 steps of 8 or 9 levels; the step is rounded down, so that the uppermost may meet at 255.
    assert len(got) >= 30 and set(np.diff(got)[:-1]) == {8, 9} and got[0] == 0 and got[-1] == 255


@pytest.mark.parametrize("added", [0, 50, 110])
def test_solarize_add_brightens_what_is_below_the_threshold(added):
    values = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    got = apply_table(histograms.solarize_add, values, [added], [128.0])
    want = np.where(values < 128, np.minimum(values.astype(int) + added, 255), values)
    assert np.array_equal(got, want)
