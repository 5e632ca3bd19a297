"""Threads and memory return to where they were, however the loader is left."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable

import psutil
import pytest
import torch

from dataloading import Loader
from dataloading import transforms as T
from tests.support.files import write_images
from tests.support.loading import MEAN, STD, TRAIN, at_epoch, epoch_bytes
from tests.support.waiting import Threads, wait_for


def _memory_grows(run: Callable[[], object], num_bytes: int) -> bool:
    """Whether memory grows by so much whenever `run` is called: what grows once may be the allocator's."""
    for _ in range(5):
        gc.collect()
        start = psutil.Process().memory_info().rss
        run()
        gc.collect()
        if psutil.Process().memory_info().rss - start < num_bytes:
            return False
    return True


def test_leaving_early_200_times_leaves_no_thread_and_no_memory(photos_file):
    options = {"batch_size": 16, "transforms": {"image": [T.Resize((64, 64))]}, "num_workers": 3}
    threads = Threads()
    loader = Loader(photos_file, **options)

    def leave_early(num: int = 200) -> None:
        for _ in range(num):
            for _ in loader:
                break

    leave_early(20)
    threads.wait_for_new(0)
    assert not _memory_grows(leave_early, 8 << 20)
    threads.wait_for_new(0)


def test_a_thousand_first_batches_are_right_and_take_no_memory(photos_file):
    loader = Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16)]}, num_workers=2)
    want = next(iter(loader))["image"].clone()

    def take_first_batches() -> None:
        for _ in range(1000):
            assert torch.equal(next(iter(loader))["image"], want)

    assert not _memory_grows(take_first_batches, 8 << 20)


def test_dropping_or_closing_a_loader_ends_its_threads(photos_file):
    threads = Threads()
    loader = Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16)]}, num_workers=3)
    list(loader)
    threads.wait_for_new(3)  # at work on the next epoch
    loader.close()
    threads.wait_for_new(0)
    list(loader)
    del loader
    gc.collect()
    threads.wait_for_new(0)


def test_an_exception_in_the_loop_ends_the_threads(photos_file):
    threads = Threads()
    loader = Loader(photos_file, batch_size=8, transforms={"image": [T.CenterCrop(16)]}, num_workers=3)

    def train():
        for _ in loader:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    threads.wait_for_new(0)


def test_two_iterators_of_one_loader_do_not_disturb_each_other(labels_file):
    loader = Loader(labels_file, batch_size=7, num_workers=2)
    pairs = list(zip(loader, loader, strict=True))
    assert len(pairs) == 15
    assert all(a["label"].tolist() == b["label"].tolist() for a, b in pairs)


def test_two_iterators_of_one_loader_do_not_share_the_memory_they_work_in(tmp_path):
    write_images(tmp_path / "p.beton", 60, sizes=(150, 200))
    transforms = {"image": [T.RandomResizedCrop(128), T.Normalize(MEAN, STD)]}
    loader = Loader(tmp_path / "p.beton", batch_size=12, transforms=transforms, num_workers=2)
    want = [batch["image"] for batch in loader]
    for _ in range(4):
        pair = [iter(at_epoch(loader, 0)), iter(at_epoch(loader, 0))]
        for image, a, b in zip(want, *pair, strict=True):
            assert torch.equal(a["image"], image)
            assert torch.equal(b["image"], image)


def test_the_next_epoch_starts_before_it_is_requested(photos_file):
    loader = Loader(photos_file, batch_size=8, transforms={"image": TRAIN}, num_workers=2, shuffle="global")
    first = epoch_bytes(loader)
    fresh = Loader(
        photos_file,
        batch_size=8,
        transforms={"image": TRAIN},
        num_workers=2,
        shuffle="global",
        persistent_workers=False,
    )
    assert epoch_bytes(fresh) == first
    bytes_of_an_epoch = fresh.stats().num_bytes_read
    wait_for(lambda: loader.stats().num_bytes_read > bytes_of_an_epoch)
    second = epoch_bytes(loader)
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
    buffers = {batch["image"].data_ptr() for batch in loader}
    assert len(buffers) <= loader.prefetch_batches + 2 < len(loader)


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
    sizes = [(len(images), len(numbers)) for (images, _), numbers in zip(loader, stock, strict=False)]
    assert sizes == [(8, 4)] * 4
