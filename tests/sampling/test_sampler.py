"""The order of samples: against torch, and as properties over worlds, sizes and tails."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from dataloading.errors import UsageError
from dataloading.sampling.foreign import ForeignSampler
from dataloading.sampling.sampler import ShardSampler


def torch_permutation(num: int, seed: int) -> np.ndarray:
    return torch.randperm(num, generator=torch.Generator().manual_seed(seed)).numpy()


def make(num: int, **options: object) -> ShardSampler:
    return ShardSampler(num, permutation=torch_permutation, **options)  # type: ignore[arg-type]


worlds = st.integers(1, 16)
sizes = st.integers(1, 300)
batches = st.integers(1, 40)
seeds = st.integers(0, 2**31)
tails = st.sampled_from(["pad", "drop", "even"])


@settings(max_examples=60, deadline=None)
@given(num=sizes, world=worlds, seed=seeds, epoch=st.integers(0, 5), shuffle=st.booleans(), drop=st.booleans())
def test_every_rank_gets_the_indices_of_distributed_sampler(num, world, seed, epoch, shuffle, drop):
    for rank in range(world):
        want = DistributedSampler(range(num), world, rank, shuffle=shuffle, seed=seed, drop_last=drop)
        want.set_epoch(epoch)
        ours = make(
            num, world_size=world, rank=rank, seed=seed, batch_size=7,
            shuffle="global" if shuffle else "none", tail="drop" if drop else "pad",
        )  # fmt: skip
        ours.set_epoch(epoch)
        assert list(ours) == list(want)
        assert len(ours) == len(want)


@settings(max_examples=150, deadline=None)
@given(num=sizes, world=worlds, batch=batches, seed=seeds)
def test_even_gives_every_sample_once_in_equal_steps_of_nearly_equal_size(num, world, batch, seed):
    steps, lengths, seen = set(), set(), []
    for rank in range(world):
        order = make(
            num, world_size=world, rank=rank, batch_size=batch, seed=seed, shuffle="global", tail="even"
        ).order(0)
        steps.add(len(order))
        for k in range(len(order)):
            step = order.step(k)
            lengths.add(len(step.indices))
            assert step.num_valid == len(step.indices) <= batch
            seen += step.indices.tolist()
    assert sorted(seen) == list(range(num))
    assert len(steps) == 1
    assert max(lengths) - min(lengths) <= 1
    if num >= world * steps.pop():
        assert min(lengths) > 0


@settings(max_examples=150, deadline=None)
@given(
    num=sizes, world=worlds, batch=batches, seed=seeds, tail=tails,
    shuffle=st.sampled_from(["none", "global", "pages"]), cut=st.integers(0, 5),
)  # fmt: skip
def test_equal_rows_lets_joined_steps_be_cut_at_the_number_that_counts(num, world, batch, seed, tail, shuffle, cut):
    """What frameworks do to gathered batches: join the ranks' rows, and keep so many of the last step's."""
    ranks = []
    for rank in range(world):
        sampler = make(
            num, world_size=world, rank=rank, batch_size=batch, seed=seed, shuffle=shuffle, tail=tail,
            num_nodes=2 if shuffle == "pages" and world % 2 == 0 else 1,
        )  # fmt: skip
        plain = sampler.slicing().num_steps
        sampler.equal_rows = True
        order = sampler.order(0)
        assert len(order) == plain
        ranks.append([order.step(k) for k in range(len(order))])
        if plain > cut:  # a later beginning gives the same steps
            later = sampler.order(0, sampler.slicing().bounds(cut)[0])
            assert [later.step(k).indices.tolist() for k in range(len(later))] == [
                step.indices.tolist() for step in ranks[-1][cut:]
            ]
    seen = []
    for number, steps in enumerate(zip(*ranks, strict=True), 1):
        assert len({len(step.indices) for step in steps}) == 1 and len(steps[0].indices) <= batch
        joined = [index for step in steps for index in step.indices.tolist()]
        assert number == len(ranks[0]) or steps[0].global_size == len(joined)
        seen += joined[: steps[0].global_size]
    assert len(set(seen)) == len(seen) == (num if tail != "drop" else num // world * world)


@settings(max_examples=150, deadline=None)
@given(num=sizes, world=worlds, batch=batches, seed=seeds, tail=tails, cut=st.floats(0, 1))
def test_resuming_on_the_same_world_gives_the_very_same_remaining_steps(num, world, batch, seed, tail, cut):
    sampler = make(num, world_size=world, rank=world - 1, batch_size=batch, seed=seed, shuffle="global", tail=tail)
    whole = sampler.order(2)
    if not len(whole):
        return
    at = int(cut * (len(whole) - 1))
    rest = sampler.order(2, whole.step(at).consumed)
    assert len(rest) == len(whole) - at - 1
    for k in range(len(rest)):
        np.testing.assert_array_equal(rest.step(k).indices, whole.step(at + 1 + k).indices)
        assert rest.step(k).num_valid == whole.step(at + 1 + k).num_valid


@settings(max_examples=100, deadline=None)
@given(
    num=sizes, seed=seeds, tail=st.sampled_from(["even", "pad"]),
    legs=st.lists(st.tuples(worlds, batches, st.integers(0, 4)), min_size=1, max_size=4),
)  # fmt: skip
def test_any_chain_of_world_and_batch_sizes_covers_every_sample_once(num, seed, tail, legs):
    consumed, seen = 0, []
    for world, batch, steps in [*legs, (3, 11, None)]:
        orders = [
            make(num, world_size=world, rank=rank, batch_size=batch, seed=seed, shuffle="global", tail=tail).order(
                1, consumed
            )
            for rank in range(world)
        ]
        for k in range(len(orders[0]))[:steps]:
            parts = [order.step(k) for order in orders]
            assert sum(part.num_valid for part in parts) == parts[0].global_size
            for part in parts:
                seen += part.indices[: part.num_valid].tolist()
            consumed = parts[0].consumed
    assert sorted(seen) == list(range(num))


def test_a_subset_is_permuted_like_a_dataset_of_its_size_and_may_repeat():
    subset = [5, 5, 9, 2]
    ours = make(10, indices=subset, shuffle="global", seed=4, batch_size=3)
    assert list(ours) == [subset[k] for k in torch_permutation(4, 4)]


def test_epochs_follow_one_another_unless_set():
    sampler = make(8, shuffle="global")
    assert sampler.begin() == (0, 0)
    sampler.receive(0, 3)
    assert sampler.begin() == (1, 0)
    sampler.set_epoch(7)
    assert sampler.begin() == (7, 0)
    sampler.finish(7)
    assert sampler.begin() == (8, 0)


def test_an_iterator_without_a_batch_starts_no_epoch():
    sampler = make(8)
    sampler.resume(3, 5)
    assert sampler.begin() == sampler.begin() == (3, 5)
    sampler.set_epoch(3)  # of which an iterator is open
    sampler.receive(3, 6)
    assert (sampler.epoch, sampler.consumed) == (3, 6)
    assert sampler.begin() == (4, 0)


@pytest.mark.parametrize("to_the_end", [False, True])
def test_an_epoch_set_during_another_comes_next_and_the_state_follows_the_batches(to_the_end):
    sampler = make(8)
    assert sampler.begin() == (0, 0)
    sampler.receive(0, 2)
    sampler.set_epoch(9)
    sampler.receive(0, 4)
    assert (sampler.epoch, sampler.consumed) == (0, 4)
    if to_the_end:
        sampler.finish(0)
    assert sampler.begin() == (9, 0)
    sampler.finish(9)
    assert sampler.begin() == (10, 0)


def test_naming_the_epoch_of_a_resumed_state_keeps_its_position_and_another_drops_it():
    sampler = make(8)
    sampler.resume(3, 5)
    sampler.set_epoch(3)
    assert sampler.begin() == (3, 5)
    sampler.resume(3, 5)
    sampler.set_epoch(4)
    assert sampler.begin() == (4, 0)


def test_a_foreign_sampler_is_cut_into_batches_and_told_the_epoch():
    theirs = DistributedSampler(range(20), 3, 1, seed=1)
    ours = ForeignSampler(theirs, 20, batch_size=4, drop_last=False)
    ours.set_epoch(6)
    order = ours.order(6)
    assert theirs.epoch == 6
    assert order.indices().tolist() == list(theirs)
    assert [len(order.step(k).indices) for k in range(len(order))] == [4, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"tail": "uneven"}, "'even'"),
        ({"shuffle": True}, "shuffle=True"),
        ({"indices": [1, 99]}, "index 99 is outside"),
        ({"indices": [-1]}, "index -1 is outside"),
        ({"indices": np.array([True, False])}, "flatnonzero"),
        ({"indices": [0.5]}, "integers"),
        ({"tail": "even", "drop_last": True}, "contradicts"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_options_are_named_with_their_value(options, words):
    with pytest.raises(UsageError, match=words):
        make(10, **options)


def test_a_batch_sampler_in_place_of_a_sampler_is_explained():
    batches = torch.utils.data.BatchSampler(range(10), 2, False)
    with pytest.raises(UsageError, match="batch sampler"):
        ForeignSampler(batches, 10, batch_size=2, drop_last=False).order(0)
