"""What a training script sees of the Loader: values, order, the look of a DataLoader."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler

from dataloading import Loader, Mixture
from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.format import BytesField, IntField, JSONField, NDArrayField, Writer
from tests.support.files import write_images
from tests.support.loading import MEAN, STD, TRAIN, at_epoch, epoch_bytes

# ---- values


def test_labels_collected_over_an_epoch_need_no_clone(labels_file):
    loader = Loader(labels_file, batch_size=5, num_workers=3)
    labels = torch.cat([label for label, half in loader])
    assert torch.equal(labels, torch.arange(100))
    assert labels.dtype == torch.int64
    halves = torch.cat([batch["half"] for batch in loader])
    assert torch.equal(halves, torch.arange(100, dtype=torch.float64) / 2)


def test_images_kept_by_the_caller_never_change(photos_file):
    loader = Loader(photos_file, batch_size=4, transforms={"image": [T.CenterCrop(16)]}, num_workers=2)
    kept = list(loader)
    copies = [batch["image"].clone() for batch in kept]
    for _ in loader:
        pass
    assert all(torch.equal(batch["image"], copy) for batch, copy in zip(kept, copies, strict=True))


@pytest.mark.parametrize("batch_size", [1, 4, 7, 64])
def test_every_batch_has_its_batch_axis_and_the_tail_is_kept(photos_file, batch_size):
    loader = Loader(photos_file, batch_size=batch_size, transforms={"image": [T.CenterCrop(16)]})
    sizes = []
    for images, labels in loader:
        assert images.shape == (len(labels), 3, 16, 16)
        assert labels.shape == (len(labels),)
        sizes.append(len(labels))
    assert sum(sizes) == 61
    assert len(sizes) == len(loader) == -(-61 // batch_size)


def test_raw_and_jpeg_images_without_resize_are_the_stored_pixels(tmp_path):
    pixels = write_images(tmp_path / "raw.beton", 9, mode="raw", sizes=(24, 25), same_size=True)
    loader = Loader(tmp_path / "raw.beton", batch_size=4)
    got = torch.cat([images for images, _ in loader])
    want = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    assert torch.equal(got, want)


def test_fields_of_every_kind_arrive_as_tensors_or_lists(tmp_path):
    path = tmp_path / "kinds.beton"
    fields = {"vector": NDArrayField(np.dtype("<f4"), (3,)), "text": BytesField(), "info": JSONField(), "n": IntField()}
    with Writer(path, fields, num_samples=5) as writer:
        for k in range(5):
            vector = np.full(3, k, np.float32)
            writer.append({"vector": vector, "text": b"x" * k, "info": {"k": [k, None]}, "n": -k})
    vector, text, info, number = next(iter(Loader(path, batch_size=5)))
    assert torch.equal(vector, torch.arange(5, dtype=torch.float32)[:, None].expand(5, 3))
    assert text == [b"x" * k for k in range(5)]
    assert info == [{"k": [k, None]} for k in range(5)]
    assert number.tolist() == [0, -1, -2, -3, -4]


def test_only_the_chosen_fields_are_delivered(photos_file):
    loader = Loader(photos_file, batch_size=8, fields=["label"])
    (labels,) = next(iter(loader))
    assert labels.tolist() == list(range(8))
    with pytest.raises(UsageError, match="did you mean 'label'"):
        Loader(photos_file, batch_size=8, fields=["lable"])


def test_fields_come_in_the_order_asked_for(photos_file):
    options = {"batch_size": 4, "transforms": {"image": [T.CenterCrop(8)]}}
    in_file_order = Loader(photos_file, **options)
    loader = Loader(photos_file, fields=["label", "image"], **options)
    labels, images = next(iter(loader))
    assert labels.tolist() == [0, 1, 2, 3] and torch.equal(images, next(iter(in_file_order))["image"])
    assert next(iter(loader)).names == ("label", "image")
    for other in (
        loader.with_indices(range(4)),
        loader.filter(lambda label: label < 4),
        Loader(Mixture({str(photos_file): 1}), fields=("label", "image"), **options),
    ):
        labels, images = next(iter(other))
        assert (labels.shape, images.shape) == ((4,), (4, 3, 8, 8))
    in_file_order.load_state_dict(loader.state_dict())  # a state knows nothing of it
    for wrong, words in (
        (["label", "label"], "'label' more than once"),
        ({"label"}, "must be a list of names"),
        (3, "must be a list"),
        (["label", 3], "no field 3"),
    ):
        with pytest.raises(UsageError, match=words):
            Loader(photos_file, batch_size=4, fields=wrong)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_normalised_images_have_the_dtype_asked_for(photos_file, dtype):
    plain = Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16)]})
    loader = Loader(
        photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16), T.Normalize(MEAN, STD, dtype=dtype)]}
    )
    images, normalised = next(iter(plain))[0], next(iter(loader))[0]
    assert normalised.dtype == getattr(torch, dtype)
    mean, std = (torch.tensor(x, dtype=torch.float64).view(1, 3, 1, 1) for x in (MEAN, STD))
    want = (images.double() / 255 - mean) / std
    torch.testing.assert_close(normalised.double(), want, rtol=2 ** -(7 if dtype == "bfloat16" else 10), atol=1e-6)


@pytest.mark.parametrize("ops", [[], [T.Normalize(MEAN, STD)], [T.Normalize(MEAN, STD, dtype="float16")]])
def test_channels_last_differs_in_layout_only(photos_file, ops):
    options = {"batch_size": 7, "transforms": {"image": [T.CenterCrop((16, 12)), *ops]}, "num_workers": 2}
    for (a, _), (b, _) in zip(
        Loader(photos_file, **options), Loader(photos_file, memory_format="channels_last", **options), strict=True
    ):
        assert torch.equal(a, b)
        assert b.is_contiguous(memory_format=torch.channels_last)


def test_images_of_many_sizes_without_a_resize_are_an_error_that_says_what_to_do(photos_file):
    with pytest.raises(UsageError, match=r"RandomResizedCrop|Resize|CenterCrop"):
        Loader(photos_file, batch_size=2)


# ---- randomness and order


def test_batches_are_the_same_bytes_for_any_workers_prefetch_and_loader(photos_file):
    def run(**options):
        loader = Loader(photos_file, batch_size=9, shuffle="global", seed=5, transforms={"image": TRAIN}, **options)
        loader.set_epoch(3)
        return epoch_bytes(loader)

    want = run(num_workers=1)
    for options in ({"num_workers": 2}, {"num_workers": 7}, {"num_workers": 2, "prefetch_batches": 1},
                    {"num_workers": 3, "prefetch_batches": 11, "persistent_workers": False}):  # fmt: skip
        assert run(**options) == want


def test_a_sample_is_augmented_alike_in_any_batch_size_and_world(photos_file):
    def by_sample(**options):
        loader = Loader(photos_file, shuffle="global", seed=5, transforms={"image": TRAIN}, **options)
        return {
            int(index): image.numpy().tobytes()
            for batch in loader
            for index, image in zip(batch.indices, batch["image"], strict=True)
        }

    want = by_sample(batch_size=61)
    assert by_sample(batch_size=4) == want
    both = by_sample(batch_size=3, rank=0, world_size=2) | by_sample(batch_size=3, rank=1, world_size=2)
    assert both == want


def test_an_epoch_is_a_function_of_its_number_alone(photos_file):
    options = {"batch_size": 8, "shuffle": "global", "seed": 1, "transforms": {"image": TRAIN}}
    walked, jumped = Loader(photos_file, **options), Loader(photos_file, **options)
    epochs = [epoch_bytes(walked) for _ in range(4)]
    assert len(set(epochs)) == 4
    jumped.set_epoch(3)
    assert epoch_bytes(jumped) == epochs[3]
    jumped.sampler.set_epoch(1)
    assert epoch_bytes(jumped) == epochs[1]


@pytest.mark.parametrize(("world", "epoch"), [(1, 0), (2, 1), (7, 2)])
def test_the_order_is_that_of_distributed_sampler(labels_file, world, epoch):
    for rank in range(world):
        want = DistributedSampler(range(100), world, rank, shuffle=True, seed=11)
        want.set_epoch(epoch)
        loader = Loader(labels_file, batch_size=6, shuffle="global", seed=11, rank=rank, world_size=world)
        loader.set_epoch(epoch)
        got = [index for batch in loader for index in batch.indices.tolist()]
        assert got == list(want)
        assert got == list(itertools.chain(*(batch["label"].tolist() for batch in at_epoch(loader, epoch))))


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomSampler(range(100), generator=torch.Generator().manual_seed(3)),
        lambda: SubsetRandomSampler([5, 1, 99, 5], generator=torch.Generator().manual_seed(3)),
        lambda: DistributedSampler(range(100), 3, 1, seed=9),
    ],
)
def test_any_torch_sampler_decides_the_order(labels_file, make):
    loader = Loader(labels_file, batch_size=7, sampler=make(), num_workers=2)
    assert torch.cat([label for label, _ in loader]).tolist() == list(make())
    assert len(loader) == -(-len(make()) // 7)


def test_indices_choose_a_subset_and_may_repeat(labels_file):
    loader = Loader(labels_file, batch_size=4, indices=[7, 7, 3, 99, 0])
    assert torch.cat([label for label, _ in loader]).tolist() == [7, 7, 3, 99, 0]


def test_padding_rows_come_last_and_are_not_valid(labels_file):
    rows = valid = 0
    for rank in range(3):
        for batch in Loader(labels_file, batch_size=20, rank=rank, world_size=3):
            rows += len(batch["label"])
            valid += batch.num_valid
    assert (rows, valid) == (102, 100)


def test_even_tail_gives_each_sample_once_and_says_the_global_size(labels_file):
    seen, sizes = [], []
    for rank in range(3):
        loader = Loader(labels_file, batch_size=9, shuffle="global", tail="even", rank=rank, world_size=3)
        sizes.append([batch.global_size for batch in loader])
        seen += [index for batch in at_epoch(loader, 0) for index in batch.indices.tolist()]
    assert sorted(seen) == list(range(100))
    assert sizes[0] == sizes[1] == sizes[2]
    assert sum(sizes[0]) == 100


def test_an_empty_loader_warns_and_says_why(labels_file):
    with pytest.warns(UserWarning, match=r"gives no batch.*batch_size=200"):
        loader = Loader(labels_file, batch_size=200, drop_last=True)
    assert list(loader) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Loader(labels_file, batch_size=200)) == 1


# ---- looks like a DataLoader


def test_a_loader_has_the_attributes_that_scripts_use_of_a_dataloader(photos_file):
    loader = Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16)]})
    assert len(loader) == 8
    assert loader.batch_size == 8
    assert len(loader.dataset) == 61
    assert loader.dataset.classes == ["cat", "dog"]
    assert loader.dataset.class_to_idx == {"cat": 0, "dog": 1}
    batch = next(iter(loader))
    assert isinstance(batch, tuple)
    assert repr(batch).startswith("Batch(image: (8, 3, 16, 16)")
    with pytest.raises(KeyError, match="it has 'image', 'label'"):
        batch["imgae"]


def test_torch_modules_and_callables_run_on_the_batch(photos_file):
    from torchvision.transforms import v2

    module = torch.nn.Sequential(v2.ToDtype(torch.float32, scale=True), v2.Grayscale(3))
    loader = Loader(
        photos_file, batch_size=8,
        transforms={"image": [T.CenterCrop(16), module], "label": [lambda labels: labels * 2]},
    )  # fmt: skip
    plain = next(iter(Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16)]})))
    images, labels = next(iter(loader))
    assert torch.equal(images, module(plain["image"]))
    assert labels.tolist() == [2 * k for k in range(8)]


def test_mixup_mixes_images_and_labels_and_repeats_itself(tmp_path):
    write_images(tmp_path / "m.beton", 12, sizes=(40, 60))
    path = tmp_path / "m.beton"
    options = {
        "batch_size": 6, "seed": 3,
        "transforms": {"image": [T.Resize((16, 16)), T.Normalize(MEAN, STD), T.MixUp(alpha=1.0, num_classes=12)]},
    }  # fmt: skip
    images, labels = next(iter(Loader(path, **options)))
    again, labels_again = next(iter(Loader(path, num_workers=5, **options)))
    assert labels.shape == (6, 12)
    torch.testing.assert_close(labels.sum(1), torch.ones(6))
    assert torch.equal(images, again)
    assert torch.equal(labels, labels_again)


def test_statistics_count_samples_and_name_the_hops(photos_file):
    loader = Loader(photos_file, batch_size=8, transforms={"image": TRAIN})
    list(loader)
    stats = loader.stats()
    assert (stats.num_samples, stats.num_batches) == (61, 8)
    assert set(stats.hop_seconds) == {"sampler", "view", "decode", "transform", "transfer"}
    assert stats.hop_seconds["decode"] > 0
    assert 0 <= stats.data_wait_fraction <= 1
    assert stats.verdict in str(stats)


def test_mixing_is_drawn_anew_for_each_transform_and_rank(tmp_path):
    write_images(tmp_path / "m.beton", 24, sizes=(40, 60))
    seen = []

    class Spy(T.MixUp):
        def __call__(self, images, labels, key):
            seen.append(key)
            return images, labels

    spy = Spy(num_classes=24)
    for rank in range(2):
        list(
            Loader(
                tmp_path / "m.beton",
                batch_size=4,
                rank=rank,
                world_size=2,
                transforms={"image": [T.Resize((16, 16)), T.Normalize(MEAN, STD), spy, spy]},
            )
        )
    assert len(seen) == 2 * 3 * 2
    assert len(set(seen)) == len(seen)
