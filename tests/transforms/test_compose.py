"""Transforms made of transforms: draws, order, probabilities, and what is refused."""

import collections

import numpy as np
import pytest

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.transforms.pipeline import Pipeline, PipelineFault
from dataloading.transforms.rng import child, uniform
from tests.transforms.support import apply, images, keys_for

INVERT, SOLARIZE, POSTERIZE = T.RandomInvert(1.0), T.RandomSolarize(100, 1.0), T.RandomPosterize(2, 1.0)


def test_random_apply_does_all_or_nothing_with_its_probability():
    decoded, keys = images(1, (3, 5, 6)).repeat(400, 0), keys_for(400)
    got = apply([T.RandomApply([SOLARIZE, T.Grayscale(3)], p=0.3)], decoded, keys)
    want = apply([SOLARIZE, T.Grayscale(3)], decoded[:1], keys[:1])[0]
    happened = (got == want).all(axis=(1, 2, 3))
    assert np.array_equal(happened, [uniform(child(int(key), 0), 0) < 0.3 for key in keys])
    assert np.array_equal(got[~happened], decoded[~happened]) and 90 < happened.sum() < 150


def test_random_choice_takes_one_by_weight():
    decoded, keys = images(1, (3, 5, 6)).repeat(600, 0), keys_for(600)
    options = [INVERT, SOLARIZE, T.RandomHorizontalFlip(1.0)]
    got = apply([T.Cutout(1, p=0.0), T.RandomChoice(options, p=[3, 2, 1])], decoded, keys)
    wants = [apply([T.Cutout(1, p=0.0), each], decoded[:1], keys[:1])[0] for each in options]
    counts = [sum(np.array_equal(image, want) for image in got) for want in wants]
    assert sum(counts) == 600
    assert abs(counts[0] - 300) < 50 and abs(counts[1] - 200) < 50 and abs(counts[2] - 100) < 40


@pytest.mark.parametrize("count", [3, 14])
def test_random_order_takes_every_order_equally_often(count):
    order = T.RandomOrder([T.RandomSolarize(10 * n, 1.0) for n in range(count)])
    tapes = Pipeline([order], source_size=(4, 4)).draw(keys_for(3000)).tapes
    assert (np.sort(tapes, axis=1) == np.arange(count)).all()
    for place in range(count):
        frequencies = np.bincount(tapes[:, place], minlength=count) / 3000
        assert np.abs(frequencies - 1 / count).max() < 0.05
    if count == 3:
        assert len(collections.Counter(map(tuple, tapes.tolist()))) == 6


def test_an_order_changes_pixels_in_that_order():
    pipeline = Pipeline([T.RandomOrder([SOLARIZE, POSTERIZE, INVERT])], source_size=(7, 9))
    decoded, keys = images(12, (3, 7, 9)), keys_for(12)
    got = decoded.copy()
    pipeline.run(got, keys, got)
    for image, source, tape in zip(got, decoded, pipeline.draw(keys).tapes, strict=True):
        stage = source.astype(int)
        for op in tape:
            stage = [np.where(stage >= 100, 255 - stage, stage), stage & 0b11000000, 255 - stage][op]
        assert np.array_equal(image, stage)


def test_a_compose_in_a_list_is_its_transforms_written_out():
    inside = [T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ColorJitter(0.4)]
    one, other = Pipeline([T.Compose(inside), T.Normalize(0.5, 0.5)]), Pipeline([*inside, T.Normalize(0.5, 0.5)])
    assert one.transforms == other.transforms == Pipeline(T.Compose(one.transforms)).transforms
    assert one.decode_shape == (3, 8, 8)


def test_inside_a_composite_each_transform_has_a_stream_of_its_own():
    decoded, keys = images(40, (3, 20, 21)), keys_for(40)
    got = apply([T.RandomApply([T.Cutout(3), T.Cutout(3)], p=1.0)], np.full_like(decoded, 9), keys)
    assert ((got == 0).sum(axis=(1, 2, 3)) > 3 * 9).sum() > 30  # two squares at two places
    inner = [T.RandomChoice([T.RandomErasing(1.0, value=3), T.RandomOrder([INVERT, T.ColorJitter(0.4, 0.4)])])]
    nested = [T.RandomApply(inner, p=0.7), T.Normalize(0.5, 0.5)]
    parts = [apply(nested, decoded[i : i + 7], keys[i : i + 7]) for i in range(0, 40, 7)]
    assert np.array_equal(np.concatenate(parts), apply(nested, decoded, keys))


def test_what_was_drawn_can_be_looked_at_and_run_again():
    pipeline = Pipeline([T.RandomApply([T.Cutout(4), T.ColorJitter(0.5)], p=0.5)], source_size=(15, 16))
    decoded, keys = images(30, (3, 15, 16)), keys_for(30)
    draws = pipeline.draw(keys)
    params = pipeline.params_of(draws)
    assert set(params) == {
        *(f"0.RandomApply.0.Cutout.{name}" for name in ("top", "left", "height", "width")),
        "0.RandomApply.1.ColorJitter.brightness",
    }
    happened = ~np.isnan(params["0.RandomApply.0.Cutout.top"])
    assert 5 < happened.sum() < 25
    factors = params["0.RandomApply.1.ColorJitter.brightness"][happened]
    assert ((factors >= 0.5) & (factors < 1.5)).all()
    usual, again = decoded.copy(), decoded.copy()
    pipeline.run(usual, keys, usual)
    pipeline.run(again, keys_for(30, 9), again, draws=draws)  # other keys: what was drawn decides
    assert np.array_equal(usual, again)


def test_an_error_in_a_composite_names_the_place():
    def picky(image, key):
        if image[0, 0, 0] == 13:
            raise ValueError("unlucky")

    pipeline = Pipeline([T.RandomApply([T.Custom(picky)], p=1.0)], source_size=(4, 4))
    decoded = np.zeros((3, 3, 4, 4), np.uint8)
    decoded[1] = 13
    with pytest.raises(PipelineFault, match=r"transform 0 \(RandomApply\), in it 0.Custom\(picky\): unlucky"):
        pipeline.run(decoded, keys_for(3), decoded)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomApply(T.RandomInvert()), "transforms must be a list, got RandomInvert"),
        (lambda: T.RandomOrder([]), "transforms is empty"),
        (lambda: T.RandomApply([T.RandomInvert()], p=2), "p must be a number between 0 and 1"),
        (lambda: T.RandomChoice([T.RandomInvert()], p=[1, 2]), "p must be one weight a transform"),
        (lambda: T.RandomChoice([T.RandomInvert()], p=[0]), "a weight above 0"),
        (lambda: [T.RandomApply([T.RandomInvert])], "RandomApply: transform 0 is the class RandomInvert, not an inst"),
        (lambda: [T.RandomOrder([T.CutMix(num_classes=2)])], "must be a transform .* single images, got CutMix"),
        (lambda: [T.RandomApply([T.SanitizeBoundingBoxes()])], "got SanitizeBoundingBoxes. Put it into the list"),
        (lambda: [T.RandomApply([T.Grayscale()])], "changes their channels from 3 to 1. Put it outside of RandomApply"),
        (lambda: [T.RandomChoice([T.RandomInvert(), T.Normalize(0, 1)])], "Normalize changes their dtype from uint8"),
        (lambda: [T.RandomOrder([T.Normalize(0, 1)])], "changes their dtype from uint8 to float32"),
        (
            lambda: [T.Normalize(0, 1), T.RandomApply([T.ColorJitter(1)])],
            "transform 1: RandomApply: transform 0: Color",
        ),
    ],
)
def test_wrong_use_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        Pipeline(make(), source_size=(8, 8))
