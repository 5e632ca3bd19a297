"""Shards: the same files whoever makes them, a manifest when all are complete, and nothing done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from converters import ImagePolicy, Options, convert
from converters.python_dataset import DatasetSource
from dataloading import ConvertError, IntField, Manifest, Reader, UsageError
from tests.converters.engine.test_resume import FIELDS, Blocks, die_at_write, files, in_a_child, save_in_turn
from tests.converters.making import class_folders

ROOT = Path(__file__).resolve().parents[3]
NAMES = [f"o-0000{number}-of-00003.beton" for number in range(3)]


def write(path: Path | str, dataset: Any = None, **options: Any) -> Any:
    source = DatasetSource(dataset or Blocks(), FIELDS)
    options = {"num_shards": 3, "checkpoint_seconds": 1e-9, **options}
    return convert(source, path, policy=ImagePolicy(), options=Options(**options))


def content(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    write(folder / "o.beton", shuffle=True)
    return content(folder)


def test_shards_hold_all_samples_in_order_and_the_manifest_lists_them(tmp_path: Path) -> None:
    report = write(tmp_path / "o.beton", Blocks(61))
    assert files(tmp_path) == [*NAMES, "o.beton.json"]
    assert (report.path, report.num_samples, report.is_whole) == (str(tmp_path / "o.beton.json"), 61, True)
    manifest = Manifest.load(tmp_path / "o.beton.json")
    assert [shard.num_samples for shard in manifest.shards] == [20, 20, 21]
    labels = []
    for shard in manifest.shards:
        with Reader(tmp_path / shard.name) as reader:
            labels += reader.column("label").tolist()
            assert (reader.fingerprint, reader.num_bytes) == (shard.fingerprint, shard.num_bytes)
    assert labels == list(range(61))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_bytes_of_shards_do_not_depend_on_workers(tmp_path: Path, whole: dict[str, bytes], num_workers: int) -> None:
    write(tmp_path / "o.beton", shuffle=True, num_workers=num_workers)
    assert content(tmp_path) == whole


def test_one_process_a_shard_in_any_order_comes_to_the_same_and_the_last_writes_the_manifest(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    for turn, index in enumerate((2, 0, 1)):
        assert not (tmp_path / "o.beton.json").exists()
        report = write(tmp_path / "o.beton", shuffle=True, shard_index=index)
        assert (report.num_samples, report.is_whole) == (20, turn == 2)
    assert content(tmp_path) == whole


def test_a_shard_of_another_conversion_is_not_put_into_the_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "o.beton", seed=0, shuffle=True, shard_index=0)
    write(tmp_path / "o.beton", seed=1, shuffle=True, shard_index=1)
    assert not write(tmp_path / "o.beton", seed=0, shuffle=True, shard_index=2).is_whole
    assert "no manifest was written" in (said := capsys.readouterr().err)
    assert "seed was 1, is 0 now" in said
    assert files(tmp_path) == NAMES


@pytest.mark.parametrize("at", [20, 90, 150])
def test_killed_and_resumed_shards_have_the_same_bytes_and_finished_ones_are_left_alone(
    tmp_path: Path, whole: dict[str, bytes], at: int
) -> None:
    def act() -> None:
        save_in_turn()
        die_at_write(at, 0.5)
        write(tmp_path / "o.beton", shuffle=True)

    assert in_a_child(act) < 0
    done = [name for name in NAMES if (tmp_path / name).exists()]
    times = [(tmp_path / name).stat().st_mtime_ns for name in done]
    with pytest.raises(UsageError, match="--resume"):
        write(tmp_path / "o.beton", shuffle=True)
    assert not (tmp_path / "o.beton.json").exists()
    report = write(tmp_path / "o.beton", shuffle=True, resume=True)
    assert report.num_resumed > 20 * len(done)
    assert content(tmp_path) == whole
    assert [(tmp_path / name).stat().st_mtime_ns for name in done] == times


def test_a_lost_shard_is_made_again_and_nothing_else(tmp_path: Path, whole: dict[str, bytes]) -> None:
    write(tmp_path / "o.beton", shuffle=True)
    (tmp_path / NAMES[1]).unlink()
    assert write(tmp_path / "o.beton", shuffle=True, resume=True).num_resumed == 40
    assert content(tmp_path) == whole


def test_finished_shards_of_a_source_that_has_changed_are_refused(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "src", {"ant": 4, "bee": 4})
    command = [sys.executable, "-m", "dataloading.cli", "convert", "imagefolder", str(root), str(tmp_path / "o.beton")]
    command += ["--num-shards", "2", "--num-workers", "0"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (root / "ant" / "00.jpg").rename(root / "ant" / "0x.jpg")
    done = subprocess.run([*command, "--resume"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "names_of_samples was" in done.stderr


def test_a_size_gives_a_number_of_shards_that_is_the_same_in_each_process(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    dataset = class_folders(tmp_path / "src", {"ant": 30}, size=(200, 150))
    from converters import ImageFolder

    def run(folder: Path, **options: Any) -> Any:
        return convert(
            ImageFolder(dataset),
            folder / "o.beton",
            policy=ImagePolicy(),
            options=Options(shard_bytes=50_000, **options),
        )

    report = run(whole)
    assert len(report.shards) > 1
    held = sum(path.stat().st_size for path in (tmp_path / "src").rglob("*.jpg"))
    assert len(report.shards) == pytest.approx(held / 50_000, abs=2)
    for index in range(len(report.shards)):
        run(parts, shard_index=index)
    assert content(parts) == content(whole)


def test_files_of_a_size_are_of_that_size_with_their_pages(tmp_path: Path) -> None:
    dataset = class_folders(tmp_path / "src", {"ant": 60}, size=(300, 200))
    from converters import ImageFolder

    report = convert(
        ImageFolder(dataset), tmp_path / "o.beton", policy=ImagePolicy(mode="raw"),
        options=Options(shard_bytes=6 << 20, page_size=2 << 20),
    )  # fmt: skip
    assert len(report.shards) > 1
    sizes = [Path(shard).stat().st_size for shard in report.shards]
    # Whole pages, and a table of a few bytes a sample behind them.
    assert max(sizes) < (6 << 20) * 1.1


def test_overwriting_takes_the_manifest_away_before_a_shard_changes(tmp_path: Path, whole: dict[str, bytes]) -> None:
    write(tmp_path / "o.beton", Blocks(60, bad=()), shuffle=False)
    with pytest.raises(ConvertError, match="damaged"):
        write(tmp_path / "o.beton", Blocks(bad=(50,)), overwrite=True)
    assert not (tmp_path / "o.beton.json").exists()
    write(tmp_path / "o.beton", shuffle=True, overwrite=True)
    assert content(tmp_path) == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_shards": 61}, "61 shards of 60 samples"),
        ({"shard_bytes": 1000}, "give one of them"),
        ({"shard_index": 3}, "shard_index must be 0 to 2"),
        ({"num_shards": None, "shard_index": 0}, "shard_index needs num_shards"),
        ({"num_shards": None, "engine": "ray"}, "spreads shards"),
        ({"engine": "slurm"}, "must be one of local, ray"),
        ({"engine": "ray", "shard_index": 0}, "starts them all"),
    ],
)
def test_shards_that_cannot_be_are_refused_before_any_work(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        write(tmp_path / "o.beton", **options)
    assert files(tmp_path) == []


def test_each_shard_of_a_job_array_has_its_own_list_of_errors(tmp_path: Path) -> None:
    for index in range(3):
        log = str(tmp_path / "errors.json")
        write(tmp_path / "o.beton", Blocks(bad=(5, 45)), on_error="skip", shard_index=index, error_log=log)
    assert [name for name in files(tmp_path) if "errors" in name] == [
        f"errors-0000{number}.json" for number in range(3)
    ]


def test_fields_without_images_can_be_cut_into_a_shard_a_sample(tmp_path: Path) -> None:
    source = DatasetSource([(number,) for number in range(4)], {"label": IntField()})
    convert(source, tmp_path / "o.beton", policy=ImagePolicy(), options=Options(num_shards=4))
    assert len(files(tmp_path)) == 5


def test_the_command_writes_shards_and_says_so(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "src", {"ant": 4, "bee": 4})
    Path(root, "bee", "01.jpg").write_bytes(b"no image")
    command = [sys.executable, "-m", "dataloading.cli", "convert", "imagefolder", str(root), str(tmp_path / "o.beton")]
    command += ["--num-shards", "2", "--num-workers", "0", "--on-error", "placeholder", "--json"]
    command += ["--error-log", str(tmp_path / "log.json"), "--no-space-check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert facts["path"] == str(tmp_path / "o.beton.json")
    assert facts["shards"] == [str(tmp_path / f"o-0000{number}-of-00002.beton") for number in range(2)]
    assert [item["name"] for item in facts["replaced"]] == ["bee/01.jpg"]
    assert "replaced bee/01.jpg:" in done.stderr
    assert json.loads((tmp_path / "log.json").read_text())["num_replaced"] == 1
