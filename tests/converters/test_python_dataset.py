"""`write` takes what Python datasets deliver, and says what it got when that does not fit."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

import converters
from converters.commands.imagefolder import imagefolder
from converters.images.errors import raised
from converters.python_dataset import by_name
from converters.settings import settings
from converters.source import SampleFault
from dataloading import (
    BytesField,
    ConvertError,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    MaskField,
    NDArrayField,
    RasterField,
    Reader,
    TorchTensorField,
    UsageError,
    decode_image,
)
from dataloading.tools import decode_jpeg
from tests.converters.making import encoded, photo, pillow_pixels

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
    assert (report.num_samples, report.images) == (6, {"raw": 6})
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
    assert report.images == {"transcoded": 1}
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
        (7, "tuple or dict.*got int 7"),
        ("ab", "got str 'ab'"),
        (np.arange(2), "got an int64 array of shape"),
        (None, "got None"),
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

    line = Broken.__getitem__.__code__.co_firstlineno + 1
    with pytest.raises(
        ConvertError,
        match=rf"sample 2 \(Broken\[2\]\): ZeroDivisionError: .* \(test_python_dataset\.py, line {line}\)\. .*"
        r'on_error="skip"',
    ):  # fmt: skip
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
    assert report.images == {"transcoded": 3}
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
    with pytest.raises(ConvertError, match=r"the label 10 has no class name \(2 names: 0 to 1\)"):
        write(dataset, tmp_path / "o.beton", {"label": IntField()})
    write(dataset, tmp_path / "o.beton", {"label": IntField()}, class_names=[])
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.column("label").tolist() == [10, 11, 10]


class Silent:
    """Raises what has no text."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        raise StopIteration


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_exception_without_words_is_named_with_its_line(tmp_path: Path, num_workers: int) -> None:
    line = Silent.__getitem__.__code__.co_firstlineno + 1
    with pytest.raises(
        ConvertError, match=rf"sample 0 \(Silent\[0\]\): StopIteration \(test_python_dataset\.py, line {line}\)"
    ):
        write(Silent(), tmp_path / "o.beton", {"label": IntField()}, num_workers=num_workers)


def test_a_line_of_an_installed_package_is_none_of_the_users() -> None:
    try:
        np.zeros(3).reshape(2, 2)
    except ValueError as error:
        assert re.fullmatch(r"ValueError: cannot reshape .* \(test_python_dataset\.py, line \d+\)", raised(error))
    try:
        exec(compile("1 / 0", "<made up>", "exec"), {})
    except ZeroDivisionError as error:
        error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
        assert raised(error) == "ZeroDivisionError: division by zero"


class Named(NamedTuple):
    label: int
    image: Any


def test_a_named_tuple_goes_by_its_names(tmp_path: Path) -> None:
    data = encoded(photo(8, 6), "JPEG")
    write([Named(label=7, image=data)], tmp_path / "o.beton")
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.value("label", 0) == 7
    assert by_name(Named(1, 2), ("a", "b")) == {"a": 1, "b": 2}, "other names: by their order, as any tuple"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1), (np.bool_(True), 1), (np.array(True), 1), (np.int64(-3), -3), (np.uint8(200), 200), (2**40, 2**40),
        (-(2**63), -(2**63)), (np.array(5), 5),
    ],
)  # fmt: skip
def test_whole_numbers_of_every_kind_are_labels(tmp_path: Path, value: Any, number: int) -> None:
    write([(value,)], tmp_path / "o.beton", {"label": IntField()})
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.value("label", 0) == number


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("cat", "got str 'cat'"),
        (1.0, r"got float 1\.0"),
        (np.float32(2), r"got float32 2\.0"),
        (None, "got None"),
        ([3], r"got list \[3\]"),
        (np.array([3]), r"got an int64 array of shape \(1,\)"),
        (2**63, "the integer 9223372036854775808 does not fit 64 bits"),
        (1 << 200, r"the integer of 201 bits does not fit 64 bits"),
    ],
)
def test_other_labels_are_told_exactly(tmp_path: Path, value: Any, got: str) -> None:
    with pytest.raises(ConvertError, match=rf"sample 0 \(list\[0\]\): field 'label': .*{got}"):
        write([(value,)], tmp_path / "o.beton", {"label": IntField()})
    assert not list(tmp_path.iterdir())


def test_tensors_that_are_no_arrays_and_images_in_channels_first_say_so(tmp_path: Path) -> None:
    import torch
    from torchvision import tv_tensors

    vector = {"v": TorchTensorField(torch.float32, (3, 3))}
    cases: list[tuple[Any, Any, str]] = [
        (torch.zeros(3, 3, dtype=torch.bfloat16), vector, r"a Tensor of dtype torch\.bfloat16 and shape \(3, 3\)"),
        (torch.eye(3).to_sparse(), vector, r"Use Tensor\.to_dense\(\) first\. .*o\.beton was not written"),
        (torch.zeros(3, 6, 8, dtype=torch.uint8), {"image": ImageField()}, r"transpose\(1, 2, 0\)"),
        (tv_tensors.Image(torch.zeros(3, 6, 8, dtype=torch.uint8)), {"image": ImageField()}, "channels come last"),
        (torch.rand(3, 6, 8), {"image": ImageField()}, "leave out a transform such as ToTensor"),
        (io.BytesIO(b"abc"), {"image": ImageField()}, r"got BytesIO .*give what its read\(\) returns"),
    ]
    for value, fields, words in cases:
        with pytest.raises(ConvertError, match=words):
            write([(value,)], tmp_path / "o.beton", fields)
    hwc = torch.arange(6 * 8 * 3, dtype=torch.uint8).reshape(6, 8, 3)
    write([(hwc,)], tmp_path / "o.beton", {"image": ImageField()}, images=converters.ImagePolicy(mode="raw"))
    with Reader(tmp_path / "o.beton") as reader:
        assert bytes(reader.value("image", 0).data) == hwc.numpy().tobytes()


@pytest.mark.parametrize(
    "mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "LA", "PA", "RGBX", "I;16"]
)
def test_pillow_images_of_every_mode_with_a_range_are_stored(tmp_path: Path, mode: str) -> None:
    from PIL import Image

    write([(Image.new(mode, (8, 6)),)], tmp_path / "o.beton", {"image": ImageField()})
    with Reader(tmp_path / "o.beton") as reader:
        assert (reader.value("image", 0).width, reader.value("image", 0).height) == (8, 6)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pillow_images_without_an_agreed_range_are_refused(tmp_path: Path, mode: str) -> None:
    from PIL import Image

    with pytest.raises(ConvertError, match=r"sample 0 .*no agreed range"):
        write([(Image.new(mode, (8, 6)),)], tmp_path / "o.beton", {"image": ImageField()})


def test_labels_without_a_name_are_refused_with_the_ways_out(tmp_path: Path) -> None:
    fields = {"label": IntField()}
    for bad in (2, -1):
        with pytest.raises(
            ConvertError,
            match=rf"sample 1 .*field 'label': the label {bad} has no class name \(2 names: 0 to 1\).*=\[\]",
        ):
            write([0, bad], tmp_path / "o.beton", fields, class_names=["a", "b"])
    write([0, 2], tmp_path / "o.beton", fields, class_names=["a", "b", "c"])
    # Not the labels: another field of integers, and a dataset whose names are passed over.
    other = {"label": IntField(), "year": IntField()}
    write([(0, 1999)], tmp_path / "p.beton", other, class_names=["a"])
    photos = Photos()
    write(
        [(image, label + 5) for image, label in map(photos.__getitem__, range(2))], tmp_path / "q.beton", class_names=[]
    )
    with Reader(tmp_path / "q.beton") as reader:
        assert reader.extension is not None
        assert reader.extension.class_names is None


class OfTwo(Photos):
    def __getitem__(self, index: int) -> Any:
        return photo(20, 16, seed=index), index


def test_the_datasets_own_names_must_cover_its_labels_or_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"sample 2 \(OfTwo\[2\]\): field 'label': the label 2 has no class name"):
        write(OfTwo(), tmp_path / "o.beton")
    assert write(OfTwo(), tmp_path / "o.beton", class_names=[]).num_samples == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_workers": "2"}, "num_workers must be a whole number, 0 or more, got '2'"),
        ({"num_workers": 1.5}, "num_workers must be a whole number"),
        ({"limit": 2.5}, r"limit must be a whole number, 0 or more, got 2\.5"),
        ({"limit": True}, "limit must be a whole number"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": "x"}, "seed must be .* got 'x'"),
        ({"page_size": 8e6}, r"page_size must be a power of two .* got 8000000\.0 bytes"),
        ({"images": "raw"}, "images must be an ImagePolicy.*got str 'raw'"),
        ({"class_names": "ab"}, "class_names must be a list of strings, got str 'ab'"),
        ({"num_shard": 2}, "write has no option 'num_shard'. Did you mean 'num_shards'"),
        ({"bogus": 1}, "write has no option 'bogus'. There are num_workers, "),
    ],
)
def test_wrong_options_are_refused_before_any_work(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        write([(1,)], tmp_path / "o.beton", {"label": IntField()}, **options)
    assert not list(tmp_path.iterdir())


def test_a_class_in_the_place_of_a_dataset_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"got the class Photos itself; make one: Photos\(\.\.\.\)"):
        write(Photos, tmp_path / "o.beton")


def test_subsets_and_concatenations_of_torch_travel_to_workers(tmp_path: Path) -> None:
    from torch.utils.data import ConcatDataset, Subset

    joined: Any = ConcatDataset([Subset(Photos(), np.array([3, 1])), Photos()])
    write(joined, tmp_path / "o.beton", num_workers=1)
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.column("label").tolist() == [1, 1, 0, 1, 0, 1, 0, 1]


class Holding(Photos):
    """Holds what cannot be sent to another process."""

    def __init__(self, what: Any) -> None:
        self.what = what


def test_what_a_dataset_holds_that_cannot_travel_is_named(tmp_path: Path) -> None:
    with open(__file__, encoding="utf-8") as file:
        for what, words in ((file, "TextIOWrapper"), (threading.Lock(), "lock"), ((x for x in ""), "generator")):
            with pytest.raises(UsageError, match=rf"cannot be sent to worker processes: .*{words}.*num_workers=0"):
                write(Holding(what), tmp_path / "o.beton", num_workers=1)
        assert write(Holding(file), tmp_path / "o.beton").num_samples == 6


def test_a_value_larger_than_any_page_is_refused_with_sizes(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"9437184 bytes.*more than a page of 2097152; pass page_size=16777216"):
        write([(bytes(9 << 20),)], tmp_path / "o.beton", {"b": BytesField()}, page_size=2 << 20)
    assert not list(tmp_path.iterdir())


def test_tensors_that_numpy_has_no_dtype_for_are_refused_with_the_call_that_converts_them(tmp_path: Path) -> None:
    sample = [(torch.ones(3, dtype=torch.bfloat16),)]
    with pytest.raises(ConvertError, match=r"BFloat16; convert it first, such as by value\.to\(torch\.float32\)"):
        write(sample, tmp_path / "o.beton", {"v": NDArrayField("f4", (3,))}, num_workers=0)


def test_conjugated_and_masked_values_are_stored_as_they_read_or_refused(tmp_path: Path) -> None:
    lazy = torch.tensor([1 + 2j, 3 - 4j]).conj()
    write([(lazy,)], tmp_path / "o.beton", {"v": NDArrayField("c8", (2,))}, num_workers=0)
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.value("v", 0).tolist() == [1 - 2j, 3 + 4j]  # type: ignore[attr-defined]
    hidden = np.ma.array(np.zeros((4, 4, 3), np.uint8), mask=np.eye(4, dtype=bool)[:, :, None].repeat(3, 2))
    with pytest.raises(ConvertError, match="masked"):
        write([(hidden,)], tmp_path / "p.beton", {"v": ImageField()}, num_workers=0)


def test_pixels_and_labels_of_a_foreign_byte_order_are_converted_by_value(tmp_path: Path) -> None:
    depth = np.arange(12).reshape(3, 4) * 5000
    fields = {"depth": RasterField(1, "uint16"), "mask": MaskField("uint16")}
    write([(depth.astype(">u2"), depth.astype(">u2"))], tmp_path / "o.beton", fields, num_workers=0)
    with Reader(tmp_path / "o.beton") as reader:
        for name in fields:
            assert decode_image(reader.value(name, 0)).reshape(3, 4).tolist() == depth.tolist()  # type: ignore[arg-type]


def test_every_option_of_the_command_is_an_argument_of_write(tmp_path: Path) -> None:
    given = dict(imagefolder.make_context("imagefolder", [str(tmp_path), "o.beton"]).params)
    own = {"src", "out", "extensions", "allow_empty", "classes", "class_order", "dry_run", "as_json"}
    given["num_workers"] = 0
    options, policy = settings({name: value for name, value in given.items() if name not in own})
    assert (options.page_size, options.on_error, policy) == (None, "raise", converters.ImagePolicy())


def test_options_for_images_do_what_they_do_on_the_command_line(tmp_path: Path) -> None:
    jpeg = encoded(photo(80, 60), "JPEG", quality=95)
    write([(jpeg, 0)], tmp_path / "o.beton", max_resolution=40, quality=60, class_names=[])
    with Reader(tmp_path / "o.beton") as reader:
        smaller = reader.value("image", 0)
        assert (smaller.width, smaller.height) == (40, 30)  # type: ignore[attr-defined]
        assert reader.extension is not None
        assert reader.extension.provenance["images"]["quality"] == 60
    assert write([(jpeg, 0)], tmp_path / "p.beton", keep="bytes", class_names=[]).images == {"kept": 1}
    assert write([(jpeg, 0)], tmp_path / "q.beton", mode="raw", class_names=[]).images == {"raw": 1}
    transparent = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    write([(transparent, 0)], tmp_path / "r.beton", mode="raw", background="1,2,3", page_size="2MiB", class_names=[])
    with Reader(tmp_path / "r.beton") as reader:
        assert bytes(reader.value("image", 0).data[:3]) == b"\1\2\3"  # type: ignore[attr-defined]
        assert reader.page_size == 2 << 20
    assert len(write([(jpeg, 0)] * 3, tmp_path / "s.beton", shard_size="2MiB", class_names=[]).shards) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quality": "90"}, "quality must be a whole number from 1 to 100, got '90'"),
        ({"quality": True}, "quality must be a whole number"),
        ({"max_resolution": 99.5}, r"max_resolution must be a whole number .*got 99\.5"),
        ({"keep": ["bytes"]}, "keep must be one of"),
        ({"orientation": "none"}, "orientation must be apply or ignore, got 'none'"),
        ({"to_srgb": 1}, "to_srgb must be True or False, got 1"),
        ({"background": "pinkish"}, "'pinkish' is not a colour"),
        ({"background": [1, 2, 3]}, r"background must be three levels from 0 to 255, got \[1, 2, 3\]"),
        ({"page_size": "8 apples"}, "page_size: '8 apples' is not a size"),
        ({"max_resoluton": 8}, "write has no option 'max_resoluton'. Did you mean 'max_resolution'"),
        ({"images": converters.ImagePolicy(), "quality": 80}, "images= and quality= both say how images are stored"),
    ],
)
def test_wrong_options_for_images_are_refused_too(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        write([(1,)], tmp_path / "o.beton", {"label": IntField()}, **options)
