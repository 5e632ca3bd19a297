"""PerSample: any Python callable, whose results depend on the sample alone, and errors that say what to change."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from dataloading import Loader, TransformError, UsageError
from dataloading import transforms as T
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.seeding import seeded
from tests.transforms.support import images, keys_for, run

pytestmark = pytest.mark.filterwarnings("ignore:PerSample")
IMAGE = torch.from_numpy(images(1, (3, 21, 18))[0])


def global_states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


def draws_from_all_three(image):
    level = random.random() * np.random.rand() * torch.rand(())  # noqa: NPY002
    return torch.full_like(image, int(255 * level))


@pytest.mark.parametrize(
    "fn",
    [
        draws_from_all_three,
        v2.RandomRotation(30),
        v1.Compose([v1.RandomCrop(12), v1.ColorJitter(0.5)]),
        v2.AugMix(),
        lambda image: image + torch.nn.functional.dropout(torch.randn_like(image, dtype=torch.float32)),
    ],
)
def test_results_depend_on_the_seed_alone_and_global_generators_stay_as_they_were(fn):
    op = T.PerSample(fn)
    before = global_states()
    first = op(IMAGE, seed=1)
    assert global_states() == before
    draws_from_all_three(IMAGE)
    assert torch.equal(first, op(IMAGE, seed=1))
    assert not torch.equal(first, op(IMAGE, seed=2))


def test_batches_are_the_same_for_any_number_of_workers_and_batch_size(photos_file):
    def epoch(batch_size, num_workers):
        chain = [
            T.RandomResizedCrop(16),
            T.PerSample(v2.RandomAffine(20)),
            T.RandomInvert(),
            T.RandomChoice([T.PerSample(v2.ColorJitter(0.5)), T.PerSample(draws_from_all_three)]),
            T.Normalize(0.5, 0.5),
        ]
        loader = Loader(
            photos_file, batch_size=batch_size, seed=5, num_workers=num_workers, transforms={"image": chain}
        )
        return torch.cat([batch["image"] for batch in loader])

    first = epoch(7, 1)
    assert first.shape == (61, 3, 16, 16) and first.std() > 0.1
    assert torch.equal(first, epoch(16, 2))


def test_torch_draws_undisturbed_by_other_threads():
    def once(*, disturbed):
        with seeded(3):
            if disturbed:
                other = threading.Thread(target=lambda: torch.manual_seed(99))
                other.start()
                other.join()
            return torch.rand(4), torch.randn_like(torch.empty(4)), torch.empty(4).uniform_(), torch.randperm(9)

    for one, two in zip(once(disturbed=False), once(disturbed=True), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("kind", "expected"), [("tensor", (torch.Tensor, (3, 21, 18))), ("numpy", (np.ndarray, (21, 18, 3)))]
)
def test_the_callable_gets_what_input_names_and_results_are_read_alike(kind, expected):
    seen = []

    def keep(image):
        seen.append((type(image), tuple(image.shape)))
        return image

    assert torch.equal(T.PerSample(keep, input=kind)(IMAGE), IMAGE)
    assert seen[-1] == expected


def test_pil_images_are_given_to_those_that_need_them():
    def solarize(image):
        assert isinstance(image, Image.Image) and image.size == (18, 21)
        return v1.functional.solarize(image, 100)

    assert torch.equal(T.PerSample(solarize, input="pil")(IMAGE), v2.functional.solarize(IMAGE, 100))
    gray = IMAGE[:1]
    assert torch.equal(T.PerSample(lambda image: image, input="pil")(gray), gray)
    floats = T.PerSample(v1.ToTensor(), input="pil")(IMAGE)
    assert floats.dtype == torch.float32 and torch.equal(floats, IMAGE / 255)


def test_albumentations_is_called_by_keyword_and_seeded_by_its_own_method():
    def call(self, *, image):
        assert image.shape == (21, 18, 3)
        return {"image": np.full_like(image, self.level)}

    kind = type(
        "Noise",
        (),
        {
            "__module__": "albumentations.augmentations.pixel",
            "__call__": call,
            "set_random_seed": lambda self, seed: vars(self).update(level=seed % 251),
        },
    )
    op = T.PerSample(kind())
    one, two = op(IMAGE, seed=1), op(IMAGE, seed=2)
    assert torch.equal(one, op(IMAGE, seed=1)) and not torch.equal(one, two)


def test_sizes_and_dtypes_that_it_changes_are_found_by_a_trial():
    chain = [T.PerSample(v2.Resize((9, 7))), T.PerSample(v2.ToDtype(torch.float16, scale=True))]
    pipeline = Pipeline([*chain, T.RandomErasing(1.0)], source_size=(21, 18))
    assert pipeline.out_shape == (3, 9, 7) and pipeline.out_dtype == "float16"
    got = run(Pipeline(chain, source_size=(21, 18)), IMAGE.numpy()[None], keys_for(1))
    expected = v2.functional.to_dtype(v2.functional.resize(IMAGE, [9, 7]), torch.float16, scale=True)
    assert np.array_equal(got[0].view(np.float16), expected.numpy())


def test_a_stated_shape_needs_no_trial():
    def only_bright(image):
        assert image.max() > 250, "no bright pixel"
        return image[:, :5, :5]

    pipeline = Pipeline([T.PerSample(only_bright, out_shape=(3, 5, 5))], source_size=(21, 18))
    got = run(pipeline, IMAGE.numpy()[None], keys_for(1))
    assert np.array_equal(got[0], IMAGE[:, :5, :5])


def test_a_mask_with_an_equal_list_draws_equal_numbers():
    rotate = T.PerSample(v2.RandomRotation(40))
    marked = torch.zeros(1, 21, 18, dtype=torch.uint8)
    marked[:, 5:9, 4:12] = 7
    image = Pipeline([rotate], channels=1, source_size=(21, 18))
    mask = Pipeline([rotate], channels=1, source_size=(21, 18), dtype="int64")
    keys = keys_for(1)
    got = run(image, marked.numpy()[None], keys)
    out = np.empty((1, 1, 21, 18), np.int64)
    mask.run(marked.numpy()[None].astype(np.int64), keys, out)
    assert np.array_equal(got, out) and not np.array_equal(got[0], marked)


def test_a_result_of_another_shape_names_sample_and_transform(photos_file):
    calls = []

    def shrinks(image):
        calls.append(0)
        return image[:, 1:] if len(calls) == 6 else image

    loader = Loader(
        photos_file, batch_size=8, num_workers=1, transforms={"image": [T.CenterCrop(8), T.PerSample(shrinks)]}
    )
    words = (
        r"sample 4\b.*transform 1 \(PerSample\(shrinks\)\).*returned an image of shape \(3, 7, 8\) and uint8, "
        r"expected \(3, 8, 8\)"
    )
    with pytest.raises(TransformError, match=words):
        next(iter(loader))


def test_what_it_costs_is_said_once():
    op = T.PerSample(lambda image: image)
    with pytest.warns(UserWarning, match=r"PerSample\(<lambda>\) runs in Python.*about [\d,]+ samples/s") as caught:
        for _ in range(3):
            op(IMAGE.expand(20, -1, -1, -1))
    assert len(caught) == 1


def fails(image):
    raise KeyError("depth")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: T.PerSample(v2.Resize), r"fn is the class Resize, not an instance. Write PerSample\(Resize\(...\)\)"),
        (lambda: T.PerSample(T.RandomInvert()), "RandomInvert is one of our transforms"),
        (lambda: T.PerSample(3), "fn must be callable, got int 3"),
        (lambda: T.PerSample(len, input="array"), "input"),
        (lambda: T.PerSample(len, out_shape=(3, 0, 1)), "out_shape must be a tuple of positive"),
        (lambda: T.PerSample(len, out_dtype="uint8"), "goes with out_shape"),
        (lambda: T.PerSample(fails)(IMAGE), r"uint8 tensor \(3, 21, 18\) on trial, raised KeyError: 'depth'. .*'pil'"),
        (lambda: T.PerSample(lambda image: None)(IMAGE), "returned None, expected a tensor.* without return"),
        (lambda: T.PerSample(lambda image: image.long())(IMAGE), "returned pixels of int64, expected uint8"),
        (lambda: T.PerSample(lambda image: image.sum())(IMAGE), r"returned something of shape \(\), expected an image"),
        (lambda: T.PerSample(len).for_mask(), "a mask cannot follow it. Give the mask a list of its own"),
    ],
)
def test_wrong_use_is_refused_with_the_fix(make, words):
    with pytest.raises(UsageError, match=words):
        make()
