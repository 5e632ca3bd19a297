"""Unfinished files and folders are hidden, locked by the living, and cleared away only when their writer is gone."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dataloading.format import output
from dataloading.format.output import PartFile, whole_file
from dataloading.tools import PartFolder, remove_orphans

HOLD = """
import sys
from dataloading.format.output import PartFile, PartFolder
held = [PartFile("d.beton", overwrite=False), PartFolder("d.beton")]
print("holding", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def test_a_folder_appears_complete_with_default_permissions_or_not_at_all() -> None:
    Path("plain").mkdir()
    with PartFolder("out") as folder:
        Path(folder.part, "x").write_text("x")
        assert names() == [folder.part, "plain"] and folder.part.startswith(".out.part-")
        folder.publish()
    assert names() == ["out", "plain"] and Path("out/x").read_text() == "x"
    assert Path("out").stat().st_mode == Path("plain").stat().st_mode
    with pytest.raises(ZeroDivisionError), PartFolder("other"):
        raise ZeroDivisionError
    with PartFolder("out") as folder, pytest.raises(FileExistsError, match="out has appeared meanwhile"):
        folder.publish()
    assert names() == ["out", "plain"]


def test_a_file_moves_out_of_a_folder_and_replaces_another_only_if_allowed() -> None:
    Path("old").write_text("old")
    with PartFolder("out") as folder:
        Path(folder.part, "a").write_text("a")
        with pytest.raises(FileExistsError):
            folder.publish_file("a", "old", overwrite=False)
        assert Path("old").read_text() == "old"
        folder.publish_file("a", "new", overwrite=False)
        folder.publish_file("a", "old", overwrite=True)
    assert Path("old").read_text() == Path("new").read_text() == "a" and names() == ["new", "old"]


def test_unfinished_output_stays_while_its_process_lives_and_is_removed_after(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holding\n"
        held = names()
        assert len(held) == 2
        assert remove_orphans("d.beton") == [] and PartFolder.abandoned("d.beton") == []
        assert names() == held
    finally:
        holder.kill()
        holder.communicate(timeout=60)
    assert remove_orphans("e.beton", "d") == [], "they had another destination"
    assert remove_orphans("d.beton", remove=False) == held == names()
    assert remove_orphans("other", str(tmp_path / "d.beton")) == [str(tmp_path / name) for name in held]
    assert names() == []


def test_other_files_links_and_pipes_are_not_taken_for_unfinished_output() -> None:
    for ending in (".part", ".part-0123abc", ".part-0123abcx", ".part-0123ABCD", ".journal"):
        Path(f".d.beton{ending}").write_text("mine")
    for name in ("d.beton", ".dxbeton.part-0123abcd"):
        Path(name).write_text("mine")
    Path(".d.beton.part-00000000").symlink_to("d.beton")
    os.mkfifo(".d.beton.part-11111111")
    before = names()
    assert remove_orphans("d.beton") == [] and names() == before


def test_without_file_locks_writing_works_and_nothing_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    Path(".d.beton.part-0123abcd").write_text("of another machine, perhaps")
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert remove_orphans("d.beton") == [] and PartFolder.abandoned("d.beton") == []
    file = PartFile("d.beton", overwrite=False)
    file.write_at(0, memoryview(b"x"))
    file.publish()
    with PartFolder("out") as folder:
        folder.publish()
    assert names() == [".d.beton.part-0123abcd", "d.beton", "out"]


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_new_file_that_is_removed_before_it_is_locked_is_created_again(
    has_lock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, calls = output.try_lock, 0

    def meddled(descriptor: int, **options: bool) -> bool:
        nonlocal calls
        if options:  # whoever looks for orphans
            return lock(descriptor, **options)
        calls += 1
        if calls == 1:
            [name] = names()
            if not has_lock:
                return False  # the other one is just looking at it
            assert remove_orphans("d.beton") == [name]
        return lock(descriptor)

    monkeypatch.setattr(output, "try_lock", meddled)
    file = PartFile("d.beton", overwrite=False)
    assert names() == [file.part] and calls == 2
    file.discard()
    calls = 0
    with PartFolder("d.beton") as folder:
        assert names() == [folder.part] and calls == 2
    assert names() == []


def test_a_folder_that_is_taken_over_is_locked_until_it_is_released() -> None:
    Path(".d.part-0123abcd").mkdir()
    Path(".d.part-0123abcd/x").write_text("x")
    Path(".d.part-00000000").write_text("a file")
    [taken] = PartFolder.abandoned("d")
    assert PartFolder.abandoned("d") == []
    assert remove_orphans("d") == [".d.part-00000000"]
    taken.close()
    [taken] = PartFolder.abandoned("d")
    taken.discard()
    assert names() == []


def test_a_missing_folder_is_an_error_and_not_an_endless_search() -> None:
    for make in (lambda: PartFile("no/d.beton", overwrite=False), lambda: PartFolder("no/d")):
        with pytest.raises(FileNotFoundError):
            make()
    assert remove_orphans("no/d") == []


def test_a_file_that_the_disk_once_refused_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [OSError(errno.EIO, "Input/output error")]

    def flush(_descriptor: int) -> None:
        if refusals:
            raise refusals.pop()  # the system reports lost data to one call only

    monkeypatch.setattr(os, "fdatasync", flush)
    path = tmp_path / "a.bin"
    file = PartFile(str(path), overwrite=False)
    for position in range(0, 32 << 20, 1 << 20):  # long enough to be flushed while it is written
        file.write_at(position, memoryview(bytes(1 << 20)))
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            file.publish()
    file.discard()
    assert os.listdir(tmp_path) == []


def test_a_file_replaces_another_that_is_still_open(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with path.open() as old:
        with whole_file(path) as part:
            Path(part).write_text("new")
        assert old.read() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


SLOW_FLUSH = """
import os, time
flush = os.fdatasync
def slowly(descriptor):
    time.sleep(1)
    flush(descriptor)
os.fdatasync = slowly
"""
ABANDON = """
from dataloading.format.output import PartFile
file = PartFile("a.bin", overwrite=False)
for position in range(0, 20 << 20, 1 << 20):
    file.write_at(position, memoryview(bytes(1 << 20)))
"""


@pytest.mark.parametrize("end", ["", "del file"])
def test_a_file_that_is_abandoned_while_it_is_flushed_is_removed(tmp_path: Path, end: str) -> None:
    script = f"exec({SLOW_FLUSH!r}, {{}})\n{ABANDON}{end}"  # apart, so that `os` does not keep the file alive
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, timeout=300, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.stderr == ""
    assert os.listdir(tmp_path) == []
