"""Transforms of labels and other values: one-hot, mapping, replacing, PerSample; for any order and workers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from dataloading import Loader, TransformError, UsageError
from dataloading import transforms as T
from dataloading.transforms.base import Values

pytestmark = pytest.mark.filterwarnings("ignore:PerSample")
CROP = [T.CenterCrop(8)]


def labels_of(path, transforms, **options):
    """All labels in the order of the samples, whose own are 0 to 60."""
    given = {"label": transforms}
    loader = Loader(path, batch_size=9, shuffle="global", transforms=given, fields=["label"], **options)
    batches = list(loader)
    order = np.argsort(np.concatenate([batch.indices for batch in batches]))
    return torch.cat([batch["label"] for batch in batches])[order]


@pytest.fixture(scope="module")
def labels(photos_file):
    loader = Loader(photos_file, batch_size=61, fields=["label"])
    return next(iter(loader))["label"]


def test_one_hot_is_smoothed_as_the_loss_does_it(photos_file, labels):
    got = labels_of(photos_file, [T.OneHot(61, smoothing=0.1)])
    assert got.dtype == torch.float32 and got.shape == (61, 61)
    assert torch.equal(got.argmax(1), labels)
    assert got[5, 4:6].tolist() == pytest.approx([0.1 / 61, 0.9 + 0.1 / 61])
    logits = torch.linspace(0, 1, 61 * 61).reshape(61, 61).sin()
    expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
    torch.testing.assert_close(torch.nn.functional.cross_entropy(logits, got), expected)


def test_labels_are_mapped_and_those_of_some_samples_replaced(photos_file, labels):
    halves = T.MapLabels({label: label // 2 for label in range(61)})
    assert torch.equal(labels_of(photos_file, [halves]), labels // 2)
    got = labels_of(photos_file, [halves, T.MapLabels([0.5, 1.5], default=-1)])
    assert got.dtype == torch.float64 and got[:5].tolist() == [0.5, 0.5, 1.5, 1.5, -1.0]
    expected = labels.clone()
    expected[[3, 60, 11]] = 99
    got = labels_of(photos_file, [T.ReplaceLabel([60, 3, 11, 3], 99)])
    assert torch.equal(got, expected)
    assert torch.equal(got, labels_of(photos_file, [T.ReplaceLabel(np.array([60, 3, 11]), 99)], num_workers=1))


def test_replacing_labels_equals_ffcv():
    ffcv = pytest.importorskip("ffcv.transforms")
    theirs = ffcv.ReplaceLabel([60, 3, 11], 9)
    values, indices = np.arange(20), np.arange(50, 70)[::-1].copy()
    expected = theirs.generate_code()(values.copy(), None, indices)
    got = T.ReplaceLabel([60, 3, 11], 9).on_values(values, indices, np.zeros(20, np.uint64))
    assert np.array_equal(got, expected)


def test_what_follows_works_on_the_batch(photos_file):
    chain = [T.MapLabels({7: 1}, default=0), T.OneHot(2), lambda batch: batch.sum(0).expand(len(batch), 2)]
    got = labels_of(photos_file, chain)
    assert got.shape == (61, 2) and sorted(set(got[:, 1].tolist())) == [0.0, 1.0]


def test_per_sample_on_other_fields_depends_on_the_sample_alone(photos_file):
    def noisy(label):
        return torch.rand(2) + 2 * label

    first = labels_of(photos_file, [T.PerSample(noisy)], num_workers=1)
    assert first.shape == (61, 2) and len(first.unique()) == 122
    assert torch.equal(first, labels_of(photos_file, [T.PerSample(noisy)], num_workers=2))
    assert not torch.equal(first, labels_of(photos_file, [T.PerSample(noisy)], seed=1))


def test_mixing_takes_one_hot_labels(photos_file):
    chain = [*CROP, T.Normalize(0.5, 0.5), T.MixUp()]
    loader = Loader(photos_file, batch_size=8, transforms={"image": chain, "label": [T.OneHot(61)]})
    soft = next(iter(loader))["label"]
    assert soft.shape == (8, 61) and torch.allclose(soft.sum(1), torch.ones(8))


def test_a_label_that_fails_names_its_sample(photos_file):
    mapping = T.MapLabels(dict.fromkeys(range(0, 61, 2), 1))
    options = {"batch_size": 8, "fields": ["label"], "transforms": {"label": [mapping]}}
    with pytest.raises(TransformError, match=r"sample 1\b.*transform 0 \(MapLabels\).*no 1 in the mapping"):
        list(Loader(photos_file, **options))
    kept = [batch.indices for batch in Loader(photos_file, on_error="skip", **options)]
    assert np.concatenate(kept).tolist() == list(range(0, 61, 2))


def changes_shape(label):
    return torch.zeros(2 + label)


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        (
            [torch.clone, T.OneHot(2)],
            r"'label'.*transform 1 \(OneHot\) works on single values, but stands behind .*clone",
        ),
        ([T.OneHot(2), T.OneHot(2)], r"transform 1: OneHot needs class numbers, got float32 arrays of shape \(2,\)"),
        ([T.OneHot(2), T.MapLabels([1])], r"transform 1: MapLabels needs one integer or text a sample"),
        ([T.ReplaceLabel([1], 0.5)], r"int64 labels cannot be 0.5"),
        ([T.PerSample(changes_shape, input="pil")], "input='pil' is for images, got one int64 a sample"),
    ],
)
def test_lists_that_cannot_work_are_refused(photos_file, chain, words):
    with pytest.raises(UsageError, match=words):
        Loader(photos_file, batch_size=8, fields=["label"], transforms={"label": chain})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: T.OneHot(0), "num_classes must be a positive integer"),
        (lambda: T.OneHot(3, smoothing=1.5), "smoothing must be a number from 0 to 1"),
        (lambda: T.MapLabels({}), "mapping must be a dictionary or a list, not empty"),
        (lambda: T.MapLabels({1: "a"}), "labels become numbers, got str 'a' for 1"),
        (lambda: T.ReplaceLabel([-1], 0), "numbers of samples, 0 or more, got -1"),
        (lambda: T.ReplaceLabel([0], "cat"), "new_label must be a number"),
        (lambda: T.OneHot(3).values_after(Values()), "got a list of Python's values. Put MapLabels before it"),
    ],
)
def test_wrong_use_is_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()


def test_results_of_different_shapes_are_an_error_of_the_sample(photos_file):
    loader = Loader(photos_file, batch_size=8, fields=["label"], transforms={"label": [T.PerSample(changes_shape)]})
    with pytest.raises(TransformError, match=r"returned float32 arrays of shape \(3,\), expected .*\(2,\)"):
        list(loader)


def test_images_are_no_labels(photos_file):
    with pytest.raises(UsageError, match=r"transform 1 \(OneHot\) works on labels and other values, not on images"):
        Loader(photos_file, batch_size=8, transforms={"image": [*CROP, T.OneHot(2)]})
    with pytest.raises(UsageError, match="RandomRotation"):
        Loader(photos_file, batch_size=8, transforms={"image": CROP, "label": [v2.RandomRotation(3)]})
