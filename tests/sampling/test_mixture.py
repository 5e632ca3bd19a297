"""Mixtures: exact proportions, every sample before any comes again, one stream whatever cuts it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dataloading import Loader, Mixture, StateError, UsageError
from dataloading.sampling.mixture import MixtureOrder, apportion
from tests.support.files import write_images, write_labels
from tests.support.loading import TRAIN

shares_of = st.lists(st.integers(1, 50), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def three_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """50, 30 and 7 samples; the label of each is its place in its file."""
    folder = tmp_path_factory.mktemp("mixture")
    return [str(write_labels(folder / f"{name}.beton", num)) for name, num in (("a", 50), ("b", 30), ("c", 7))]


def one_by_one(num_draws: int, shares: list[int]) -> list[int]:
    """Webster's rule as it is written: one seat after another to the highest quotient."""
    seats = [0] * len(shares)
    for _ in range(num_draws):
        quotients = [Fraction(share, 2 * held + 1) for share, held in zip(shares, seats, strict=True)]
        seats[quotients.index(max(quotients))] += 1
    return seats


@settings(max_examples=100, deadline=None)
@given(shares=shares_of, num=st.integers(0, 300))
@example(shares=[1, 1, 1], num=2)
@example(shares=[47, 1, 1, 1], num=25)
def test_draws_are_apportioned_as_seats_given_out_one_by_one(shares, num):
    assert apportion(num, shares) == one_by_one(num, shares)


@settings(max_examples=100, deadline=None)
@given(shares=st.lists(st.integers(1, 10**9), min_size=1, max_size=8), num=st.integers(0, 10**15))
@example(shares=[73, 73, 1, 15306, 15304, 15304, 2209629], num=15552)  # the small ones all round up
def test_counts_add_up_stay_close_to_the_proportions_and_never_fall(shares, num):
    counts, after = apportion(num, shares), apportion(num + 1, shares)
    assert sum(counts) == num
    assert sorted(np.subtract(after, counts).tolist()) == [0] * (len(shares) - 1) + [1]
    off = [abs(count - Fraction(share * num, sum(shares))) for count, share in zip(counts, shares, strict=True)]
    if len(shares) <= 3:
        assert max(off) < 1
    for share, each in zip(shares, off, strict=True):
        assert each <= Fraction(1, 2) + Fraction(share * len(shares), 2 * sum(shares))


def stream(sizes, shares, epochs, size, *, shuffle=True, key=3):
    """Dataset, element and view of each draw of some epochs."""
    starts = np.cumsum([0, *sizes]).tolist()
    members = [range(low, high) for low, high in itertools.pairwise(starts)]
    found = []
    for epoch in range(epochs):
        order = MixtureOrder(members, shares, key=key, epoch=epoch, size=size, shuffle=shuffle)
        elements, views = order.at(np.arange(size))
        datasets = np.searchsorted(starts, elements, side="right") - 1
        found += list(zip(datasets.tolist(), elements.tolist(), views.tolist(), strict=True))
    return found


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=4),
    epochs=st.integers(1, 4),
    size=st.integers(1, 400),
)
@example(parts=[(3, 1), (5000, 6)], epochs=3, size=3000)
def test_a_dataset_gives_every_sample_before_any_comes_again_through_all_epochs(parts, epochs, size):
    sizes, shares = [list(each) for each in zip(*parts, strict=True)]
    draws = stream(sizes, shares, epochs, size)
    for number, (num, first) in enumerate(zip(sizes, np.cumsum([0, *sizes]).tolist(), strict=False)):
        mine = [(element - first, view) for dataset, element, view in draws if dataset == number]
        for start in range(0, len(mine), num):
            one_pass = mine[start : start + num]
            assert {view for _, view in one_pass} == {start // num}
            assert len({element for element, _ in one_pass}) == len(one_pass)
    counts = Counter(dataset for dataset, _, _ in draws)
    assert [counts[k] for k in range(len(sizes))] == apportion(epochs * size, shares)


def test_proportions_hold_within_every_block_and_its_order_is_shuffled():
    datasets = np.array([dataset for dataset, _, _ in stream([900, 100], [7, 3], 2, 2000)])
    for block in np.split(datasets, 4):
        assert np.bincount(block).tolist() == [700, 300]
        runs = np.diff(np.flatnonzero(np.diff(block)))
        assert runs.mean() == pytest.approx(1 / (2 * 0.7 * 0.3), rel=0.2)  # as of independent draws
    assert not np.array_equal(datasets[:1000], datasets[1000:2000])


@pytest.mark.parametrize("num", [400, 5000])  # permutations in a table, and position by position
def test_passes_and_datasets_are_permuted_independently(num):
    draws = stream([num, num], [1, 1], 1, 4 * num)
    passes = [[e % num for d, e, v in draws if (d, v) == which] for which in itertools.product((0, 1), (0, 1))]
    for one, other in itertools.combinations([*passes, list(range(num))], 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / num**0.5
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 12  # 1 is expected
    other_key = [element for _, element, _ in stream([num, num], [1, 1], 1, 4 * num, key=4)]
    assert other_key != [element for _, element, _ in draws]


def test_without_shuffle_each_dataset_comes_in_its_order():
    draws = stream([5, 3], [2, 1], 2, 12, shuffle=False)
    assert [element for dataset, element, _ in draws if dataset == 0] == [k % 5 for k in range(16)]
    assert [element - 5 for dataset, element, _ in draws if dataset == 1] == [k % 3 for k in range(8)]


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 5000), seed=st.integers(0, 99))
def test_a_position_has_one_answer_however_it_is_asked_for(size, seed):
    members = [range(70), np.array([99, 70, 71]), range(100, 6000)]
    options = {"key": seed, "epoch": seed % 5, "size": size}
    whole = MixtureOrder(members, [5, 1, 9], **options).at(np.arange(size))
    asked = np.random.default_rng(seed).integers(0, 2 * size, 50)  # beyond the end: padding, from the start
    order = MixtureOrder(members, [5, 1, 9], **options)
    for part in np.array_split(asked, 5):
        for got, want in zip(order.at(part), whole, strict=True):
            np.testing.assert_array_equal(got, want[part % size])


# ---- what a user writes


def counted(loader: Loader, cuts: tuple[int, ...] = (50, 80)) -> list[int]:
    """How many samples of each file the next epoch has."""
    indices = np.concatenate([batch.indices for batch in loader])
    return np.bincount(np.searchsorted(cuts, indices, side="right"), minlength=len(cuts) + 1).tolist()


def test_a_mixture_gives_its_proportions_epoch_after_epoch(three_files):
    a, b, c = three_files
    loader = Loader(Mixture({a: 0.6, b: 0.3, c: 0.1}), batch_size=8, shuffle="global", num_workers=2, num_draws=100)
    assert [counted(loader) for _ in range(3)] == [[60, 30, 10]] * 3
    for batch in loader:
        first = np.array([0, 50, 80])[np.searchsorted([50, 80], batch.indices, side="right")]
        np.testing.assert_array_equal(batch["label"].numpy(), batch.indices - first)


@pytest.mark.parametrize(
    ("stop", "counts"), [("sum", [52, 26, 9]), ("first_exhausted", [42, 21, 7]), ("all_exhausted", [60, 30, 10])]
)
def test_an_epoch_is_as_long_as_stop_says(three_files, stop, counts):
    a, b, c = three_files
    loader = Loader(Mixture({a: 6, b: 3, c: 1}, stop=stop), batch_size=1000, shuffle="global", num_workers=1)
    assert counted(loader) == counts


def test_keys_of_a_mixture_may_be_anything_that_the_loader_takes(three_files):
    folder = Path(three_files[0]).parent
    mixture = Mixture({(folder / "a.beton", three_files[2]): 2, f"{folder}/b*.beton": 1})
    loader = Loader(mixture, batch_size=30, shuffle="global", num_workers=1)
    assert loader.dataset.paths == (three_files[0], three_files[2], three_files[1])
    assert counted(loader, (57,)) == [58, 29]


def test_weights_count_as_the_numbers_they_print_as(three_files):
    a, b, c = three_files
    assert Mixture({a: 0.7, b: 0.3}).shares == (7, 3)
    assert Mixture({a: 0.1, b: 0.2, c: 0.7}).shares == (1, 2, 7)
    assert Mixture({a: np.float32(0.5), b: Fraction(1, 3), c: 2}).shares == (3, 2, 12)
    assert Mixture({a: 1e-9, b: 1}).shares == (1, 10**9)


@pytest.mark.parametrize(
    ("weights", "words"),
    [({}, "at least one path"), ({"a": 0}, "weight of 'a' must be a positive"), ({"a": float("nan")}, "got nan"),
     ({"a": -1}, "got -1"), ({"a": True}, "got True"), ({"a": "1"}, "got '1'"), ([("a", 1)], "is a mapping")],
)  # fmt: skip
def test_invalid_weights_are_refused(weights, words):
    with pytest.raises(UsageError, match=words):
        Mixture(weights)


def test_options_that_contradict_a_mixture_are_refused(three_files):
    a, b, _ = three_files
    mixture = Mixture({a: 1, b: 1})
    for options in ({"shuffle": "pages"}, {"weights": [1.0] * 80}, {"sampler": range(80)}):
        with pytest.raises(UsageError, match="Mixture"):
            Loader(mixture, batch_size=4, **options)
    with pytest.raises(UsageError, match="stop='never'"):
        Mixture({a: 1}, stop="never")
    with pytest.raises(UsageError, match="is there twice"):
        Loader(Mixture({a: 1, (b, a): 2}), batch_size=4)
    loader = Loader(mixture, batch_size=4, shuffle="global")
    with pytest.raises(UsageError, match=r"no sample of .*b\.beton is left"):
        loader.with_indices(range(50))


def test_a_subset_keeps_the_proportions(three_files):
    a, b, c = three_files
    mixture = Mixture({a: 0.6, b: 0.3, c: 0.1})
    loader = Loader(mixture, batch_size=10, shuffle="global", num_workers=1, num_draws=100)
    some = loader.filter(lambda label: label < 5)
    assert counted(some) == [60, 30, 10]
    assert {k for batch in some for k in batch.indices.tolist()} == {*range(5), *range(50, 55), *range(80, 85)}
    again = Loader(mixture, batch_size=10, shuffle="global", num_workers=1, indices=[3, 60, 61, 86])
    assert counted(again) == apportion(4, [6, 3, 1])


def test_a_repeated_sample_is_augmented_differently(tmp_path):
    write_images(tmp_path / "few.beton", 2)
    write_images(tmp_path / "more.beton", 30)
    mixture = Mixture({tmp_path / "few.beton": 1, tmp_path / "more.beton": 1})
    loader = Loader(mixture, batch_size=20, shuffle="global", transforms={"image": TRAIN}, num_workers=2, num_draws=20)
    (batch,) = loader
    few = [image.numpy().tobytes() for image, k in zip(batch["image"], batch.indices.tolist(), strict=True) if k < 2]
    assert len(few) == 10 == len(set(few))


# ---- the place in the run


OPTIONS = {"shuffle": "global", "seed": 5, "num_workers": 1, "tail": "even", "num_draws": 90}


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_run_stopped_anywhere_resumes_in_the_same_order_on_other_worlds(three_files, epoch):
    mixture = Mixture(dict(zip(three_files, (0.6, 0.3, 0.1), strict=True)))
    loader = Loader(mixture, batch_size=10, **OPTIONS)
    loader.set_epoch(epoch)
    want = [k for batch in loader for k in batch.indices.tolist()]

    def leg(state, world, batch_size, steps):
        loaders = [Loader(mixture, batch_size=batch_size, rank=r, world_size=world, **OPTIONS) for r in range(world)]
        for each in loaders:
            each.set_epoch(epoch)
            if state is not None:
                each.load_state_dict(state)
        seen = []
        for parts in itertools.islice(zip(*loaders, strict=True), steps):
            turns = itertools.zip_longest(*(part.indices.tolist() for part in parts))
            seen += [k for turn in turns for k in turn if k is not None]
        return seen, json.loads(json.dumps(loaders[0].state_dict()))

    first, state = leg(None, 3, 4, 2)
    second, state = leg(state, 2, 7, 1)
    third, state = leg(state, 1, 9, None)
    assert first + second + third == want
    assert (state["epoch"], state["consumed"]) == (epoch + 1, 0)


def test_a_state_fits_only_the_same_mixture(three_files):
    a, b, _ = three_files
    state = Loader(Mixture({a: 0.7, b: 0.3}), batch_size=4, **OPTIONS).state_dict()
    Loader(Mixture({a: 7, b: 3}), batch_size=9, **OPTIONS).load_state_dict(state)
    with pytest.raises(StateError, match=r"mixture=7:50,3:30 .*mixture=3:50,2:30"):
        Loader(Mixture({a: 0.6, b: 0.4}), batch_size=4, **OPTIONS).load_state_dict(state)
    with pytest.raises(StateError, match="other order options"):
        Loader([a, b], batch_size=4, shuffle="global", seed=5).load_state_dict(state)
    with pytest.raises(StateError, match="another dataset"):
        Loader(Mixture({b: 0.3, a: 0.7}), batch_size=4, **OPTIONS).load_state_dict(state)
