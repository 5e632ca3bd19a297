"""Padding and permuted channels: torchvision's pixels, exactly."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.transforms.kernels import frame
from dataloading.transforms.pipeline import Pipeline

from .kernel_calls import apply_kernel
from .support import apply, assert_equally_likely, images, keys_for

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


# -- the transforms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", [3, (2, 5), [1, 0, 4, 2]])
def test_pad_is_torchvisions(mode, padding):
    decoded = images(2, (3, 12, 15))
    got = apply([T.RandomInvert(0.0), T.Pad(padding, fill=9, padding_mode=mode)], decoded, keys_for(2))
    want = v2.Pad(padding, fill=9, padding_mode=mode)(torch.from_numpy(decoded))
    assert np.array_equal(got, want)


def test_pad_then_random_crop_as_for_small_images():
    decoded = images(40, (3, 32, 32))
    got = apply([T.Pad(4, fill=(1, 2, 3)), T.RandomCrop(32), T.RandomHorizontalFlip()], decoded, keys_for(40))
    assert got.shape == decoded.shape
    corners = {tuple(image[:, 0, 0]) for image in got}
    assert (1, 2, 3) in corners and len(corners) > 5


def test_channel_permutations_are_equally_likely():
    decoded = np.broadcast_to(np.arange(3, dtype=np.uint8)[:, None, None], (3000, 3, 2, 2))
    got = apply([T.RandomChannelPermutation()], decoded, keys_for(3000))[:, :, 0, 0]
    orders, counts = np.unique(got, axis=0, return_counts=True)
    assert len(orders) == 6
    assert_equally_likely(counts)


@pytest.mark.parametrize("op", [T.Pad((1, 2)), T.Pad(3, 0, "edge"), T.RandomChannelPermutation()])
def test_repr_can_be_evaluated_back(op):
    assert eval(repr(op), vars(T)) == op


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.Pad(-1), "padding must be an integer, two .* or four .*, none negative, got -1"),
        (lambda: T.Pad((1, 2, 3)), "padding must be an integer, two"),
        (lambda: T.Pad(1, padding_mode="mirror"), "padding_mode must be one of constant, edge, reflect, symmetric"),
        (lambda: T.Pad(1, fill=(1, 2, 3), padding_mode="edge"), "padding_mode='edge' takes no fill"),
        (lambda: Pipeline([T.Pad(9, 0, "reflect")], source_size=(9, 30)), "can add 8 pixels at most to images of 9x30"),
        (lambda: Pipeline([T.Pad(9, 300)], source_size=(9, 30)), "fill must be between 0 and 255"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
