"""Poison: the images of chosen samples, by a NumPy reference and by FFCV, wherever and however samples are grouped."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dataloading import Loader, UsageError
from dataloading import transforms as T
from dataloading.testing import check_transform
from dataloading.transforms.pipeline import Pipeline
from tests.transforms.support import images, keys_for, run

RNG = np.random.default_rng(8)
MASK, ALPHA = RNG.integers(0, 256, (9, 7, 3)).astype(np.float64), RNG.uniform(size=(9, 7))


def reference(pixels_CHW, mask_HWC, alpha, low=0, high=255):
    share = np.broadcast_to(alpha, mask_HWC.shape[:2])
    result = np.empty_like(pixels_CHW)
    for channel, plane in enumerate(pixels_CHW):
        kept = (plane.astype(np.float32) * (1 - share)).astype(np.float32)
        blended = (kept + mask_HWC[:, :, channel] * share).astype(np.float32)
        result[channel] = np.clip(blended, low, high).astype(np.uint8)
    return result


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize(("alpha", "clamp"), [(ALPHA, (0, 255)), (0.3, (20, 130)), (1.0, (0, 255)), (0, (0, 255))])
def test_chosen_samples_are_blended_and_the_others_are_untouched(channels, alpha, clamp):
    mask = RNG.integers(0, 256, (9, 7, channels))
    pixels = images(6, (channels, 9, 7))
    pipeline = Pipeline([T.Poison(mask, alpha, [11, 4, 4, 99], clamp)], channels=channels, source_size=(9, 7))
    indices = np.array([3, 4, 99, 100, 5, 11])
    got = pixels.copy()
    pipeline.run(got, keys_for(6), got, indices=indices)
    for row, index in enumerate(indices.tolist()):
        expected = reference(pixels[row], mask, alpha, *clamp) if index in (4, 11, 99) else pixels[row]
        assert np.array_equal(got[row], expected), index


def test_images_equal_ffcvs():
    ffcv = pytest.importorskip("ffcv.transforms")
    pixels, indices = images(5, (3, 9, 7)), np.arange(40, 45)
    given = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
    theirs = ffcv.Poison(MASK, ALPHA, [44, 41]).generate_code()
    expected = theirs(given, np.empty(given.shape, np.float32), indices).transpose(0, 3, 1, 2)
    pipeline = Pipeline([T.Poison(MASK, ALPHA, [44, 41])], source_size=(9, 7))
    pipeline.run(pixels, keys_for(5), pixels, indices=indices)
    assert np.array_equal(pixels, expected)


def test_it_depends_on_the_number_of_the_sample_alone(photos_file):
    mask = np.full((24, 24, 3), 255)
    chain = [T.CenterCrop(24), T.RandomInvert(0.5), T.Poison(mask, 1.0, range(0, 61, 3)), T.RandomHorizontalFlip()]
    for options in ({"batch_size": 61, "num_workers": 1}, {"batch_size": 7, "num_workers": 2, "shuffle": "global"}):
        loader = Loader(photos_file, transforms={"image": chain}, return_params=True, **options)
        for batch in loader:
            white = (batch["image"] == 255).flatten(1).all(1)
            assert white.tolist() == [index % 3 == 0 for index in batch.indices.tolist()]
            assert torch.equal(batch.params["image"]["2.Poison"], white)


def test_images_of_any_size_and_skipped_samples_keep_their_numbers(photos_file):
    chain = [T.RandomCrop(24), T.Poison(np.zeros((24, 24)), 1.0, [1, 5]), T.AsList()]
    labels = [T.MapLabels({number: number for number in range(61) if number not in (0, 4)})]
    given = {"image": chain, "label": labels}
    loader = Loader(photos_file, batch_size=8, transforms=given, on_error="skip", fields=["image", "label"])
    batch = next(iter(loader))
    assert batch.indices.tolist() == [1, 2, 3, 5, 6, 7]
    assert [int(image.max()) == 0 for image in batch["image"]] == [True, False, False, True, False, False]


def test_called_alone_it_takes_images_as_samples_from_0_on():
    pixels = images(3, (3, 9, 7))
    got = T.Poison(MASK, ALPHA, [1])(pixels)
    assert np.array_equal(got[1], reference(pixels[1], MASK, ALPHA))
    assert np.array_equal(got[[0, 2]], pixels[[0, 2]])
    check_transform(T.Poison(np.zeros((9, 7)), 0.5, [0]), shape=(3, 9, 7))


def test_masks_compare_and_print_by_value():
    assert T.Poison(MASK, ALPHA, [1]) == T.Poison(MASK.copy(), ALPHA.tolist(), np.array([1]))
    assert T.Poison(MASK, ALPHA, [1]) != T.Poison(MASK + 0, ALPHA / 2, [1])
    assert hash(T.Poison(MASK, 1, [2])) == hash(T.Poison(MASK, 1, [2]))
    assert repr(T.Poison(MASK, 1, [2])) == "Poison(mask=<array (9, 7, 3)>, alpha=1.0, indices=(2,), clamp=(0.0, 255.0))"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: T.Poison(MASK - 300, 1, [0]), "mask must be numbers from 0 to 255"),
        (lambda: T.Poison("mask", 1, [0]), "mask must be numbers from 0 to 255, .* got str 'mask'"),
        (lambda: T.Poison(MASK, 1.5, [0]), "alpha must be numbers from 0 to 1"),
        (lambda: T.Poison(MASK, np.zeros((7, 9)), [0]), r"mask's height and width, \(9, 7\), got shape \(7, 9\)"),
        (lambda: T.Poison(MASK, 1, "12"), "indices must be the numbers of samples"),
        (lambda: T.Poison(MASK, 1, [0], (9, 300)), "clamp must satisfy 0.0 <= low <= high <= 255.0"),
        (lambda: Pipeline([T.Poison(MASK, 1, [0])], source_size=(9, 8)), r"\(9, 7, 3\), expected .* \(9, 8, 3\)"),
        (
            lambda: Pipeline([T.Poison(MASK.transpose(2, 0, 1), 1, [0])], source_size=(9, 7)),
            r"pass mask.transpose\(1, 2, 0\)",
        ),
    ],
)
def test_wrong_use_is_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()


def test_without_the_numbers_of_samples_a_pipeline_does_not_run():
    pipeline = Pipeline([T.Poison(MASK, 1, [0])], source_size=(9, 7))
    with pytest.raises(ValueError, match="indices are needed"):
        run(pipeline, images(2, (3, 9, 7)), keys_for(2))
