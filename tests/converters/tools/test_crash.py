"""A verb that is killed leaves nothing that the next run does not take away or finish; the living are not touched."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from converters.tools import commands
from converters.tools.new_files import NewFiles
from converters.tools.split import split
from dataloading import ConvertError, Manifest, UsageError
from dataloading.tools import PartFolder
from tests.converters.tools.making import run, strange_files, write_file, write_set
from tests.support.foreign import flip

ROOT = Path(__file__).parents[3]
NAMES = ["x", "y", "z"]
READING = "converters.tools.input_files:InputFile.read"
COPYING = "converters.tools.append:shutil.copyfileobj"
NAMING = "dataloading.format.output:PartFolder.publish_file"

STALLED = """
import importlib, pathlib, sys, time
place, after, marker, *words = sys.argv[1:]
module, _, names = place.partition(":")
owner, name = importlib.import_module(module), names
while "." in name:
    first, _, name = name.partition(".")
    owner = getattr(owner, first)
real, count = getattr(owner, name), 0
def stalled(*args, **options):
    global count
    count += 1
    if count > int(after):
        pathlib.Path(marker).touch()
        time.sleep(600)
    return real(*args, **options)
setattr(owner, name, stalled)
from dataloading.cli import beton
beton(words)
"""


@contextlib.contextmanager
def stalled(folder: Path, place: str, after: int, words: Sequence[object]) -> Iterator[subprocess.Popen[bytes]]:
    """A `beton` that stops for ever at its call number ``after`` of a function."""
    marker = folder / "stalled"
    marker.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", STALLED, place, str(after), str(marker), *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 100
        while not marker.exists():
            assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def killed(folder: Path, place: str, after: int, words: Sequence[object]) -> None:
    """Run `beton` and kill it at a call."""
    with stalled(folder, place, after, words) as process:
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(timeout=60) == -signal.SIGKILL


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Sources, and a shard set in a folder of its own."""
    labels = [index % 3 for index in range(12)]
    write_file(tmp_path / "a.beton", labels, class_names=NAMES)
    write_file(tmp_path / "b.beton", labels[:5], first=12, class_names=NAMES)
    (tmp_path / "set").mkdir()
    shards = [
        write_file(tmp_path / "set" / f"s{number}.beton", labels[:4], first=30 + 4 * number, class_names=NAMES)
        for number in range(2)
    ]
    write_set(tmp_path / "set" / "s.beton.json", shards)
    (tmp_path / "out").mkdir()
    return tmp_path


VERBS = {
    "merge": (READING, 20, ["out/m.beton", "a.beton", "b.beton"]),
    "split": (READING, 20, ["a.beton", "--folds", 3, "--out", "out/{name}.beton"]),
    "repair": (READING, 20, ["a.beton", "out/r.beton"]),
    "repair of a set": (READING, 50, ["set/s.beton.json", "out/r.beton.json"]),
    "upgrade": (READING, 20, ["a.beton", "out/u.beton", "--num-workers", 0]),
    "upgrade of a set": (READING, 50, ["set/s.beton.json", "out/u.beton.json", "--num-workers", 0]),
    "export": (READING, 20, ["a.beton", "set/s.beton.json", "out/e"]),
    "export to tars": (READING, 20, ["a.beton", "out/e", "--format", "webdataset"]),
    "append": (COPYING, 1, ["set/s.beton.json", "a.beton", "b.beton"]),
}


def result_folder(work: Path, verb: str) -> Path:
    return work / ("set" if verb == "append" else "out")


@pytest.mark.parametrize("name", VERBS)
def test_the_next_run_removes_what_a_killed_one_left_and_its_result_is_whole(
    name: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    place, after, words = VERBS[name]
    verb = name.partition(" ")[0]
    command, out = getattr(commands, verb), result_folder(work, verb)
    before = tree(out)
    killed(work, place, after, [verb, *words])
    assert strange_files(out), "the kill came in the middle"
    assert {key: data for key, data in tree(out).items() if not key.startswith(".")} == before, "nothing looks finished"
    again = run(command, *words)
    assert again.exit_code == 0 and "removed what interrupted runs had left: " in again.stderr
    assert not strange_files(out)
    result = tree(out)
    assert len(result) > len(before)
    if verb != "append":
        for path in result:
            (out / path).unlink()
        for path in sorted(out.rglob("*"), reverse=True):
            path.rmdir()
        undisturbed = run(command, *words)
        assert "interrupted" not in undisturbed.stderr
        assert tree(out) == result


@pytest.mark.parametrize("name", ["merge", "split", "upgrade", "export", "repair"])
def test_a_living_neighbour_with_the_same_destination_keeps_its_work(
    name: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    place, after, words = VERBS[name]
    with stalled(work, place, after, [name, *words]):
        living = strange_files(work / "out")
        assert len(living) == 1
        done = run(getattr(commands, name), *words)
        assert done.exit_code == 0 and "interrupted" not in done.stderr
        assert strange_files(work / "out") == living
    assert strange_files(work / "out") == living, "it was killed, and nobody has come since"


def test_two_splits_into_one_folder_at_the_same_time_do_not_disturb_each_other(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    with stalled(work, READING, 20, ["split", "a.beton", "--folds", 2, "--out", "out/{name}.beton"]):
        [living] = strange_files(work / "out")
        split("b.beton", out="out/b-{name}.beton", by_class=True)
        assert strange_files(work / "out") == [living]
    split("b.beton", out="out/c-{name}.beton", by_class=True)
    assert strange_files(work / "out") == [living], "it had another destination"
    split("a.beton", out="out/{name}.beton", folds=2)
    assert not strange_files(work / "out")


@pytest.mark.parametrize("num_named", [0, 1, 2])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_split_killed_as_it_named_its_parts_is_finished_by_the_same_command(
    num_named: int, overwrite: bool, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    words = ["a.beton", "--folds", 3, "--out", "out/{name}.beton", *(["--overwrite"] if overwrite else [])]
    if overwrite:
        split("b.beton", out="out/{name}.beton", folds=3)
    old = tree(work / "out")
    killed(work, NAMING, num_named, ["split", *words])
    assert sum(old.get(name) != data for name, data in tree(work / "out").items() if name[0] != ".") == num_named
    again = run(commands.split, *words)
    assert f"finished what an interrupted run had complete: {work}/out/fold0.beton" in again.stderr
    assert f"({3 - num_named} of 3 had no name yet)" in again.stderr
    assert again.exit_code == 0 and "out/fold2.beton: 4 samples" in again.stdout
    assert not strange_files(work / "out")
    result = tree(work / "out")
    split("a.beton", out="out/{name}.beton", folds=3, overwrite=True)
    assert result == tree(work / "out")


def test_another_command_finishes_a_half_named_split_too_and_is_then_told_what_is_there(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(work)
    killed(work, NAMING, 1, ["split", "a.beton", "--folds", 3, "--out", "out/{name}.beton"])
    with pytest.raises(UsageError, match=r"3 of the 4 files to be made exist \(out/fold0.beton, out/fold1.beton, "):
        split("a.beton", out="out/{name}.beton", folds=4)
    assert "(2 of 3 had no name yet)" in capsys.readouterr().err
    assert sorted(tree(work / "out")) == ["fold0.beton", "fold1.beton", "fold2.beton"]


def test_what_was_changed_since_is_not_overwritten_by_the_rest_of_a_half_named_split(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(work)
    killed(work, NAMING, 1, ["split", "a.beton", "--folds", 3, "--out", "out/{name}.beton"])
    (work / "out" / "fold2.beton").write_text("mine")
    with pytest.raises(UsageError, match=r"2 of the 3 files to be made exist \(out/fold0.beton, out/fold2.beton\)"):
        split("a.beton", out="out/{name}.beton", folds=3)
    assert "had named 1 of its 3 files, and the rest cannot follow" in capsys.readouterr().err
    assert (work / "out" / "fold2.beton").read_text() == "mine"
    split("a.beton", out="out/{name}.beton", folds=3, overwrite=True)
    assert not strange_files(work / "out") and len(tree(work / "out")) == 3


def test_a_changed_source_is_not_taken_for_the_one_that_was_split(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    killed(work, NAMING, 1, ["split", "a.beton", "--folds", 3, "--out", "out/{name}.beton"])
    write_file(work / "a.beton", [0] * 12, overwrite=True)
    with pytest.raises(UsageError, match="3 of the 3 files to be made exist"):
        split("a.beton", out="out/{name}.beton", folds=3)


@pytest.mark.parametrize("num_named", [0, 1, 2])
def test_an_append_killed_before_the_manifest_is_replaced_goes_on(
    num_named: int, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    words = ["set/s.beton.json", "a.beton", "b.beton"]
    killed(work, NAMING, num_named, ["append", *words])
    assert Manifest.load("set/s.beton.json").num_samples == 8
    again = run(commands.append, *words)
    assert again.exit_code == 0 and "now 4 shards, 25 samples" in again.stdout
    assert f"({3 - num_named} of 3 had no name yet)" in again.stderr
    assert [shard.name for shard in Manifest.load("set/s.beton.json").shards][2:] == ["a.beton", "b.beton"]
    assert not strange_files(work / "set")
    with pytest.raises(UsageError):
        run(commands.append, *words)


@pytest.mark.parametrize("verb", ["repair", "upgrade"])
def test_a_set_appears_with_its_manifest_last_and_a_killed_run_is_finished(
    verb: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    words = ["set/s.beton.json", "out/n.beton.json", "--num-workers", 0 if verb == "upgrade" else 1]
    killed(work, NAMING, 2, [verb, *words])
    assert not (work / "out" / "n.beton.json").exists()
    again = run(getattr(commands, verb), *words)
    assert again.exit_code == 0 and "(1 of 3 had no name yet)" in again.stderr and "8" in again.stdout
    assert sorted(tree(work / "out")) == ["n-00000-of-00002.beton", "n-00001-of-00002.beton", "n.beton.json"]


def test_a_refused_run_leaves_what_a_killed_one_left(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    killed(work, *VERBS["merge"][:2], ["merge", *VERBS["merge"][2]])
    flip(work / "b.beton", (work / "b.beton").stat().st_size // 2, 1)
    left = strange_files(work / "out")
    with pytest.raises(ConvertError, match="is damaged"):
        run(commands.merge, *VERBS["merge"][2])
    assert left and strange_files(work / "out") == left


@pytest.mark.parametrize("num_named", [1, 2])
def test_parts_in_several_folders_are_finished_too_and_no_folder_keeps_litter(
    num_named: int, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    folders = [work / "out" / f"fold{index}" for index in range(3)]
    for folder in folders:
        folder.mkdir()
    words = ["a.beton", "--folds", 3, "--out", "out/{name}/part.beton"]
    killed(work, NAMING, num_named, ["split", *words])
    assert all(strange_files(folder) for folder in folders)
    again = run(commands.split, *words)
    assert again.exit_code == 0 and f"({3 - num_named} of 3 had no name yet)" in again.stderr
    assert sorted(tree(work / "out")) == [f"fold{index}/part.beton" for index in range(3)]
    killed(work, READING, 20, ["split", *words, "--overwrite"])
    assert run(commands.split, *words, "--overwrite").exit_code == 0
    assert not any(strange_files(folder) for folder in folders)


def fill(files: NewFiles, targets: list[str], text: str) -> None:
    for target in targets:
        Path(files.part(target)).write_text(text)


def failing(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    """Let the ``number``-th file that gets its name meet an error, once."""
    real, calls = PartFolder.publish_file, 0

    def publish_file(self: PartFolder, name: str, path: str, *, overwrite: bool) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise error
        real(self, name, path, overwrite=overwrite)

    monkeypatch.setattr(PartFolder, "publish_file", publish_file)


def test_if_a_new_name_is_taken_at_the_last_moment_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [str(tmp_path / name) for name in "abc"]
    failing(monkeypatch, 3, FileExistsError("c has appeared meanwhile"))
    with NewFiles(targets, overwrite=False, inputs=[]) as files:
        fill(files, targets, "new")
        with pytest.raises(UsageError, match="c has appeared meanwhile"):
            files.publish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(5, "the disk fails"), KeyboardInterrupt()])
def test_if_files_were_replaced_already_an_error_leaves_the_rest_to_the_next_run(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [str(tmp_path / name) for name in "abc"]
    for target in targets[:2]:
        Path(target).write_text("old")
    options = {"overwrite": True, "inputs": [], "identity": {"what": "test"}}
    failing(monkeypatch, 2, error)
    with pytest.raises(type(error)), NewFiles(targets, **options) as files:  # type: ignore[arg-type]
        fill(files, targets, "new")
        files.publish()
    assert [Path(target).read_text() for target in targets[:2]] == ["new", "old"] and not Path(targets[2]).exists()
    with NewFiles(targets, **options) as files:  # type: ignore[arg-type]
        assert files.is_done
    assert [Path(target).read_text() for target in targets] == ["new"] * 3 and not strange_files(tmp_path)
    with NewFiles(targets, **options) as files:  # type: ignore[arg-type]
        assert not files.is_done, "that run is over; this is another one"
