"""Padding and permuted channels: torchvision's pixels, exactly."""

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional

from dataloading.transforms.kernels import frame

from .kernel_calls import apply_kernel

MODES = ["constant", "edge", "reflect", "symmetric"]


@pytest.mark.parametrize("mode", MODES)
def test_pad_equals_torchvision(mode):
    for dtype in (np.uint8, np.uint16, np.float32):
        for shape, padding in [((3, 11, 14), (5, 0, 7, 4)), ((1, 6, 5), (4, 5, 3, 2)), ((2, 3, 3), (0, 0, 0, 0))]:
            source = np.random.default_rng(2).integers(0, 256, shape).astype(dtype)
            left, top, right, bottom = padding
            got = apply_kernel(
                frame.pad,
                source,
                (),
                [left, top, MODES.index(mode), *[9.0] * shape[0]],
                shape=(shape[0], shape[1] + top + bottom, shape[2] + left + right),
            )
            wide = torch.from_numpy(source.astype(np.float32))
            assert np.array_equal(got, functional.pad(wide, list(padding), fill=9, padding_mode=mode).numpy())


def test_pad_fills_each_channel_with_its_own_value():
    source = np.zeros((3, 2, 2), np.uint8)
    got = apply_kernel(frame.pad, source, (), [1.0, 1.0, 0.0, 10.0, 20.0, 30.0], shape=(3, 4, 4))
    assert (
        got[:, 0, 0].tolist() == [10, 20, 30] and got[:, 3, 2].tolist() == [10, 20, 30] and not got[:, 1:3, 1:3].any()
    )


def test_channels_are_permuted_as_torchvision_permutes_them():
    source = np.random.default_rng(2).integers(0, 256, (4, 5, 7), dtype=np.uint8)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        got = apply_kernel(frame.permute_channels, source, order)
        assert np.array_equal(got, functional.permute_channels(torch.from_numpy(source), order))
