"""Equalised histograms and photometric distortion: torchvision's pixels for the same numbers."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.transforms.pipeline import Pipeline

from .kernel_calls import differences, smooth
from .support import apply, assert_equally_likely, assert_uniform, image_by_image, images, keys_for, run


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_random_equalize_happens_with_its_probability_and_is_torchvisions(channels):
    decoded = images(200, (channels, 20, 31))
    want = functional.equalize(torch.from_numpy(decoded)).numpy()
    assert np.array_equal(apply([T.RandomEqualize(1.0)], decoded, keys_for(200)), want)
    got = apply([T.RandomEqualize(0.25)], decoded, keys_for(200))
    happened = (got == want).all(axis=(1, 2, 3))
    assert np.array_equal(got[~happened], decoded[~happened])
    assert 20 <= happened.sum() <= 85


def distortion(drawn):
    """Return torchvision's params for what we have drawn."""
    short = {name.removeprefix("0.RandomPhotometricDistort."): value for name, value in drawn.items()}
    params = {}
    for what in ("brightness", "contrast", "saturation", "hue"):
        found = [value for name, value in short.items() if name.endswith(what)]
        params[f"{what}_factor"] = found[0] if found else None
    params["contrast_before"] = any("contrast first" in name for name in short)
    channels = [int(value) for name, value in short.items() if "channel_" in name]
    params["channel_permutation"] = torch.tensor(channels) if channels else None
    return params


def test_photometric_distortion_is_torchvisions_for_the_same_numbers():
    decoded = np.stack([smooth((3, 24, 31), n) for n in range(40)])
    pipeline = Pipeline([T.RandomPhotometricDistort()], source_size=(24, 31))
    drawn = image_by_image(pipeline, keys_for(40))
    for got, source, each in zip(run(pipeline, decoded, keys_for(40)), decoded, drawn, strict=True):
        want = v2.RandomPhotometricDistort().transform(torch.from_numpy(source), distortion(each))
        # A level lost in one adjustment can grow in the next three.
        assert differences(got, want).max() <= 8 and (differences(got, want) > 0).mean() < 0.01


def test_each_distortion_happens_with_its_probability_and_is_drawn_uniformly():
    pipeline = Pipeline([T.RandomPhotometricDistort(p=0.6)], source_size=(4, 4))
    drawn = image_by_image(pipeline, keys_for(3000))
    params = [distortion(each) for each in drawn]
    ranges = {"brightness": (0.875, 1.125), "contrast": (0.5, 1.5), "saturation": (0.5, 1.5), "hue": (-0.05, 0.05)}
    for what, (low, high) in ranges.items():
        factors = [each[f"{what}_factor"] for each in params if each[f"{what}_factor"] is not None]
        assert_uniform(factors, low, high)
        assert_equally_likely([len(factors), 3000 - len(factors)], [0.6, 0.4])
    orders = [tuple(each["channel_permutation"].tolist()) for each in params if each["channel_permutation"] is not None]
    assert_equally_likely([len(orders), 3000 - len(orders)], [0.6, 0.4])
    assert_equally_likely(np.unique(orders, axis=0, return_counts=True)[1])
    with_both = [each for each in params if None not in (each["contrast_factor"], each["hue_factor"])]
    first = sum(each["contrast_before"] for each in with_both)
    assert_equally_likely([first, len(with_both) - first])


@pytest.mark.parametrize("op", [T.RandomEqualize(0.3), T.RandomPhotometricDistort(hue=(0, 0.1), p=1)])
def test_repr_can_be_evaluated_back(op):
    assert eval(repr(op), vars(T)) == op


def test_what_cannot_work_is_refused():
    with pytest.raises(UsageError, match="hue must satisfy"):
        T.RandomPhotometricDistort(hue=(-1, 1))
    with pytest.raises(UsageError, match="p must be a number between 0 and 1"):
        T.RandomEqualize(p=2)
    with pytest.raises(UsageError, match="works on gray or RGB images, got 5 channels"):
        Pipeline([T.RandomPhotometricDistort()], channels=5, source_size=(9, 9))
