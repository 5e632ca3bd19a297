"""A shard set grows by whole, fitting files, and its manifest is the old one or the new one, never anything else."""

from __future__ import annotations

import multiprocessing as mp
from pathlib import Path

import pytest

from converters.tools.append import append
from converters.tools.commands import append as command
from converters.tools.info import info
from converters.tools.verify import verify
from dataloading import ConvertError, FormatError, Manifest, Reader, UsageError
from tests.converters.tools.making import run, run_json, strange_files, write_file, write_set
from tests.support.foreign import flip

NAMES = ["x", "y", "z"]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    files = [write_file(folder / f"{n}.beton", [0, 1, 2], first=3 * n, class_names=NAMES) for n in range(2)]
    return write_set(folder / "train.beton.json", files)


def test_files_are_listed_where_they_lie_or_copied_beside_the_manifest(shards: Path, tmp_path: Path) -> None:
    inside = write_file(shards.parent / "inside.beton", [1], first=20, class_names=NAMES)
    outside = write_file(tmp_path / "outside.beton", [2, 2], first=30, class_names=NAMES)
    facts = run_json(command, shards, inside, outside)
    assert [each["name"] for each in facts["added"]] == ["inside.beton", "outside.beton"]
    assert facts["copied"] == ["outside.beton"] and (facts["num_shards"], facts["num_samples"]) == (4, 9)
    assert (shards.parent / "outside.beton").read_bytes() == outside.read_bytes()
    manifest = Manifest.load(shards)
    assert [each.num_samples for each in manifest.shards] == [3, 3, 1, 2]
    assert run(verify, shards).exit_code == 0
    assert run_json(info, shards)["num_samples"] == 9
    assert not strange_files(shards.parent)


def test_the_loader_opens_the_grown_set_as_one_dataset(tmp_path: Path) -> None:
    from dataloading import Loader

    names = ("label", "box")
    first = write_file(tmp_path / "a.beton", [0, 1, 2], names=names, class_names=NAMES)
    write_set(tmp_path / "t.beton.json", [first])
    append(tmp_path / "t.beton.json", [str(write_file(tmp_path / "b.beton", [2, 1], names=names, class_names=NAMES))])
    loader = Loader(str(tmp_path / "t.beton.json"), batch_size=2)
    assert [label for batch in loader for label in batch["label"].tolist()] == [0, 1, 2, 2, 1]


def test_what_does_not_belong_is_refused_and_nothing_changes(shards: Path, tmp_path: Path) -> None:
    before = shards.read_bytes()
    other_fields = write_file(tmp_path / "f.beton", [0], names=("image", "label"), class_names=NAMES)
    other_names = write_file(tmp_path / "n.beton", [0], class_names=["x", "q"])
    twin = tmp_path / "twin.beton"
    twin.write_bytes((shards.parent / "1.beton").read_bytes())
    listed = shards.parent / "0.beton"
    for path, message in (
        (other_fields, "different fields"),
        (other_names, "Label 1 is 'y' in .* and 'q' in .*`beton merge"),
        (twin, "has the same content as 1.beton"),
        (listed, "in the set already"),
    ):
        with pytest.raises(UsageError, match=message):
            append(shards, [str(path)])
    damaged = write_file(tmp_path / "d.beton", [0], first=50, class_names=NAMES)
    with Reader(damaged) as reader:
        flip(damaged, int(reader.locate("image", [0])[0][0]), 1)
    with pytest.raises(ConvertError, match="is damaged"):
        append(shards, [str(damaged)])
    taken = write_file(tmp_path / "t.beton", [0], first=60, class_names=NAMES)
    (shards.parent / "t.beton").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        append(shards, [str(taken)])
    with pytest.raises(UsageError, match="not a manifest"):
        append(taken, [str(taken)])
    assert shards.read_bytes() == before and (shards.parent / "t.beton").read_text() == "mine"
    assert sorted(path.name for path in shards.parent.iterdir()) == [
        "0.beton",
        "1.beton",
        "t.beton",
        "train.beton.json",
    ]


def test_a_failure_at_the_last_step_takes_the_copies_away(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = write_file(tmp_path / "n.beton", [0], first=70, class_names=NAMES)

    def fail(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Manifest, "save", fail)
    with pytest.raises(OSError, match="No space"):
        append(shards, [str(new)])
    assert sorted(path.name for path in shards.parent.iterdir()) == ["0.beton", "1.beton", "train.beton.json"]


def _append(arguments: tuple[str, str]) -> None:
    append(arguments[0], [arguments[1]])


def test_appends_at_the_same_time_lose_nothing(shards: Path, tmp_path: Path) -> None:
    files = [write_file(tmp_path / f"n{n}.beton", [0], first=80 + n, class_names=NAMES) for n in range(6)]
    with mp.get_context("spawn").Pool(2) as pool:
        pool.map_async(_append, [(str(shards), str(file)) for file in files], chunksize=1).get(timeout=120)
    manifest = Manifest.load(shards)
    assert sorted(each.name for each in manifest.shards) == sorted(["0.beton", "1.beton", *(f.name for f in files)])


def test_a_missing_cut_or_swapped_shard_is_found(shards: Path) -> None:
    one, two = shards.parent / "0.beton", shards.parent / "1.beton"
    data = two.read_bytes()
    two.write_bytes(one.read_bytes())
    assert one.stat().st_size == len(data)
    done = run(verify, shards)
    assert done.exit_code == 1 and "not the file the manifest lists" in done.stdout
    two.write_bytes(data[:-1])
    with pytest.raises(FormatError, match=r"1\.beton has .* bytes where"):
        run(verify, shards)
    two.unlink()
    with pytest.raises(FormatError, match="which is missing; put it back"):
        run(info, shards)


def test_a_file_without_class_names_is_not_appended_to_a_set_that_has_them(shards: Path, tmp_path: Path) -> None:
    before = shards.read_bytes()
    unnamed = write_file(tmp_path / "unnamed.beton", [1], first=40)
    with pytest.raises(UsageError, match=r"unnamed\.beton records no class names, .*0\.beton has 3 names"):
        append(shards, [str(unnamed)])
    assert shards.read_bytes() == before and not (shards.parent / "unnamed.beton").exists()
