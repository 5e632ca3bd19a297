"""Functions under @T.transform: compiled, with numbers of the sample's stream, in place or returning an image."""

from __future__ import annotations

import numpy as np
import pytest

from dataloading import UsageError
from dataloading import transforms as T
from dataloading.testing import check_transform
from dataloading.transforms.kernels.rng import normal
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.rng import child, randint, uniform
from tests.transforms.support import images, keys_for, run


@T.transform
def marks(image, rng):
    image[:, 0, 0] = 256 * rng.uniform()
    image[:, 0, 1] = rng.uniform(10, high=20.0)
    image[:, 0, 2] = rng.integers(200)
    image[:, 0, 3] = rng.integers(10, 20)
    image[:, 0, 4] = 128 + 10 * rng.normal()
    image[:, 0, 5] = rng.normal(100.0, std=5.0)


@T.transform
def noisy_half(image, rng):
    result = np.empty((image.shape[0], image.shape[1] // 2, image.shape[2]), image.dtype)
    for c in range(result.shape[0]):
        for y in range(result.shape[1]):
            for x in range(result.shape[2]):
                result[c, y, x] = min(max(image[c, 2 * y, x] + rng.normal(std=10.0), 0.0), 255.0)
    return result


def test_numbers_are_those_of_the_samples_stream_at_its_place():
    pixels, keys = images(4, (1, 6, 7)), keys_for(4)
    got = run(Pipeline([T.RandomInvert(0.0), marks], channels=1, source_size=(6, 7)), pixels, keys)
    for row, key in enumerate(keys.tolist()):
        stream = child(key, 1)
        normals = [normal(np.uint64(child(stream, counter)), 0) for counter in (4, 5)]
        expected = [
            int(256 * uniform(stream, 0)),
            int(10 + 10 * uniform(stream, 1)),
            randint(stream, 2, 200),
            10 + randint(stream, 3, 10),
            int(128 + 10 * normals[0]),
            int(100 + 5 * normals[1]),
        ]
        assert got[row, 0, 0, :6].tolist() == expected
    assert np.array_equal(got[:, :, 1:], pixels[:, :, 1:])


def test_a_returned_image_may_have_another_size_and_dtype():
    @T.transform
    def thirds(image, rng):
        return image[:, ::3, ::-1] * np.float32(1 / 255)

    pixels = images(2, (3, 9, 7))
    pipeline = Pipeline([thirds, T.RandomHorizontalFlip(1.0)], source_size=(9, 7))
    assert pipeline.out_shape == (3, 3, 7) and pipeline.out_dtype == "float32"
    got = run(pipeline, pixels, keys_for(2))
    np.testing.assert_allclose(got, pixels[:, :, ::3] / 255, rtol=1e-6)


@pytest.mark.parametrize("own", [marks, noisy_half])
def test_own_functions_pass_the_check(own):
    check_transform(own)


def test_it_has_its_functions_name_and_can_be_called():
    image = images(1, (3, 6, 7))[0]
    assert marks.name == "marks" and "rng=True" in repr(marks)
    assert np.array_equal(marks(image, seed=3), marks(image, seed=3))
    assert not np.array_equal(marks(image, seed=3), marks(image, seed=4))


def doubles(image, rng):
    return image * 2.0


def raises_always(image, rng):
    raise ValueError("too dark")


def calls_what_is_not_there(image, rng):
    image.rotate()


def takes_a_key(image):
    pass


def sometimes_smaller(image, rng):
    return image[:, 1:] if rng.uniform() < 0.5 else image[:, :]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: T.transform(takes_a_key), r"takes_a_key: the function must take \(image, rng\) with rng=True"),
        (lambda: T.transform(3), "fn must be a function"),
        (lambda: T.Custom(doubles, rng=True, in_place=False), "leave it out with rng"),
        (lambda: Pipeline([T.transform(doubles)], source_size=(6, 7)), r"doubles returned a float64 array .*\.astype"),
        (lambda: Pipeline([T.transform(raises_always)], source_size=(6, 7)), r"raised ValueError on .*: too dark"),
        (
            lambda: Pipeline([T.transform(calls_what_is_not_there)], source_size=(6, 7)),
            r"transform 0: calls_what_is_not_there does not compile[\s\S]*Use plain loops",
        ),
    ],
)
def test_wrong_use_is_refused_with_the_fix(make, words):
    with pytest.raises(UsageError, match=words):
        make()


def test_another_shape_for_some_sample_is_an_error_of_it():
    op = T.transform(sometimes_smaller)
    with pytest.raises(ValueError, match="an image of another shape than for a trial image"):
        for seed in range(20):
            op(images(1, (3, 6, 7))[0], seed=seed)
