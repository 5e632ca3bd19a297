"""Labels mean the same in training and validation data, and are classes, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloading import ImageField, IntField, UsageError, Writer
from train.classes import check_labels, listed, match_classes
from train.compare.runs import CompareOptions, run_comparison
from train.options import make_options
from train.trainer import run_training

from .conftest import SMALL, only, train_here


class Data:
    """A data set that is nothing but its classes and labels."""

    def __init__(self, path: str, classes: list[str], *, named: bool = True, labels: tuple[int, ...] = ()) -> None:
        self.path, self.classes, self.named = path, classes, named
        self._labels = np.array(labels, np.int64)

    def labels(self) -> np.ndarray:
        return self._labels


TRAIN = Data("train", ["cat", "dog", "fox"])


@pytest.mark.parametrize(
    ("classes", "numbers"),
    [
        (["cat", "dog", "fox"], None),
        (["dog", "fox"], [1, 2]),
        (["fox", "cat", "dog"], [2, 0, 1]),
        (["cat"], [0]),
    ],
)
def test_validation_classes_get_the_training_datas_numbers(classes: list[str], numbers: list[int] | None) -> None:
    assert match_classes(TRAIN, Data("val", classes)) == numbers


@pytest.mark.parametrize(
    ("train", "val", "words"),
    [
        (TRAIN, Data("val", ["cat", "owl"]), r"val has 1 class that train lacks \(owl\).*cat, dog, fox.*cat, owl"),
        (TRAIN, Data("val", ["0", "1", "2"], named=False), "val has no class names .*--class-names-from train"),
        (Data("train", ["0", "1"], named=False), Data("val", ["a", "b"]), "train has no class names .*from val"),
        (Data("t", ["0", "1"], named=False), Data("v", ["0"], named=False), "pass --num-classes"),
        (Data("train", ["a", "a", "b"]), Data("val", ["b", "a"]), "train lists a more than once"),
    ],
)
def test_labels_that_cannot_be_matched_are_refused_with_both_lists(train: Data, val: Data, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        match_classes(train, val)


def test_numbers_without_names_are_taken_as_they_are_where_the_user_says_how_many() -> None:
    few, many = (Data(path, ["0"] * count, named=False) for path, count in (("few", 2), ("many", 3)))
    assert match_classes(many, few, num_classes=3) is None
    assert match_classes(few, Data("other", ["0"] * 2, named=False)) is None


def test_long_lists_are_shortened() -> None:
    assert listed([f"c{number}" for number in range(1000)]) == "c0, c1, c2, c3, c4, ... c999"


def test_a_label_outside_names_the_first_sample_and_counts_the_others() -> None:
    check_labels(Data("ok", ["a", "b"], labels=(0, 1, 1)), 2)
    with pytest.raises(UsageError, match=r"^m: sample 1 has the label 7; labels must be 0 to 2; 1 other sample"):
        check_labels(Data("m", ["a"] * 3, labels=(2, 7, -1)), 3)
    with pytest.raises(UsageError, match=r"^m: sample 0 has the label -1; labels must be at least 0$"):
        check_labels(Data("m", [], labels=(-1,)), 0)


def write(path: Path, labels: list[int], names: list[str] | None) -> Path:
    """Write images whose shade tells their class: that of the name where there are names."""
    fields = {"image": ImageField(), "label": IntField()}
    with Writer(path, fields, num_samples=len(labels), class_names=names) as writer:
        for label in labels:
            shade = label if names is None or label < 0 else ["cat", "dog", "fox"].index(names[label])
            writer.append({"image": np.full((40, 40, 3), 40 + 80 * max(shade, 0), np.uint8), "label": label})
    return path


@pytest.mark.parametrize("loader", ["beton", "torch", "torch-fast"])
def test_a_validation_set_that_lists_other_classes_scores_as_if_it_did_not(
    loader: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write(tmp_path / "train.beton", [0, 1, 2] * 9, ["cat", "dog", "fox"])
    same = write(tmp_path / "same.beton", [1, 2, 2, 1, 2], ["cat", "dog", "fox"])
    other = write(tmp_path / "other.beton", [1, 0, 0, 1, 0], ["fox", "dog"])
    values = {"data": str(train), "loader": loader, "epochs": 1}
    expected = only(train_here(tmp_path / "a", val=str(same), **values), "eval")
    assert "matched by name" not in capsys.readouterr().err
    records = only(train_here(tmp_path / "b", val=str(other), **values), "eval")
    assert [record["loss"] for record in records] == pytest.approx([record["loss"] for record in expected])
    assert capsys.readouterr().err.count("matched by name (fox 0 -> 2)") == 1


@pytest.mark.parametrize("loader", ["beton", "torch", "torch-fast", "ffcv"])
@pytest.mark.parametrize("place", ["data", "val"])
def test_a_label_that_is_no_class_is_refused_before_training(loader: str, place: str, tmp_path: Path) -> None:
    paths = {"data": write(tmp_path / "t.beton", [0, 1, 2], None), "val": write(tmp_path / "v.beton", [2, 1], None)}
    paths[place] = write(tmp_path / "m.beton", [-1, 2], None)
    values = {**SMALL, "loader": loader, **{name: str(path) for name, path in paths.items()}}
    with pytest.raises(UsageError, match=r"m.beton: sample 0 has the label -1; labels must be 0 to 2$"):
        run_training(make_options(**values), {})


def test_compare_refuses_before_the_first_run(tmp_path: Path) -> None:
    train = write(tmp_path / "train.beton", [0, 1, 2], ["cat", "dog", "fox"])
    stock = write(tmp_path / "stock.beton", [0, 1], ["cat", "dog"])
    unlabelled = write(tmp_path / "u.beton", [-1, -1], None)
    said: list[str] = []

    def compare(data: Path, **others: Any) -> None:
        training = {"data": str(data), "steps": 6, **others.pop("training", {})}
        options = CompareOptions(loaders=("torch", "beton"), out=str(tmp_path), training=training, **others)
        run_comparison(options, progress=said.append)

    with pytest.raises(UsageError, match="sample 0 has the label -1"):
        compare(unlabelled)
    with pytest.raises(UsageError, match=r"lacks \(fox\)"):
        compare(train, stock_data=str(stock))
    with pytest.raises(UsageError, match="has no class names"):
        compare(train, training={"val": str(unlabelled)})
    assert not said
