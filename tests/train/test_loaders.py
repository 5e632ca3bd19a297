"""All loaders keep one contract: order, shares, pixels, position."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

from dataloading import UsageError
from train.batch_shares import Shares
from train.launch import launch_environment
from train.loaders import make_loader
from train.loaders.base import LoaderSpec, Normaliser, TrainBatch
from train.loaders.stored_images import open_images

from .conftest import NUM_IMAGES

STATEFUL = ("beton", "torch", "torch-fast")


def spec(path: Path, **values: Any) -> LoaderSpec:
    """Return a small spec for one process on the CPU."""
    usual = {"training": True, "batch_size": 4, "num_workers": 1, "seed": 5, "rank": 0, "world_size": 1}
    sizes = {"image_size": 24, "resize_size": 30, "device": torch.device("cpu")}
    return LoaderSpec(path=str(path), **{**usual, **sizes, **values})


def run(name: str, wanted: LoaderSpec, epoch: int = 0) -> list[TrainBatch]:
    """Go through one epoch."""
    loader = make_loader(name, wanted)
    try:
        loader.set_epoch(epoch)
        return list(loader)
    finally:
        loader.close()


def test_directory_and_file_hold_the_same_bytes(folder: Path, beton: Path) -> None:
    left, right = open_images(str(folder)), open_images(str(beton))
    assert len(left) == len(right) == NUM_IMAGES
    assert left.classes == right.classes == ["class0", "class1", "class2"]
    for index in range(NUM_IMAGES):
        assert left[index].encoded == right[index].encoded and left[index].label == right[index].label


def test_raw_images_and_missing_class_names_are_read(tmp_path: Path) -> None:
    from dataloading import ImageField, IntField, Writer

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (3, 5, 7, 3), dtype=np.uint8)
    with Writer(tmp_path / "raw.beton", {"picture": ImageField(), "target": IntField()}, num_samples=3) as writer:
        for index in range(3):
            writer.append({"picture": pixels[index], "target": 2 * index})
    source = open_images(str(tmp_path / "raw.beton"))
    assert len(source.classes) == 5
    for index in range(3):
        item = source[index]
        assert item.raw is not None and np.array_equal(item.raw, pixels[index]) and item.label == 2 * index
    for name in ("torch", "torch-fast", "beton"):
        wanted = spec(tmp_path / "raw.beton", training=False, num_workers=0, batch_size=3)
        assert run(name, wanted)[0].labels.tolist() == [0, 2, 4]


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize(("world_size", "tail"), [(1, "pad"), (2, "pad"), (2, "drop")])
def test_labels_come_in_distributed_samplers_order_with_the_right_shares(
    name: str, world_size: int, tail: str, beton: Path
) -> None:
    source = open_images(str(beton))
    every = [source[index].label for index in range(NUM_IMAGES)]
    drop_last = tail == "drop"
    for rank in range(world_size):
        wanted = spec(beton, rank=rank, world_size=world_size, tail=tail, num_workers=0)
        loader = make_loader(name, wanted)
        sampler = DistributedSampler(every, world_size, rank, shuffle=True, seed=5, drop_last=drop_last)
        shares = Shares(num_samples=NUM_IMAGES, rank=rank, world_size=world_size, batch_size=4, drop_last=drop_last)
        for epoch in (0, 3):
            loader.set_epoch(epoch)
            sampler.set_epoch(epoch)
            batches = list(loader)
            assert len(batches) == len(loader) == len(shares)
            expected = [every[index] for index in sampler]
            if drop_last:
                expected = expected[: 4 * len(shares)]
            assert torch.cat([batch.labels for batch in batches]).tolist() == expected
            for number, batch in enumerate(batches):
                assert (batch.num_valid, batch.global_size) == (shares.num_valid(number), shares.global_size(number))
        loader.close()


@pytest.mark.parametrize("name", STATEFUL)
def test_an_interrupted_epoch_goes_on_with_the_same_images(name: str, beton: Path) -> None:
    """After k batches, whatever was prefetched, a fresh loader with the state gives batch k and all that follow."""
    whole = run(name, spec(beton), epoch=2)
    loader = make_loader(name, spec(beton))
    loader.set_epoch(2)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    batches.close()
    loader.close()
    fresh = make_loader(name, spec(beton, num_workers=2))
    fresh.load_state_dict(state)
    rest = list(fresh)
    assert len(rest) == len(whole) - 3
    for left, right in zip(rest, whole[3:], strict=True):
        assert torch.equal(left.images, right.images) and torch.equal(left.labels, right.labels)
    fresh.set_epoch(3)
    assert len(list(fresh)) == len(fresh) == 7
    fresh.close()


@pytest.mark.parametrize("name", ["torch", "torch-fast"])
def test_a_position_saved_with_other_options_is_refused(name: str, beton: Path) -> None:
    loader = make_loader(name, spec(beton, num_workers=0))
    with pytest.raises(UsageError, match="batch_size = 4, this run has 5"):
        make_loader(name, spec(beton, num_workers=0, batch_size=5)).load_state_dict(loader.state_dict())


def test_stock_images_do_not_depend_on_workers_or_batch_size(folder: Path) -> None:
    one = torch.cat([batch.images for batch in run("torch", spec(folder, num_workers=0), epoch=1)])
    two = torch.cat([batch.images for batch in run("torch", spec(folder, num_workers=2, batch_size=5), epoch=1)])
    other = torch.cat([batch.images for batch in run("torch", spec(folder, num_workers=0), epoch=2)])
    assert torch.equal(one, two) and not torch.equal(one, other)


def test_loading_in_the_training_process_leaves_its_generator_alone(folder: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    run("torch", spec(folder, num_workers=0))
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("name", ["torch-fast", "beton"])
def test_validation_pixels_agree_with_pillow(name: str, beton: Path) -> None:
    """Resize and CenterCrop of the fast loaders stay within rounding of the Pillow reference."""
    reference = torch.cat([batch.images for batch in run("torch", spec(beton, training=False, num_workers=0))])
    images = torch.cat([batch.images for batch in run(name, spec(beton, training=False, num_workers=1))])
    assert images.shape == reference.shape == (NUM_IMAGES, 3, 24, 24) and images.dtype == torch.float32
    levels = (images - reference).abs() * 0.226 * 255
    assert float(levels.mean()) < 1.0


def test_bytes_are_normalised_on_the_device_as_torchvision_does(beton: Path) -> None:
    from torchvision.transforms import v2

    wanted = spec(beton)
    bytes_NCHW = torch.randint(0, 256, (3, 3, 5, 6), dtype=torch.uint8)
    expected = v2.Normalize(wanted.mean, wanted.std)(bytes_NCHW.float() / 255)
    result = Normaliser(wanted, normalised=False, channels_last=True)(bytes_NCHW)
    torch.testing.assert_close(result, expected)
    assert result.is_contiguous(memory_format=torch.channels_last)


FFCV_CHECK = """
import sys
import pytest, torch
torch.set_num_threads(2)
from dataloading import UsageError
from train.loaders import make_loader
from train.loaders.base import LoaderSpec
from train.loaders.stored_images import open_images

path = sys.argv[1]
source = open_images(path)
every = [source[index].label for index in range(len(source))]

def spec(**values):
    usual = dict(training=True, batch_size=4, num_workers=1, seed=5, rank=0, world_size=1, image_size=24)
    return LoaderSpec(path=path, resize_size=30, device=torch.device("cpu"), **{**usual, **values})

loader = make_loader("ffcv", spec())
assert torch.get_num_threads() == 2, "changed by the import or the constructor"
loader.set_epoch(0)
seen = []
for batch in loader:
    assert torch.get_num_threads() == 2, "changed by the iteration"
    assert batch.images.dtype == torch.float32 and batch.images.shape[1:] == (3, 24, 24)
    seen += batch.labels.tolist()
assert len(loader) == 7 and sorted(seen) == sorted(every) and seen != every
with pytest.raises(UsageError, match="cannot resume inside an epoch"):
    loader.load_state_dict({**loader.state_dict(), "batches": 3})

# FFCV has no Resize: its centre crop by ratio takes almost the same pixels. Its buffers are used again.
images = [batch.images.clone() for batch in make_loader("ffcv", spec(training=False))]
reference = [batch.images for batch in make_loader("torch", spec(training=False, num_workers=0))]
assert float((torch.cat(images) - torch.cat(reference)).abs().mean()) * 0.226 * 255 < 12
"""


@pytest.mark.ffcv
def test_real_ffcv_delivers_every_sample_and_leaves_the_thread_count(beton: Path) -> None:
    """In a process of its own: what importing ffcv does to torch and numba must not reach other tests."""
    result = subprocess.run(
        [sys.executable, "-c", FFCV_CHECK, str(beton)],
        env=launch_environment(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_a_stream_divides_samples_among_ranks_and_gives_whole_batches(beton: Path, tmp_path: Path) -> None:
    """27 samples on two ranks in batches of 4: three steps, and no sample on both ranks in one pass."""
    source = open_images(str(beton))
    images: list[list[torch.Tensor]] = []
    for rank in (0, 1):
        wanted = spec(beton, rank=rank, world_size=2, tail="drop", num_workers=0, work_dir=str(tmp_path))
        loader = make_loader("webdataset", wanted)
        assert len(loader) == loader.batches_left == 3
        batches = [next(iter(loader)), *list(loader)[1:]]
        assert all(batch.num_valid == 4 and batch.global_size == 8 for batch in batches)
        assert {int(label) for batch in batches for label in batch.labels} <= set(source.labels().tolist())
        images.append([image for batch in batches for image in batch.images])
        with pytest.raises(UsageError, match="webdataset cannot resume inside an epoch"):
            loader.load_state_dict({**loader.state_dict(), "batches": 2})
        loader.load_state_dict({**loader.state_dict(), "batches": 3})
        assert loader.batches_left == 0
        loader.close()
    assert len(list(tmp_path.glob("*-webdataset-*/*.tar"))) == 8  # four a worker and rank


def test_a_stream_takes_whole_files_and_whole_batches_only(beton: Path) -> None:
    for values in ({"tail": "pad"}, {"tail": "drop", "indices": np.arange(3)}):
        with pytest.raises(UsageError, match="--loader webdataset takes whole batches of a whole file"):
            make_loader("webdataset", spec(beton, **values))
    with pytest.raises(UsageError, match="pass --copies, or --output"):
        make_loader("webdataset", spec(beton, tail="drop"))


def test_the_synthetic_ceiling_has_labels_of_the_data(beton: Path) -> None:
    batches = run("synthetic", spec(beton, tail="drop"))
    assert len(batches) == 6 and all(batch.images.shape == (4, 3, 24, 24) for batch in batches)
    assert batches[0].labels.tolist() == open_images(str(beton)).labels()[:4].tolist()


def test_an_unknown_loader_and_a_useless_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose beton, torch"):
        make_loader("grain", spec(tmp_path))
    with pytest.raises(UsageError, match="no loader is called 'dalli'"):
        make_loader("dalli", spec(tmp_path))
    with pytest.raises(UsageError, match="not a directory of class folders"):
        open_images(str(tmp_path))
