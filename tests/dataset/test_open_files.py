"""What a Loader says of a path that is no dataset, and addresses of local files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dataloading import Loader, Manifest, Mixture, Reader, Shard, UsageError
from dataloading.tools import shard_path
from tests.support.files import write_labels


def indices(path: Any) -> list[int]:
    return [index for batch in Loader(path, batch_size=100, num_workers=1) for index in batch.indices.tolist()]


@pytest.mark.parametrize(
    ("name", "inside", "words"),
    [
        ("photos", "cat/1.jpg", r"photos is a folder, .*: beton convert imagefolder \S*photos photos.beton"),
        ("my photos", "1.jpg", r"beton convert imagefolder '\S*my photos' 'my photos'.beton"),
        ("tars", "a-0.tar", r"beton convert webdataset \S*tars tars.beton"),
        ("saved", "dataset_info.json", r"beton convert huggingface \S*saved saved.beton"),
        ("hub", "0.parquet", r"beton convert huggingface \S*hub hub.beton"),
        ("done", "val.beton", r"folder, with val.beton in it: name a file, or .* pattern '\S*done/\*.beton'"),
        ("train-000.tar", None, r"is a .tar file, .*: beton convert webdataset \S*train-000.tar train-000.beton"),
        ("x.tar.gz", None, "beton convert webdataset"),
        ("t.parquet", None, "beton convert huggingface"),
        ("t.csv", None, "beton convert manifest"),
        ("t.jsonl", None, "beton convert manifest"),
        ("t.npz", None, "beton convert arrays"),
        ("t.zip", None, r"Unpack it first: unzip \S*t.zip -d t. Convert it: beton convert imagefolder t t.beton"),
    ],
)
def test_data_that_must_be_converted_first_is_an_error_with_the_command(
    tmp_path: Path, name: str, inside: str | None, words: str
) -> None:
    source = tmp_path / name
    made = source / inside if inside else source
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_bytes(b"anything but a file of samples" * 20)
    for path in (source, [source], Mixture({str(source): 1})):
        with pytest.raises(UsageError, match=words):
            Loader(path, batch_size=4)
    with pytest.raises(UsageError, match=words):
        Loader(source)  # type: ignore[call-arg]  # without batch_size=, as one writes it first
    with pytest.raises(UsageError, match=words):
        Loader(source, batch_size=4, os_cache=False)


def test_a_missing_file_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    write_labels(tmp_path / "train.beton", 3)
    with pytest.raises(FileNotFoundError, match=r"Did you mean 'train\.beton'") as caught:
        Loader(tmp_path / "trian.beton", batch_size=4)
    assert caught.value.filename == str(tmp_path / "trian.beton")
    with pytest.raises(FileNotFoundError, match=r"there is no folder \S*nowhere"):
        Loader(tmp_path / "nowhere" / "train.beton", batch_size=4)


@pytest.mark.parametrize("path", [None, 3, b"train.beton", [None], [b"x"], {3}])
def test_values_that_are_not_paths_are_refused(path: Any) -> None:
    with pytest.raises(UsageError, match="must be text or a Path, got"):
        Loader(path, batch_size=4)


def test_a_dictionary_of_files_is_a_mixture(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"files in proportions as Mixture\(\{...\}\)"):
        Loader({"a.beton": 0.5}, batch_size=4)  # type: ignore[arg-type]


def test_a_file_of_any_ending_is_read_if_it_holds_samples(tmp_path: Path) -> None:
    assert indices(write_labels(tmp_path / "odd.tar", 3)) == [0, 1, 2]


def test_addresses_of_local_files_are_paths(tmp_path: Path) -> None:
    folder = tmp_path / "with space & 100%?#é"
    folder.mkdir()
    path = write_labels(folder / "a.beton", 3)
    shutil.copy(path, folder / "b.beton")
    address = quote(str(folder))
    for given in (f"file://{address}/a.beton", f"file://localhost{address}/a.beton", f"FILE://{address}/a.beton"):
        assert indices(given) == indices(path) == [0, 1, 2]
        assert Loader(given, batch_size=3).dataset.paths == (str(path),)
    assert indices([f"file://{address}/a.beton", folder / "b.beton"]) == list(range(6))
    assert indices(f"file://{address}/?.beton") == indices(f"file://{address}/*.beton") == list(range(6))
    assert indices(Mixture({f"file://{address}/a.beton": 1})) and Loader(
        f"file://{address}/a.beton", batch_size=1, os_cache=False
    )
    with pytest.raises(UsageError, match="there twice"):
        Loader([f"file://{address}/a.beton", path], batch_size=1)
    for wrong in ("file://server/a.beton", "file:a.beton", "file://a.beton"):
        with pytest.raises(UsageError, match="write file:///the/whole/path"):
            Loader(wrong, batch_size=1)


def test_a_manifest_may_be_given_by_a_local_address(tmp_path: Path) -> None:
    target = tmp_path / "set.beton"
    shards = []
    for number in range(2):
        path = Path(shard_path(str(target), number, 2))
        write_labels(path, 3)
        with Reader(path) as reader:
            shards.append(
                Shard(name=path.name, num_samples=3, num_bytes=reader.num_bytes, fingerprint=reader.fingerprint)
            )
    Manifest(shards=tuple(shards)).save(f"{target}.json")
    assert indices(f"file://{quote(str(target))}.json") == list(range(6))
