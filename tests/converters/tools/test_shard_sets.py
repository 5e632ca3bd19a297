"""Shard sets are split, exported, merged, repaired and upgraded as the one dataset that they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from converters.tools import commands
from converters.tools.export import export
from converters.tools.merge import merge
from converters.tools.repair import repair
from converters.tools.split import split
from converters.tools.upgrade import upgrade
from converters.tools.verify import verify
from dataloading import ConvertError, Manifest, Reader, UsageError, verify_file
from dataloading.tools import decode_jpeg
from tests.converters.tools.making import column, contents, run, run_json, strange_files, write_file, write_set
from tests.converters.tools.test_crash import tree
from tests.support.foreign import flip

NAMES = ["x", "y", "z"]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "set").mkdir()
    return [
        write_file(tmp_path / "set" / f"s{n}.beton", [2, 1, 0, n, n], first=5 * n, class_names=NAMES) for n in range(3)
    ]


@pytest.fixture
def manifest(files: list[Path]) -> Path:
    return write_set(files[0].parent / "s.beton.json", files)


@pytest.fixture
def whole(manifest: Path, tmp_path: Path) -> Path:
    merge(tmp_path / "whole.beton", [str(manifest)])
    return tmp_path / "whole.beton"


def damage(path: Path, sample: int) -> None:
    with Reader(path) as reader:
        flip(path, int(reader.locate("image", [sample])[0][0]) + 9, 3)


@pytest.mark.parametrize("how", [["--folds", 4], ["--by-class"], ["--ratio", "2,1", "--group-field", "label"]])
def test_a_set_is_split_as_the_one_file_of_its_shards_is(how: list[object], manifest: Path, whole: Path) -> None:
    of_set = run_json(commands.split, manifest, *how)["parts"]
    of_file = run_json(commands.split, whole, *how)["parts"]
    assert [Path(each["path"]).name for each in of_set] == [f"s-{each['name']}.beton" for each in of_set]
    for one, two in zip(of_set, of_file, strict=True):
        assert contents(one["path"]) == contents(two["path"]) and verify_file(one["path"]).ok
        with Reader(one["path"]) as reader:
            assert reader.extension is not None and reader.extension.class_names == tuple(NAMES)
            step = reader.extension.provenance["history"][-1]
            assert [each["file"] for each in step["from"]] == ["s0.beton", "s1.beton", "s2.beton"]


@pytest.mark.parametrize("form", ["imagefolder", "webdataset"])
def test_sets_and_several_files_are_exported_as_one_dataset(
    form: str, manifest: Path, files: list[Path], whole: Path, tmp_path: Path
) -> None:
    for name, sources in (("set", [manifest]), ("files", files), ("one", [whole])):
        report = run_json(commands.export, *sources, tmp_path / f"out-{name}", "--format", form)
        assert report["num_samples"] == 15
    trees = [tree(tmp_path / f"out-{name}") for name in ("set", "files", "one")]
    if form == "webdataset":  # a tar is called after the first path
        assert [next(name for name in each if name != "classes.json") for each in trees] == [
            "s-000000.tar", "s0-000000.tar", "whole-000000.tar",
        ]  # fmt: skip
        assert sorted(trees[0].values()) == sorted(trees[1].values()) == sorted(trees[2].values())
    else:
        assert trees[0] == trees[1] == trees[2]
    with pytest.raises(UsageError, match="named twice"):
        export([str(manifest), str(files[1])], tmp_path / "twice")
    with pytest.raises(UsageError, match="at least one file"):
        export([], tmp_path / "none")


def test_files_that_do_not_fit_together_are_not_exported(files: list[Path], tmp_path: Path) -> None:
    other = write_file(tmp_path / "o.beton", [0], class_names=["p", "q"])
    with pytest.raises(UsageError, match=r"name different classes.*merge --classes union"):
        export([str(files[0]), str(other)], tmp_path / "out")
    other = write_file(tmp_path / "o.beton", [0], names=("image", "label"), class_names=NAMES, overwrite=True)
    with pytest.raises(UsageError, match="have different fields"):
        export([str(files[0]), str(other)], tmp_path / "out")
    assert not strange_files(tmp_path)


def test_an_upgraded_set_has_the_samples_of_the_old_one_shard_by_shard_for_any_number_of_workers(
    manifest: Path, files: list[Path], tmp_path: Path
) -> None:
    for workers in (0, 2):
        facts = run_json(commands.upgrade, manifest, tmp_path / f"u{workers}.beton.json", "--num-workers", workers)
        assert (facts["num_samples"], facts["num_recoded"], facts["num_kept"]) == (15, 8, 37)
        new = Manifest.load(facts["path"])
        assert [shard.name for shard in new.shards] == [f"u{workers}-0000{n}-of-00003.beton" for n in range(3)]
        assert facts["num_bytes"] == new.num_bytes
        assert run(verify, facts["path"]).exit_code == 0
    for number, file in enumerate(files):
        path = tmp_path / f"u0-0000{number}-of-00003.beton"
        assert path.read_bytes() == (tmp_path / f"u2-0000{number}-of-00003.beton").read_bytes()
        assert contents(path, without=("image", "depth")) == contents(file, without=("image", "depth"))
        with Reader(path) as new_reader, Reader(file) as old_reader:
            for index in range(5):
                new_image, old_image = new_reader.value("image", index), old_reader.value("image", index)
                if old_image.mode == 0:  # type: ignore[attr-defined]
                    pixels = [decode_jpeg(image.data) for image in (new_image, old_image)]  # type: ignore[attr-defined]
                    assert (pixels[0] == pixels[1]).all()
    again = upgrade(manifest, tmp_path / "n.beton.json", class_names=["p", "q", "r"])
    assert again.num_classes == 3
    with pytest.raises(UsageError, match=r"s0.beton has labels from 0 to 2, which 2 class names"):
        upgrade(manifest, tmp_path / "m.beton.json", class_names=["p", "q"])


def test_a_repaired_set_leaves_out_damaged_samples_and_shards_that_are_lost(
    manifest: Path, files: list[Path], tmp_path: Path
) -> None:
    damage(files[1], 0)  # all samples of so small a file lie in one block
    big = [write_file(tmp_path / "set" / f"b{n}.beton", [n] * 400, first=400 * n) for n in range(2)]
    damage(big[1], 200)
    manifest.unlink()
    write_set(manifest, [files[0], files[1], big[1], files[2], big[0]])
    files[2].unlink()
    with open(big[0], "r+b") as file:
        file.truncate(5000)
    done = run(commands.repair, manifest, tmp_path / "r.beton.json")
    assert done.exit_code == 0, done.output
    assert "shards dropped: 3" in done.stdout
    assert f"  5 samples: {files[2]} is not there" in done.stdout and "400 samples: " in done.stdout
    report = repair(manifest, tmp_path / "q.beton.json", num_workers=2)
    assert [(each.path, each.num_samples) for each in report.lost_shards] == [
        (str(files[1]), 5), (str(files[2]), 5), (str(big[0]), 400),
    ]  # fmt: skip
    assert report.num_source_samples == 815 and report.num_samples + len(report.dropped) == 405
    lost = {each.sample - 10 for each in report.dropped}
    assert 200 in lost and 0 < len(lost) < 100, "samples are counted through the set"
    assert all("b1.beton, its sample " in each.reason for each in report.dropped)
    new = Manifest.load(tmp_path / "q.beton.json")
    assert [shard.num_samples for shard in new.shards] == [5, 400 - len(lost)]
    assert contents(tmp_path / new.shards[0].name) == contents(files[0])
    sound = contents(big[1])
    assert contents(tmp_path / new.shards[1].name) == [sound[i] for i in range(400) if i not in lost]
    assert run(verify, tmp_path / "q.beton.json").exit_code == 0
    assert tree(tmp_path / "set") and not strange_files(tmp_path)
    assert [shard.fingerprint for shard in Manifest.load(tmp_path / "r.beton.json").shards] == [
        shard.fingerprint for shard in new.shards
    ]
    for path in (files[0], big[1]):
        path.unlink()
    with pytest.raises(ConvertError, match="none of its shards has an undamaged sample"):
        repair(manifest, tmp_path / "z.beton.json")
    assert not list(tmp_path.glob("*z*"))


def test_blank_samples_of_a_set_keep_their_place(manifest: Path, files: list[Path], tmp_path: Path) -> None:
    damage(files[1], 2)
    report = repair(manifest, tmp_path / "r.beton.json", zero=True)
    assert [each.sample for each in report.blanked] == list(range(5, 10)) and not report.dropped
    assert column(tmp_path / "r-00001-of-00003.beton", "label") == column(files[1], "label")


@pytest.mark.parametrize("verb", ["repair", "upgrade"])
def test_a_set_is_made_of_a_set_and_a_file_of_a_file(
    verb: str, manifest: Path, files: list[Path], tmp_path: Path
) -> None:
    command = getattr(commands, verb)
    with pytest.raises(UsageError, match=r"is a set of shards.*NAME.beton.json, or make one file .* `beton merge`"):
        run(command, manifest, tmp_path / "o.beton")
    with pytest.raises(UsageError, match=r"names a set of shards, but .* is one file"):
        run(command, files[0], tmp_path / "o.beton.json")
    with pytest.raises(UsageError, match="is being read"):
        run(command, manifest, manifest, "--overwrite")
    assert run(command, manifest, tmp_path / "o.beton.json").exit_code == 0
    with pytest.raises(UsageError, match=r"(4 of the 4|o\.beton\.json).* exist"):
        run(command, manifest, tmp_path / "o.beton.json")
    assert run(command, manifest, tmp_path / "o.beton.json", "--overwrite").exit_code == 0
    assert not strange_files(tmp_path)


def test_a_set_named_like_its_own_shards_is_refused(tmp_path: Path) -> None:
    shards = [write_file(tmp_path / f"t-0000{n}-of-00002.beton", [n], first=n) for n in range(2)]
    manifest = write_set(tmp_path / "old.beton.json", shards)
    with pytest.raises(UsageError, match="is being read"):
        upgrade(manifest, tmp_path / "t.beton.json", overwrite=True)
    with pytest.raises(UsageError, match="is being read"):
        split(manifest, out=str(tmp_path / "t-0000{index}-of-00002.beton"), folds=2, overwrite=True)
    assert [column(path, "label") for path in shards] == [[0], [1]]
