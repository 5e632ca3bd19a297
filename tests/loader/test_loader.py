"""What a training script sees of the Loader: values, order, ownership, errors, lifetime, state."""

from __future__ import annotations

import gc
import itertools
import json
import os
import threading
import time
import warnings
from pathlib import Path

import numba
import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler

from dataloading import Loader
from dataloading import transforms as T
from dataloading.errors import DecodeError, StateError, TransformError, UsageError
from dataloading.format import BytesField, IntField, JSONField, NDArrayField, Writer
from tests.support.files import jpeg, photo_like, raw, write_images, write_labels

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAIN = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]


def epoch_bytes(loader: Loader) -> bytes:
    return b"".join(value.contiguous().numpy().tobytes() for batch in loader for value in batch)


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


def test_fields_may_be_chosen(photos_file):
    loader = Loader(photos_file, batch_size=8, fields=["label"])
    (labels,) = next(iter(loader))
    assert labels.tolist() == list(range(8))
    with pytest.raises(UsageError, match="did you mean 'label'"):
        Loader(photos_file, batch_size=8, fields=["lable"])


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
        assert got == list(itertools.chain(*(batch["label"].tolist() for batch in _again(loader, epoch))))


def _again(loader: Loader, epoch: int) -> Loader:
    loader.set_epoch(epoch)
    return loader


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
        seen += [index for batch in _again(loader, 0) for index in batch.indices.tolist()]
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


# ---- state


@pytest.mark.parametrize("stop", [1, 4, 8])
def test_a_saved_place_goes_on_with_the_very_next_batch(photos_file, stop):
    options = {"batch_size": 8, "shuffle": "global", "seed": 2, "transforms": {"image": TRAIN}, "num_workers": 2}
    whole = Loader(photos_file, **options)
    whole.set_epoch(4)
    want = [batch["image"].numpy().tobytes() for batch in whole]
    first = Loader(photos_file, **options)
    first.set_epoch(4)
    for _ in itertools.islice(first, stop):
        pass
    state = json.loads(json.dumps(first.state_dict()))
    second = Loader(photos_file, **(options | {"num_workers": 3, "prefetch_batches": 7}))
    second.load_state_dict(state)
    second.set_epoch(4)  # as a training loop does
    assert [batch["image"].numpy().tobytes() for batch in second] == want[stop:]
    assert next(iter(second)).epoch == 5


def test_a_state_goes_on_in_another_world_with_every_sample_once(labels_file):
    def leg(state, world, steps):
        seen, saved = [], None
        for rank in range(world):
            loader = Loader(labels_file, batch_size=5, shuffle="global", tail="even", rank=rank, world_size=world)
            if state is not None:
                loader.load_state_dict(state)
            for batch in itertools.islice(loader, steps):
                seen += batch.indices.tolist()
            saved = loader.state_dict()
        return seen, saved

    one, state = leg(None, 2, 3)
    two, state = leg(state, 3, 2)
    three, _ = leg(state, 1, None)
    assert sorted(one + two + three) == list(range(100))


def test_a_finished_epoch_saves_the_start_of_the_next(labels_file):
    loader = Loader(labels_file, batch_size=30)
    for _ in loader:
        pass
    state = loader.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"seed": 9}, "another seed"), ({"shuffle": "none"}, "order options"), ({"indices": [1, 2]}, "order options")],
)
def test_a_state_of_other_options_is_refused_with_both_values(labels_file, change, words):
    options = {"batch_size": 5, "shuffle": "global", "seed": 1}
    state = Loader(labels_file, **options).state_dict()
    with pytest.raises(StateError, match=words):
        Loader(labels_file, **(options | change)).load_state_dict(state)


def test_a_state_of_other_data_is_refused(labels_file, tmp_path):
    state = Loader(labels_file, batch_size=5).state_dict()
    with pytest.raises(StateError, match="another dataset"):
        Loader(write_labels(tmp_path / "other.beton", 99), batch_size=5).load_state_dict(state)
    with pytest.raises(StateError, match="not a state"):
        Loader(labels_file, batch_size=5).load_state_dict({"epoch": 3})


# ---- errors


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
        ({"sampler": range(3), "shuffle": "global"}, "sampler="),
        ({"prefetch_batches": 0}, "prefetch_batches=0"),
    ],
)
def test_wrong_options_are_named_with_the_fix(photos_file, options, words):
    with pytest.raises(UsageError, match=words):
        Loader(photos_file, **({"batch_size": 2, "transforms": {"image": [T.CenterCrop(8)]}} | options))


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Loader(tmp_path / "none.beton", batch_size=1)


# ---- lifetime


def _num_threads() -> int:
    gc.collect()  # an earlier test's failure that pytest has kept may be all that holds its loader
    return threading.active_count()


def _memory() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def test_leaving_early_200_times_leaves_no_thread_and_no_memory(photos_file):
    options = {"batch_size": 16, "transforms": {"image": [T.Resize((64, 64))]}, "num_workers": 3}
    before = _num_threads()
    loader = Loader(photos_file, **options)
    for _ in range(20):
        for _ in loader:
            break
    assert threading.active_count() == before
    start = _memory()
    for _ in range(200):
        for _ in loader:
            break
    assert threading.active_count() == before
    assert _memory() - start < 8 << 20


def test_a_thousand_first_batches_are_right_and_take_no_memory(photos_file):
    loader = Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16)]}, num_workers=2)
    want = next(iter(loader))["image"].clone()
    start = _memory()
    for _ in range(1000):
        assert torch.equal(next(iter(loader))["image"], want)
    assert _memory() - start < 8 << 20


def test_dropping_or_closing_a_loader_ends_its_threads(photos_file):
    before = _num_threads()
    loader = Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16)]}, num_workers=3)
    list(loader)
    assert threading.active_count() == before + 3  # at work on the next epoch
    loader.close()
    assert threading.active_count() == before
    list(loader)
    del loader
    gc.collect()
    assert threading.active_count() == before


def test_an_exception_in_the_loop_ends_the_threads(photos_file):
    before = _num_threads()
    loader = Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16)]}, num_workers=3)

    def train():
        for _ in loader:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert threading.active_count() == before


def test_two_iterators_of_one_loader_do_not_disturb_each_other(labels_file):
    loader = Loader(labels_file, batch_size=7, num_workers=2)
    for a, b in zip(loader, loader, strict=True):
        assert a["label"].tolist() == b["label"].tolist()


def test_two_iterators_of_one_loader_do_not_share_the_memory_they_work_in(tmp_path):
    write_images(tmp_path / "p.beton", 60, sizes=(150, 200))
    transforms = {"image": [T.RandomResizedCrop(128), T.Normalize(MEAN, STD)]}
    loader = Loader(tmp_path / "p.beton", batch_size=12, transforms=transforms, num_workers=2)
    want = [batch["image"] for batch in loader]
    for _ in range(4):
        pair = [iter(_again(loader, 0)), iter(_again(loader, 0))]
        for image, a, b in zip(want, *pair, strict=True):
            assert torch.equal(a["image"], image)
            assert torch.equal(b["image"], image)


def test_the_next_epoch_is_begun_before_it_is_asked_for(photos_file):
    loader = Loader(photos_file, batch_size=8, transforms={"image": TRAIN}, num_workers=2, shuffle="global")
    first = epoch_bytes(loader)
    deadline = time.monotonic() + 10
    while loader.stats().hop_seconds["decode"] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    engine, epoch = loader._engines._waiting
    while engine.num_ready < loader.prefetch_batches and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (epoch, engine.num_ready) == (1, loader.prefetch_batches)
    second = epoch_bytes(loader)
    fresh = Loader(photos_file, batch_size=8, transforms={"image": TRAIN}, num_workers=2, shuffle="global")
    fresh.set_epoch(1)
    assert second == epoch_bytes(fresh) != first


def test_memory_is_bounded_by_the_batches_in_flight(photos_file):
    loader = Loader(
        photos_file,
        batch_size=20,
        transforms={"image": [T.Resize((64, 64))]},
        num_workers=2,
        indices=list(range(20)) * 50,
    )
    for _ in loader:
        pass
    ring = loader._recipe.images["image"].ring
    assert ring.num_free <= loader.prefetch_batches + 2


def test_a_forked_child_can_use_the_loader(photos_file):
    loader = Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16)]}, num_workers=2)
    want = epoch_bytes(loader)
    loader.set_epoch(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forking with threads
        child = os.fork()
    if child == 0:
        os._exit(0 if epoch_bytes(loader) == want else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_loader_works_beside_a_torch_dataloader_that_forks(photos_file):
    loader = Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16)]}, num_workers=2)
    stock = torch.utils.data.DataLoader(range(16), batch_size=4, num_workers=2)
    for (images, _), numbers in zip(loader, stock, strict=False):
        assert len(images) and len(numbers) == 4


# ---- looks like a DataLoader


def test_it_has_what_scripts_ask_of_a_dataloader(photos_file):
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
