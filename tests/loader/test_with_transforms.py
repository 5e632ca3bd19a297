"""Other transforms from the next epoch on: one run goes on, with its place, its workers and its state."""

from __future__ import annotations

import gc
import itertools

import psutil
import pytest

from dataloading import Loader
from dataloading import transforms as T
from dataloading.errors import UsageError
from tests.support.loading import at_epoch, epoch_bytes
from tests.support.waiting import Threads

SMALL = {"image": [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]}
LARGE = {"image": [T.RandomResizedCrop(48), T.ColorJitter(0.4), T.Normalize(0.5, 0.25)]}
OPTIONS = {"batch_size": 8, "shuffle": "global", "seed": 3, "num_workers": 2}


def expected(path, transforms, epoch: int) -> bytes:
    """The bytes of an epoch of a loader that never had other transforms."""
    return epoch_bytes(at_epoch(Loader(path, transforms=transforms, **OPTIONS), epoch))


@pytest.mark.parametrize("options", [{}, {"os_cache": False}, {"persistent_workers": False}], ids=str)
def test_each_epoch_has_the_transforms_of_its_loader_wherever_the_change_is_made(photos_file, options):
    loader = Loader(photos_file, transforms=SMALL, **OPTIONS, **options)
    assert epoch_bytes(loader) == expected(photos_file, SMALL, 0)
    loader = loader.with_transforms(LARGE)  # between epochs, when workers have begun the next one
    shapes = []
    for number, batch in enumerate(loader):
        if number == 2:
            loader = loader.with_transforms(SMALL)  # within an epoch, whose transforms stay
        shapes.append(batch["image"].shape[2])
    assert shapes == [48] * 8
    assert epoch_bytes(loader) == expected(photos_file, SMALL, 2)
    last = loader.with_transforms(LARGE)
    again = loader.with_transforms(SMALL)  # an earlier loader goes on as it was
    assert epoch_bytes(last) == expected(photos_file, LARGE, 3)
    assert epoch_bytes(again) == expected(photos_file, SMALL, 4)
    assert epoch_bytes(last) == expected(photos_file, LARGE, 5)


def test_with_its_state_loaded_a_run_changes_transforms_within_an_epoch(photos_file):
    loader = Loader(photos_file, transforms=SMALL, **OPTIONS)
    seen = [batch.indices.tolist() for batch in itertools.islice(loader, 3)]
    state = loader.state_dict()
    loader = loader.with_transforms(LARGE)
    loader.load_state_dict(state)
    rest = list(loader)
    assert [batch["image"].shape[2] for batch in rest] == [48] * 5
    whole = [batch.indices.tolist() for batch in Loader(photos_file, transforms=LARGE, **OPTIONS)]
    assert seen + [batch.indices.tolist() for batch in rest] == whole


def test_a_state_fits_the_same_run_with_other_transforms(photos_file):
    loader = Loader(photos_file, transforms=SMALL, **OPTIONS)
    for _ in itertools.islice(loader, 3):
        pass
    state = loader.state_dict()
    assert loader.with_transforms(LARGE).state_dict() == state
    resumed = Loader(photos_file, transforms=SMALL, **OPTIONS).with_transforms(LARGE)
    resumed.load_state_dict(state)
    first = next(iter(resumed))
    want = list(itertools.islice(Loader(photos_file, transforms=LARGE, **OPTIONS), 4))[3]
    assert first["image"].equal(want["image"])


def test_setting_the_place_of_one_sets_that_of_the_other(photos_file):
    loader = Loader(photos_file, transforms=SMALL, **OPTIONS)
    other = loader.with_transforms(LARGE)
    other.set_epoch(7)
    assert next(iter(loader)).epoch == 7
    assert other.state_dict() == loader.state_dict()
    assert other.errors is loader.errors


def test_workers_go_on_with_the_next_epoch_when_the_change_comes_before_its_end(photos_file):
    threads = Threads()
    loader = Loader(photos_file, transforms=SMALL, prefetch_batches=1, **OPTIONS)
    for number, batch in enumerate(loader):
        if number == 2:
            loader = loader.with_transforms(LARGE)
            before = threads.new()
        assert batch["image"].shape[2] == 16
    for batch in loader:
        workers = threads.new()
        assert batch["image"].shape[2] == 48
    assert workers == before and len(workers) == 2


def test_a_hundred_changes_leave_no_thread_and_no_memory(photos_file):
    threads = Threads()
    loader = Loader(photos_file, transforms=SMALL, **OPTIONS)
    start = 0
    for number in range(100):
        for _ in itertools.islice(loader, None if number % 3 else 2):
            pass
        loader = loader.with_transforms({"image": [T.RandomResizedCrop(160 if number % 2 else 192)]})
        if number == 20:
            gc.collect()
            start = psutil.Process().memory_info().rss
    gc.collect()
    assert psutil.Process().memory_info().rss - start < 24 << 20
    loader.close()
    threads.wait_for_new(0)


def test_transforms_that_cannot_work_are_refused_and_the_loader_goes_on(photos_file):
    loader = Loader(photos_file, transforms=SMALL, **OPTIONS)
    with pytest.raises(UsageError, match=r"transforms\['image'\].*must have one size"):
        loader.with_transforms({"image": [T.RandomHorizontalFlip()]})
    with pytest.raises(UsageError, match="transforms= must say whose they are"):
        loader.with_transforms([T.RandomResizedCrop(16)])
    assert epoch_bytes(loader) == expected(photos_file, SMALL, 0)


def test_setting_transforms_as_an_attribute_names_the_method(photos_file):
    with pytest.raises(AttributeError, match=r"loader.with_transforms\(\.\.\.\)"):
        Loader(photos_file, transforms=SMALL, **OPTIONS).transforms = LARGE
