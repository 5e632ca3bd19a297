"""Blur, sharpness and noise: torchvision's pixels, and those of the definition."""

import statistics

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional

from dataloading.transforms.filters import normal_quantiles
from dataloading.transforms.kernels import filters, noise

from .kernel_calls import apply_kernel, differences, smooth, stream_bits


def correlate(source, kernel):
    """Mirror the edges and sum up, in float64."""
    down, across = (n // 2 for n in kernel.shape)
    padded = np.pad(source.astype(np.float64), ((0, 0), (down, down), (across, across)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape, axis=(1, 2))
    return np.einsum("cyxij,ij->cyx", windows, kernel)


@pytest.mark.parametrize("size", [(3, 3), (23, 23), (5, 11), (1, 7)])
@pytest.mark.parametrize("sigma", [(0.1, 0.1), (0.8, 2.0), (2.0, 2.0), (30.0, 9.0)])
def test_blur_equals_torchvision_and_the_definition(size, sigma):
    for shape in [(3, 33, 47), (1, 24, 12), (5, 12, 29)]:
        source = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
        got = apply_kernel(filters.gaussian_blur, source, sigma, size)
        want = functional.gaussian_blur(torch.from_numpy(source), list(size), list(sigma))
        assert differences(got, want).max() <= 1
        assert (differences(got, want) > 0).mean() < 0.01
        across, down = (np.exp(-0.5 * ((np.arange(n) - n // 2) / s) ** 2) for n, s in zip(size, sigma, strict=True))
        kernel = np.outer(down / down.sum(), across / across.sum())
        assert np.abs(got - correlate(source, kernel)).max() < 0.55


def test_blur_leaves_a_plain_image_alone():
    source = np.broadcast_to(np.array([0, 255, 131], np.uint8)[:, None, None], (3, 40, 40)).copy()
    assert np.array_equal(apply_kernel(filters.gaussian_blur, source, (3.0, 3.0), (23, 23)), source)


@pytest.mark.parametrize("factor", [0.0, 0.31, 1.0, 1.9, 7.0])
def test_sharpness_equals_torchvision_and_the_definition(factor):
    kernel = np.ones((3, 3)) / 13
    kernel[1, 1] = 5 / 13
    for shape in [(3, 33, 47), (1, 3, 3), (3, 2, 9), (3, 9, 2), (1, 1, 1)]:
        source = np.random.default_rng(4).integers(0, 256, shape, dtype=np.uint8)
        got = apply_kernel(filters.adjust_sharpness, source, [factor])
        want = functional.adjust_sharpness(torch.from_numpy(source), factor)
        # One level at most, where torch rounds once less as it fuses multiplication and addition.
        assert differences(got, want).max() <= 1 and (differences(got, want) > 0).mean() < 1e-3
        if min(shape[1:]) > 2:
            blurred = np.rint(correlate(source, kernel))
            exact = np.clip(source * factor + blurred * (1 - factor), 0, 255)[:, 1:-1, 1:-1]
            assert np.abs(got[:, 1:-1, 1:-1] - np.floor(exact)).max() <= 1
            assert np.array_equal(got[:, 0], source[:, 0]) and np.array_equal(got[:, :, -1], source[:, :, -1])


def test_sharpness_of_a_photograph_changes_it():
    source = smooth((3, 40, 40))
    assert differences(apply_kernel(filters.adjust_sharpness, source, [2.0]), source).mean() > 1


QUANTILES = normal_quantiles(256, variance=0.5)


def noise_of(key, mean, sigma, value=128, shape=(3, 128, 121), clip=1.0):
    source = np.full(shape, value, np.uint8)
    got = apply_kernel(noise.gaussian_noise, source, [stream_bits(key)], [mean, sigma, clip, *QUANTILES])
    return got.astype(int) - value


def test_noise_is_normal():
    got = noise_of(3, 0.0, 20.0)
    assert abs(got.mean()) < 0.3
    assert abs(got.std() - 19.6) < 0.2  # cut off towards 0, which takes half a level on average
    # Cut off to an integer: 0 stands for all between -1 and 1.
    edges = np.arange(-60, 61, 4)
    below = np.array([((got <= edge).mean()) for edge in edges])
    normal = np.array([statistics.NormalDist(0, 20).cdf(edge + (edge >= 0)) for edge in edges])
    assert np.abs(below - normal).max() < 1.63 / np.sqrt(got.size)  # Kolmogorov and Smirnov, 1 %


def test_noise_equals_torchvisions_for_the_same_normal_numbers():
    """Means and standard deviations in shares of 255, fractions cut off towards 0, clipped or wrapped."""
    unit = noise_of(7, 0.0, 20.0) / 20
    for mean, sigma in ((0.0, 0.0), (12.75, 0.0), (-3.0, 10.0)):
        got = noise_of(7, mean, sigma)
        assert np.abs(got - np.trunc(mean + sigma * unit)).max() <= 1 + sigma / 20
    clipped, wrapped = noise_of(7, 0.0, 60.0, value=250), noise_of(7, 0.0, 60.0, value=250, clip=0.0)
    assert clipped.max() == 5 and wrapped.min() < -200
    same = clipped < 5
    assert np.array_equal(clipped[same & (clipped > -250)], wrapped[same & (clipped > -250)])


def test_noise_of_two_streams_differs_and_of_one_does_not():
    assert np.array_equal(noise_of(1, 0, 9.0), noise_of(1, 0, 9.0))
    one, two = noise_of(1, 0, 30.0).ravel(), noise_of(2, 0, 30.0).ravel()
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.02
    for lag in (1, 2, 4, 121, 128 * 121):
        assert abs(np.corrcoef(one[lag:], one[:-lag])[0, 1]) < 0.03
