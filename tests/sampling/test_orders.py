"""Every kind of order, as one property each: coverage as declared, equal steps, resume anywhere on any world.

No files and no threads: these are the pure functions under the Loader.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloading.errors import StateError, UsageError
from dataloading.sampling.mixture import Parts
from dataloading.sampling.page_order import PageLayout
from dataloading.sampling.random import Cipher, children, exponential, uniform
from dataloading.sampling.sampler import ShardSampler
from dataloading.sampling.subsets import balanced_weights
from dataloading.transforms.rng import child

KINDS = ("none", "global", "cipher", "pages", "drawn", "chosen", "repeated", "subset", "mixed", "mixed-subset")


def torch_permutation(num: int, seed: int) -> np.ndarray:
    return torch.randperm(num, generator=torch.Generator().manual_seed(seed)).numpy()


@dataclass(frozen=True)
class Run:
    """What an order depends on; the world is added when it is looked at."""

    kind: str
    num: int
    seed: int
    tail: str
    per_page: int = 7

    def sampler(self, world: int = 1, rank: int = 0, batch: int = 4, nodes: int = 1) -> ShardSampler:
        rng = np.random.default_rng(self.num)
        options: dict[str, object] = {}
        if self.kind == "pages":
            layout = PageLayout.from_pointers(
                rng.integers(0, self.num * 10, self.num).astype(np.uint64), self.per_page * 10
            )
            options = {"shuffle": "pages", "layout": lambda: layout, "window_pages": 3, "num_nodes": nodes}
        elif self.kind in ("global", "cipher", "repeated", "subset"):
            options["shuffle"] = "global"
        if self.kind in ("drawn", "chosen"):
            options |= {
                "weights": rng.integers(0, 3, self.num) + (np.arange(self.num) == 0),
                "replacement": self.kind == "drawn",
            }
        if self.kind == "repeated":
            options["num_repeats"] = 3
        if self.kind == "subset":
            options["indices"] = rng.integers(0, self.num, self.num)
        if self.kind.startswith("mixed"):
            cuts = np.unique(rng.integers(1, self.num, 3)) if self.num > 1 else np.empty(0, int)
            sizes = tuple(np.diff([0, *cuts, self.num]).tolist())
            shares = tuple(rng.integers(1, 9, len(sizes)).tolist())
            stop = ("sum", "first_exhausted", "all_exhausted")[self.num % 3]
            parts = Parts(names=tuple(map(str, range(len(sizes)))), shares=shares, sizes=sizes, stop=stop)
            options |= {"mixture": parts, "shuffle": "global", "num_repeats": 1 + self.num % 2}
            if self.kind == "mixed-subset":  # some of each part, some of them twice
                first = np.cumsum([0, *sizes[:-1]])
                options["indices"] = np.concatenate([rng.integers(0, self.num, self.num // 2), first])
        permutation = "cipher" if self.kind == "cipher" else torch_permutation
        return ShardSampler(
            self.num, permutation=permutation, seed=self.seed, tail=self.tail, world_size=world, rank=rank,
            batch_size=batch, **options,
        )  # fmt: skip

    def steps(self, epoch: int, world: int, batch: int, nodes: int = 1, place: tuple[int, str] | None = None):
        """All ranks' steps from a place on: a list of steps, each a list over ranks."""
        orders = []
        for rank in range(world):
            sampler = self.sampler(world, rank, batch, nodes)
            if place is not None:
                sampler.resume(epoch, *place)
            orders.append(sampler.order(epoch, 0 if place is None else place[0]))
        assert len({len(order) for order in orders}) == 1, "as many steps on every rank"
        return [[order.step(k) for order in orders] for k in range(len(orders[0]))]

    def whole(self, epoch: int) -> Counter:
        """Samples and views of the epoch, however it is cut."""
        every = Run(self.kind, self.num, self.seed, "even", self.per_page).steps(epoch, 1, 64)
        return rows(every)


def rows(steps, *, valid_only: bool = True) -> Counter:
    """Count (sample, view) pairs."""
    found: Counter = Counter()
    for step in steps:
        for part in step:
            stop = part.num_valid if valid_only else None
            views = np.zeros(len(part.indices), int) if part.views is None else part.views
            found.update(zip(part.indices[:stop].tolist(), views[:stop].tolist(), strict=True))
    return found


runs = st.builds(
    Run, kind=st.sampled_from(KINDS), num=st.integers(1, 500), seed=st.integers(0, 2**40),
    tail=st.sampled_from(["pad", "drop", "even"]), per_page=st.integers(1, 60),
)  # fmt: skip
worlds = st.integers(1, 16)
batches = st.integers(1, 40)
nodes_of = st.sampled_from([1, 2, 3, 4])


def nodes_for(world: int, nodes: int) -> int:
    return nodes if world % nodes == 0 else 1


@settings(max_examples=150, deadline=None)
@given(run=runs, world=worlds, batch=batches, nodes=nodes_of, epoch=st.integers(0, 3))
def test_every_kind_of_order_covers_what_its_tail_declares_in_equal_steps(run, world, batch, nodes, epoch):
    steps = run.steps(epoch, world, batch, nodes_for(world, nodes))
    whole, found = run.whole(epoch), rows(steps)
    size = whole.total()
    for step in steps:
        assert sum(part.num_valid for part in step) == step[0].global_size == step[-1].global_size
        assert max(len(part.indices) for part in step) <= batch
    if run.tail == "drop":
        assert found.total() == size // world * world
        assert not found - whole
    else:
        assert found == whole
    if run.tail == "pad":
        assert {len(part.indices) for step in steps[:-1] for part in step} <= {batch}
        assert len({sum(len(step[rank].indices) for step in steps) for rank in range(world)}) == 1
        assert set(dict(rows(steps, valid_only=False))) == set(whole)  # padding repeats, it invents nothing
    if run.tail == "even":
        sizes = [len(part.indices) for step in steps for part in step]
        assert max(sizes) - min(sizes) <= 1
        if size >= world * len(steps):
            assert min(sizes) > 0


@settings(max_examples=60, deadline=None)
@given(
    run=runs, world=worlds, batch=batches, other=worlds, other_batch=batches, nodes=nodes_of, epoch=st.integers(0, 3)
)
def test_resuming_at_every_step_on_another_world_gives_the_remaining_multiset(
    run, world, batch, other, other_batch, nodes, epoch
):
    run = Run(run.kind, run.num, run.seed, "even", run.per_page)
    nodes = nodes if world % nodes == 0 and other % nodes == 0 else 1
    steps = run.steps(epoch, world, batch, nodes)
    whole = run.whole(epoch)
    for k in np.unique(np.linspace(0, len(steps) - 1, 4).astype(int)):
        done = rows(steps[: k + 1])
        rest = run.steps(epoch, other, other_batch, nodes, (steps[k][0].consumed, str(nodes)))
        assert rows(rest) == whole - done


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_every_world_resumes_in_every_other_world(kind):
    run, epoch = Run(kind, 27, 11, "even", per_page=2), 1
    whole = run.whole(epoch)
    order = [pair for step in run.steps(epoch, 1, 1) for part in step for pair in rows([[part]])]
    assert Counter(order) == whole
    rest: dict[tuple[int, int], Counter] = {}
    for world in range(1, 17):
        done: Counter = Counter()
        for step in run.steps(epoch, world, 2):
            done += rows([step])
            consumed = step[0].consumed
            assert done == Counter(order[:consumed]), "steps take the order as it comes, whatever the world"
            for other in range(1, 17):
                if (consumed, other) not in rest:
                    rest[consumed, other] = rows(run.steps(epoch, other, 3, place=(consumed, "1")))
                assert rest[consumed, other] == whole - done


@settings(max_examples=60, deadline=None)
@given(run=runs, world=worlds, batch=batches, nodes=nodes_of, epoch=st.integers(0, 3))
def test_resuming_at_every_step_on_the_same_world_gives_the_same_order(run, world, batch, nodes, epoch):
    nodes = nodes_for(world, nodes)
    steps = run.steps(epoch, world, batch, nodes)
    for k in np.unique(np.linspace(0, len(steps) - 1, 4).astype(int)) if steps else ():
        rest = run.steps(epoch, world, batch, nodes, (steps[k][0].consumed, str(nodes)))
        assert len(rest) == len(steps) - k - 1
        for got, want in zip(rest, steps[k + 1 :], strict=True):
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(a.indices, b.indices)
                assert a.num_valid == b.num_valid


@settings(max_examples=60, deadline=None)
@given(
    run=runs, legs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), batches, st.integers(0, 5)), max_size=4),
)  # fmt: skip
def test_pages_give_every_sample_once_through_any_chain_of_node_numbers(run, legs):
    run = Run("pages", run.num, run.seed, "even", run.per_page)
    place, done = (0, "1"), Counter()
    for nodes, per_node, batch, num_steps in [*legs, (2, 2, 9, None)]:
        world = nodes * per_node
        steps = run.steps(5, world, batch, nodes, place)[:num_steps]
        done += rows(steps)
        sampler = run.sampler(world, 0, batch, nodes)
        sampler.resume(5, *place)
        sampler.consumed = steps[-1][0].consumed if steps else place[0]
        place = (sampler.consumed, sampler.history())
    assert done == run.whole(5)


def test_the_history_of_nodes_is_short_and_forgotten_with_the_epoch():
    sampler = Run("pages", 100, 0, "even").sampler(4, 0, 4, nodes=2)
    assert sampler.history() == "2"
    sampler.resume(1, 48, "4")
    assert sampler.history() == "4:48 2"
    sampler.resume(1, 64, "4:48 2")
    assert sampler.history() == "4:48 2"
    sampler.set_epoch(2)
    assert sampler.history() == "2"
    for wrong in ("", "two", "4:48"):
        with pytest.raises(StateError, match="nodes="):
            sampler.resume(1, 64, wrong)


# ---- permutations and random bits


def test_bits_are_those_of_the_transforms_generator():
    assert [int(x) for x in children(99, np.arange(5))] == [child(99, k) for k in range(5)]


def test_exponential_numbers_are_minus_the_logarithm_of_the_uniform_ones():
    numbers = np.arange(100_000)
    want = -np.log(uniform(3, numbers))
    np.testing.assert_allclose(exponential(3, numbers), want, rtol=2e-15)
    assert abs(uniform(3, numbers).mean() - 0.5) < 0.005


@pytest.mark.parametrize("num", [1, 2, 3, 31, 32, 33, 64, 65, 1000, 4097])
def test_the_cipher_is_one_to_one_in_any_batches(num):
    cipher = Cipher(num, key=num)
    whole = cipher(np.arange(num))
    assert sorted(whole.tolist()) == list(range(num))
    parts = [cipher(part) for part in np.array_split(np.arange(num)[::-1], 3)]
    np.testing.assert_array_equal(np.concatenate(parts), whole[::-1])


@pytest.mark.parametrize("num", [3, 10, 100])
def test_over_keys_every_element_and_pair_is_equally_likely_at_the_start(num):
    trials = 1200
    first = np.array([Cipher(num, key)(np.arange(2)) for key in range(trials)])
    ones = np.bincount(first[:, 0], minlength=num)
    pairs = np.bincount(first[:, 0] * num + first[:, 1], minlength=num * num).reshape(num, num)
    for counts in (ones, pairs[~np.eye(num, dtype=bool)]):
        expected, freedom = trials / counts.size, counts.size - 1
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)
    assert np.diag(pairs).sum() == 0


def test_the_cipher_of_a_large_range_is_as_random_as_a_shuffle():
    num = 200_003
    order = Cipher(num, key=1)(np.arange(num))
    places = np.arange(num) - (num - 1) / 2
    sigma = 1 / np.sqrt(num)
    assert abs(np.dot(places, order - (num - 1) / 2) / np.dot(places, places)) < 5 * sigma
    steps = np.abs(np.diff(order))
    assert abs(steps.mean() - num / 3) < 5 * num / 4.2 * sigma  # the standard deviation of a distance is num / 4.24
    assert abs((np.diff(order) > 0).mean() - 0.5) < 5 * sigma
    fixed = np.count_nonzero(order == np.arange(num))
    assert fixed < 12  # Poisson with mean 1
    cells = np.histogram2d(np.arange(num), order, bins=40)[0]
    assert abs(((cells - cells.mean()) ** 2 / cells.mean()).sum() - 39 * 39) < 5 * np.sqrt(2 * 39 * 39)


# ---- weights and repeats


def drawn(num_draws: int, weights: object, epochs: int, **options: object) -> np.ndarray:
    num = len(options["labels"]) if isinstance(weights, str) else len(weights)
    sampler = ShardSampler(
        num, permutation=torch_permutation, weights=weights, num_draws=num_draws, batch_size=64, **options
    )
    return np.array([sampler.order(epoch).indices() for epoch in range(epochs)])


def test_draws_with_replacement_follow_the_weights():
    weights = np.array([0, 1, 2, 0, 4, 1, 0], float)
    counts = np.bincount(drawn(8000, weights, 2).ravel(), minlength=7)
    expected = 16000 * weights / weights.sum()
    assert counts[weights == 0].sum() == 0
    chosen = weights > 0
    assert ((counts - expected)[chosen] ** 2 / expected[chosen]).sum() < 3 + 5 * np.sqrt(6)


def test_draws_without_replacement_are_successive_draws():
    weights = np.array([1.0, 2.0, 4.0])
    firsts = drawn(2, weights, 6000, replacement=False)
    assert all(a != b for a, b in firsts)
    counts = np.bincount(firsts[:, 0] * 3 + firsts[:, 1], minlength=9).reshape(3, 3)
    for a in range(3):
        for b in range(3):
            if a != b:
                p = weights[a] / 7 * weights[b] / (7 - weights[a])
                assert abs(counts[a, b] - 6000 * p) < 5 * np.sqrt(6000 * p * (1 - p))


def test_balanced_weights_give_every_class_its_share():
    labels = np.array([5] * 90 + [7] * 9 + [8])
    got = labels[drawn(9000, "balanced", 1, labels=labels)[0]]
    for label in (5, 7, 8):
        assert abs((got == label).sum() - 3000) < 5 * np.sqrt(3000 * 2 / 3)


@pytest.mark.parametrize("apart", [1, -3, 10**15])
def test_balanced_weights_are_one_divided_by_the_size_of_the_class(apart):
    assert balanced_weights(apart * np.array([2, 0, 2, 2, 9])).tolist() == [1 / 3, 1, 1 / 3, 1 / 3, 1]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_balanced_weights_take_labels_of_any_integer_type(dtype):
    """The whole range of a byte, twice: differences do not fit the type of signed ones."""
    labels = (
        np.arange(256, dtype=np.uint8).view(np.int8).astype(dtype) if dtype is np.int8 else np.arange(256, dtype=dtype)
    )
    assert balanced_weights(np.concatenate([labels, labels])).tolist() == [0.5] * 512


def test_every_draw_of_a_sample_is_a_view_of_its_own():
    sampler = ShardSampler(2, permutation=torch_permutation, weights=[1, 3], num_draws=50, batch_size=8)
    found = rows([[sampler.order(0).step(k)] for k in range(7)])
    assert max(found.values()) == 1


def test_a_sample_listed_twice_has_two_views():
    sampler = ShardSampler(9, permutation=torch_permutation, indices=[4, 7, 4, 4], batch_size=4)
    step = sampler.order(0).step(0)
    assert (step.indices.tolist(), step.views.tolist()) == ([4, 7, 4, 4], [0, 0, 1, 2])


@pytest.mark.parametrize("world", [1, 4])
def test_num_repeats_gives_the_indices_of_deits_sampler(world):
    """Its RASampler: randperm(seed=epoch), three times each, padded, every world-th, cut to a multiple of 256."""
    num, repeats, epoch = 700, 3, 6
    order = torch_permutation(num, epoch).repeat(repeats).tolist()
    order += order[: -len(order) % world]
    for rank in range(world):
        want = order[rank::world][: num // 256 * 256 // world]
        sampler = ShardSampler(
            num, permutation=torch_permutation, shuffle="global", num_repeats=repeats, num_draws=num // 256 * 256,
            rank=rank, world_size=world, batch_size=64,
        )  # fmt: skip
        assert sampler.order(epoch).indices().tolist() == want


def test_copies_of_a_sample_land_on_different_ranks_with_different_views():
    steps = Run("repeated", 60, 0, "even").steps(0, 3, 5)
    assert len(steps) == 12
    for step in steps:
        for group in zip(*(part.indices.tolist() for part in step), strict=True):
            assert len(set(group)) == 1
        assert {tuple(sorted(views)) for views in zip(*(part.views.tolist() for part in step), strict=True)} == {
            (0, 1, 2)
        }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": [1, 2]}, "one number for each of the 10"),
        ({"weights": [1.0] * 9 + [-1]}, r"weights\[9\]=-1.0"),
        ({"weights": [1.0] * 9 + [np.nan]}, r"weights\[9\]=nan"),
        ({"weights": [0] * 10}, "nothing can be drawn"),
        ({"weights": "even"}, "weights='even'"),
        ({"weights": "balanced"}, "label field"),
        ({"weights": [1] * 10, "replacement": False, "num_draws": 11}, "num_draws=11 is more than the 10"),
        ({"shuffle": "global", "num_draws": 31, "num_repeats": 3}, "more than the 30"),
        ({"shuffle": "pages", "num_repeats": 2}, "num_repeats= draws from the whole file"),
        ({"shuffle": "pages", "weights": [1] * 10}, "weights= draws from the whole file"),
        ({"shuffle": "pages", "window_pages": 0}, "window_pages=0"),
        ({"num_repeats": 0}, "num_repeats=0"),
        ({"shuffle": "pages", "world_size": 4, "num_nodes": 3}, "num_nodes=3 does not divide world_size=4"),
    ],
)
def test_options_that_cannot_work_are_named(options, words):
    with pytest.raises(UsageError, match=words):
        ShardSampler(10, permutation=torch_permutation, **options)
