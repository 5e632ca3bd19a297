"""A full disk is named, and a picture or list that cannot be written leaves nothing behind."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from converters import ImageFolder
from converters.engine.convert import Options, convert
from converters.images.policy import ImagePolicy
from converters.output.files import full_disk_names
from converters.source import Source
from dataloading import UsageError
from dataloading.tools import whole_file
from tests.converters.making import class_folders

BETON = [sys.executable, "-m", "dataloading.cli"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    source = ImageFolder(class_folders(folder / "src", {"ant": 20, "bee": 20}, size=(400, 300)))
    convert(source, folder / "a.beton", policy=ImagePolicy(), options=Options(num_workers=0, page_size=2 << 20))
    return folder / "a.beton"


def beton(*words: str, cwd: Path, file_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command; no file may grow beyond ``file_bytes``, which the system refuses as it does on a full disk."""

    def limit() -> None:
        assert file_bytes is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    return subprocess.run(
        [*BETON, *words], cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
        preexec_fn=None if file_bytes is None else limit,
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["merge", "out.beton", "IN"],
        ["repair", "IN", "out.beton"],
        ["upgrade", "IN", "out.beton"],
        ["split", "IN", "--folds", "2", "--out", "out-{name}.beton"],
        ["export", "IN", "out", "--format", "webdataset"],
    ],
)
def test_a_verb_that_finds_no_room_names_what_it_was_writing_and_leaves_nothing(
    made: Path, tmp_path: Path, words: list[str]
) -> None:
    words = [str(made) if word == "IN" else word for word in words]
    ended = beton(*words, cwd=tmp_path, file_bytes=100_000)
    assert ended.returncode == 1, ended.stderr
    assert "cannot write out" in ended.stderr
    assert "free there now" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--grid", "6x6", "--out", "x.png"], ["--sample", "3", "--out", "x.png"]])
def test_a_picture_that_cannot_be_written_whole_leaves_no_part_of_it(
    made: Path, tmp_path: Path, words: list[str]
) -> None:
    ended = beton("info", str(made), *words, cwd=tmp_path, file_bytes=2_000)
    assert ended.returncode == 1, ended.stderr
    assert "cannot write x.png" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_picture_with_an_unknown_ending_is_the_users_mistake(made: Path, tmp_path: Path) -> None:
    ended = beton("info", str(made), "--sample", "3", "--out", "x.xyz", cwd=tmp_path)
    assert ended.returncode == 2
    assert ".xyz" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_written_whole_replaces_the_old_one_and_an_error_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError), whole_file(str(target)) as part:
        Path(part).write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    link = tmp_path / "link.txt"
    link.symlink_to(target)
    with whole_file(str(link)) as part:
        assert part.endswith(".txt")
        Path(part).write_text("new")
    assert target.read_text() == "new"
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "link.txt"]


def test_what_is_no_file_is_written_to_directly() -> None:
    with whole_file(os.devnull) as part:
        assert part == os.devnull
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_refusals_that_name_their_own_file_travel_on() -> None:
    with pytest.raises(PermissionError), full_disk_names("out.beton"):
        raise PermissionError(errno.EACCES, "Permission denied", "in.beton")


def test_a_list_of_errors_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    source: Source = ImageFolder(class_folders(tmp_path / "src", {"ant": 2}, size=(20, 20)))
    for log, words in ((tmp_path / "none" / "e.json", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(UsageError, match=words):
            convert(
                source, tmp_path / "o.beton", policy=ImagePolicy(), options=Options(num_workers=0, error_log=str(log))
            )
        assert not (tmp_path / "o.beton").exists()


def test_taking_none_of_the_samples_says_how_many_there_were(tmp_path: Path) -> None:
    source: Source = ImageFolder(class_folders(tmp_path / "src", {"ant": 2}, size=(20, 20)))
    with pytest.raises(UsageError, match="2 samples, of which limit=0 takes none"):
        convert(source, tmp_path / "o.beton", policy=ImagePolicy(), options=Options(num_workers=0, limit=0))


def test_a_folder_that_is_there_but_cannot_be_used_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Source = ImageFolder(class_folders(tmp_path / "src", {"ant": 2}, size=(20, 20)))
    monkeypatch.chdir(tmp_path)
    for _ in range(30):
        Path("d" * 200).mkdir()
        os.chdir("d" * 200)
    os.chdir(tmp_path)
    deep = Path(*["d" * 200] * 30)
    for folder, words in ((deep, "cannot be used: File name too long"), (tmp_path / "none", "does not exist; make it")):
        with pytest.raises(UsageError, match=f"the folder .* {words}"):
            convert(source, folder / "o.beton", policy=ImagePolicy(), options=Options(num_workers=0))
