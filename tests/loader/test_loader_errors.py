"""What becomes of bad samples, failing transforms and wrong options."""

from __future__ import annotations

import copy
import pickle
import time
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
import torchvision.transforms as v1

from dataloading import Loader
from dataloading import transforms as T
from dataloading.errors import DecodeError, FormatError, TransformError, UsageError
from dataloading.format import IntField, Writer
from tests.support.files import jpeg, photo_like, raw, write_images


@pytest.fixture(scope="module")
def damaged_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of which 3 and 7 are cut in the middle of their JPEG data."""
    from dataloading.format import EncodedImage, ImageField

    path = tmp_path_factory.mktemp("damaged") / "damaged.beton"
    rng = np.random.default_rng(0)
    with Writer(path, {"image": ImageField(), "label": IntField()}, num_samples=12) as writer:
        for k in range(12):
            image = jpeg(photo_like(rng, 64, 64))
            if k in (3, 7):
                image = EncodedImage(image.mode, 64, 64, image.data[: len(image.data) // 2])
            writer.append({"image": image, "label": k})
    return path


@pytest.mark.parametrize("num_workers", [1, 4])
def test_a_damaged_sample_is_named_and_nothing_else_happens(damaged_file, num_workers):
    loader = Loader(damaged_file, batch_size=12, transforms={"image": [T.Resize((32, 32))]}, num_workers=num_workers)
    with pytest.raises(DecodeError, match=r"sample 3, field 'image' of .*damaged.beton: .*beton verify") as caught:
        list(loader)
    assert caught.value.sample == 3


@pytest.mark.parametrize("batch_size", [3, 12])
def test_skipped_samples_are_listed_and_the_rest_keeps_its_order(damaged_file, batch_size):
    loader = Loader(
        damaged_file, batch_size=batch_size, transforms={"image": [T.Resize((32, 32))]}, on_error="skip", num_workers=2
    )
    batches = list(loader)
    assert torch.cat([label for _, label in batches]).tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]
    assert np.concatenate([batch.indices for batch in batches]).tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]
    assert sum(batch.num_valid for batch in batches) == 10
    assert [error.sample for error in loader.errors] == [3, 7]
    assert loader.stats().num_skipped == 2
    whole = Loader(damaged_file, batch_size=5, indices=[4, 5, 6], transforms={"image": [T.Resize((32, 32))]})
    want = next(iter(whole))["image"]
    assert torch.equal(torch.cat([image for image, _ in batches])[3:6], want)


def test_replaced_samples_are_the_next_good_ones_of_the_batch(damaged_file):
    loader = Loader(damaged_file, batch_size=4, transforms={"image": [T.Resize((32, 32))]}, on_error="replace")
    batches = list(loader)
    assert torch.cat([label for _, label in batches]).tolist() == [0, 1, 2, 0, 4, 5, 6, 4, 8, 9, 10, 11]
    assert torch.equal(batches[0]["image"][3], batches[0]["image"][0])
    assert [error.sample for error in loader.errors] == [3, 7]


def test_a_batch_of_damaged_samples_only_is_an_error_even_when_skipping(damaged_file):
    loader = Loader(
        damaged_file, batch_size=2, indices=[3, 7], transforms={"image": [T.Resize((32, 32))]}, on_error="skip"
    )
    with pytest.raises(DecodeError, match="sample 3"):
        list(loader)


@numba.njit
def _fails_on_dark(image, key):
    if image[0, 0, 0] == 7:
        raise ValueError("too dark")


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_transform_that_raises_ends_the_iteration_within_a_second_naming_the_sample(tmp_path, num_workers):
    path = tmp_path / "sevens.beton"
    from dataloading.format import ImageField

    with Writer(path, {"image": ImageField(), "label": IntField()}, num_samples=40) as writer:
        for k in range(40):
            writer.append({"image": raw(np.full((8, 8, 3), k, np.uint8)), "label": k})
    loader = Loader(path, batch_size=10, transforms={"image": [T.Custom(_fails_on_dark)]}, num_workers=num_workers)
    start = time.monotonic()
    with pytest.raises(TransformError, match=r"sample 7, field 'image'.*ValueError: too dark") as caught:
        list(loader)
    assert time.monotonic() - start < 1
    assert isinstance(caught.value.__cause__, ValueError)
    skipping = Loader(
        path, batch_size=10, transforms={"image": [T.Custom(_fails_on_dark)]}, num_workers=2, on_error="skip"
    )
    assert torch.cat([label for _, label in skipping]).tolist() == [k for k in range(40) if k != 7]


def test_an_image_too_small_for_its_crop_is_named(tmp_path):
    write_images(tmp_path / "small.beton", 6, sizes=(20, 21))
    loader = Loader(tmp_path / "small.beton", batch_size=3, transforms={"image": [T.RandomCrop(16), T.CenterCrop(8)]})
    assert len(list(loader)) == 2
    with pytest.raises((TransformError, UsageError), match="RandomCrop"):
        list(Loader(tmp_path / "small.beton", batch_size=3, transforms={"image": [T.RandomCrop(24)]}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_workers": 0}, "num_workers=0"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"rank": 1}, "together"),
        ({"device": "tpu9"}, "device='tpu9'"),
        ({"memory_format": "nhwc"}, "memory_format='nhwc'"),
        ({"transforms": {"imgae": []}}, "did you mean 'image'"),
        ({"transforms": {"image": T.CenterCrop(8)}}, "must be a list"),
        ({"transforms": {"label": [T.Normalize(0.5, 0.5)]}}, r"\['label'\]: transform 0 \(Normalize\) works on images"),
        ({"transforms": {"label": [T.MixUp(num_classes=3)]}}, r"\['label'\]: transform 0 \(MixUp\) works on images"),
        (
            {"transforms": {"image": [T.CenterCrop(8), T.CutMix()]}},
            r"\['image'\]: CutMix mixes rows .* 'label' holds class numbers. Pass num_classes=",
        ),
        (
            {"transforms": {"image": [T.CenterCrop(8), T.RandomChoice([T.CutMix(num_classes=3), T.CutMix()])]}},
            "RandomChoice mixes rows .* or put OneHot",
        ),
        ({"transforms": {"label": [torch.neg, 3]}}, r"\['label'\]: transform 1 must be a transform .* got int: 3"),
        (
            {"transforms": {"label": [torch.nn.Identity]}},
            r"transform 0 is the class Identity, .* Write Identity\(...\)",
        ),
        ({"transforms": {"label": ["x"]}}, "got str: 'x'"),
        ({"transforms": {"label": [None]}}, "got NoneType"),
        ({"fields": ["label"]}, r"a list for 'image', which fields=\['label'\] leaves out"),
        ({"transforms": [T.CenterCrop(8)]}, "transforms= must say whose they are, as in .* got list"),
        ({"fields": "image"}, r"write fields=\['image'\]"),
        ({"sampler": range(3), "shuffle": "global"}, "sampler="),
        ({"sampler": range(3), "num_draws": 2}, "sampler=.*leave out .*num_draws="),
        ({"sampler": range(3), "num_repeats": 2}, "sampler=.*leave out .*num_repeats="),
        ({"sampler": range(3), "batch_size": 0}, "batch_size=0"),
        ({"prefetch_batches": 0}, "prefetch_batches=0"),
    ],
)
def test_wrong_options_are_named_with_the_fix(photos_file, options, words):
    with pytest.raises(UsageError, match=words):
        Loader(photos_file, **({"batch_size": 2, "transforms": {"image": [T.CenterCrop(8)]}} | options))


def _stops(batch):
    raise StopIteration


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (v1.ToTensor(), r"\(ToTensor\), given the batch as \(8, 3, 16, 16\) uint8: TypeError: pic should be PIL Image"),
        (lambda batch: batch[:, ::-1], r"\(<lambda>\), given .*: ValueError: step must be greater than zero"),
        (lambda batch: None, r"returned None, expected one entry for each of 8 rows \(a function without return"),
        (lambda batch: batch[:3], r"returned \(3, 3, 16, 16\) uint8, expected one entry for each of 8 rows"),
        (lambda batch: batch.float().mean(), r"returned \(\) float32, expected one entry"),
        (lambda batch: list(batch[:3]), "returned a list of 3 Tensor, expected"),
        (lambda batch: (batch, batch[:1]), r"returned \(1, 3, 16, 16\) uint8 in a tuple of 2, expected"),
        (lambda batch: {"a": "12345678"}, "returned str '12345678' in a dict of 1, expected"),
        (lambda batch: {}, "returned an empty dict"),
        (_stops, r"\(_stops\), given .*: StopIteration"),
    ],
)
def test_a_callable_that_fails_on_the_batch_is_named_with_its_input_and_output(photos_file, op, words):
    loader = Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16), lambda batch: batch, op]})
    with pytest.raises(TransformError, match=rf"field 'image', transform 2 .*{words}") as caught:
        list(loader)
    assert (caught.value.field, caught.value.sample) == ("image", None)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (lambda batch: batch.numpy(), lambda image: image.shape),
        (lambda batch: list(batch), lambda image: (len(image), *image[0].shape)),
        (lambda batch: (batch, batch.flip(3)), lambda image: image[1].shape),
        (lambda batch: {"weak": batch, "strong": batch + 1}, lambda image: image["strong"].shape),
    ],
)
def test_a_callable_may_return_whatever_has_one_entry_a_row(photos_file, op, shape):
    loader = Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16), op]})
    assert shape(next(iter(loader))["image"]) == (8, 3, 16, 16)


def test_ctrl_c_in_a_callable_arrives_as_keyboard_interrupt(photos_file):
    def interrupted(batch):
        raise KeyboardInterrupt

    loader = Loader(photos_file, batch_size=8, fields=["label"], transforms={"label": [interrupted]})
    with pytest.raises(KeyboardInterrupt):
        list(loader)


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Loader(tmp_path / "none.beton", batch_size=1)


def test_a_loader_says_why_it_cannot_be_pickled(damaged_file):
    loader = Loader(damaged_file, batch_size=4, fields=["label"], num_workers=1)
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="make one in each process"):
            attempt(loader)


@pytest.mark.parametrize("change", ["cut", "longer"])
def test_a_file_overwritten_in_place_is_an_error_and_does_not_kill_the_process(tmp_path, change):
    """The first batches are asked for before, the last after; the map of a file that is cut would kill the process."""
    path = tmp_path / "t.beton"
    write_images(path, 400)
    loader = Loader(path, batch_size=4, transforms={"image": [T.Resize((8, 8))]}, num_workers=1, prefetch_batches=1)
    batches = iter(loader)
    next(batches)
    time.sleep(0.3)  # nothing is on its way any more
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(size - 4096 if change == "cut" else size + 1)  # behind all images: those on their way are there
    with pytest.raises(FormatError, match=rf"t.beton was overwritten .* had {size:,} bytes .* another name"):
        list(batches)


def test_a_file_replaced_by_another_of_its_name_can_still_be_read(tmp_path):
    path = tmp_path / "t.beton"
    write_images(path, 40)
    loader = Loader(path, batch_size=4, transforms={"image": [T.Resize((8, 8))]}, num_workers=1, prefetch_batches=1)
    expected = [batch["image"].clone() for batch in loader]
    batches = iter(loader)
    write_images(tmp_path / "other.beton", 10, seed=1)
    (tmp_path / "other.beton").replace(path)
    assert all(torch.equal(batch["image"], image) for batch, image in zip(batches, expected, strict=True))
