"""The place in a run: saved, found again, refused where it does not fit."""

from __future__ import annotations

import itertools
import json

import pytest

from dataloading import Loader
from dataloading.errors import StateError
from tests.support.files import write_labels
from tests.support.loading import TRAIN


@pytest.mark.parametrize("stop", [1, 4, 8])
def test_a_saved_state_resumes_at_the_next_batch(photos_file, stop):
    options = {"batch_size": 8, "shuffle": "global", "seed": 2, "transforms": {"image": TRAIN}, "num_workers": 2}
    whole = Loader(photos_file, **options)
    whole.set_epoch(4)
    want = [batch["image"].numpy().tobytes() for batch in whole]
    first = Loader(photos_file, **options)
    first.set_epoch(4)
    for _ in itertools.islice(first, stop):
        pass
    state = json.loads(json.dumps(first.state_dict()))
    second = Loader(photos_file, **(options | {"num_workers": 3, "prefetch_batches": 7}))
    second.load_state_dict(state)
    second.set_epoch(4)  # as a training loop does
    assert [batch["image"].numpy().tobytes() for batch in second] == want[stop:]
    assert next(iter(second)).epoch == 5


def test_a_state_resumes_on_another_world_size_with_every_sample_once(labels_file):
    def leg(state, world, steps):
        seen, saved = [], None
        for rank in range(world):
            loader = Loader(labels_file, batch_size=5, shuffle="global", tail="even", rank=rank, world_size=world)
            if state is not None:
                loader.load_state_dict(state)
            for batch in itertools.islice(loader, steps):
                seen += batch.indices.tolist()
            saved = loader.state_dict()
        return seen, saved

    one, state = leg(None, 2, 3)
    two, state = leg(state, 3, 2)
    three, _ = leg(state, 1, None)
    assert sorted(one + two + three) == list(range(100))


def test_a_finished_epoch_saves_the_start_of_the_next(labels_file):
    loader = Loader(labels_file, batch_size=30)
    for _ in loader:
        pass
    state = loader.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"seed": 9}, "another seed"), ({"shuffle": "none"}, "order options"), ({"indices": [1, 2]}, "order options")],
)
def test_a_state_of_other_options_is_refused_with_both_values(labels_file, change, words):
    options = {"batch_size": 5, "shuffle": "global", "seed": 1}
    state = Loader(labels_file, **options).state_dict()
    with pytest.raises(StateError, match=words):
        Loader(labels_file, **(options | change)).load_state_dict(state)


def test_a_state_of_other_data_is_refused(labels_file, tmp_path):
    state = Loader(labels_file, batch_size=5).state_dict()
    with pytest.raises(StateError, match="another dataset"):
        Loader(write_labels(tmp_path / "other.beton", 99), batch_size=5).load_state_dict(state)
    with pytest.raises(StateError, match="not a state"):
        Loader(labels_file, batch_size=5).load_state_dict({"epoch": 3})
    with pytest.raises(StateError, match="got NoneType, expected what state_dict"):
        Loader(labels_file, batch_size=5).load_state_dict(None)


@pytest.mark.parametrize("nodes", ["x", "", "0", "0:10 1", "2:10 -1", "2:20 3:10 1", "2:0 1"])
def test_a_state_with_impossible_nodes_is_refused(labels_file, nodes):
    loader = Loader(labels_file, batch_size=5, shuffle="pages")
    with pytest.raises(StateError, match="is not of the form '2:480 3'"):
        loader.load_state_dict({**loader.state_dict(), "consumed": 30, "nodes": nodes})
