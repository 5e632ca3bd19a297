"""What the `datasets` library saves comes through with its types and class names, and images as they were stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from converters.fields import parse_fields
from converters.source import SampleFault
from converters.sources.huggingface import HuggingFace
from dataloading import ConvertError, FloatField, ImageField, IntField, NDArrayField, TextField, UsageError
from tests.support.servers import http_range_server

from .making import jpeg, samples

NUM = 7


def dataset(**more: Any) -> Any:
    import datasets

    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["cat", "dog", "emu"]),
        "caption": datasets.Value("string"),
        "score": datasets.Value("float32"),
    }
    columns = {
        "image": [{"bytes": jpeg(number), "path": None} for number in range(NUM)],
        "label": [number % 3 for number in range(NUM)],
        "caption": [f"photo {number} ü" for number in range(NUM)],
        "score": [number / 4 for number in range(NUM)],
    }
    for name, (feature, values) in more.items():
        features[name], columns[name] = feature, values
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def expected() -> list[dict[str, Any]]:
    return [{"image": jpeg(n), "label": n % 3, "caption": f"photo {n} ü", "score": n / 4} for n in range(NUM)]


@pytest.fixture
def parquet(tmp_path: Path) -> str:
    path = tmp_path / "set.parquet"
    dataset().to_parquet(str(path), batch_size=3)
    return str(path)


@pytest.mark.parametrize("random_access", [False, True])
def test_parquet_in_row_groups(parquet: str, random_access: bool) -> None:
    source = HuggingFace([parquet], random_access=random_access)
    assert samples(source) == expected()
    assert source.class_names == ["cat", "dog", "emu"]
    assert [type(field) for field in source.fields.values()] == [ImageField, IntField, TextField, FloatField]
    load = source.load
    for index in (6, 0, 5, 1, 1, 6, 2):
        assert load(source.task(index)) == expected()[index]


def test_a_saved_dataset_and_a_split_of_a_saved_dict(tmp_path: Path) -> None:
    import datasets

    whole = dataset()
    whole.save_to_disk(str(tmp_path / "one"), num_shards=3)
    datasets.DatasetDict({"train": whole, "test": whole.select([4, 2])}).save_to_disk(str(tmp_path / "dict"))
    assert samples(HuggingFace([str(tmp_path / "one")])) == expected()
    assert samples(HuggingFace([str(tmp_path / "dict")], split="test")) == [expected()[4], expected()[2]]
    with pytest.raises(UsageError, match=r"has the splits train, test; --split says which one"):
        HuggingFace([str(tmp_path / "dict")])
    with pytest.raises(UsageError, match="one dataset without splits"):
        HuggingFace([str(tmp_path / "one")], split="train")


def test_a_folder_of_the_hub_has_its_splits_in_the_files_names(tmp_path: Path) -> None:
    whole = dataset()
    for number in range(2):
        whole.shard(2, number, contiguous=True).to_parquet(str(tmp_path / f"train-{number:05}-of-00002.parquet"))
    whole.select([3]).to_parquet(str(tmp_path / "test-00000-of-00001.parquet"))
    assert samples(HuggingFace([str(tmp_path)], split="train")) == expected()
    assert samples(HuggingFace([f"{tmp_path}/test-*.parquet"])) == [expected()[3]]
    with pytest.raises(UsageError, match="files of the splits test, train; --split says which one"):
        HuggingFace([str(tmp_path)])
    with pytest.raises(UsageError, match="no files of the split 'val', only of test, train"):
        HuggingFace([str(tmp_path)], split="val")


def test_images_that_are_paths_are_read_in_the_workers(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pairs = [(None, str(tmp_path / "a.jpg")), (None, "a.jpg"), (b"B", "x"), (None, "none.jpg"), (None, None)]
    rows = [{"bytes": data, "path": path} for data, path in pairs]
    pa.parquet.write_table(pa.table({"image": pa.array(rows, kind)}), tmp_path / "set.parquet")
    source = HuggingFace([str(tmp_path / "set.parquet")])
    load = source.load
    assert [load(source.task(index))["image"] for index in range(3)] == [jpeg(1), jpeg(1), b"B"]
    with pytest.raises(SampleFault, match=r"field 'image': .*none.jpg cannot be read: No such file"):
        load(source.task(3))
    with pytest.raises(SampleFault, match=r"field 'image': expected image, got nothing \(null\)"):
        load(source.task(4))


def test_columns_of_no_plain_type_are_passed_over_unless_declared(tmp_path: Path) -> None:
    import datasets

    boxes = (datasets.Sequence(datasets.Value("float32"), length=4), [[n, 0.5, 1, 2] for n in range(NUM)])
    tags = (datasets.Sequence(datasets.Value("string")), [["a", str(n)] for n in range(NUM)])
    dataset(box=boxes, tags=tags).to_parquet(str(tmp_path / "set.parquet"))
    path = [str(tmp_path / "set.parquet")]
    source = HuggingFace(path)
    assert [name.partition(" ")[0] for name in source.passed_over] == ["box", "tags"]
    assert samples(source) == expected()
    declared = HuggingFace(
        path, columns=["image"], specs=parse_fields(["corner=array:float32:4@box", "tags=json", "y=int@label"])
    )
    assert declared.fields["corner"] == NDArrayField("float32", (4,))
    sample = samples(declared)[3]
    assert list(sample) == ["image", "corner", "tags", "y"]
    assert (sample["corner"].tolist(), sample["tags"], sample["y"]) == ([3, 0.5, 1, 2], ["a", "3"], 0)
    assert declared.class_names == ["cat", "dog", "emu"]
    with pytest.raises(UsageError, match=r"column 'tags' is list<.*declare it with --field tags=json"):
        HuggingFace(path, columns=["tags"])
    with pytest.raises(UsageError, match="there is no column 'labels'; there are image, label"):
        HuggingFace(path, columns=["labels"])
    with pytest.raises(UsageError, match="--field label: a column of that name is taken as well"):
        HuggingFace(path, specs=parse_fields(["label=float@score"]))
    with pytest.raises(UsageError, match="--field z: there is no column 'zz'"):
        HuggingFace(path, specs=parse_fields(["z=int@zz"]))


def test_dictionary_columns_and_arrow_files_of_the_other_format(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    table = pa.table({"word": pa.array(["x", "y", "x"]).dictionary_encode(), "n": pa.array([1, None, 3], pa.int8())})
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    pa.feather.write_feather(table, tmp_path / "a.arrow", compression="uncompressed")
    for path, random_access in (("a.parquet", False), ("a.parquet", True), ("a.arrow", False)):
        source = HuggingFace([str(tmp_path / path)], random_access=random_access)
        load = source.load
        assert load(source.task(2)) == {"word": "x", "n": 3}
        assert load(source.task(0)) == {"word": "x", "n": 1}
        with pytest.raises(SampleFault, match=r"field 'n': expected int, got nothing \(null\)"):
            load(source.task(1))


def test_files_that_differ_are_told_apart(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "1.parquet")
    pa.parquet.write_table(pa.table({"a": [1.5], "b": ["x"]}), tmp_path / "2.parquet")
    pa.parquet.write_table(pa.table({"a": [1]}), tmp_path / "3.parquet")
    with pytest.raises(
        UsageError, match=r"2.parquet has other columns than .*1.parquet: column 'a' is double, expected int64"
    ):
        HuggingFace([f"{tmp_path}/1.parquet", f"{tmp_path}/2.parquet"])
    with pytest.raises(UsageError, match="there is no column 'b'"):
        HuggingFace([f"{tmp_path}/1.parquet", f"{tmp_path}/3.parquet"])


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100), b"ARROW1" + bytes(100), b"nonsense"])
def test_damaged_files_are_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(ConvertError, match=r"a\.parquet (cannot be read as a parquet or Arrow file|has no rows)"):
        HuggingFace([str(tmp_path / "a.parquet")])


def test_a_folder_of_other_things_is_explained(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(UsageError, match=r"no files that end in .*but folders: data; name one of them"):
        HuggingFace([str(tmp_path)])


def test_parquet_is_read_from_urls(parquet: str, memory: Any) -> None:
    data = Path(parquet).read_bytes()
    assert samples(HuggingFace([memory("memory://hub/set.parquet", data)])) == expected()
    with http_range_server(Path(parquet).parent) as server:
        assert samples(HuggingFace([f"{server.url}/set.parquet"])) == expected()


def test_images_are_not_decoded_in_the_parent(parquet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    def never(*_args: Any, **_options: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(Image, "open", never)
    source = HuggingFace([parquet])
    assert [source.task(index) for index in range(NUM)] == [(0, index, parquet) for index in range(NUM)]
    assert samples(source) == expected()


def image_columns() -> dict[str, Any]:
    """Images in every type of column that can hold their bytes."""
    import pyarrow as pa

    files = [jpeg(1), None, jpeg(2)]
    numbers = [None if data is None else list(data) for data in files]
    width = max(len(data) for data in files if data)
    padded = [None if data is None else data.ljust(width, b"\0") for data in files]
    pairs = [{"bytes": data, "path": None} for data in files]
    return {
        "binary": pa.array(files, pa.binary()),
        "large": pa.array(files, pa.large_binary()),
        "view": pa.array(files, pa.binary_view()),
        "fixed": pa.array(padded, pa.binary(width)),
        "list": pa.array(numbers, pa.list_(pa.uint8())),
        "large list": pa.array(numbers, pa.large_list(pa.uint8())),
        "fixed list": pa.array([None if d is None else list(d) for d in padded], pa.list_(pa.uint8(), width)),
        "int64 list": pa.array(numbers, pa.list_(pa.int64())),
        "dictionary": pa.array(files, pa.binary()).dictionary_encode(),
        "pair": pa.array(pairs, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        "large pair": pa.array(pairs, pa.struct([("bytes", pa.large_binary()), ("path", pa.string())])),
    }


@pytest.mark.parametrize("name", image_columns())
@pytest.mark.parametrize("kind", ["parquet", "arrow", "random"])
def test_images_are_images_in_whatever_type_of_column_their_bytes_are(tmp_path: Path, name: str, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.table({"image": image_columns()[name], "n": [4, 5, 6]})
    path = tmp_path / f"t.{kind.replace('random', 'parquet')}"
    if kind == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        pa.parquet.write_table(table, path)
    source = HuggingFace([str(path)], random_access=kind == "random")
    assert isinstance(source.fields["image"], ImageField)
    assert not source.hints
    load = source.load
    for row, number in ((0, 1), (2, 2)):
        assert load(source.task(row))["image"].rstrip(b"\0") == jpeg(number)
    with pytest.raises(SampleFault, match=r"field 'image': expected image, got nothing"):
        load(source.task(1))


def test_images_of_a_saved_dataset_without_the_feature_are_images(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"photo": datasets.Value("binary"), "n": datasets.Value("int64")})
    rows = {"photo": [jpeg(0), jpeg(1)], "n": [0, 1]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "d"))
    assert samples(HuggingFace([str(tmp_path / "d")])) == [{"photo": jpeg(n), "n": n} for n in range(2)]


def test_bytes_that_are_no_known_image_and_paths_are_taken_as_they_are_with_a_hint(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    pa.parquet.write_table(pa.table({"blob": [b"what"], "file": ["a.jpg"], "n": [1]}), tmp_path / "t.parquet")
    source = HuggingFace([str(tmp_path / "t.parquet")])
    assert samples(source) == [{"blob": b"what", "file": "a.jpg", "n": 1}]
    assert source.hints == [
        "no images: 'blob' is taken as bytes; --field image=image@blob makes images of it",
        "no images: 'file' is taken as text; --field image=image@file makes images of it",
    ]
    source = HuggingFace([str(tmp_path / "t.parquet")], columns=["n"], specs=parse_fields(["image=image@file"]))
    assert (samples(source), source.hints) == ([{"n": 1, "image": jpeg(0)}], [])


def test_the_index_of_pandas_is_left_out_and_named(tmp_path: Path) -> None:
    import pandas as pd

    table = pd.DataFrame({"image": [jpeg(0), jpeg(1)], "label": [0, 1]}, index=[7, 3])
    table.to_parquet(tmp_path / "t.parquet")
    source = HuggingFace([str(tmp_path / "t.parquet")])
    assert list(source.fields) == ["image", "label"]
    assert source.passed_over == ["__index_level_0__ (the index of pandas)"]
    asked = HuggingFace([str(tmp_path / "t.parquet")], specs=parse_fields(["row=int@__index_level_0__"]))
    assert [sample["row"] for sample in samples(asked)] == [7, 3]
    # pandas adds it to files whose index is not 0, 1, ... only.
    pd.DataFrame({"image": [jpeg(2)], "label": [2]}).to_parquet(tmp_path / "u.parquet")
    for names in ("tu", "ut"):
        both = HuggingFace([str(tmp_path / f"{name}.parquet") for name in names])
        assert sorted(sample["label"] for sample in samples(both)) == [0, 1, 2]


def test_a_column_whose_name_no_field_can_have_is_left_out_with_the_option_to_type(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    columns = {
        "image": [jpeg(0)],
        "photographer_name": ["x"],
        "größe": [1.5],
        "a=b": [1],
        "the photographer name": ["y"],
    }
    pa.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    path = [str(tmp_path / "t.parquet")]
    source = HuggingFace(path)
    assert list(source.fields) == ["image", "a=b"]
    assert [words.partition("; --field ")[2] for words in source.passed_over] == [
        "photographer_nam=text@photographer_name takes it)",
        "'groe=float@größe' takes it)",
        "'the_photographer=text@the photographer name' takes it)",
    ]
    typed = parse_fields(["photographer_nam=text@photographer_name", "groe=float@größe"])
    assert samples(HuggingFace(path, columns=["image"], specs=typed)) == [
        {"image": jpeg(0), "photographer_nam": "x", "groe": 1.5}
    ]
    with pytest.raises(UsageError, match=r"17 characters.*--field photographer_nam=text@photographer_name takes the"):
        HuggingFace(path, columns=["image", "photographer_name"])
    with pytest.raises(UsageError, match=r"17 characters.*--field photographer_nam=text@photographer_name calls"):
        parse_fields(["photographer_name=text"])
    pa.parquet.write_table(pa.table({"a_very_long_image": [jpeg(0)], "n": [1]}), tmp_path / "t.parquet")
    with pytest.raises(
        UsageError, match=r"--field a_very_long_imag=image@a_very_long_image .*--columns n leaves it out"
    ):
        HuggingFace(path)


@pytest.mark.parametrize("dictionary", [False, True])
def test_labels_that_are_words_become_classes(tmp_path: Path, dictionary: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    words = pa.array(["dog", " cat", None, "emu", "cat "])
    words = words.dictionary_encode() if dictionary else words
    pa.parquet.write_table(pa.table({"Label": words, "note": ["a", "b", "c", "d", "e"]}), tmp_path / "t.parquet")
    path = [str(tmp_path / "t.parquet")]
    for source in (HuggingFace(path), HuggingFace(path, random_access=True)):
        assert source.class_names == ["cat", "dog", "emu"]
        assert isinstance(source.fields["Label"], IntField)
        load = source.load
        assert [load(source.task(row))["Label"] for row in (0, 1, 3, 4)] == [1, 0, 2, 0]
        with pytest.raises(SampleFault, match="field 'Label': its label is None"):
            load(source.task(2))
    assert isinstance(HuggingFace(path, specs=parse_fields(["Label=text"])).fields["Label"], TextField)


def test_a_text_for_nearly_every_row_is_no_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    monkeypatch.setattr("converters.sources.huggingface._FEW_CLASSES", 3)
    pa.parquet.write_table(pa.table({"target": ["a b", "c d", "e f", "g h"]}), tmp_path / "t.parquet")
    source = HuggingFace([str(tmp_path / "t.parquet")])
    assert (source.class_names, source.fields) == (None, {"target": TextField()})
    assert source.hints == ["target: text, since nearly every row has another one (4); --field target=text says so"]


def test_labels_that_are_numbers_and_words_stay_texts_with_a_hint(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(pa.table({"label": ["10", "2", "dog"]}), tmp_path / "t.parquet")
    source = HuggingFace([str(tmp_path / "t.parquet")])
    assert source.fields == {"label": TextField()}
    assert source.hints == [
        "label: text, since labels are numbers and names: '2' and 'dog'; --field label=text says so"
    ]
    pa.parquet.write_table(pa.table({"label": ["10", "2"]}), tmp_path / "t.parquet")
    source = HuggingFace([str(tmp_path / "t.parquet")])
    assert (samples(source), source.class_names) == ([{"label": 10}, {"label": 2}], None)
