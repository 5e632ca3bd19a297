"""One iterator in the hands of several, or in hands it was not made for: right batches, or an error at once."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import threading
import traceback
import warnings
from collections.abc import Callable

import pytest

from dataloading import Loader, UsageError
from tests.support.files import write_labels


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_labels(tmp_path_factory.mktemp("iterators") / "labels.beton", 100)


def loader_of(path, **options) -> Loader:
    return Loader(path, batch_size=4, num_workers=2, shuffle="global", **options)


def in_child(work: Callable[[], None]) -> None:
    """Run in a forked process, which must end well within some seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forking with threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            threading.Timer(20, os._exit, (2,)).start()
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_that_share_an_iterator_get_every_sample_once_and_all_come_to_the_end(path):
    loader = loader_of(path)
    for epoch in range(5):
        batches, ends, iterator = [], [], iter(loader)

        def work(batches=batches, ends=ends, iterator=iterator) -> None:
            try:
                batches.extend(iterator)
                ends.append("end")
            except BaseException as error:
                ends.append(repr(error))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert ends == ["end"] * 4
        assert sorted(index for batch in batches for index in batch.indices.tolist()) == list(range(100))
        assert sorted(batch.step for batch in batches) == list(range(25))
        assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) in [(epoch + 1, 0), (epoch, 100)]


def test_a_forked_child_cannot_go_on_with_its_parents_iterator_and_the_parent_can(path):
    loader = loader_of(path)
    iterator = iter(loader)
    seen = [*next(iterator).indices.tolist()]

    def work() -> None:
        with pytest.raises(UsageError, match=r"begun in process \d+.*forked from it: begin another here with iter"):
            next(iterator)

    in_child(work)
    for batch in iterator:
        seen += batch.indices.tolist()
    assert sorted(seen) == list(range(100))


def test_a_child_forked_in_the_middle_of_an_iteration_makes_one_of_its_own(path):
    loader = loader_of(path)
    iterator = iter(loader)
    next(iterator)

    def work() -> None:
        loader.set_epoch(3)
        indices = [index for batch in loader for index in batch.indices.tolist()]
        assert sorted(indices) == list(range(100))
        loader.close()

    in_child(work)
    assert sum(len(batch["label"]) for batch in iterator) == 96


def test_a_child_forked_while_threads_iterate_neither_hangs_nor_repeats(path):
    loader = loader_of(path)
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            list(loader_of(path))

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        for _ in range(5):
            in_child(lambda: _assert_whole(loader))
    finally:
        stop.set()
        thread.join()


def _assert_whole(loader: Loader) -> None:
    assert sorted(index for batch in loader for index in batch.indices.tolist()) == list(range(100))


def test_a_child_of_a_loader_with_a_cache_of_its_own_is_told_to_make_another_loader(path):
    loader = loader_of(path, os_cache=False)
    next(iter(loader))

    def work() -> None:
        with pytest.raises(UsageError, match="make it in the process that iterates it"):
            list(loader)

    in_child(work)
    _assert_whole(loader)


def test_a_child_forked_from_another_thread_than_the_main_one_can_iterate(path):
    loader = loader_of(path)
    list(loader)
    failures = []

    def work() -> None:
        try:
            in_child(lambda: _assert_whole(loader))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []


def test_an_iterator_whose_loader_was_closed_says_so_and_the_loader_goes_on(path):
    loader = loader_of(path)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    for _ in range(2):
        with pytest.raises(UsageError, match=r"the loader was closed while this iteration was under way.*iter\(loader"):
            next(iterator)
    _assert_whole(loader)


def test_an_iterator_that_was_over_stays_over_when_its_loader_is_closed(path):
    loader = loader_of(path)
    iterator = iter(loader)
    list(iterator)
    loader.close()
    assert list(iterator) == []


def test_a_thread_that_waits_for_a_batch_is_told_when_the_loader_is_closed(path):
    persistent = threading.Event()

    class Slow:
        def __len__(self) -> int:
            return 100

        def __iter__(self):
            persistent.wait(120)
            return iter(range(100))

    loader = Loader(path, batch_size=4, num_workers=1, sampler=Slow())
    found = []

    def work() -> None:
        try:
            next(iterator)
        except UsageError as error:
            found.append(str(error))

    iterator = iter(loader)
    thread = threading.Thread(target=work)
    thread.start()
    threading.Timer(0.2, persistent.set).start()
    loader.close()
    thread.join(120)
    assert len(found) <= 1
    assert all("the loader was closed" in each for each in found)
    assert not thread.is_alive()


def test_an_iterator_begun_before_load_state_dict_cannot_overwrite_the_place(path):
    loader = loader_of(path)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    next(iterator)
    loader.load_state_dict(state)
    with pytest.raises(UsageError, match=r"place was set by load_state_dict\(\) after this iteration had begun"):
        next(iterator)
    assert loader.state_dict() == state
    assert sum(len(batch["label"]) for batch in loader) == 88


def test_an_iterator_cannot_be_pickled_or_copied(path):
    iterator = iter(loader_of(path))
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cannot be pickled or copied: make another with iter\(loader\)"):
            attempt(iterator)


def test_a_loader_cannot_be_sent_to_a_spawned_process(path):
    process = multiprocessing.get_context("spawn").Process(target=list, args=(loader_of(path),))
    with pytest.raises(TypeError, match="make one in each process"):
        process.start()


def test_next_within_next_of_the_same_iterator_is_refused(path):
    iterators = []
    loader = loader_of(path, transforms={"label": [lambda labels: next(iterators[0])["label"]]})
    iterators.append(iter(loader))
    with pytest.raises(Exception, match=r"next\(\) of the same iterator is waiting for"):
        next(iterators[0])
    assert list(iterators[0]) == []


def test_two_iterators_of_one_loader_end_independently(path):
    loader = loader_of(path)
    one, two = iter(loader), iter(loader)
    first = [batch.indices.tolist() for batch in one]
    assert [batch.indices.tolist() for batch in two] == first
    _assert_whole(loader)
