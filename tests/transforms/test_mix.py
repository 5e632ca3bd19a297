"""MixUp and CutMix: torchvision's arithmetic on images and labels; amounts that follow Beta; keys that decide."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from dataloading import Loader
from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.transforms.mix import _generator
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.rng import child


def batch(n=7, classes=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 3, 12, 17, generator=generator).to(dtype), torch.arange(n) % classes


def with_lambda(theirs, lam):
    theirs._dist = type("Fixed", (), {"sample": lambda self, shape: torch.tensor(lam, dtype=torch.float64)})()
    return theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_mixup_equals_torchvision_for_the_same_lambda(dtype):
    images, labels = batch(dtype=dtype)
    for key in range(5):
        lam = float(_generator(key).beta(0.4, 0.4))
        want = with_lambda(v2.MixUp(alpha=0.4, num_classes=5), lam)(images.clone(), labels)
        before = images.clone()
        got = T.MixUp(alpha=0.4, num_classes=5)(images, labels, key)
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
        assert got[0].dtype == dtype and torch.equal(images, before)


def test_cutmix_equals_torchvision_for_the_same_numbers():
    images, labels = batch(n=3)
    sizes = set()
    for key in range(30):
        generator = _generator(key)
        lam, x, y = float(generator.beta(1.0, 1.0)), int(generator.integers(17)), int(generator.integers(12))
        theirs = with_lambda(v2.CutMix(alpha=1.0, num_classes=5), lam)
        saved = torch.randint
        try:
            torch.randint = lambda high, size, v={17: x, 12: y}: torch.tensor([v[high]])
            want = theirs(images.clone(), labels)
        finally:
            torch.randint = saved
        got = T.CutMix(num_classes=5)(images, labels, key)
        assert torch.equal(got[0], want[0])
        torch.testing.assert_close(got[1], want[1], rtol=0, atol=1e-7)
        sizes.add(T.CutMix(num_classes=5).box(12, 17, key))
    assert len(sizes) > 20


@pytest.mark.parametrize("op", [T.MixUp(num_classes=5), T.CutMix(num_classes=5)])
def test_a_batch_of_one_stays_itself_and_labels_sum_to_one(op):
    images, labels = batch(n=1)
    mixed, soft = op(images, labels, 3)
    torch.testing.assert_close(mixed, images)
    assert soft.shape == (1, 5) and soft[0, 0] == pytest.approx(1.0)
    assert torch.allclose(op(*batch(n=7), 4)[1].sum(1), torch.ones(7))


def test_lambda_follows_beta():
    draws = np.array([_generator(key).beta(0.2, 0.2) for key in range(3000)])
    assert abs(draws.mean() - 0.5) < 0.03
    assert abs(draws.var() - 0.25 / 1.4) < 0.01  # variance of Beta(a, a): 1 / (4 (2 a + 1))


def test_soft_labels_are_mixed_as_they_are():
    images, labels = batch()
    soft = torch.nn.functional.one_hot(labels, 5)
    by_number = T.MixUp(num_classes=5)(images, labels, 9)[1]
    assert torch.equal(T.MixUp()(images, soft, 9)[1], by_number)
    assert torch.equal(T.MixUp()(images, soft.float(), 9)[1], by_number)


def test_cutmix_takes_uint8_and_mixup_refuses_it():
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    labels = torch.arange(4)
    assert T.CutMix(num_classes=4)(images, labels, 0)[0].dtype == torch.uint8
    with pytest.raises(UsageError, match="needs floats"):
        T.MixUp(num_classes=4)(images, labels, 0)
    with pytest.raises(UsageError, match="transform 1: MixUp blends images, which needs floats, got uint8"):
        Pipeline([T.CenterCrop(8), T.MixUp(num_classes=4)])
    with pytest.raises(UsageError, match="transform 1: MixUp blends images, which needs floats, got uint16"):
        Pipeline([T.CenterCrop(8), T.MixUp(num_classes=4)], channels=1, dtype="uint16")


def test_mixup_has_its_other_spelling():
    assert T.Mixup is T.MixUp


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda images, labels: T.MixUp(alpha=0.0), "alpha must be a positive number"),
        (lambda images, labels: T.CutMix(num_classes=0), "num_classes must be a positive integer"),
        (lambda images, labels: T.MixUp()(images, labels, 0), "pass num_classes="),
        (lambda images, labels: T.MixUp(num_classes=4)(images, labels, 0), "from 0 to 4.*allows 0 to 3"),
        (lambda images, labels: T.MixUp(num_classes=4)(images, labels[:3], 0), "expected images"),
        (lambda images, labels: T.CutMix(num_classes=4)(images, torch.ones(7, 5), 0), "5 columns, but"),
    ],
)  # fmt: skip
def test_wrong_use_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call(*batch())


EITHER = T.RandomChoice([T.MixUp(alpha=0.4, num_classes=5), T.CutMix(num_classes=5)], p=[3, 1])


def test_a_choice_takes_one_of_them_by_weight_and_the_same_for_the_same_key():
    images, labels = batch()
    mixed = 0
    for key in range(400):
        got, soft = EITHER(images, labels, key)
        expected = T.MixUp(alpha=0.4, num_classes=5)(images, labels, child(key, 0))
        other = T.CutMix(num_classes=5)(images, labels, child(key, 1))
        is_first = torch.equal(got, expected[0])
        assert torch.equal(soft, expected[1] if is_first else other[1])
        assert is_first or torch.equal(got, other[0])
        mixed += is_first
    assert abs(mixed / 400 - 0.75) < 0.08  # 3.7 standard deviations


def test_with_a_probability_labels_are_soft_whether_mixed_or_not():
    images, labels = batch()
    op = T.RandomApply([EITHER], p=0.3)
    results = [op(images, labels, key) for key in range(200)]
    kept = [soft for got, soft in results if torch.equal(got, images)]
    assert all(soft.shape == (7, 5) and soft.dtype == torch.float32 for _, soft in results)
    assert abs(len(kept) / 200 - 0.7) < 0.13 and torch.equal(kept[0], torch.nn.functional.one_hot(labels, 5).float())


def test_a_choice_of_mixes_in_a_loader_draws_the_same_for_any_number_of_workers(photos_file):
    op = T.RandomApply([T.RandomChoice([T.MixUp(num_classes=61), T.CutMix(num_classes=61)])], p=0.8)
    chain = [T.CenterCrop(8), T.Normalize(0.5, 0.5), op]

    def epoch(num_workers):
        return list(Loader(photos_file, batch_size=8, num_workers=num_workers, transforms={"image": chain}))

    for one, two in zip(epoch(1), epoch(2), strict=True):
        assert torch.equal(one["image"], two["image"]) and torch.equal(one["label"], two["label"])
    with pytest.raises(UsageError, match="transform 1: RandomChoice: transform 0: MixUp blends images"):
        Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(8), EITHER]})


def test_a_choice_of_mixes_is_written_as_it_was_made():
    assert repr(eval(repr(EITHER), vars(T) | {"T": T})) == repr(EITHER)
    assert repr(EITHER).startswith("RandomChoice(transforms=(MixUp(alpha=0.4")
    with pytest.raises(UsageError, match="one weight a transform"):
        T.RandomChoice([T.MixUp(), T.CutMix()], p=[1])


def test_class_numbers_are_smoothed_before_they_are_mixed():
    images, labels = batch()
    smooth = (0.9 * torch.nn.functional.one_hot(labels, 5) + 0.02).float()
    got = T.MixUp(num_classes=5, smoothing=0.1)(images, labels, 3)[1]
    torch.testing.assert_close(got, T.MixUp(num_classes=5)(images, smooth, 3)[1])


def test_what_was_drawn_says_how_images_and_labels_were_mixed():
    images, labels = torch.rand(6, 3, 20, 30), torch.arange(6)
    for key in range(5):
        op = T.MixUp(num_classes=6)
        drawn, (_, mixed) = op.drawn(images.shape, key), op(images, labels, key)
        assert sorted(drawn) == ["lambda", "partner"] and drawn["partner"].tolist() == [5, 0, 1, 2, 3, 4]
        assert torch.allclose(mixed.diagonal(), torch.from_numpy(drawn["lambda"]).float())
        op = T.CutMix(num_classes=6)
        drawn, (pasted, mixed) = op.drawn(images.shape, key), op(images, labels, key)
        top, left, height, width = drawn["box"][2].tolist()
        part = np.s_[:, top : top + height, left : left + width]
        assert torch.equal(pasted[2][part], images[1][part])
        assert (pasted[2] == images[2]).all(0).sum() == 600 - height * width
        assert torch.allclose(mixed.diagonal(), torch.full((6,), 1 - height * width / 600))


def test_of_a_choice_that_mixes_only_the_one_taken_has_drawn_something():
    op = T.RandomApply([T.RandomChoice([T.MixUp(num_classes=6), T.CutMix(num_classes=6)])], p=0.5)
    taken = []
    for key in range(40):
        drawn = op.drawn((6, 3, 20, 30), key)
        happened = [not np.isnan(drawn[f"0.RandomChoice.{k}.lambda"]).any() for k in ("0.MixUp", "1.CutMix")]
        assert [drawn[f"0.RandomChoice.{k}.partner"][0] for k in ("0.MixUp", "1.CutMix")] == [
            5 if each else -1 for each in happened
        ]
        taken.append(sum(happened))
    assert set(taken) == {0, 1}
