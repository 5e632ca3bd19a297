"""Colour transforms: torchvision's pixels, up to one level in fewer than one pixel of a thousand."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dataloading import _native as native
from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.rng import child, randint, uniform

from .support import Draws, apply, images, keys_for, torch_draws

ROOT = Path(__file__).resolve().parents[2]
ORDERS = list(itertools.permutations(range(4)))
SHAPES = [(3, 31, 45), (3, 1, 1), (3, 64, 3)]


def assert_almost_equal(got, want, *, share=1e-3):
    difference = np.abs(got.astype(int) - np.asarray(want).astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() <= share


def gray_reference(image):
    """``0.2989 r + 0.587 g + 0.114 b``, slowly, in whole ten-thousandths."""
    r, g, b = image.astype(np.int64)
    return (2989 * r + 5870 * g + 1140 * b) // 10_000


@pytest.mark.parametrize("factor", [0.0, 0.37, 1.0, 1.63, 5.0])
@pytest.mark.parametrize("what", ["brightness", "contrast", "saturation"])
def test_one_adjustment_equals_torchvision_and_the_formula(what, factor):
    for shape in SHAPES:
        decoded = images(3, shape)
        got = apply([T.ColorJitter(**{what: (factor, factor)})], decoded, keys_for(3))
        theirs = getattr(functional, f"adjust_{what}")
        for image, source in zip(got, decoded, strict=True):
            assert_almost_equal(image, theirs(torch.from_numpy(source), factor))
            gray = gray_reference(source)
            other = {"brightness": 0.0, "contrast": gray.mean(), "saturation": gray}[what]
            exact = np.clip(source * factor + other * (1 - factor), 0, 255)
            assert np.abs(image - np.floor(exact)).max() <= 1
            assert (image == np.floor(exact)).mean() > 0.9  # exact multiples of 1 may fall either way in float32


@pytest.mark.parametrize("factor", [-0.5, -0.11, 0.0, 0.03, 0.29, 0.5])
def test_hue_equals_torchvision(factor):
    for shape in SHAPES:
        decoded = images(3, shape)
        got = apply([T.ColorJitter(hue=(factor, factor + 1e-12 if factor == 0 else factor))], decoded, keys_for(3))
        want = functional.adjust_hue(torch.from_numpy(decoded), factor)
        assert_almost_equal(got, want)


def test_hue_survives_every_pair_of_extreme_colours():
    """Grey, black, white and pure colours have no hue or no saturation: nothing divides by zero."""
    corners = np.array(list(itertools.product([0, 1, 127, 254, 255], repeat=3)), np.uint8)
    decoded = np.ascontiguousarray(corners.T.reshape(1, 3, 5, 25))
    for factor in (-0.3, 1e-9, -1e-9, 0.5):
        got = apply([T.ColorJitter(hue=(factor, factor))], decoded, keys_for(1))
        assert_almost_equal(got, functional.adjust_hue(torch.from_numpy(decoded), factor), share=0.01)


def hue_reference(image, turn):
    """Turn the hue of uint8 pixels through HSV, in float64."""
    rgb = image.astype(np.float64)
    top, low = rgb.max(axis=0), rgb.min(axis=0)
    span = np.where(top == low, 1, top - low)
    r, g, b = (top - rgb) / span
    h = np.where(top == rgb[0], b - g, np.where(top == rgb[1], 2 + r - b, 4 + g - r)) + 6 * turn
    h %= 6
    # Each channel rises over a sector of the circle, is the top one for two, and falls over another.
    places = (h - np.array([0, 2, 4])[:, None, None]) % 6
    values = low + (top - low) * np.clip(np.abs(places - 3) - 1, 0, 1)
    return (values * (255.999 / 255)).astype(np.uint8)


@pytest.mark.parametrize("turn", [-0.5, -0.07, 1e-9, 0.21, 0.5])
def test_hue_of_all_kinds_of_colours_is_the_reference(turn):
    """Each pair of values of two channels, beside a third that is above, between and below them."""
    values = np.arange(256, dtype=np.uint8)
    planes = np.meshgrid(values, values)
    for third in (0, 1, 90, 255):
        decoded = np.stack([*planes, np.full((256, 256), third, np.uint8)])
        for order in ([0, 1, 2], [1, 2, 0], [2, 0, 1]):
            image = np.ascontiguousarray(decoded[order])
            got = apply([T.ColorJitter(hue=(turn, turn))], image[None], keys_for(1))[0]
            difference = np.abs(got.astype(int) - hue_reference(image, turn))
            assert difference.max() <= 1 and (difference > 0).mean() < 2e-4


def test_a_huge_factor_makes_everything_black_or_white():
    for dtype, white in (("uint8", 255), ("uint16", 65535), ("float32", 1.0)):
        image = np.array([0, 1, 2, 3], np.uint8).reshape(1, 2, 2).repeat(3, 0)
        image = (image * (white / 255)).astype(dtype)
        got = T.ColorJitter((1e12, 1e12))(image)
        assert np.array_equal(got, np.where(image > 0, white, 0).astype(dtype))


def test_the_colours_of_simclr_and_dino_compile_nothing():
    code = (
        "import sys; from dataloading import transforms as T; from dataloading.transforms.pipeline import Pipeline; "
        "colours = [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(), T.GaussianBlur(3), T.RandomSolarize(128)]; "
        "Pipeline(colours, source_size=(4, 4)).warm_up(); sys.exit('numba' in sys.modules)"
    )
    # Nothing is stored, so whatever is compiled needs Numba.
    environment = {**os.environ, "BETON_CACHE_DIR": ""}
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=False).returncode == 0


@pytest.mark.parametrize("shape", [(3, 31, 45), (3, 40, 64), (1, 40, 64)])
def test_colours_are_the_same_bytes_with_portable_kernels(shape):
    decoded = images(24, shape)
    colours = [T.ColorJitter(0.8, 0.8, 0.8, 0.5), T.RandomGrayscale(0.5), T.RandomSolarize(99)]
    fast = apply(colours, decoded.copy(), keys_for(24))
    native.use_kernels("portable")
    try:
        assert np.array_equal(apply(colours, decoded.copy(), keys_for(24)), fast)
    finally:
        native.use_kernels("auto")


def test_color_jitter_draws_and_orders_like_torchvision():
    """For the same numbers: the same order of the four adjustments, the same factors."""
    options = {"brightness": 0.4, "contrast": (0.5, 1.2), "saturation": 0.7, "hue": 0.1}
    decoded, keys = images(13, (3, 24, 31)), keys_for(13, 5)
    position = 1
    got = apply([T.RandomInvert(0.0), T.ColorJitter(**options)], decoded, keys)
    theirs = v2.ColorJitter(**options)
    orders = set()
    for image, source, key in zip(got, decoded, keys, strict=True):
        order = list(ORDERS[randint(child(int(key), position), 0, 24)])
        orders.add(tuple(order))
        with torch_draws(Draws(key, position, uniforms=[1, 2, 3, 4]), permutation=order):
            params = theirs.make_params([torch.from_numpy(source)])
        assert [int(i) for i in params["fn_idx"]] == order
        # A level lost in one adjustment can grow in the next three.
        difference = np.abs(image.astype(int) - theirs.transform(torch.from_numpy(source), params).numpy())
        assert difference.max() <= 8 and (difference > 0).mean() < 0.01
    assert len(orders) > 5


def test_all_orders_of_color_jitter_occur_equally_often():
    pipeline = Pipeline([T.ColorJitter(0.1, 0.1, 0.1, 0.1)], source_size=(4, 4))
    tapes, counts = np.unique(pipeline.draw(keys_for(4800)).tapes, axis=0, return_counts=True)
    assert [tuple(tape) for tape in tapes.tolist()] == ORDERS
    assert counts.min() > 140 and counts.max() < 260


def test_color_jitter_without_effect_changes_nothing():
    decoded = images(2, (3, 9, 9))
    for options in ({}, {"brightness": 0, "hue": 0.0}, {"contrast": (1, 1)}):
        assert np.array_equal(apply([T.ColorJitter(**options)], decoded, keys_for(2)), decoded)


def test_grayscale_gives_torchvisions_gray_in_one_channel_or_three():
    for shape in SHAPES:
        decoded = images(5, shape)
        want = functional.rgb_to_grayscale(torch.from_numpy(decoded)).numpy()
        one = apply([T.Grayscale()], decoded, keys_for(5))
        assert one.shape == (5, 1, *shape[1:])
        assert_almost_equal(one, want)
        assert_almost_equal(one[:, 0], np.stack([gray_reference(i) for i in decoded]), share=0.01)
        three = apply([T.Grayscale(3)], decoded, keys_for(5))
        assert np.array_equal(three, np.repeat(one, 3, axis=1))


def test_random_grayscale_happens_with_its_probability():
    decoded, keys = images(1, (3, 4, 5)).repeat(300, 0), keys_for(300)
    gray = apply([T.Grayscale(3)], decoded[:1], keys[:1])[0]
    for p, low, high in [(0.0, 0, 0), (1.0, 300, 300), (0.2, 40, 80)]:
        got = apply([T.RandomGrayscale(p)], decoded, keys)
        is_gray = (got == gray).all(axis=(1, 2, 3))
        assert np.array_equal(is_gray, [uniform(child(int(key), 0), 0) < p for key in keys])
        assert low <= is_gray.sum() <= high


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (T.RandomInvert(1.0), functional.invert),
        (T.RandomSolarize(100, 1.0), lambda x: functional.solarize(x, 100)),
        (T.RandomPosterize(3, 1.0), lambda x: functional.posterize(x, 3)),
        (T.RandomPosterize(0, 1.0), lambda x: functional.posterize(x, 0)),
        (T.RandomPosterize(8, 1.0), lambda x: functional.posterize(x, 8)),
    ],
    ids=lambda each: "torchvision" if callable(each) and not hasattr(each, "name") else str(each),
)
def test_point_operations_equal_torchvision_exactly(ours, theirs):
    decoded = images(3, (3, 21, 17))
    assert np.array_equal(apply([ours], decoded, keys_for(3)), theirs(torch.from_numpy(decoded)).numpy())
    never = type(ours)(**{**ours.__dict__, "p": 0.0})
    assert np.array_equal(apply([never], decoded, keys_for(3)), decoded)


def test_autocontrast_equals_torchvision():
    decoded = images(4, (3, 21, 17)) // 2 + 40
    decoded[1, 0] = 7  # a flat channel stays
    got = apply([T.RandomAutocontrast(1.0)], decoded, keys_for(4))
    assert_almost_equal(got, functional.autocontrast(torch.from_numpy(decoded)))
    assert (got[1, 0] == 7).all() and got[0].min() == 0 and got[0].max() >= 254


def test_images_of_one_channel():
    decoded = images(3, (1, 12, 13))
    got = apply([T.ColorJitter(contrast=(0.5, 0.5), saturation=(3, 3), hue=(0.2, 0.2))], decoded, keys_for(3))
    assert_almost_equal(got, functional.adjust_contrast(torch.from_numpy(decoded), 0.5))
    for same in (T.Grayscale(), T.RandomGrayscale(1.0)):
        assert np.array_equal(apply([same], decoded, keys_for(3)), decoded)
    with pytest.raises(UsageError, match="the images are grey"):
        Pipeline([T.Grayscale(3)], channels=1, source_size=(4, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.ColorJitter(brightness=-1), "brightness must not be negative"),
        (lambda: T.ColorJitter(hue=0.6), "hue must satisfy"),
        (lambda: T.ColorJitter(contrast=(2, 1)), "contrast must satisfy"),
        (lambda: T.ColorJitter(saturation="a lot"), "saturation must be a pair"),
        (lambda: T.Grayscale(2), "num_output_channels must be 1 or 3"),
        (lambda: T.RandomSolarize(256), "threshold"),
        (lambda: T.RandomPosterize(9), "bits"),
        (lambda: T.RandomInvert("often"), "p must be"),
    ],
)
def test_parameters_are_checked_when_written(make, message):
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(
    "op",
    [T.ColorJitter(0.1), T.Grayscale(), T.RandomInvert(), T.RandomAutocontrast()],
)
def test_colours_behind_normalize_are_refused(op):
    with pytest.raises(UsageError, match=f"transform 1: {op.name} needs uint8 images, got float32. Put it before"):
        Pipeline([T.Normalize(0.5, 0.5), op], source_size=(8, 8))
