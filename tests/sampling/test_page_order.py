"""Pages: where samples lie, windows over them, what each node reads, and how good the shuffle is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloading import Loader, UsageError, compare_windows
from dataloading.dataset.files import FileSet
from dataloading.dataset.page_layout import page_layout
from dataloading.format import ImageField, IntField, Reader, Writer
from dataloading.sampling.page_order import PageLayout, PageOrder
from dataloading.sampling.sampler import DEFAULT_WINDOW_PAGES, ShardSampler
from dataloading.sampling.shuffle_quality import expected_distinct, measure_shuffle, measure_windows
from tests.support.files import raw, write_labels
from tests.support.huge import make_huge_file


def by_page(pointers: np.ndarray, page_size: int) -> dict[int, list[int]]:
    """The obvious way: one sample after another."""
    pages: dict[int, list[int]] = {}
    for sample, pointer in enumerate(pointers.tolist()):
        pages.setdefault(pointer // page_size, []).append(sample)
    return dict(sorted(pages.items()))


def as_dict(layout: PageLayout) -> dict[int, list[int]]:
    listed = [layout.listed(np.array([page])).tolist() for page in range(layout.num_pages)]
    return dict(zip((layout.offsets // layout.page_bytes).tolist(), listed, strict=True))


@settings(max_examples=100, deadline=None)
@given(num=st.integers(0, 300), page_size=st.integers(1, 50), stride=st.integers(1, 200), seed=st.integers(0, 99))
def test_pages_found_equal_those_of_every_pointer(num, page_size, stride, seed):
    rng = np.random.default_rng(seed)
    pointers = rng.integers(0, stride * 10, num).astype(np.uint64) + np.uint64(3)
    assert as_dict(PageLayout.from_pointers(pointers, page_size)) == by_page(pointers, page_size)
    pointers.sort()
    assert as_dict(PageLayout.from_sorted_pointers(pointers, page_size)) == by_page(pointers, page_size)
    strided = np.zeros((num, 3), np.uint64)
    strided[:, 1] = pointers
    assert as_dict(PageLayout.from_sorted_pointers(strided[:, 1], page_size)) == by_page(pointers, page_size)


@settings(max_examples=50, deadline=None)
@given(num=st.integers(1, 200), seed=st.integers(0, 99))
def test_a_subset_keeps_its_samples_on_their_pages(num, seed):
    rng = np.random.default_rng(seed)
    pointers = rng.integers(0, 500, num).astype(np.uint64)
    subset = rng.integers(0, num, rng.integers(1, 100))
    chosen = PageLayout.from_pointers(pointers, 40).select(subset)
    assert as_dict(chosen) == by_page(pointers[subset], 40)


# ---- windows


def order_of(num_pages: int, per_page: int, **options: int) -> tuple[PageLayout, PageOrder]:
    layout = PageLayout.from_sorted_pointers(np.arange(num_pages * per_page, dtype=np.uint64), per_page)
    return layout, PageOrder(layout, **{"key": 5, "num_nodes": 1, "window_pages": 8} | options)


def test_a_window_opens_as_many_pages_as_it_may_and_shuffles_all_their_samples():
    _, order = order_of(num_pages=40, per_page=10, window_pages=8)
    pages = order.at(np.arange(400))[0] // 10
    windows = [set(pages[k : k + 80].tolist()) for k in range(0, 400, 80)]
    assert [len(window) for window in windows] == [8] * 5
    assert set().union(*windows) == set(range(40))
    assert max(np.diff(np.flatnonzero(pages == pages[0]))) < 80  # all of a page within one window
    assert not np.array_equal(np.sort(order.at(np.arange(80))[0]), order.at(np.arange(80))[0])


def test_windows_have_equal_sizes_so_that_the_last_is_no_worse():
    _, order = order_of(num_pages=41, per_page=10, window_pages=20)
    pages = order.at(np.arange(410))[0] // 10
    sizes = []
    while len(pages):
        first = set(pages[:100].tolist())
        stop = max(np.flatnonzero(np.isin(pages, list(first)))) + 1
        sizes.append(len(set(pages[:stop].tolist())))
        pages = pages[stop:]
    assert sorted(sizes) == [13, 14, 14]


def test_the_order_depends_on_the_key_and_nothing_else():
    whole = order_of(30, 7)[1].at(np.arange(210))[0]
    fresh = order_of(30, 7)[1]
    parts = [fresh.at(part)[0] for part in np.array_split(np.arange(210), 13)[::-1]][::-1]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert not np.array_equal(order_of(30, 7, key=6)[1].at(np.arange(210))[0], whole)


@pytest.mark.parametrize(("num_nodes", "local"), [(1, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("tail", ["pad", "drop", "even"])
def test_a_node_reads_its_share_of_the_pages_and_asks_for_each_once_ahead_of_use(num_nodes, local, tail):
    num_pages, per_page, world = 120, 11, num_nodes * local
    layout = PageLayout.from_sorted_pointers(np.arange(num_pages * per_page, dtype=np.uint64) + np.uint64(11), per_page)
    for node in range(num_nodes):
        used: set[int] = set()
        asked: list[int] = []
        late = []
        orders = [
            ShardSampler(
                num_pages * per_page, permutation=None, shuffle="pages", layout=lambda: layout, window_pages=10,
                num_nodes=num_nodes, node=node, local_rank=k, rank=node * local + k, world_size=world, batch_size=5,
                tail=tail,
            ).order(3)
            for k in range(local)
        ]  # fmt: skip
        for step in range(len(orders[0])):
            pages = set().union(*((order.step(step).indices // per_page).tolist() for order in orders))
            late.append(len(pages - set(asked)))  # asked for by an earlier step, not by this one
            used |= pages
            for order in orders:
                asked += [start // per_page - 1 for _, start, _ in order.readahead(step)]
        assert len(asked) == len(set(asked)), "every page once"
        assert set(asked) >= used
        assert len(asked) <= num_pages / num_nodes * 1.1
        # The first window's pages are asked for over its first half; from then on every page was asked for before.
        assert sum(late[len(late) // 6 :]) == 0


@pytest.mark.parametrize("num_nodes", [1, 2, 3])
def test_padding_repeats_samples_whose_pages_are_open(num_nodes):
    layout, order = order_of(num_pages=31, per_page=10, num_nodes=num_nodes, window_pages=4)
    for node in range(num_nodes):
        mine = np.arange(310 + 40)[np.arange(310 + 40) % num_nodes == node]
        inside, padding = mine[mine < 310], mine[mine >= 310]
        last_window = set((order.at(inside[-20:])[0] // 10).tolist())
        assert set((order.at(padding)[0] // 10).tolist()) <= last_window
    few = PageOrder(layout.select(np.array([7])), key=0, num_nodes=3, window_pages=4)
    assert few.at(np.arange(9))[0].tolist() == [0] * 9  # fewer samples than nodes: another node's


@pytest.mark.parametrize("consumed", [1, 100, 101])
def test_after_a_resume_on_more_nodes_each_reads_its_share_of_what_is_left(consumed):
    num_pages, per_page = 60, 11
    layout = PageLayout.from_sorted_pointers(np.arange(num_pages * per_page, dtype=np.uint64), per_page)
    used, asked = [], []
    for rank in range(4):
        sampler = ShardSampler(
            num_pages * per_page, permutation=None, shuffle="pages", layout=lambda: layout, window_pages=10,
            num_nodes=2, rank=rank, world_size=4, batch_size=5, tail="even",
        )  # fmt: skip
        sampler.resume(0, consumed, "1")
        order = sampler.order(0, consumed)
        used.append(set((order.indices() // per_page).tolist()))
        asked.append({start // per_page for step in range(len(order)) for _, start, _ in order.readahead(step)})
    for first, second in ((0, 1), (2, 3)):
        assert used[first] | used[second] == asked[first] | asked[second]
        assert len(used[first] | used[second]) <= num_pages / 2 * 1.1


# ---- files


@pytest.fixture(scope="module")
def paged_file(tmp_path_factory):
    """60 pages of 2 MiB, mostly holes, with 32 raw images each."""
    path = tmp_path_factory.mktemp("paged") / "paged.beton"
    return make_huge_file(path, 60 * 32, side=32, image_bytes=1 << 16, page_size=1 << 21)


def test_a_files_pages_are_those_of_its_pointers(paged_file, tmp_path):
    with Reader(paged_file) as reader:
        pointers = np.asarray(reader.column("image")["data_ptr"])
        assert as_dict(page_layout(FileSet([reader]))) == by_page(pointers, reader.page_size)
        assert page_layout(FileSet([reader])).num_pages == 60
    with Reader(write_labels(tmp_path / "labels.beton", 50)) as reader:
        assert page_layout(FileSet([reader])).num_elements == 50


def _pages_read(path, loader) -> set[int]:
    with Reader(path) as reader:
        pointers = np.asarray(reader.column("image")["data_ptr"])
        return {int(pointers[index]) // reader.page_size for batch in loader for index in batch.indices}


@pytest.mark.parametrize("tail", ["pad", "even"])
def test_two_nodes_of_two_ranks_each_read_half_of_the_file(paged_file, monkeypatch, tail):
    seen: list[int] = []
    for node in range(2):
        pages: set[int] = set()
        for local in range(2):
            # As torchrun sets them on two machines with two processes each.
            for name, value in (("RANK", 2 * node + local), ("WORLD_SIZE", 4), ("LOCAL_WORLD_SIZE", 2),
                                ("GROUP_RANK", node), ("LOCAL_RANK", local)):  # fmt: skip
                monkeypatch.setenv(name, str(value))
            loader = Loader(
                paged_file, batch_size=9, shuffle="pages", window_pages=6, tail=tail, num_workers=1, fields=["label"]
            )
            assert len(loader) == -(-480 // 9)
            seen += [index for batch in loader for index in batch.indices[: batch.num_valid].tolist()]
            loader.set_epoch(0)
            pages |= _pages_read(paged_file, loader)
        assert len(pages) <= 0.55 * 60
    assert sorted(seen) == list(range(60 * 32))


def test_a_saved_state_resumes_on_the_same_and_on_another_number_of_nodes(paged_file):
    def leg(state, nodes, local, steps):
        seen = []
        for rank in range(nodes * local):
            loader = Loader(
                paged_file, batch_size=50, shuffle="pages", window_pages=6, tail="even", num_workers=1,
                fields=["label"], rank=rank, world_size=nodes * local, num_nodes=nodes,
            )  # fmt: skip
            if state is not None:
                loader.load_state_dict(state)
            for number, batch in enumerate(loader, 1):
                seen += batch.indices.tolist()
                if number == steps:
                    break
            last = loader.state_dict()
        return seen, last

    one, state = leg(None, 2, 2, 2)
    same, _ = leg(state, 2, 1, None)
    assert sorted(one + same) == list(range(60 * 32))
    other, state = leg(state, 3, 1, 2)
    assert state["nodes"].startswith("2:") and state["nodes"].endswith(" 3")
    rest, _ = leg(state, 1, 2, None)
    assert sorted(one + other + rest) == list(range(60 * 32))


def test_images_of_a_page_order_are_those_of_their_indices(tmp_path):
    path = tmp_path / "raw.beton"
    with Writer(path, {"image": ImageField(), "label": IntField()}, num_samples=50, page_size=1 << 21) as writer:
        for k in range(50):
            writer.append({"image": raw(np.full((300, 300, 3), k, np.uint8)), "label": k})
    loader = Loader(path, batch_size=8, shuffle="pages", window_pages=2, seed=3)
    seen = []
    for images, labels in loader:
        assert (images == labels[:, None, None, None]).all()
        seen += labels.tolist()
    assert sorted(seen) == list(range(50)) != seen


# ---- quality


def test_the_default_window_shuffles_a_class_sorted_file_nearly_like_a_true_shuffle():
    """Tracker #304: 1,000 classes one after another, 4 pages each; batches of 16."""
    num_classes, per_class = 1000, 80
    labels = np.repeat(np.arange(num_classes), per_class)
    layout = PageLayout.from_sorted_pointers(np.arange(len(labels), dtype=np.uint64), 20)
    small, default = measure_windows(layout, labels, batch_size=16, windows=[16, DEFAULT_WINDOW_PAGES], num_batches=600)
    assert default.quality.missing_classes < 0.5
    assert small.quality.missing_classes > 2
    assert abs(default.quality.rank_correlation) < 0.05
    assert default.window_bytes == DEFAULT_WINDOW_PAGES * 20


def test_a_loader_with_the_default_window_gives_nearly_the_classes_of_a_true_shuffle(tmp_path):
    """1,000 classes one after another on more pages than a window has; the images are holes."""
    path = make_huge_file(tmp_path / "sorted.beton", 20_000, image_bytes=200_000, page_size=1 << 21)
    with Reader(path) as reader:
        start, table = reader.header.table_start, reader.table.copy()
        table[f"f{list(reader.fields).index('label')}"] = np.arange(20_000) // 20
    with path.open("r+b") as file:
        file.seek(start)
        file.write(table.tobytes())
    loader = Loader(path, batch_size=16, shuffle="pages", fields=["label"], num_workers=1)
    quality = loader.shuffle_quality()
    assert quality.num_classes == 1000
    assert abs(quality.missing_classes) < 0.5  # of the very batches it would give; reading them would fill 4 GB


def test_the_expectation_of_a_true_shuffle_is_what_shuffles_give_on_average():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), rng.integers(1, 20, 30))
    counts = np.bincount(labels)
    drawn = [len(set(rng.permutation(labels)[:12].tolist())) for _ in range(4000)]
    assert abs(np.mean(drawn) - expected_distinct(counts, 12)) < 5 * np.std(drawn) / np.sqrt(4000)


def test_file_order_and_a_true_shuffle_are_told_apart():
    labels = np.arange(4000) // 40
    in_order = measure_shuffle(np.split(np.arange(4000), 250), labels, 4000)
    assert in_order.rank_correlation > 0.999
    assert in_order.neighbour_distance < 0.01
    assert in_order.mean_distinct_classes < 2
    shuffled = measure_shuffle(np.split(np.random.default_rng(1).permutation(4000), 250), labels, 4000)
    assert abs(shuffled.rank_correlation) < 0.08
    assert abs(shuffled.neighbour_distance - 1) < 0.05
    assert abs(shuffled.missing_classes) < 0.15
    assert "distinct classes" in str(shuffled)


def test_the_loader_measures_its_own_batches(paged_file, tmp_path):
    options = {"batch_size": 16, "num_workers": 1, "fields": ["label"]}
    assert Loader(paged_file, **options).shuffle_quality().rank_correlation > 0.99
    quality = Loader(paged_file, shuffle="pages", window_pages=20, **options).shuffle_quality(epoch=2, num_batches=50)
    assert quality.num_batches == 50
    assert abs(quality.rank_correlation) < 0.3
    assert quality.num_classes == 50 * 16  # every label is its own class in this file
    whole = Loader(paged_file, shuffle="pages", **options).shuffle_quality()
    assert whole.missing_classes == pytest.approx(0, abs=1e-9)


def test_windows_of_a_file_are_compared_without_its_images(paged_file):
    found = compare_windows(paged_file, batch_size=8, num_batches=40)
    assert [each.window_pages for each in found] == [1, 2, 4, 8, 16, 32, 60]
    assert found[-1].window_bytes == 60 << 21
    distances = [each.quality.neighbour_distance for each in found]
    assert distances[0] < 0.1 < 0.8 < distances[-1]
    with pytest.raises(UsageError, match="windows="):
        compare_windows(paged_file, batch_size=8, windows=[0])
    with pytest.raises(UsageError, match="batch_size=0"):
        compare_windows(paged_file, batch_size=0)
