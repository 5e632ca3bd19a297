"""Merging keeps order and class names; splitting is disjoint, complete, stratified, and a function of the seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converters.tools.commands import merge as merge_command
from converters.tools.commands import split as split_command
from converters.tools.commands import upgrade as upgrade_command
from converters.tools.info import info as info_command
from converters.tools.merge import merge
from converters.tools.split import assign, split
from dataloading import IntField, Reader, UsageError, Writer, verify_file
from tests.converters.tools.making import column, contents, run, run_json, strange_files, write_file


def names_of(path: Path | str) -> tuple[str, ...] | None:
    with Reader(path) as reader:
        assert reader.extension is not None
        return reader.extension.class_names


def test_merge_puts_samples_one_file_behind_the_other(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a.beton", [0, 1, 1], class_names=["x", "y"])
    two = write_file(tmp_path / "b.beton", [1, 0], first=50, class_names=["x", "y"])
    facts = run_json(merge_command, tmp_path / "o.beton", two, one, "-q")
    assert facts["num_samples"] == 5 and facts["sources"] == [[str(two), 2], [str(one), 3]]
    assert contents(tmp_path / "o.beton") == contents(two) + contents(one)
    assert names_of(tmp_path / "o.beton") == ("x", "y")
    assert verify_file(tmp_path / "o.beton").ok
    merge(tmp_path / "p.beton", [str(two), str(one)])
    assert (tmp_path / "p.beton").read_bytes() == (tmp_path / "o.beton").read_bytes()


def test_merge_names_the_first_class_that_differs(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a.beton", [0, 1], class_names=["x", "y"])
    two = write_file(tmp_path / "b.beton", [0, 1], class_names=["x", "z"])
    three = write_file(tmp_path / "c.beton", [0, 1], class_names=["x"])
    with pytest.raises(UsageError, match=r"Label 1 is 'y' in .*a\.beton .*and 'z' in .*b\.beton.*--classes union"):
        merge(tmp_path / "o.beton", [str(one), str(two)])
    with pytest.raises(UsageError, match=r"Label 1 is 'y' .* and not a class"):
        merge(tmp_path / "o.beton", [str(one), str(three)])
    with pytest.raises(UsageError, match=r"sample 1 has the label 1, which has no class name \(1 name: 0 to 0\)"):
        merge(tmp_path / "o.beton", [str(three)])
    assert not (tmp_path / "o.beton").exists() and not strange_files(tmp_path)


def test_union_maps_labels_by_name_and_changes_nothing_else(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a.beton", [0, 1, 2], class_names=["dog", "cat", "eel"])
    two = write_file(tmp_path / "b.beton", [0, 1, 2, 2], first=9, class_names=["cat", "ant", "dog"])
    report = merge(tmp_path / "o.beton", [str(one), str(two)], classes="union")
    names = names_of(tmp_path / "o.beton")
    assert names == ("dog", "cat", "eel", "ant")
    assert [names[label] for label in column(tmp_path / "o.beton", "label")] == [
        "dog", "cat", "eel", "cat", "ant", "dog", "dog",
    ]  # fmt: skip
    assert report.num_relabelled == 4 and report.num_classes == 4
    left = contents(tmp_path / "o.beton", without=("label",))
    assert left == contents(one, without=("label",)) + contents(two, without=("label",))


def test_a_file_without_class_names_beside_one_with_names_needs_the_users_word(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a.beton", [0, 1])
    two = write_file(tmp_path / "b.beton", [0, 1], class_names=["x", "y"])
    for files in ([one, two], [two, one]):
        with pytest.raises(
            UsageError, match=r"a\.beton records no class names, .*b\.beton has 2 names.*"
            r"beton upgrade .*a\.beton NEW\.beton --class-names-from .*b\.beton`.*--assume-classes"
        ):  # fmt: skip
            merge(tmp_path / "o.beton", [str(file) for file in files])
    assert not (tmp_path / "o.beton").exists() and not strange_files(tmp_path)
    run_json(merge_command, tmp_path / "o.beton", one, two, "-q", "--assume-classes")
    assert names_of(tmp_path / "o.beton") == ("x", "y")
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.extension is not None
        assert reader.extension.provenance["history"][-1]["assumed_classes_of"] == ["a.beton"]
    assert "class names assumed for a.beton" in run(info_command, tmp_path / "o.beton").stdout
    three = write_file(tmp_path / "c.beton", [0, 2])
    with pytest.raises(
        UsageError, match=r"c\.beton: sample 1 has the label 2, which has no class name \(2 names: 0 to 1\)"
    ):
        merge(tmp_path / "p.beton", [str(two), str(three)], assume_classes=True)


def test_the_users_word_leaves_no_trace_where_it_was_not_needed(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a.beton", [0, 1], class_names=["x", "y"])
    two = write_file(tmp_path / "b.beton", [0, 1], class_names=["x", "y"])
    for name, assume in (("o", False), ("p", True)):
        merge(tmp_path / f"{name}.beton", [str(one), str(two)], assume_classes=assume)
    assert (tmp_path / "o.beton").read_bytes() == (tmp_path / "p.beton").read_bytes()


def test_a_union_needs_every_files_names(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a.beton", [0, 1])
    two = write_file(tmp_path / "b.beton", [0, 1], class_names=["x", "y"])
    with pytest.raises(UsageError, match=r"a\.beton records no class names"):
        merge(tmp_path / "p.beton", [str(one), str(two)], classes="union")
    with pytest.raises(UsageError, match="assume_classes requires classes='equal'"):
        merge(tmp_path / "p.beton", [str(two)], classes="union", assume_classes=True)


def test_the_way_out_of_the_message_works(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a.beton", [0, 1])
    two = write_file(tmp_path / "b.beton", [0, 1], class_names=["x", "y"])
    words = [str(tmp_path / "named.beton"), "--class-names-from", str(two), "-q", "--num-workers", "0"]
    assert run(upgrade_command, one, *words).exit_code == 0
    merge(tmp_path / "o.beton", [str(tmp_path / "named.beton"), str(two)])
    assert names_of(tmp_path / "o.beton") == ("x", "y")
    with pytest.raises(UsageError, match=r"a\.beton records no class names to take"):
        run(upgrade_command, two, tmp_path / "q.beton", "--class-names-from", one)


def test_merge_does_not_replace_its_own_source(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a.beton", [0])
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="is being read"):
            merge(one, [str(one)], overwrite=overwrite)
    with pytest.raises(UsageError, match="named twice"):
        run(merge_command, tmp_path / "o.beton", one, one)


@settings(max_examples=200, deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=300),
    shares=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=6),
    seed=st.integers(0, 2**63 - 1),
    stratify=st.booleans(),
)
def test_every_part_gets_its_share_of_all_and_of_every_class(
    labels: list[int], shares: list[float], seed: int, stratify: bool
) -> None:
    array = np.array(labels, np.int64)
    where = assign(len(labels), shares, seed=seed, labels=array if stratify else None)
    assert len(where) == len(labels) and where.min() >= 0 and where.max() < len(shares)
    np.testing.assert_array_equal(where, assign(len(labels), shares, seed=seed, labels=array if stratify else None))
    weights = np.array(shares) / sum(shares)
    # Taking turns by due dates keeps each part within one of its share, up to the last turns of many uneven parts.
    slack = 1.0 if len(shares) <= 2 else 2.0
    counts = np.bincount(where, minlength=len(shares))
    assert (np.abs(counts - weights * len(labels)) <= slack).all()
    if stratify:
        for label in set(labels):
            own = np.bincount(where[array == label], minlength=len(shares))
            assert (np.abs(own - weights * own.sum()) <= 2 * slack).all()


@settings(max_examples=100, deadline=None)
@given(
    groups=st.lists(st.integers(0, 30), min_size=1, max_size=200),
    num_parts=st.integers(1, 4),
    seed=st.integers(0, 2**63 - 1),
)
def test_groups_stay_together_and_parts_stay_even(groups: list[int], num_parts: int, seed: int) -> None:
    array = np.array(groups, np.int64)
    where = assign(len(groups), [1.0] * num_parts, seed=seed, groups=array)
    for group in set(groups):
        assert len(set(where[array == group].tolist())) == 1
    counts = np.bincount(where, minlength=num_parts)
    assert counts.max() - counts.min() <= np.bincount(array).max()


def test_other_seeds_give_other_parts_and_no_order_of_the_file_shines_through() -> None:
    first, second = (assign(1000, [0.5, 0.5], seed=seed) for seed in (0, 1))
    assert 400 < np.count_nonzero(first == second) < 600
    assert 200 < np.count_nonzero(first[:500] == 0) < 300


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_parts_are_disjoint_and_complete(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("split")
    count = data.draw(st.integers(6, 60))
    labels = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    with Writer(folder / "a.beton", {"id": IntField(), "label": IntField()}, num_samples=count) as writer:
        for index, label in enumerate(labels):
            writer.append({"id": index, "label": label})
    how: dict[str, Any] = data.draw(
        st.sampled_from([{"ratio": [0.5, 0.3, 0.2]}, {"folds": 3}, {"by_class": True}, {"ratio": [1.0]}])
    )
    report = split(folder / "a.beton", out=str(folder / "{index}.beton"), seed=data.draw(st.integers(0, 99)), **how)
    parts = [column(part.path, "id") for part in report.parts]
    assert sorted(index for part in parts for index in part) == list(range(count))
    assert all(part == sorted(part) for part in parts)
    for part, ids in zip(report.parts, parts, strict=True):
        assert column(part.path, "label") == [labels[index] for index in ids]
        assert part.num_samples == len(ids)


def test_split_by_class_makes_a_file_for_each_and_keeps_all_names(tmp_path: Path) -> None:
    labels = [2, 0, 2, 1, 0, 2]
    source = write_file(tmp_path / "a.beton", labels, class_names=["../x", "b/c", "plain"])
    report = run_json(split_command, source, "--by-class", "--out", tmp_path / "o-{name}.beton", "-q")
    paths = [Path(part["path"]) for part in report["parts"]]
    assert [path.name for path in paths] == ["o-_.._x.beton", "o-b_c.beton", "o-plain.beton"]
    assert all(path.parent == tmp_path for path in paths)
    everything = contents(source)
    for label, path in enumerate(paths):
        assert contents(path) == [each for each, own in zip(everything, labels, strict=True) if own == label]
        assert names_of(path) == ("../x", "b/c", "plain") and verify_file(path).ok
    merge(tmp_path / "again.beton", [str(path) for path in paths])
    assert sorted(map(repr, contents(tmp_path / "again.beton"))) == sorted(map(repr, everything))


def test_many_parts_are_written_with_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from converters.tools import split as module

    monkeypatch.setattr(module, "_OPEN_AT_ONCE", 3)
    source = write_file(tmp_path / "a.beton", [index % 10 for index in range(40)], names=("label", "blob"))
    report = split(source, out=str(tmp_path / "{index}.beton"), by_class=True)
    assert [column(part.path, "label") for part in report.parts] == [[label] * 4 for label in range(10)]


def test_equal_options_give_equal_bytes_and_the_history_tells_them(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", [index % 3 for index in range(20)])
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        split(source, out=str(tmp_path / name / "{name}.beton"), ratio=[0.8, 0.2], seed=5)
    for part in ("0.8", "0.2"):
        assert (tmp_path / "x" / f"{part}.beton").read_bytes() == (tmp_path / "y" / f"{part}.beton").read_bytes()
    with Reader(tmp_path / "x" / "0.2.beton") as reader:
        assert reader.extension is not None
        [step] = reader.extension.provenance["history"]
        assert (step["command"], step["ratio"], step["seed"], step["part"]) == ("split", [0.8, 0.2], 5, 1)


def test_groups_by_any_field_stay_in_one_part(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", [index % 2 for index in range(40)])
    split(source, out=str(tmp_path / "{index}.beton"), folds=2, group_field="blob")
    with Reader(tmp_path / "0.beton") as one, Reader(tmp_path / "1.beton") as two:
        left, right = ({reader.value("blob", i) for i in range(len(reader))} for reader in (one, two))
    assert left and right and not left & right


def test_a_failing_split_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_file(tmp_path / "a.beton", list(range(10)))
    finish = Writer.finish
    calls = []

    def fail(self: Writer) -> None:
        calls.append(self)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        finish(self)

    monkeypatch.setattr(Writer, "finish", fail)
    with pytest.raises(OSError, match="No space"):
        split(source, out=str(tmp_path / "o-{index}.beton"), folds=3)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.beton"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of ratio, folds and by_class"),
        ({"ratio": [1.0, 1.0], "folds": 2}, "one of ratio, folds and by_class"),
        ({"folds": 1}, "at least 2"),
        ({"folds": 9}, "would have no sample"),
        ({"ratio": [0.5, -1.0]}, "positive numbers"),
        ({"folds": 2, "group_field": "none"}, "has no field 'none'"),
        ({"folds": 2, "out": "same.beton"}, "needs {name} or {index}"),
    ],
)
def test_what_cannot_be_split_is_said(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", [0, 1, 2])
    with pytest.raises(UsageError, match=message):
        split(source, **{"out": str(tmp_path / "{index}.beton"), **options})
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.beton"]


@pytest.mark.parametrize("ratio", ["", "0.5", "a,b", "1,0", "1,-1", "nan,1"])
def test_a_wrong_ratio_is_a_usage_error(ratio: str, tmp_path: Path) -> None:
    done = run(split_command, write_file(tmp_path / "a.beton", [0, 1]), "--ratio", ratio)
    assert done.exit_code == 2 and "is not a list of shares" in done.stderr
