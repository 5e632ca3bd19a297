"""What a Loader's arguments may be, how wrong ones are refused, and that options cannot be assigned."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dataloading
from dataloading import IntField, Loader, UsageError, Writer, compare_windows, verify_file
from dataloading import transforms as T
from dataloading.checks import at_least, true_or_false
from dataloading.testing import check_transform
from dataloading.tools import transcode_jpeg

WHOLE = [np.int64, np.int32, np.uint64, np.uint8, torch.tensor, np.array]


@pytest.mark.parametrize("kind", WHOLE, ids=lambda kind: kind.__name__)
def test_integers_of_every_library_are_accepted(photos_file: Path, kind: Any) -> None:
    def batches(number: Any) -> Any:
        loader = Loader(
            photos_file,
            batch_size=number(4),
            shuffle="global",
            seed=number(3),
            num_workers=number(2),
            prefetch_batches=number(2),
            rank=number(1),
            world_size=number(2),
            indices=[number(k) for k in range(20)],
            num_repeats=number(2),
            transforms={"image": [T.RandomResizedCrop(number(8)), T.RandomErasing(), T.Cutout(number(2))]},
        )
        loader.set_epoch(number(1))
        assert type(loader.seed) is int and type(loader.batch_size) is int and type(loader.state_dict()["seed"]) is int
        state = {**loader.state_dict(), "epoch": number(1), "consumed": number(8)}
        loader.load_state_dict(state)
        return [(batch.indices.tolist(), batch["image"]) for batch in loader]

    got, expected = batches(kind), batches(int)
    assert [indices for indices, _ in got] == [indices for indices, _ in expected] and len(got) == 4
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(got, expected, strict=True))


def test_a_number_is_named_with_its_range() -> None:
    assert at_least("seed", np.uint64(2**63 - 1), 0) == 2**63 - 1
    for value, words in (
        (2**63, r"seed=9223372036854775808 must be an integer from 0 to 2\*\*63 - 1"),
        (-1, "seed=-1 must be an integer of at least 0"),
        (True, "seed=True"),
        (np.True_, "seed=np.True_"),
        (3.0, "seed=3.0 must be an integer of at least 0: write seed=3"),
        ("3", "seed='3' .*: write seed=3"),
        (None, "seed=None"),
        ([3], r"seed=\[3\]"),
    ):
        with pytest.raises(UsageError, match=words):
            at_least("seed", value, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 2**70}, r"seed=1180591620717411303424 must be an integer from 0 to 2\*\*63 - 1"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"batch_size": "8"}, "write batch_size=8"),
        ({"num_workers": -1}, "leave it out for this rank's share of the cores"),
        ({"rank": "0", "world_size": "2"}, "rank='0' must be an integer of at least 0: write rank=0"),
        ({"rank": 0, "world_size": 2.0}, "write world_size=2"),
        ({"rank": 2, "world_size": 2}, r"rank=2 must be in 0..1"),
        ({"shuffle": "pages", "num_nodes": "1"}, "num_nodes='1'"),
        ({"shuffle": "pages", "window_pages": 0}, "window_pages=0"),
        ({"cache_bytes": "1G", "os_cache": False}, "cache_bytes='1G'"),
        ({"indices": 5}, "indices must be a list of integers, got 5"),
        ({"indices": "12"}, "indices must be a list of integers, got '12'"),
        ({"drop_last": "False"}, "drop_last='False' must be True or False"),
        ({"drop_last": 1}, "drop_last=1 must be True or False"),
        ({"os_cache": 1}, "os_cache=1 must be True or False"),
        ({"persistent_workers": None}, "persistent_workers=None must be True or False"),
        ({"replacement": "no", "weights": "balanced"}, "replacement='no' must be True or False"),
        ({"shuffle": True}, 'shuffle="global"'),
        ({"shuffle": False}, 'shuffle="none"'),
        ({"shuffle": "random"}, 'RANDOM is shuffle="global"'),
        ({"sampler": iter(range(20))}, r"with a length .* got range_iterator. .* sampler=list\(...\)"),
        ({"sampler": 3}, "sampler= must be iterable"),
        ({"sampler": torch.utils.data.BatchSampler(range(9), 3, False)}, "not a batch sampler"),
        ({"batchsize": 8}, "no option 'batchsize'. Did you mean 'batch_size'"),
        ({"pipelines": {}}, r"no option 'pipelines'. Write transforms=\{'image': \[...\]\}"),
        ({"order": "random"}, "no option 'order'. Write shuffle='global'"),
        ({"batches_ahead": 3}, "Write prefetch_batches="),
        ({"distributed": True}, "rank and world size come from torch.distributed"),
        ({"recompile": True}, "Leave it out"),
        ({"custom_fields": {}}, "Leave it out"),
        ({"pin_memory": True}, "Write device='cuda'"),
        ({"collate_fn": list}, r"transforms=\{'label': \[function\]\}"),
        ({"worker_init_fn": print}, "workers are threads"),
        ({"generator": None}, "Write seed="),
        ({"prefetch_factor": 2}, "Write prefetch_batches="),
        ({"timeout": 3}, "Leave it out"),
        ({"multiprocessing_context": "fork"}, "workers are threads"),
        ({"batch_sampler": None}, "Write sampler=, which takes a Sampler of single indices"),
        ({"device": None}, "device=None is not a torch device"),
        ({"device": 10**30}, "is not a torch device"),
        ({"mesh": 3}, "mesh= must be a torch DeviceMesh, got int"),
        ({"cache_dir": 3}, "cache_dir=3 must be the path of a folder"),
        ({"transforms": []}, "transforms= must say whose they are"),
        ({"qwertyuiop": 1}, "It has batch_size, cache_bytes"),
    ],
)
def test_wrong_arguments_are_refused_with_what_to_write(photos_file: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Loader(photos_file, **{"batch_size": 2, "transforms": {"image": [T.CenterCrop(8)]}, **options})


def test_a_missing_batch_size_or_path_is_an_error(photos_file: Path) -> None:
    with pytest.raises(UsageError, match="batch_size= is missing"):
        Loader(photos_file)  # type: ignore[call-arg]
    with pytest.raises(
        UsageError, match=r"only the path without a name, got 2 such arguments: write Loader\(path, batch"
    ):
        Loader(photos_file, 64)  # type: ignore[misc]
    with pytest.raises(UsageError, match="needs the path"):
        Loader(batch_size=3)  # type: ignore[call-arg]


def test_methods_name_the_arguments_that_they_take(photos_file: Path) -> None:
    loader = Loader(photos_file, batch_size=8, fields=["label"])
    for call, words in (
        (lambda: loader.filter([1, 2]), "filter takes a function .* with_indices takes a list"),
        (lambda: loader.filter(bool, field=["label"]), "not an integer or float field"),
        (lambda: loader.with_indices(3), "indices must be a list of integers, got 3"),
        (lambda: loader.set_epoch("1"), "write epoch=1"),
        (lambda: loader.shuffle_quality(epoch=-1), "epoch=-1"),
        (lambda: compare_windows(photos_file, batch_size=4, windows=3), "windows=3 must be a list"),
        (lambda: compare_windows(photos_file, batch_size=4, windows=[]), r"windows=\[\] must hold"),
    ):
        with pytest.raises(UsageError, match=words):
            call()


def test_a_class_of_the_users_may_have_arguments_of_its_own(photos_file: Path) -> None:
    class Mine(Loader):
        def __init__(self, path: Path, mine: int) -> None:
            super().__init__(path, batch_size=mine, fields=["label"])

    assert next(iter(Mine(photos_file, mine=7)))["label"].tolist() == list(range(7))


def test_options_cannot_be_assigned_or_deleted(photos_file: Path) -> None:
    loader = Loader(photos_file, batch_size=8, fields=["label"])
    for name, words in (
        ("indices", r"indices of a Loader cannot be set, .* loader.with_indices\(...\)"),
        ("batch_size", "make a new Loader with batch_size="),
        ("seed", "make a new Loader with seed="),
        ("shuffle", "make a new Loader with shuffle="),
        ("drop_last", "drop_last"),
        ("num_workers", "num_workers"),
        ("transforms", "transforms"),
        ("sampler", "sampler"),
        ("dataset", "make a new Loader"),
        ("order", "make a new Loader; write shuffle="),
        ("pipelines", "write transforms="),
        ("epoch", r"call loader.set_epoch\(epoch\)"),
    ):
        with pytest.raises(AttributeError, match=words):
            setattr(loader, name, 3)
        with pytest.raises(AttributeError, match="cannot be deleted"):
            delattr(loader, name)
    assert loader.batch_size == 8 and len(loader) == 8


def test_frameworks_may_set_attributes_of_their_own_on_a_loader(photos_file: Path) -> None:
    loader = Loader(photos_file, batch_size=8, fields=["label"])
    loader._is_accelerate_prepared = True  # type: ignore[attr-defined]
    loader.note = 3  # type: ignore[attr-defined]
    loader.errors = []
    assert loader.with_indices([1])._is_accelerate_prepared and loader.note == 3  # type: ignore[attr-defined]
    del loader.note  # type: ignore[attr-defined]
    assert not hasattr(loader, "note")


def test_more_workers_than_cores_are_one_warning(photos_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataloading.loader.num_cores", lambda: 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = Loader(photos_file, batch_size=8, fields=["label"], num_workers=64)
        assert sum(len(batch["label"]) for batch in loader.with_indices(range(20))) == 20
    assert len(caught) == 1 and "64 workers on 2 cores" in str(caught[0].message) and caught[0].filename == __file__
    assert loader.num_workers == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Loader(photos_file, batch_size=8, fields=["label"], num_workers=2).num_workers == 2


def test_a_batch_size_beyond_the_dataset_takes_memory_for_its_samples_only(photos_file: Path) -> None:
    options = {"transforms": {"image": [T.RandomResizedCrop(16)]}, "seed": 2}
    expected = next(iter(Loader(photos_file, batch_size=61, **options)))
    loader = Loader(photos_file, batch_size=10**9, **options)
    (batch,) = loader
    assert torch.equal(batch["image"], expected["image"])
    more = loader.with_indices([0] * 200)  # rows than the dataset has
    more.set_epoch(0)
    repeated = next(iter(more))["image"]
    assert repeated.shape == (200, 3, 16, 16) and torch.equal(repeated[0], expected["image"][0])
    with pytest.raises(
        UsageError, match=r"a batch of 4,000 images of shape .* GiB of memory: pass a smaller batch_size="
    ):
        huge = {"image": [T.Resize((65_000, 65_000))]}
        Loader(photos_file, batch_size=10**9, weights=[1.0] * 61, num_draws=4000, transforms=huge)


@pytest.mark.parametrize("name", ["replacement", "drop_last", "os_cache", "persistent_workers"])
def test_booleans_of_numpy_are_booleans(photos_file: Path, name: str) -> None:
    for value in (np.True_, np.False_):
        assert len(Loader(photos_file, batch_size=8, fields=["label"], **{name: value})) in (7, 8)
    assert true_or_false(name, np.False_) is False


FLAGS = [
    lambda flag: T.RandomResizedCrop(8, antialias=flag),
    lambda flag: T.Resize(8, antialias=flag),
    lambda flag: T.RandomCrop(8, pad_if_needed=flag),
    lambda flag: T.ToDtype(scale=flag),
    lambda flag: T.Custom(lambda image, key: None, in_place=flag),
    lambda flag: T.Normalize(0.5, 0.5, inplace=flag),
    lambda flag: T.RandomErasing(inplace=flag),
    lambda flag: transcode_jpeg(b"", keep_icc=flag),
    lambda flag: verify_file(__file__, decode_all=flag),
    lambda flag: check_transform(T.Custom(lambda image, key: None), on_floats=flag),
    lambda flag: Writer("never.beton", {"a": IntField()}, num_samples=1, overwrite=flag),
]


@pytest.mark.parametrize(("make", "flag"), list(itertools.product(FLAGS, ["False", 1, 0.0])))
def test_flags_are_true_or_false_everywhere(
    make: Any, flag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="must be True or False"):
        make(flag)


def test_options_of_a_conversion_are_true_or_false(tmp_path: Path) -> None:
    from converters import write

    for name in ("overwrite", "shuffle", "resume", "quiet", "check_space"):
        with pytest.raises(UsageError, match=f"{name} must be True or False, got 'no'"):
            write([(1,)], tmp_path / "x.beton", {"label": IntField()}, num_workers=0, **{name: "no"})


def test_arguments_of_torchvision_mean_the_same_here() -> None:
    from torchvision import tv_tensors
    from torchvision.transforms import InterpolationMode

    assert T.Resize(8, InterpolationMode.BICUBIC) == T.Resize(8, "bicubic")
    assert T.RandomResizedCrop(8, interpolation=3) == T.RandomResizedCrop(8, interpolation="bicubic")
    assert T.Resize(8, antialias=None) == T.Resize(8)  # what None means for images from files
    assert T.RandomCrop(8, fill={tv_tensors.Image: 7, "others": 9}) == T.RandomCrop(8, fill=7)
    assert T.RandomCrop(8, fill={"others": (1, 2, 3)}) == T.RandomCrop(8, fill=(1, 2, 3))
    assert T.RandomCrop(8, fill=None) == T.RandomCrop(8)
    assert T.Normalize([0.5] * 3, [0.5] * 3, inplace=True) == T.Normalize([0.5] * 3, [0.5] * 3)
    assert T.RandomErasing(0.5, (0.1, 0.2), (0.5, 2), 0, True) == T.RandomErasing(0.5, (0.1, 0.2), (0.5, 2), 0)
    assert T.ToDtype(torch.float16, scale=True) == T.ToDtype("float16", scale=True)
    assert T.Normalize(0.5, 0.5, dtype=np.float32) == T.Normalize(0.5, 0.5)
    assert T.Normalize(np.array([0.5]), np.float32(0.5), max_value=np.int64(255)).max_value == 255
    assert T.RandomCrop(np.array([8, 9]), padding=np.int64(2)) == T.RandomCrop((8, 9), padding=2)
    assert T.MixUp(num_classes=np.int64(3), alpha=np.float32(1)) == T.MixUp(num_classes=3)
    assert T.RandomHorizontalFlip(np.float32(0.5)) == T.RandomHorizontalFlip()
    assert T.ColorJitter(np.float32(0.5)) == T.ColorJitter(0.5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: T.Resize(8, "lanczos"), "interpolation must be one of nearest, bilinear, bicubic, got 'lanczos'"),
        (lambda: T.RandomResizedCrop(224.0), r"size must be an integer or \(height, width\), got 224.0"),
        (lambda: T.RandomResizedCrop("224"), "got '224'"),
        (lambda: T.Resize(8, max_size=9.5), "max_size must be an integer"),
        (lambda: T.RandomCrop(8, fill={"Mask": 255}), "an entry for Mask: it is for images only"),
        (lambda: T.RandomCrop(8, fill="red"), "fill must be an integer"),
        (lambda: T.RandomCrop(8, padding="4"), "padding must be 1, 2 or 4 integers"),
        (lambda: T.ToDtype(torch.int64), "dtype must be one of float32, float16, bfloat16, got 'int64'"),
        (lambda: T.ToDtype({"others": torch.float32}), "dtype is of images"),
        (lambda: T.Normalize(0.5, 0.5, max_value="255"), "max_value must be positive, got 255"),
        (lambda: T.MixUp(num_classes=2, labels_getter=None), "labels_getter= is for torchvision's nested samples"),
        (lambda: T.RandomErasing(value=None), "value must be"),
        (lambda: T.ColorJitter(True), "brightness must be a number"),
        (lambda: T.RandomSolarize("128"), "threshold must be between"),
        (lambda: T.Custom(lambda i, k, o: None, in_place=False, out_shape=3), "out_shape must be"),
    ],
)
def test_what_a_transform_cannot_take_is_refused(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_gray_images_and_three_means_are_told_apart(photos_file: Path) -> None:
    chain = [T.CenterCrop(8), T.Grayscale(1), T.Normalize([0.5] * 3, [0.5] * 3)]
    with pytest.raises(
        UsageError, match=r"transform 2: Normalize: mean has 3 values, expected 1, as the images are gray"
    ):
        Loader(photos_file, batch_size=2, transforms={"image": chain})


def test_a_sample_for_a_writer_is_given_by_name(tmp_path: Path) -> None:
    with Writer(tmp_path / "w.beton", {"label": IntField()}, num_samples=1) as writer:
        with pytest.raises(
            UsageError, match=r"sample 0: expected a dictionary of values, append\(\{'label': ...\}\), got"
        ):
            writer.append((1,))  # type: ignore[arg-type]
        writer.append({"label": 1})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("RandomResizeCrop", "Did you mean 'RandomResizedCrop'"),
        ("randomhorizontalflip", "Did you mean 'RandomHorizontalFlip'"),
        ("RandomResize", "no such transform; take RandomShortestSize"),
        ("ToTensor", "leave it out: images arrive as tensors"),
        ("Zzzzzz", "There are JPEG, AsList, AugMix"),
    ],
)
def test_a_transform_that_does_not_exist_says_what_does(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        getattr(T, name)


def test_an_unknown_public_name_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(AttributeError, match="Did you mean 'Loader'"):
        dataloading.Loder  # noqa: B018
