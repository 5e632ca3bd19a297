"""Subsets, filters, weights and repeats through the Loader: what is delivered, and that it stays resumable."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloading import Loader
from dataloading import transforms as T
from dataloading.errors import StateError, UsageError
from dataloading.format import FloatField, IntField, Writer
from tests.support.files import write_images

TRAIN = {"image": [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]}


@pytest.fixture(scope="module")
def classes_file(tmp_path_factory):
    """120 samples, label i // 10, half i / 2."""
    path = tmp_path_factory.mktemp("classes") / "classes.beton"
    with Writer(path, {"label": IntField(), "half": FloatField()}, num_samples=120) as writer:
        for k in range(120):
            writer.append({"label": k // 10, "half": k / 2})
    return path


def order(loader: Loader) -> list[int]:
    return [index for batch in loader for index in batch.indices.tolist()]


# ---- subsets


def test_a_filter_of_a_filter_is_their_intersection(classes_file):
    loader = Loader(classes_file, batch_size=7, num_workers=1)
    some = loader.filter(lambda label: label < 5)
    fewer = some.filter(lambda label: label % 2 == 0)
    assert order(some) == list(range(50))
    assert order(fewer) == [k for k in range(50) if k // 10 % 2 == 0]
    assert order(fewer.filter(lambda half: half > 20, field="half")) == list(range(41, 50))
    assert order(fewer.with_indices([49, 15, 3, 3, 110])) == [49, 3, 3]
    assert order(loader) == list(range(120))  # as it was


def test_a_predicate_may_take_one_value_or_all(classes_file):
    loader = Loader(classes_file, batch_size=7, num_workers=1)
    assert order(loader.filter(lambda label: label in {2, 4})) == [*range(20, 30), *range(40, 50)]
    assert order(loader.filter(np.vectorize(lambda label: label == 3))) == list(range(30, 40))
    assert order(loader.filter(lambda label: label.bit_length() > 3)) == list(
        range(80, 120)
    )  # an array has no such thing
    with pytest.raises(ZeroDivisionError):
        loader.filter(lambda label: label // 0 if isinstance(label, int) else None)


def test_a_subset_shares_file_and_transforms_and_has_errors_and_engines_of_its_own(tmp_path):
    write_images(tmp_path / "p.beton", 30)
    loader = Loader(tmp_path / "p.beton", batch_size=8, shuffle="global", transforms=TRAIN, num_workers=2)
    some = loader.with_indices(range(10, 20))
    assert some.dataset is loader.dataset
    assert some.stats().compile_seconds == loader.stats().compile_seconds > 0
    assert some.errors is not loader.errors
    by_index = {int(k): image for batch in loader for k, image in zip(batch.indices, batch["image"], strict=True)}
    for mine, theirs in zip(some, itertools.cycle(loader), strict=False):
        assert len(theirs)
        for k, image in zip(mine.indices, mine["image"], strict=True):
            assert torch.equal(image, by_index[int(k)])
    assert len(some) == 2


def test_subsets_of_a_million_samples_are_made_at_once(tmp_path):
    """Nothing is done a sample at a time: the subset is the only array of that length that is looked at."""
    from tests.support.huge import make_huge_file

    path = make_huge_file(tmp_path / "huge.beton", 1_280_000, side=4, filled=False)
    loader = Loader(path, batch_size=256, shuffle="pages", fields=["label"], num_workers=1)
    subset = loader.with_indices(np.arange(0, 1_280_000, 2))
    assert len(subset) == 2500
    assert subset.sampler.subset.dtype == np.int64


def test_a_state_of_a_subset_fits_an_equal_subset_only(classes_file):
    loader = Loader(classes_file, batch_size=7, shuffle="global", num_workers=1)
    subset = loader.filter(lambda label: label < 5)
    want = order(loader.filter(lambda label: label < 5))
    seen = []
    for batch in itertools.islice(subset, 3):
        seen += batch.indices.tolist()
    again = loader.with_indices(range(50))
    again.load_state_dict(json.loads(json.dumps(subset.state_dict())))
    assert seen + order(again) == want
    with pytest.raises(
        StateError, match=r"saved 'shuffle=global indices=.*num_samples=50', here 'shuffle=global num_s"
    ):
        loader.load_state_dict(subset.state_dict())


@pytest.mark.parametrize("call", ["with_indices", "filter"])
def test_a_foreign_samplers_samples_cannot_be_narrowed(classes_file, call):
    loader = Loader(classes_file, batch_size=7, sampler=range(10), num_workers=1)
    with pytest.raises(UsageError, match="sampler= decides"):
        getattr(loader, call)([1] if call == "with_indices" else bool)


def test_a_field_that_cannot_be_filtered_is_named(tmp_path):
    write_images(tmp_path / "p.beton", 3)
    loader = Loader(tmp_path / "p.beton", batch_size=1, transforms=TRAIN)
    with pytest.raises(UsageError, match="'image' is not an integer or float field"):
        loader.filter(bool, field="image")
    with pytest.raises(UsageError, match="'lable'"):
        loader.filter(bool, field="lable")


def test_an_empty_filter_warns(classes_file):
    with pytest.warns(UserWarning, match="gives no batch"):
        assert order(Loader(classes_file, batch_size=7).filter(lambda label: label > 99)) == []


# ---- weights, repeats, the cipher


SOME_ORDERS = {
    "drawn": {"weights": np.arange(120.0), "num_draws": 77},
    "chosen": {"weights": np.arange(120.0), "replacement": False},
    "balanced": {"weights": "balanced", "indices": range(45)},
    "repeated": {"shuffle": "global", "num_repeats": 3, "num_draws": 120},
    "cipher": {"shuffle": "global", "permutation": "cipher"},
    "pages": {"shuffle": "pages", "window_pages": 2},
}


@pytest.mark.parametrize("name", SOME_ORDERS)
def test_every_order_is_the_same_for_ranks_joined_and_after_a_resume_on_another_world(classes_file, name):
    options = {"seed": 5, "num_workers": 1, "tail": "even"} | SOME_ORDERS[name]
    whole = Loader(classes_file, batch_size=10, **options)
    whole.set_epoch(2)
    want = order(whole)
    assert want != sorted(want)

    def leg(state, world, batch_size, steps):
        loaders = [
            Loader(classes_file, batch_size=batch_size, rank=r, world_size=world, **options) for r in range(world)
        ]
        seen = []
        for loader in loaders:
            loader.set_epoch(2)
            if state is not None:
                loader.load_state_dict(state)
        for parts in itertools.islice(zip(*loaders, strict=True), steps):
            rows = [part.indices.tolist() for part in parts]
            seen += [k for row in itertools.zip_longest(*rows) for k in row if k is not None]
        return seen, loaders[0].state_dict()

    first, state = leg(None, 3, 4, 2)
    second, state = leg(json.loads(json.dumps(state)), 2, 7, 1)
    third, _ = leg(state, 1, 9, None)
    assert first + second + third == want


def test_copies_of_a_sample_are_augmented_differently_and_repeat_themselves(tmp_path):
    write_images(tmp_path / "p.beton", 8)
    options = {"shuffle": "global", "num_repeats": 3, "transforms": TRAIN, "seed": 1}

    def images(**more):
        loader = Loader(tmp_path / "p.beton", **(options | more))
        found: dict[int, list[bytes]] = {}
        for batch in loader:
            for k, image in zip(batch.indices.tolist(), batch["image"], strict=True):
                found.setdefault(k, []).append(image.numpy().tobytes())
        return found

    want = images(batch_size=24, num_workers=1)
    assert all(len(set(copies)) == 3 for copies in want.values())
    assert images(batch_size=5, num_workers=3) == want
    ranks = [images(batch_size=4, num_workers=1, rank=r, world_size=3) for r in range(3)]
    assert {k: [ranks[r][k][0] for r in range(3)] for k in want} == want
    plain = images(batch_size=8, num_repeats=1)
    assert all(plain[k][0] == want[k][0] for k in want)  # the first copy is what there is without repeats


def test_a_sample_drawn_twice_is_augmented_twice(tmp_path):
    write_images(tmp_path / "p.beton", 4)
    loader = Loader(tmp_path / "p.beton", batch_size=16, transforms=TRAIN, weights=[0, 1, 0, 0], num_draws=6)
    ((images, labels),) = loader
    assert labels.tolist() == [1] * 6
    assert len({image.numpy().tobytes() for image in images}) == 6


def test_the_cipher_shuffles_as_well_and_differs_by_epoch(classes_file):
    loader = Loader(classes_file, batch_size=16, shuffle="global", permutation="cipher", num_workers=1)
    first, second = order(loader), order(loader)
    assert sorted(first) == sorted(second) == list(range(120))
    assert len({tuple(first), tuple(second), tuple(range(120))}) == 3
    with pytest.raises(UsageError, match="permutation='aes'"):
        Loader(classes_file, batch_size=16, permutation="aes")


@pytest.mark.parametrize(
    ("saved", "loaded", "words"),
    [
        ({"shuffle": "pages"}, {"shuffle": "pages", "window_pages": 9}, "window_pages=512.*window_pages=9"),
        ({"shuffle": "global"}, {"shuffle": "global", "permutation": "cipher"}, "permutation=cipher"),
        ({"weights": range(120)}, {"weights": range(1, 121)}, "weights="),
        ({"shuffle": "global"}, {"shuffle": "global", "num_repeats": 2}, "num_repeats=2"),
    ],
)
def test_a_state_of_another_order_is_refused_with_both_orders_shown(classes_file, saved, loaded, words):
    state = Loader(classes_file, batch_size=5, **saved).state_dict()
    with pytest.raises(StateError, match=words):
        Loader(classes_file, batch_size=5, **loaded).load_state_dict(state)


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(["global", "pages", "drawn", "repeated"]), epoch=st.integers(0, 2), cut=st.integers(0, 3),
    world=st.integers(1, 4), batch_size=st.integers(1, 9), other=st.integers(1, 4),
)  # fmt: skip
def test_augmented_bytes_are_the_same_for_any_world_batch_size_and_resume(
    photos_file, name, world, batch_size, epoch, cut, other
):
    options = {
        "global": {"shuffle": "global"},
        "pages": {"shuffle": "pages", "window_pages": 1},
        "drawn": {"weights": range(61), "num_draws": 50},
        "repeated": {"shuffle": "global", "num_repeats": 2, "num_draws": 61},
    }[name]
    options |= {"transforms": TRAIN, "tail": "even", "seed": 6, "num_workers": 1}

    def images(state, world, batch_size, steps):
        found = []
        for rank in range(world):
            loader = Loader(photos_file, batch_size=batch_size, rank=rank, world_size=world, **options)
            loader.set_epoch(epoch)
            if state is not None:
                loader.load_state_dict(state)
            for batch in itertools.islice(loader, steps):
                found += [
                    (int(k), image.numpy().tobytes()) for k, image in zip(batch.indices, batch["image"], strict=True)
                ]
            last = loader.state_dict()
        return found, last

    want, _ = images(None, 1, 61, None)
    first, state = images(None, world, batch_size, cut) if cut else ([], None)
    if state is not None and state["epoch"] != epoch:
        assert sorted(first) == sorted(want)  # it was all of the epoch
        return
    rest, _ = images(state, other, 7, None)
    assert sorted(first + rest) == sorted(want)


# ---- conventions of others


def test_a_state_saved_within_the_loop_belongs_to_the_batches_received(classes_file):
    """As torchdata's StatefulDataLoader is used: state_dict in mid-iteration, then iter of a fresh loader."""
    options = {"batch_size": 9, "shuffle": "global", "seed": 3, "num_workers": 2, "prefetch_batches": 6}
    loader, want = Loader(classes_file, **options), order(Loader(classes_file, **options))
    for number, batch in enumerate(loader):
        state = loader.state_dict()
        fresh = Loader(classes_file, **options)
        fresh.load_state_dict(state)
        assert order(fresh) == want[9 * number + len(batch.indices) :]
    assert number == len(loader) - 1


def test_a_loader_has_the_interface_that_lightning_and_accelerate_need(classes_file):
    from torch.distributed.checkpoint.stateful import Stateful

    loader = Loader(classes_file, batch_size=9, shuffle="global", num_workers=1)
    assert isinstance(loader, Stateful)
    assert len(loader) == 14
    loader.sampler.set_epoch(3)  # what Lightning's and Accelerate's loops call
    assert next(iter(loader)).epoch == 3
    assert all(isinstance(value, str | int) for value in loader.state_dict().values())


def test_a_torch_checkpoint_saves_and_loads_the_state(classes_file, tmp_path):
    import torch.distributed.checkpoint as dcp

    options = {"batch_size": 9, "shuffle": "pages", "window_pages": 1, "seed": 3, "num_workers": 1}
    loader, want = Loader(classes_file, **options), order(Loader(classes_file, **options))
    for _ in itertools.islice(loader, 4):
        pass
    with pytest.warns(UserWarning, match="save in a single process"):  # torch's own
        dcp.save({"loader": loader, "weight": torch.ones(2)}, checkpoint_id=tmp_path / "ckpt", no_dist=True)
    fresh = Loader(classes_file, **options)
    with pytest.warns(UserWarning, match="load in a single process"):
        dcp.load({"loader": fresh, "weight": torch.zeros(2)}, checkpoint_id=tmp_path / "ckpt", no_dist=True)
    assert order(fresh) == want[36:]


@pytest.mark.parametrize("scale", [1e-310, 1e300, 1.7e308 / 3])
def test_weights_of_any_size_draw_as_those_in_proportion(classes_file, scale):
    weights = np.tile([1.0, 2.0, 0.0], 40)
    for replacement in (True, False):
        options = {"batch_size": 7, "num_workers": 1, "replacement": replacement}
        plain = order(Loader(classes_file, weights=weights, **options))
        scaled = order(Loader(classes_file, weights=weights * scale, **options))
        if scale > 1:
            assert scaled == plain
        assert len(set(scaled)) > 30
        assert scaled != sorted(scaled)


def test_weights_that_are_not_numbers_are_refused(classes_file):
    for weights in (["a"] * 120, [None] * 119 + [[1]]):
        with pytest.raises(UsageError, match="weights= must be numbers, one for each sample, or 'balanced'"):
            Loader(classes_file, batch_size=7, weights=weights)
