"""Erasing: torchvision's rectangle, only the rectangle, the right value in every dtype."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.transforms.rng import child, randint, uniform

from .support import Draws, apply, images, keys_for, torch_draws

TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("options", [{}, {"scale": (0.3, 0.9), "ratio": (0.1, 0.5)}, {"value": (3, 1, 250)}])
def test_random_erasing_equals_torchvision(options):
    """For the same numbers: the same rectangle, including none after ten attempts that do not fit."""
    shape = (3, 16, 23)
    decoded, keys = images(40, shape), keys_for(40)
    position = 1
    got = apply([T.RandomInvert(0.0), T.RandomErasing(p=0.7, **options)], decoded, keys)
    theirs = v2.RandomErasing(p=0.7, **options)
    erased = 0
    for image, source, key in zip(got, decoded, keys, strict=True):
        chance = uniform(child(int(key), position), 0)
        with torch_draws(Draws(key, position, first=1), chance=chance):
            want = theirs(torch.from_numpy(source))
        assert np.array_equal(image, want.numpy())
        erased += int((image != source).any())
    assert 10 < erased < 35


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_erasing_behind_normalize_writes_the_value_in_that_dtype(dtype):
    decoded, keys = images(7, (3, 12, 9)), keys_for(7)
    normalize = T.Normalize(0.5, 0.25, dtype=dtype)
    plain = apply([normalize], decoded, keys)
    got = apply([normalize, T.RandomErasing(1.0, value=(-1.5, 0.1, 7.25))], decoded, keys)
    changed = (got != plain).any(axis=1)
    values = torch.from_numpy(got).view(TORCH[dtype])
    for image, where in zip(values, changed, strict=True):
        rows, columns = where.any(1).nonzero()[0], where.any(0).nonzero()[0]
        box = image[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        for channel, value in zip(box, (-1.5, 0.1, 7.25), strict=True):
            assert (channel == torch.tensor(value).to(TORCH[dtype])).float().mean() > 0.95
        outside = torch.from_numpy(~where)
        assert outside.sum() + box[0].numel() >= where.size


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_random_value_is_normal_noise(dtype):
    decoded, keys = np.zeros((30, 3, 41, 40), np.uint8), keys_for(30, 3)
    erase = T.RandomErasing(1.0, scale=(0.3, 0.4), value="random")
    got = apply([T.Normalize(0.5, 0.01, dtype=dtype), erase], decoded, keys)
    values = torch.from_numpy(got).view(TORCH[dtype]).double().numpy()
    noise = values[values > -40]
    assert len(noise) > 30 * 3 * 400
    assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02 and 3.5 < np.abs(noise).max() < 4.4
    for z, share in [(0.5, 0.3829), (1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973)]:
        assert abs((np.abs(noise) < z).mean() - share) < 0.01
    assert len(np.unique(values[0, 0])) > 100  # neither rows nor channels repeat
    assert not np.array_equal(values[0, 0], values[0, 1])


@pytest.mark.parametrize("size", [1, 5, 9])
def test_cutout_overwrites_one_square_inside(size):
    decoded, keys = np.full((50, 3, 9, 14), 200, np.uint8), keys_for(50)
    got = apply([T.Cutout(size, fill=(1, 2, 3))], decoded, keys)
    for image, key in zip(got, keys, strict=True):
        stream = child(int(key), 0)
        y, x = randint(stream, 1, 9 - size + 1), randint(stream, 2, 14 - size + 1)
        want = np.full((3, 9, 14), 200)
        want[:, y : y + size, x : x + size] = np.array([1, 2, 3])[:, None, None]
        assert np.array_equal(image, want)


def test_cutout_with_probability_zero_does_nothing():
    decoded = images(5, (3, 9, 9))
    assert np.array_equal(apply([T.Cutout(3, p=0.0)], decoded, keys_for(5)), decoded)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [T.RandomErasing(value="noise")], 'value must be a number, one a channel, or "random"'),
        (lambda: [T.RandomErasing(scale=(0.1, 1.5))], "scale must satisfy"),
        (lambda: [T.RandomErasing(ratio=(2, 1))], "ratio must satisfy"),
        (lambda: [T.RandomErasing(value="random")], "transform 0: .*Put it behind Normalize"),
        (lambda: [T.RandomErasing(value=0.5)], "transform 0: .*integers between 0 and 255"),
        (lambda: [T.RandomErasing(value=(1, 2))], "transform 0: .*value has 2 values, expected 1 or 3"),
        (lambda: [T.Cutout(0)], "size must be a positive integer"),
        (lambda: [T.Cutout(9)], "transform 0: Cutout: size 9 is larger than the image, 8x9"),
    ],
)
def test_parameters_are_checked(make, message):
    with pytest.raises(UsageError, match=message):
        apply(make(), images(1, (3, 8, 9)), keys_for(1))
