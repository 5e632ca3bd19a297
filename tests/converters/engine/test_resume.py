"""An interrupted conversion is gone on with, to the bytes of one that nothing interrupted."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converters import ImagePolicy, Options, convert
from converters.engine.journal import Journal, journal_path, part_path
from converters.python_dataset import DatasetSource
from dataloading import BytesField, ConvertError, IntField, Reader, UsageError, verify_file
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
FIELDS = {"data": BytesField(), "label": IntField()}


class Blocks:
    """Samples of some 100 KB, so that blocks and pages end in many places."""

    def __init__(self, count: int = 60, bad: tuple[int, ...] = (), pause_seconds: float = 0.0) -> None:
        self.count = count
        self.bad = bad
        self.pause_seconds = pause_seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        time.sleep(self.pause_seconds)
        if index in self.bad:
            raise ValueError("damaged")
        return bytes([index % 251]) * (1 + index * 7919 % 200_000), index


def write(path: Path, dataset: Any = None, **options: Any) -> Any:
    dataset = dataset or Blocks()
    source = DatasetSource(dataset, FIELDS)
    return convert(source, path, policy=ImagePolicy(), options=Options(**{"checkpoint_seconds": 1e-9, **options}))


def files(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def in_a_child(act: Callable[[], object]) -> int:
    """Run ``act`` in a forked process; return how it ended: 0 well, 1 with an exception, or minus the signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at_write(number: int, share: float) -> None:
    """Let this process be killed in the middle of its write with that number, ``share`` of which reaches the file."""
    whole, count = os.pwrite, 0

    def pwrite(descriptor: int, data: Any, position: int) -> int:
        nonlocal count
        count += 1
        if count == number:
            whole(descriptor, memoryview(data)[: int(len(data) * share)], position)
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(descriptor, data, position)

    os.pwrite = pwrite  # type: ignore[assignment]


def save_in_turn() -> None:
    """Let each checkpoint be on the disk before the next sample, so that writes have the same numbers each time."""
    save = Journal.save

    def patient(self: Journal, *args: Any, wait: bool = False) -> None:
        save(self, *args, wait=True)

    Journal.save = patient  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "o.beton"
    write(path, checkpoint_seconds=1000)
    return path.read_bytes()


deaths = st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(deaths=deaths)
def test_killed_in_the_middle_of_any_write_and_resumed_it_has_the_same_bytes(
    whole: bytes, deaths: list[tuple[int, float]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "o.beton")
        for number, share in deaths:

            def act(number: int = number, share: float = share) -> None:
                die_at_write(number, share)
                write(path, resume=True)

            code = in_a_child(act)
            assert code in (0, -signal.SIGKILL)
            if code:
                assert not path.exists()
        write(path, resume=True)
        assert path.read_bytes() == whole
        assert files(Path(folder)) == ["o.beton"]


SLOW = """
import sys
sys.path.insert(0, {root!r})
from tests.converters.engine.test_resume import Blocks, write

if __name__ == "__main__":
    write(
        sys.argv[1], Blocks(pause_seconds=0.03), resume=True, num_workers=int(sys.argv[2]), checkpoint_seconds=0.05
    )
"""


def test_killed_at_random_moments_with_any_workers_it_resumes_to_the_same_bytes(tmp_path: Path, whole: bytes) -> None:
    script, path = tmp_path / "slow.py", tmp_path / "o.beton"
    script.write_text(SLOW.format(root=str(ROOT)))
    journal, chance = Path(journal_path(str(path))), random.Random(7)
    kept = set()
    for attempt in range(40):
        size = journal.stat().st_size if journal.exists() else 0
        enough = size + chance.randint(500, 5000)
        process = subprocess.Popen([sys.executable, str(script), str(path), str(attempt % 3)], stderr=subprocess.PIPE)
        wait_for(lambda p=process, n=enough: p.poll() is not None or (journal.exists() and journal.stat().st_size > n))
        process.kill()
        _, errors = process.communicate(timeout=200)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, errors.decode()
            assert path.read_bytes() == whole
            if len(kept) > 2:
                break
            path.unlink()  # a slow disk saved it too seldom to be killed often enough: once more
        elif not path.exists():
            with contextlib.closing(Journal(str(path), wait_seconds=10)) as found:
                kept.add(found.last["done"] if found.last is not None else 0)
    assert len(kept) > 2, "it was never killed in the middle"
    assert path.read_bytes() == whole


def test_with_nothing_to_resume_it_starts_and_when_finished_it_does_nothing(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "o.beton"
    assert write(path, resume=True).num_resumed == 0
    before = path.stat()
    report = write(path, resume=True)
    assert (report.num_samples, report.num_resumed) == (60, 60)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.read_bytes() == whole


def test_a_finished_file_of_other_options_is_not_taken_for_done(tmp_path: Path) -> None:
    path = tmp_path / "o.beton"
    write(path)
    with pytest.raises(UsageError, match=r"not what this command makes \(seed was 0, is 1 now\); --overwrite"):
        write(path, resume=True, seed=1)
    path.write_bytes(b"something else")
    with pytest.raises(UsageError, match="cannot be read"):
        write(path, resume=True)
    assert path.read_bytes() == b"something else"


def interrupted(path: Path, dataset: Any = None, *, at: int = 40, **options: Any) -> None:
    """Leave a conversion that was killed at its write with number ``at``."""

    def act() -> None:
        save_in_turn()
        die_at_write(at, 0.5)
        write(path, dataset, **options)

    assert in_a_child(act) == -signal.SIGKILL


def test_an_interrupted_conversion_is_told_of_and_overwrite_removes_it(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "o.beton"
    interrupted(path)
    assert files(tmp_path) == [".o.beton.journal", ".o.beton.part"]
    with pytest.raises(
        UsageError, match=r"interrupted conversion of \d+ of 60 samples .* is here: --resume continues it, "
    ):
        write(path)
    assert files(tmp_path) == [".o.beton.journal", ".o.beton.part"]
    assert write(path, overwrite=True).num_resumed == 0
    assert path.read_bytes() == whole
    assert files(tmp_path) == ["o.beton"]


def test_a_conversion_killed_before_its_first_checkpoint_leaves_nothing_to_ask_about(tmp_path: Path) -> None:
    path = tmp_path / "o.beton"
    interrupted(path, at=3, checkpoint_seconds=1000)
    assert files(tmp_path) != []
    write(path)
    assert files(tmp_path) == ["o.beton"]


def test_a_data_error_keeps_what_was_done_and_another_way_with_errors_may_go_on(tmp_path: Path) -> None:
    path, whole = tmp_path / "o.beton", tmp_path / "w.beton"
    with pytest.raises(
        ConvertError, match=r"sample 45 .*damaged.* 45 of 60 samples kept: --resume continues with them"
    ):
        write(path, Blocks(bad=(45,)))
    assert files(tmp_path) == [".o.beton.journal", ".o.beton.part"]
    report = write(path, Blocks(bad=(45,)), resume=True, on_error="skip")
    assert (report.num_samples, report.num_resumed) == (59, 45)
    write(whole, Blocks(bad=(45,)), on_error="skip")
    assert path.read_bytes() == whole.read_bytes()


class Deadly(Blocks):
    """Sample 37 takes the process with it."""

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        if index == 37:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_worker_that_dies_late_is_told_with_its_sample_and_so_it_is_after_a_resume(
    tmp_path: Path, whole: bytes, num_workers: int
) -> None:
    path = tmp_path / "o.beton"
    for resume in (False, True):
        with pytest.raises(ConvertError, match=r"killed by SIGKILL .* on sample 37 \(Deadly\[37\]\).*\d of 60"):
            write(path, Deadly(), num_workers=num_workers, resume=resume)


def test_skipped_samples_are_still_listed_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "o.beton"
    dataset = Blocks(bad=(3, 8, 50))
    interrupted(path, dataset, on_error="skip")
    with pytest.raises(UsageError, match="on_error was skip, is raise now"):
        write(path, dataset, resume=True)
    log = tmp_path / "errors.json"
    report = write(path, dataset, resume=True, on_error="skip", error_log=str(log))
    assert [item.index for item in report.skipped] == [3, 8, 50]
    assert [item["index"] for item in json.loads(log.read_text())["skipped"]] == [3, 8, 50]


def test_a_sample_that_was_written_and_is_skipped_after_a_resume_leaves_no_trace(tmp_path: Path) -> None:
    path, whole = tmp_path / "o.beton", tmp_path / "w.beton"
    # Killed in the journal: sample 12 is in the file and its record in the table, but no checkpoint says so.
    interrupted(path, at=41, on_error="skip")
    with contextlib.closing(Journal(str(path))) as journal:
        assert journal.last is not None
        assert journal.last["done"] == 12
    dataset = Blocks(bad=tuple(range(12, 60)))
    report = write(path, dataset, on_error="skip", resume=True)
    assert (report.num_samples, report.num_resumed) == (12, 12)
    write(whole, dataset, on_error="skip")
    assert path.read_bytes() == whole.read_bytes()
    assert verify_file(path).ok


def test_two_conversions_to_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "o.beton"
    with contextlib.closing(Journal(str(path))), pytest.raises(UsageError, match="another process is converting"):
        write(path)


def test_a_torn_or_damaged_end_of_the_journal_costs_only_itself(tmp_path: Path, whole: bytes) -> None:
    for damage in (lambda data: data[:-7], lambda data: data[:-1] + b"?", lambda data: data + b"\0" * 100):
        path = tmp_path / "o.beton"
        interrupted(path)
        journal = Path(journal_path(str(path)))
        journal.write_bytes(damage(journal.read_bytes()))
        assert write(path, resume=True).num_resumed > 0
        assert path.read_bytes() == whole
        path.unlink()


def test_a_part_file_that_is_gone_means_starting_anew_and_a_damaged_one_is_told(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "o.beton"
    interrupted(path)
    part = Path(part_path(str(path)))
    part.write_bytes(bytes(len(part.read_bytes())))
    with pytest.raises(ConvertError, match=r"does not hold what its checkpoints say.*--overwrite starts over"):
        write(path, resume=True)
    part.unlink()
    assert write(path, resume=True).num_resumed == 0
    assert path.read_bytes() == whole


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "o.beton"

    def act() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (12 << 20, 12 << 20))
        with pytest.raises(ConvertError, match=r"cannot write .*File too large.* samples kept: --resume"):
            write(path)

    assert in_a_child(act) == 0
    assert files(tmp_path) == [".o.beton.journal", ".o.beton.part"]
    assert write(path, resume=True).num_resumed > 5
    assert path.read_bytes() == whole


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_fills_up_is_told_and_after_making_room_it_resumes(tmp_path: Path, whole: bytes) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("this container may not mount")
    try:
        path = disk / "o.beton"
        with pytest.raises(ConvertError, match=r"cannot write .*No space left.*free there now.* samples kept"):
            write(path)
        assert not path.exists()
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert write(path, resume=True).num_resumed > 5
        assert path.read_bytes() == whole
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_fills_while_a_checkpoint_is_saved_ends_the_run(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "o.beton"
    count = 0

    def full(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count > 10:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(ConvertError, match=r"No space left on device.* samples kept"):
        write(path)
    monkeypatch.undo()
    assert write(path, resume=True).num_resumed > 0
    assert path.read_bytes() == whole


def test_ctrl_c_keeps_what_was_done_and_says_so(tmp_path: Path, whole: bytes) -> None:
    script, path = tmp_path / "slow.py", tmp_path / "o.beton"
    script.write_text(SLOW.format(root=str(ROOT)))
    process = subprocess.Popen(
        [sys.executable, str(script), str(path), "2"], stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    journal = Path(journal_path(str(path)))
    wait_for(lambda: journal.exists() and journal.stat().st_size > 3000)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=200)
    assert "of 60 samples kept: --resume continues with them" in errors
    assert write(path, resume=True).num_resumed > 0
    assert path.read_bytes() == whole


def test_unfinished_files_of_dead_writers_are_found_and_removed_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, stale = tmp_path / "o.beton", tmp_path / ".o.beton.part-0123abcd"
    stale.write_bytes(b"half")
    write(path)
    assert "writers that are gone, left alone" in capsys.readouterr().err
    assert stale.exists()
    write(path, overwrite=True)
    assert not stale.exists()


def test_what_was_resumed_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "o.beton"
    interrupted(path)
    write(path, resume=True, num_workers=2)
    with Reader(path) as reader:
        assert reader.column("label").tolist() == list(range(60))
        assert [reader.value("data", index) for index in (0, 31, 59)] == [Blocks()[index][0] for index in (0, 31, 59)]
