"""Batches on a CUDA device: right under load, in the caller's order, without growing memory or foreign contexts."""

from __future__ import annotations

import copy

import pytest
import torch

from dataloading import Loader
from dataloading import transforms as T
from tests.support.loading import MEAN, STD

pytestmark = pytest.mark.gpu


def slow_kernel() -> None:
    """Keep the device busy for some tens of milliseconds, asynchronously."""
    matrix = torch.randn(2048, 2048, device="cuda")
    for _ in range(20):
        matrix = matrix @ matrix * 1e-3


def test_labels_collected_under_load_equal_the_index(labels_file):
    loader = Loader(labels_file, batch_size=7, device="cuda", num_workers=4)
    for _ in range(5):
        labels = []
        for label, half in loader:
            slow_kernel()
            assert torch.equal(half * 2, label.double())
            labels.append(label)
        assert torch.equal(torch.cat(labels), torch.arange(100, device="cuda"))


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_batches_equal_those_on_the_cpu_before_and_after_a_long_kernel(photos_file, memory_format, dtype):
    options = {
        "batch_size": 16,
        "shuffle": "global",
        "transforms": {"image": [T.RandomResizedCrop(32), T.Normalize(MEAN, STD, dtype=dtype)]},
        "memory_format": memory_format,
    }
    for device, host in zip(Loader(photos_file, device="cuda", **options), Loader(photos_file, **options), strict=True):
        images = device["image"]
        early = images.clone()
        slow_kernel()
        assert torch.equal(images, early)
        assert torch.equal(images.cpu(), host["image"])
        if memory_format == "channels_last":
            assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_transforms_done_on_the_device_give_what_workers_give(photos_file, memory_format, dtype):
    colours = [T.ColorJitter(0.4, 0.4, 0.4, 0.2), T.RandomGrayscale(0.3), T.RandomSolarize(100, 0.3)]
    others = [T.RandomPosterize(4, 0.4), T.RandomAutocontrast(0.4), T.RandomInvert(0.3), T.RandomCrop(29)]
    floats = [T.Normalize(MEAN, STD, dtype=dtype), T.RandomErasing(0.5), T.MixUp(num_classes=61)]
    transforms = {"image": [T.RandomResizedCrop(32), T.GaussianBlur(3), *colours, *others, *floats]}
    options = {"batch_size": 16, "shuffle": "global", "transforms": transforms, "memory_format": memory_format}
    on_device = Loader(photos_file, device="cuda", place="device", **options)
    for device, host in zip(on_device, Loader(photos_file, **options), strict=True):
        slow_kernel()
        difference = (device["image"].cpu().float() - host["image"].float()).abs()
        assert (difference > 2e-3).float().mean() < 1e-3  # the device may round a level of uint8 differently
        assert torch.allclose(device["label"].cpu(), host["label"])
        assert device["image"].dtype == host["image"].dtype
        if memory_format == "channels_last":
            assert device["image"].is_contiguous(memory_format=torch.channels_last)


def test_two_equal_models_fed_the_same_batches_stay_equal(photos_file):
    torch.manual_seed(0)
    one = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).cuda()
    two = copy.deepcopy(one)
    loader = Loader(
        photos_file, batch_size=8, device="cuda", transforms={"image": [T.Resize((32, 32)), T.Normalize(MEAN, STD)]}
    )
    for _ in range(3):
        for images, _ in loader:
            one(images)
            slow_kernel()
            two(images)
    assert torch.equal(one[1].running_mean, two[1].running_mean)


def test_device_memory_is_constant_after_the_second_epoch(photos_file):
    loader = Loader(photos_file, batch_size=16, device="cuda", transforms={"image": [T.Resize((64, 64))]})
    reserved = []
    for _ in range(20):
        for images, _ in loader:
            images.float().mean()
        reserved.append(torch.cuda.memory_reserved())
    assert len(set(reserved[2:])) == 1


def test_pinned_memory_is_lent_again_once_its_copy_is_done(photos_file):
    loader = Loader(
        photos_file,
        batch_size=16,
        device="cuda",
        transforms={"image": [T.Resize((64, 64))]},
        indices=list(range(61)) * 20,
    )
    for _ in loader:
        pass
    loader.close()
    ring = loader._plan.images["image"].ring
    assert 0 < ring.num_free <= loader.prefetch_batches + 2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second CUDA device")
def test_a_loader_for_the_second_device_never_touches_the_first(photos_file):
    before = torch.cuda.memory_stats(0).get("allocated_bytes.all.allocated", 0)
    loader = Loader(photos_file, batch_size=8, device="cuda:1", transforms={"image": [T.Resize((32, 32))]})
    for images, labels in loader:
        assert images.device == labels.device == torch.device("cuda:1")
    assert torch.cuda.memory_stats(0).get("allocated_bytes.all.allocated", 0) == before


def test_a_device_that_is_not_there_is_named(photos_file):
    number = torch.cuda.device_count() + 3
    with pytest.raises(ValueError, match=f"cuda:{number}"):
        Loader(photos_file, batch_size=8, device=f"cuda:{number}", transforms={"image": [T.Resize((32, 32))]})
