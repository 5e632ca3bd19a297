"""Blur, sharpness and noise: torchvision's pixels, and those of the definition."""

import dataclasses
import statistics

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dataloading import transforms as T
from dataloading._native import use_kernels
from dataloading.errors import UsageError
from dataloading.transforms.base import PixelOp
from dataloading.transforms.filters import normal_quantiles
from dataloading.transforms.kernels import filters, noise
from dataloading.transforms.operation import constant
from dataloading.transforms.pipeline import Pipeline

from .kernel_calls import apply_kernel, differences, smooth, stream_bits
from .support import assert_equally_likely, assert_uniform, image_by_image, keys_for, run


def correlate(source, kernel):
    """Mirror the edges and sum up, in float64."""
    down, across = (n // 2 for n in kernel.shape)
    padded = np.pad(source.astype(np.float64), ((0, 0), (down, down), (across, across)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape, axis=(1, 2))
    return np.einsum("cyxij,ij->cyx", windows, kernel)


@dataclasses.dataclass(frozen=True)
class Blur(PixelOp):
    """GaussianBlur's operation with a sigma for each direction."""

    any_channels = True
    size: tuple[int, int]
    sigma: tuple[float, float]

    def operation(self, state):
        params = {"sigma_x": constant(self.sigma[0]), "sigma_y": constant(self.sigma[1])}
        return dataclasses.replace(T.GaussianBlur(self.size).operation(state), params=params)


def deep_blur(source, size, sigma):
    """The kernel of deeper images, on bytes."""
    return apply_kernel(filters.gaussian_blur, source, sigma, size)


def native_blur(kernels):
    def blur(source, size, sigma):
        use_kernels(kernels)
        try:
            return Blur(size, sigma)(source)
        finally:
            use_kernels("auto")

    return blur


BLURS = pytest.mark.parametrize("blur", [native_blur("auto"), native_blur("portable"), deep_blur])


@BLURS
@pytest.mark.parametrize("size", [(3, 3), (23, 23), (5, 11), (1, 7)])
@pytest.mark.parametrize("sigma", [(0.1, 0.1), (0.8, 2.0), (2.0, 2.0), (30.0, 9.0)])
def test_blur_equals_torchvision_and_the_definition(blur, size, sigma):
    unequal, count = 0, 0
    for shape in [(3, 33, 47), (1, 24, 12), (5, 12, 29)]:
        source = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
        got = blur(source, size, sigma)
        want = functional.gaussian_blur(torch.from_numpy(source), list(size), list(sigma))
        assert differences(got, want).max() <= 1
        unequal, count = unequal + (differences(got, want) > 0).sum(), count + source.size
        across, down = (np.exp(-0.5 * ((np.arange(n) - n // 2) / s) ** 2) for n, s in zip(size, sigma, strict=True))
        kernel = np.outer(down / down.sum(), across / across.sum())
        assert np.abs(got - correlate(source, kernel)).max() < 0.55
    assert unequal / count < 0.01


@BLURS
def test_blur_leaves_a_plain_image_alone(blur):
    source = np.broadcast_to(np.array([0, 255, 131], np.uint8)[:, None, None], (3, 40, 40)).copy()
    assert np.array_equal(blur(source, (23, 23), (3.0, 3.0)), source)


def test_blur_of_bytes_is_the_same_on_all_instruction_sets():
    source = np.random.default_rng(8).integers(0, 256, (3, 61, 130), dtype=np.uint8)
    for sigma in (0.2, 1.3, 7.0):
        best, portable = (native_blur(kernels)(source, (31, 23), (sigma, sigma)) for kernels in ("auto", "portable"))
        assert np.array_equal(best, portable)


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


# -- the transforms ------------------------------------------------------------------------------------------------

IMAGES = np.stack([smooth((3, 45, 61), n) for n in range(6)])
SIZE = IMAGES.shape[2:]


def test_gaussian_blur_is_torchvisions_for_the_same_sigma():
    pipeline = Pipeline([T.GaussianBlur((5, 23), (0.3, 4))], source_size=SIZE)
    drawn = image_by_image(pipeline, keys_for(6))
    for got, source, params in zip(run(pipeline, IMAGES, keys_for(6)), IMAGES, drawn, strict=True):
        sigma = params["0.GaussianBlur.sigma_x"]
        assert params["0.GaussianBlur.sigma_y"] == sigma
        want = v2.GaussianBlur((5, 23), (0.3, 4)).transform(torch.from_numpy(source), {"sigma": [sigma, sigma]})
        assert differences(got, want).max() <= 1 and (differences(got, want) > 0).mean() < 0.01
    many = image_by_image(pipeline, keys_for(1000))
    assert_uniform([params["0.GaussianBlur.sigma_x"] for params in many], 0.3, 4)


def test_gaussian_noise_is_each_images_own_and_of_torchvisions_strength():
    same = np.broadcast_to(np.uint8(128), (4, 3, 64, 61))
    got = run(Pipeline([T.GaussianNoise(0.02, 0.05)], source_size=(64, 61)), same, keys_for(4)).astype(int) - 128
    assert len({image.tobytes() for image in got}) == 4
    torch.manual_seed(0)
    want = v2.GaussianNoise(0.02, 0.05)(torch.from_numpy(same.copy())).numpy().astype(int) - 128
    assert abs(got.mean() - want.mean()) < 0.4 and abs(got.std() - want.std()) < 0.3


def test_random_sharpness_happens_with_its_probability_and_is_torchvisions():
    n = 400
    many = np.broadcast_to(IMAGES[0], (n, *IMAGES[0].shape))
    got = run(Pipeline([T.RandomAdjustSharpness(1.7, p=0.3)], source_size=SIZE), many, keys_for(n))
    changed = (got != many).any(axis=(1, 2, 3))
    assert abs(changed.sum() - 0.3 * n) < 4.5 * (0.3 * 0.7 * n) ** 0.5
    want = functional.adjust_sharpness(torch.from_numpy(IMAGES[0]), 1.7)
    assert differences(got[changed][0], want).max() <= 1


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_torchvisions_to_the_bit_for_the_same_quality(channels):
    for size in [(45, 61), (16, 16), (1, 1), (7, 130)]:
        decoded = np.stack([smooth((channels, *size), n) for n in range(8)])
        pipeline = Pipeline([T.JPEG((1, 100))], channels=channels, source_size=size)
        drawn = image_by_image(pipeline, keys_for(8))
        for got, source, params in zip(run(pipeline, decoded, keys_for(8)), decoded, drawn, strict=True):
            want = functional.jpeg(torch.from_numpy(source), int(params["0.JPEG.quality"]))
            assert np.array_equal(got, want)


def test_all_qualities_of_a_range_are_equally_likely():
    drawn = image_by_image(Pipeline([T.JPEG((20, 29))], source_size=(8, 8)), keys_for(1000))
    qualities = [int(params["0.JPEG.quality"]) for params in drawn]
    assert_equally_likely(np.bincount(qualities, minlength=30)[20:])


@pytest.mark.parametrize(
    "op",
    [
        T.JPEG(50),
        T.JPEG([5, 9]),
        T.GaussianBlur(23),
        T.GaussianBlur([3, 5], 1),
        T.GaussianNoise(0.1, clip=False),
        T.RandomAdjustSharpness(0.5),
    ],
)
def test_repr_can_be_evaluated_back(op):
    assert eval(repr(op), vars(T)) == op


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.GaussianBlur(4), "kernel_size must be odd, got 4"),
        (lambda: T.GaussianBlur(-3), "kernel_size must be between 1"),
        (lambda: T.GaussianBlur(3, 0), "sigma must be positive"),
        (lambda: T.GaussianBlur(3, (2, 1)), "sigma must satisfy"),
        (lambda: T.GaussianNoise(sigma=-0.1), "sigma must not be negative"),
        (lambda: T.GaussianNoise(clip="no"), "clip"),
        (lambda: T.JPEG(0), "quality must be an integer from 1 to 100, or a pair"),
        (lambda: T.JPEG((60, 50)), "quality must be an integer from 1 to 100"),
        (lambda: T.JPEG((1, 50.5)), "quality must be an integer from 1 to 100"),
        (lambda: T.RandomAdjustSharpness(-1), "sharpness_factor must be a number of at least 0"),
        (lambda: Pipeline([T.GaussianBlur(91)], source_size=SIZE), "91x91 reaches beyond the mirrored edges"),
        (lambda: Pipeline([T.Normalize(0, 1), T.GaussianBlur(9)], source_size=SIZE), "needs uint8 images"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
