"""The end of a list on batches: the draws and the bytes that the workers give."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dataloading import Loader
from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.transforms.pipeline import Pipeline
from tests.support.files import jpeg, photo_like, write_images
from tests.support.loading import MEAN, STD
from tests.transforms.support import images, keys_for

# All of these have a form for batches; behind a blur, flips cannot move to the front.
COLOURS = [T.ColorJitter(0.4, 0.4, 0.4, 0.2), T.RandomGrayscale(0.3), T.RandomSolarize(100, 0.3), T.RandomInvert(0.3),
           T.RandomPosterize(4, 0.4), T.RandomAutocontrast(0.4), T.RandomChannelPermutation()]  # fmt: skip
MOVES = [T.RandomVerticalFlip(), T.RandomHorizontalFlip(), T.RandomCrop(21), T.RandomErasing(0.5, value=7), T.Cutout(5)]
CHOICES = [
    T.RandomApply([T.RandomInvert(0.5), T.RandomPosterize(3)], 0.5),
    T.RandomChoice([T.ColorJitter(0.5), T.RandomSolarize(50), T.ColorJitter(hue=0.3)]),
    T.RandomOrder([T.ColorJitter(contrast=0.5), T.RandomInvert(), T.RandomAutocontrast()]),
]


def both(transforms: list[object], *, channels: int = 3, n: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    """What the workers make of random images, and what workers and a batch program make."""
    decoded, keys = images(n, (channels, 27, 31)), keys_for(n)
    results = []
    for on_device in (False, True):
        pipeline = Pipeline(transforms, channels=channels, source_size=(27, 31), decodes=False, on_device=on_device)
        out = np.empty((n, *pipeline.out_shape), pipeline.storage_dtype)
        pipeline.run(decoded.copy(), keys, out)
        tensor = torch.from_numpy(out)
        if pipeline.out_dtype in ("float16", "bfloat16"):
            tensor = torch.from_numpy(out.view(np.int16)).view(getattr(torch, pipeline.out_dtype))
        if on_device:
            assert pipeline.on_batch is not None
            tensor = pipeline.on_batch.apply(tensor, pipeline.draw(keys))
        results.append(tensor)
    return results[0], results[1]


@pytest.mark.parametrize("transform", [*COLOURS, *MOVES, *CHOICES, T.Grayscale(1), T.Grayscale(3)], ids=repr)
def test_each_transform_gives_the_bytes_that_workers_give(transform):
    workers, batch = both([transform])
    assert torch.equal(workers, batch)
    assert batch.dtype == torch.uint8


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_long_list_with_normalize_gives_equal_values(dtype, channels):
    colours = [
        each for each in (*COLOURS, *CHOICES) if channels == 3 or not isinstance(each, T.RandomChannelPermutation)
    ]
    normalize = T.Normalize(0.45, 0.22, dtype=dtype)
    workers, batch = both([*colours, *MOVES, normalize, T.RandomErasing(0.5, value=-0.25)], channels=channels)
    assert batch.dtype == workers.dtype == getattr(torch, dtype)
    assert torch.equal(workers, batch)


def test_values_at_the_ends_stay_exact():
    extreme = np.zeros((6, 3, 4, 4), np.uint8)
    extreme[1] = 255
    extreme[2, 0] = 255
    extreme[3:, 1] = np.arange(16).reshape(4, 4)
    for transform in (T.ColorJitter((0, 9), (0, 9), (0, 9), 0.5), T.RandomAutocontrast(1), T.RandomSolarize(0, 1)):
        pipelines = [Pipeline([transform], source_size=(4, 4), decodes=False, on_device=each) for each in (False, True)]
        out = np.empty_like(extreme)
        pipelines[0].run(extreme.copy(), keys_for(6), out)
        program = pipelines[1].on_batch
        assert program is not None
        mine = program.apply(torch.from_numpy(extreme.copy()), pipelines[1].draw(keys_for(6)))
        assert torch.equal(mine, torch.from_numpy(out)), transform


def test_only_the_longest_end_that_can_be_done_on_batches_leaves_the_workers():
    blur = T.GaussianBlur(3)
    pipeline = Pipeline(
        [T.RandomResizedCrop(9), T.RandomInvert(), blur, T.ColorJitter(0.4), T.Normalize(0.5, 0.25)], on_device=True
    )
    assert pipeline.operations == ("RandomInvert", "GaussianBlur")
    assert pipeline.out_dtype == "uint8"


def test_a_list_whose_last_transform_has_no_form_is_refused_with_its_name():
    with pytest.raises(UsageError, match=r"transform 1 \(GaussianBlur\), has no form for batches of uint8. Move it"):
        Pipeline([T.CenterCrop(9), T.GaussianBlur(3)], on_device=True)
    with pytest.raises(UsageError, match=r"transform 1 \(RandomApply\) \(in it GaussianBlur\), has no form"):
        Pipeline([T.CenterCrop(9), T.RandomApply([T.GaussianBlur(3)])], on_device=True)
    assert Pipeline([T.CenterCrop(9)], on_device=True).on_batch is None


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_loader_gives_the_same_batches_from_both_places(photos_file, memory_format, workers):
    transforms = {
        "image": [T.RandomResizedCrop(32), T.GaussianBlur(3), *COLOURS, T.RandomHorizontalFlip(),
                  T.Normalize(MEAN, STD, dtype="float16"), T.RandomErasing(0.5), T.MixUp(num_classes=61)]
    }  # fmt: skip
    options = {"batch_size": 8, "shuffle": "global", "transforms": transforms, "memory_format": memory_format}
    loader = Loader(photos_file, num_workers=2, **options)
    other = Loader(photos_file, num_workers=workers, place="device", **options)
    for mine, theirs in zip(loader, other, strict=True):
        assert torch.equal(mine["image"], theirs["image"])
        assert torch.equal(mine["label"], theirs["label"])
        if memory_format == "channels_last":
            assert theirs["image"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_rows_keep_their_draws_where_others_fail(tmp_path, on_error):
    from dataloading import ImageField, IntField, Writer

    rng = np.random.default_rng(0)
    with Writer(tmp_path / "x.beton", {"image": ImageField(), "label": IntField()}, num_samples=12) as writer:
        for index in range(12):
            size = 10 if index in (2, 7) else 40
            writer.append({"image": jpeg(photo_like(rng, size, size)), "label": index})
    transforms = {"image": [T.RandomCrop(30), T.ColorJitter(0.5), T.RandomInvert(), T.Normalize(0.5, 0.25)]}
    options = {"batch_size": 6, "transforms": transforms, "on_error": on_error, "num_workers": 2}
    pairs = zip(
        Loader(tmp_path / "x.beton", **options), Loader(tmp_path / "x.beton", place="device", **options), strict=True
    )
    for mine, theirs in pairs:
        assert mine["label"].tolist() == theirs["label"].tolist()
        assert torch.equal(mine["image"], theirs["image"])


def test_other_transforms_later_run_in_the_same_place(tmp_path):
    write_images(tmp_path / "p.beton", 20)
    first = {"image": [T.CenterCrop(8)]}
    loader = Loader(tmp_path / "p.beton", batch_size=10, place="device", transforms=first, num_workers=1)
    with pytest.raises(UsageError, match="GaussianBlur"):
        loader.with_transforms({"image": [T.CenterCrop(8), T.GaussianBlur(3)]})
    loader = loader.with_transforms({"image": [T.CenterCrop(8), T.RandomInvert(1)]})
    plain = Loader(tmp_path / "p.beton", batch_size=10, transforms=first, num_workers=1)
    for mine, theirs in itertools.zip_longest(loader, plain):
        assert torch.equal(mine["image"], 255 - theirs["image"])


def test_a_place_that_does_not_exist_is_named(photos_file):
    with pytest.raises(UsageError, match="place"):
        Loader(photos_file, batch_size=8, place="gpu")
