"""`write` takes what Python datasets deliver, and says what it got when that does not fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import converters
from converters.dataset import by_name
from converters.sources.base import SampleFault
from dataloading import (
    BytesField,
    ConvertError,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    NDArrayField,
    Reader,
    TorchTensorField,
    UsageError,
    decode_jpeg,
)

from .making import encoded, photo, pillow_pixels

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {"image": ImageField(), "label": IntField()}


def write(dataset: Any, path: Path, fields: Any = FIELDS, **options: Any) -> Any:
    return converters.write(dataset, path, fields, **{"num_workers": 0, "quiet": True} | options)


class Photos:
    """Tuples of a Pillow image and a label, as torchvision's datasets give; picklable."""

    classes = ("zero", "one")

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return photo(20 + index, 16, seed=index), index % 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_tuples_of_pillow_image_and_label(tmp_path: Path, num_workers: int) -> None:
    report = write(Photos(), tmp_path / "o.beton", images=converters.ImagePolicy(mode="raw"), num_workers=num_workers)
    assert (report.num_samples, report.kinds) == (6, {"raw": 6})
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.column("label").tolist() == [0, 1] * 3
        assert reader.extension is not None
        assert reader.extension.class_names == ("zero", "one")
        for index in range(6):
            image = reader.value("image", index)
            got = np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, 3)
            np.testing.assert_array_equal(got, np.asarray(photo(20 + index, 16, seed=index)))


def test_every_kind_of_field_and_jpeg_bytes_that_are_kept(tmp_path: Path) -> None:
    data = encoded(photo(30, 20), "JPEG")
    fields = {
        "image": ImageField(),
        "score": FloatField(),
        "raw": BytesField(),
        "meta": JSONField(),
        "box": NDArrayField(np.dtype("float32"), (4,)),
    }
    box = np.arange(4, dtype=np.float32)
    sample = {"box": box, "image": data, "score": 0.5, "raw": b"xyz", "meta": {"a": [1]}}
    report = write([sample], tmp_path / "o.beton", fields)
    assert report.kinds == {"transcoded": 1}
    with Reader(tmp_path / "o.beton") as reader:
        np.testing.assert_array_equal(decode_jpeg(reader.value("image", 0).data), pillow_pixels(data))
        assert reader.value("score", 0) == 0.5
        assert reader.value("raw", 0) == b"xyz"
        assert reader.value("meta", 0) == {"a": [1]}
        np.testing.assert_array_equal(reader.value("box", 0), box)


@pytest.mark.parametrize(
    ("sample", "names", "expected"),
    [
        ((1, 2), ("a", "b"), {"a": 1, "b": 2}),
        ([1, 2], ("a", "b"), {"a": 1, "b": 2}),
        ({"b": 2, "a": 1}, ("a", "b"), {"a": 1, "b": 2}),
        (5, ("a",), {"a": 5}),
        ((5,), ("a",), {"a": 5}),
        ({"a": 5}, ("a",), {"a": 5}),
        ({"x": 1}, ("a",), {"a": {"x": 1}}),
        ([1, 2, 3], ("a",), {"a": [1, 2, 3]}),
    ],
)
def test_shapes_of_samples(sample: Any, names: tuple[str, ...], expected: Any) -> None:
    assert by_name(sample, names) == expected


@pytest.mark.parametrize(
    ("sample", "got"),
    [
        ((1, 2, "x"), r"tuple of 2 values.*got 3 \(int, int, str\)"),
        ({"a": 1, "c": 2}, r"keys \['a', 'b'\].*\['a', 'c'\]"),
        ({"a": 1, "b": 2, "c": 3}, "keys"),
        (7, "tuple or dict.*got int"),
        (None, "got NoneType"),
    ],
)
def test_samples_that_do_not_fit_are_described(sample: Any, got: str) -> None:
    with pytest.raises(SampleFault, match=got):
        by_name(sample, ("a", "b"))


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (1.5, r"sample 1 \(list\[1\]\): field 'label': expected a whole number, got .*float"),
        ("3", "field 'label'.*str"),
    ],
)
def test_values_that_do_not_fit_their_field_name_sample_and_field(tmp_path: Path, value: Any, got: str) -> None:
    with pytest.raises(ConvertError, match=got):
        write([(3,), (value,)], tmp_path / "o.beton", {"label": IntField()})
    assert write([(3,), (value,)], tmp_path / "o.beton", {"label": IntField()}, on_error="skip").num_samples == 1


def test_an_exception_in_the_dataset_is_told_with_its_sample(tmp_path: Path) -> None:
    class Broken:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return (1 // (index - 2),)

    with pytest.raises(ConvertError, match=r"sample 2 \(Broken\[2\]\): ZeroDivisionError"):
        write(Broken(), tmp_path / "o.beton", {"label": IntField()})


def test_a_dataset_that_cannot_travel_is_a_usage_error_with_the_way_out(tmp_path: Path) -> None:
    dataset: Any = [(lambda: 1,)]
    with pytest.raises(UsageError, match="num_workers=0"):
        write(dataset, tmp_path / "o.beton", {"label": IntField()}, num_workers=1)


@pytest.mark.parametrize(
    ("dataset", "fields", "message"),
    [
        (iter([1]), {"label": IntField()}, "list_iterator"),
        ([1], {}, "fields is empty"),
        ([1], {"label": int}, "must be a field such as IntField"),
    ],
)
def test_what_is_no_dataset_or_field_is_refused(tmp_path: Path, dataset: Any, fields: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write(dataset, tmp_path / "o.beton", fields)


def test_a_script_without_main_guard_is_told_what_to_add(tmp_path: Path) -> None:
    script = tmp_path / "naive.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport converters\nfrom dataloading import IntField\n"
        f"converters.write([(1,), (2,)], {str(tmp_path / 'o.beton')!r}, {{'label': IntField()}}, num_workers=1)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert 'A script that converts needs `if __name__ == "__main__":`' in done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["naive.py"]


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("photos/", "got str 'photos/'; `beton convert` reads files"),
        (Path("x.npz"), "`beton convert` reads files"),
        ({"image": [1], "label": [2]}, r"got a dict with the keys \['image', 'label'\].*StackDataset"),
        (np.array(3), "a dataset needs len\\(\\), which ndarray refuses"),
        ((number for number in range(3)), "got generator; put an iterable's samples in a list"),
        (None, "got NoneType"),
    ],
)
def test_each_kind_of_no_dataset_is_told_its_way_out(tmp_path: Path, dataset: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        write(dataset, tmp_path / "o.beton", {"label": IntField()})
    assert not list(tmp_path.iterdir())


def test_a_data_frame_and_iterable_datasets_are_refused_by_name(tmp_path: Path) -> None:
    import datasets
    import pandas as pd
    import torch

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter([1])

        def __len__(self) -> int:
            return 1

    with pytest.raises(UsageError, match=r"a DataFrame gives columns by \[..\], not samples"):
        write(pd.DataFrame({"label": [1]}), tmp_path / "o.beton", {"label": IntField()})
    with pytest.raises(UsageError, match="got Stream; put an iterable's samples in a list"):
        write(Stream(), tmp_path / "o.beton", {"label": IntField()})
    streamed = datasets.Dataset.from_dict({"label": [1]}).to_iterable_dataset()
    with pytest.raises(UsageError, match="got IterableDataset"):
        write(streamed, tmp_path / "o.beton", {"label": IntField()})


def test_fields_that_are_no_dict_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fields must be a dict such as"):
        write([1], tmp_path / "o.beton", [IntField()])


def test_arrays_lists_and_tensors_are_datasets(tmp_path: Path) -> None:
    import torch

    images = np.random.default_rng(0).integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
    raw = converters.ImagePolicy(mode="raw")
    write(images, tmp_path / "a.beton", {"image": ImageField()}, images=raw)
    with Reader(tmp_path / "a.beton") as reader:
        assert bytes(reader.value("image", 2).data) == images[2].tobytes()
    write(np.arange(4), tmp_path / "b.beton", {"label": IntField()})
    write([0, 1, 2, 3], tmp_path / "c.beton", {"label": IntField()})
    # In more than one worker: torch would hand its tensors over once.
    stacked = torch.utils.data.TensorDataset(torch.arange(4), torch.arange(8.0).reshape(4, 2))
    fields = {"label": IntField(), "pair": TorchTensorField(torch.float32, (2,))}
    write(stacked, tmp_path / "d.beton", fields, num_workers=2)
    with Reader(tmp_path / "d.beton") as reader:
        np.testing.assert_array_equal(reader.value("pair", 3), np.array([6, 7], np.float32))
    for name in "bcd":
        with Reader(tmp_path / f"{name}.beton") as reader:
            assert reader.column("label").tolist() == [0, 1, 2, 3]


def hugging_face() -> Any:
    import datasets

    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "other": datasets.Value("string"),
        }
    )
    rows = {
        "image": [{"bytes": encoded(photo(20, 10, seed=seed), "JPEG"), "path": None} for seed in range(3)],
        "label": [0, 1, 0],
        "other": ["a", "b", "c"],
    }
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_hugging_face_datasets_keep_their_jpegs_and_class_names(tmp_path: Path, num_workers: int) -> None:
    report = write(hugging_face(), tmp_path / "o.beton", num_workers=num_workers)
    assert report.kinds == {"transcoded": 3}
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.extension is not None
        assert reader.extension.class_names == ("cat", "dog")
        assert reader.column("label").tolist() == [0, 1, 0]
        for index in range(3):
            expected = pillow_pixels(encoded(photo(20, 10, seed=index), "JPEG"))
            np.testing.assert_array_equal(decode_jpeg(reader.value("image", index).data), expected)
    with pytest.raises(UsageError, match="no column 'labels'; it has image, label, other"):
        write(hugging_face(), tmp_path / "p.beton", {"labels": IntField()})


def test_a_hugging_face_dataset_with_a_transform_gives_what_the_transform_gives(tmp_path: Path) -> None:
    dataset = hugging_face()
    dataset.set_transform(lambda batch: {"label": [label + 10 for label in batch["label"]]})
    write(dataset, tmp_path / "o.beton", {"label": IntField()})
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.column("label").tolist() == [10, 11, 10]
