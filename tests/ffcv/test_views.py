"""FFCV-SSL's additions: several views through a field mapper, its transforms and their seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dataloading import ffcv
from dataloading.errors import UsageError
from dataloading.ffcv.fields import IntField, RGBImageField
from dataloading.ffcv.loader import Loader, OrderOption
from dataloading.ffcv.pipeline.operation import Operation
from dataloading.ffcv.transforms import (
    CenterCrop,
    GaussianBlur,
    ModuleWrapper,
    RandomColorJitter,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomSolarization,
    RandomTranslate,
    Rotate,
    ToTensor,
    ToTorchImage,
)
from dataloading.ffcv.writer import DatasetWriter

PIXELS = np.random.default_rng(1).integers(0, 256, (12, 16, 16, 3), np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("views") / "f.beton"
    writer = DatasetWriter(path, {"image": RGBImageField(), "label": IntField()}, num_workers=1)
    writer.from_indexed_dataset([(PIXELS[i], i) for i in range(12)])
    return path


def view(seed=None, side=8, flip_seed=None):
    crop = RandomResizedCrop(output_size=(side, side), scale=(0.3, 1), seed=seed)
    flip = RandomHorizontalFlip(seed=seed if flip_seed is None else flip_seed)
    return [crop, flip, RandomTranslate(2, seed=seed), ToTensor(), ToTorchImage()]


def epoch(path, first, second, seed=0, batch_size=6, **options):
    loader = Loader(
        path=path,
        batch_size=batch_size,
        order=OrderOption.SEQUENTIAL,
        num_workers=2,
        seed=seed,
        pipelines={"image": first, "again": second},
        custom_field_mapper={"again": "image"},
        **options,
    )
    batches = list(loader)
    assert all(len(batch) == 3 for batch in batches)  # in SSL's order: the file's fields, then those of the mapper
    return torch.cat([batch[0] for batch in batches]), torch.cat([batch[2] for batch in batches])


def test_views_without_seeds_differ_and_those_of_one_seed_are_equal_whatever_the_loaders_seed(path):
    one, two = epoch(path, view(), view())
    assert one.shape == two.shape == (12, 3, 8, 8) and not torch.equal(one, two)
    one, two = epoch(path, view(5), view(5), seed=1)
    assert torch.equal(one, two)
    assert torch.equal(one, epoch(path, view(5), view(6), seed=2, batch_size=4)[0])
    assert not torch.equal(one, epoch(path, view(6), view())[0])
    assert not torch.equal(*epoch(path, view(5), view(5, flip_seed=9)))


def test_a_seed_holds_behind_a_module_of_the_users_own_too(path):
    def behind(seed):
        return [CenterCrop((16, 16), ratio=1), ModuleWrapper(lambda x: x), RandomHorizontalFlip(seed=seed), ToTensor()]

    one, two = epoch(path, behind(3), behind(3))
    assert torch.equal(one, two) and not torch.equal(one, torch.from_numpy(PIXELS))
    assert not torch.equal(one, epoch(path, behind(4), behind(3))[0])


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [
        (RandomGrayscale(1.0), lambda x: np.repeat((x @ [0.299, 0.587, 0.114])[..., None], 3, -1)),
        (RandomSolarization(1.0, 100), lambda x: np.where(x >= 100, 255 - x, x)),
        (RandomColorJitter(0.0), lambda x: x),
        (RandomColorJitter(1.0, (0.5, 0.5), 0, 0, 0), lambda x: x * 0.5),
        (GaussianBlur(0.0), lambda x: x),
        (Rotate(1.0, 0.0), lambda x: x),
    ],
)
def test_each_transform_does_what_it_says(path, operation, wanted):
    assert isinstance(operation, Operation)
    pipelines = {"image": [CenterCrop((16, 16), ratio=1), operation, ToTensor()]}
    images, _ = next(iter(Loader(path, 12, num_workers=1, pipelines=pipelines)))
    np.testing.assert_allclose(images.numpy(), wanted(PIXELS.astype(float)), atol=1.05)


def test_a_quarter_of_each_image_is_erased(path):
    pipeline = [CenterCrop((16, 16), ratio=1), RandomErasing(1.0, (0.25, 0.25), (1, 1), (9, 8, 7)), ToTensor()]
    images, _ = next(iter(Loader(path, 12, num_workers=1, pipelines={"image": pipeline})))
    assert (images == torch.tensor([9, 8, 7])).all(-1).sum((1, 2)).tolist() == [64] * 12


@pytest.mark.parametrize("name", ["LabelColorJitter", "CornerCrop"])
def test_what_is_not_there_names_what_to_take(name):
    with pytest.raises(UsageError, match=r"is not supported\. Take"):
        getattr(ffcv.transforms, name)
    with pytest.raises(UsageError, match="second_seed"):
        RandomResizedCrop((8, 8), second_seed=1)


def test_the_mapper_names_fields_that_exist(path):
    with pytest.raises(UsageError, match=r"custom_field_mapper\['again'\]: there is no field 'nothing'"):
        Loader(path, 2, custom_field_mapper={"again": "nothing"})
