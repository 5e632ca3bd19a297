"""Processes that commands start: they find our packages whatever else has their names, and Ctrl-C ends all of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dataloading import UsageError
from train.bench import harness
from train.distributed import World, detect_world
from train.launch import launch_environment, own_command, torchrun_command
from train.options import RunOptions
from train.trainer import output_locked


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A folder whose modules have the names of our packages and must not be imported."""
    (tmp_path / "mine" / "converters").mkdir(parents=True)
    for name in ("train", "dataloading", "converters/__init__"):
        (tmp_path / "mine" / f"{name}.py").write_text("raise SystemExit('a decoy was imported')")
    return tmp_path / "mine"


def run_among(decoys: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command where the decoys are in the current directory and on PYTHONPATH."""
    environ = {**os.environ, "PYTHONPATH": str(decoys)}
    return subprocess.run(
        command, cwd=decoys, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def test_converters_workers_import_our_package_and_not_the_users(folder: Path, decoys: Path, tmp_path: Path) -> None:
    words = ["convert", "imagefolder", str(folder), str(tmp_path / "o.beton"), "--num-workers", "2", "-q"]
    done = run_among(decoys, own_command(*words))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o.beton").exists()


def test_training_processes_import_our_package_and_not_the_users(decoys: Path) -> None:
    """What torchrun runs is the same script, by path."""
    words = ["train", "--data", "nowhere.beton"]
    done = run_among(decoys, own_command(*words))
    assert (done.returncode, "there is no such file" in done.stderr) == (2, True), done.stderr
    command = torchrun_command(2, words[1:])
    assert command[-len(words) - 1 :] == own_command(*words)[1:]


def test_bench_processes_import_our_package_and_not_the_users(decoys: Path) -> None:
    done = run_among(decoys, [sys.executable, "-c", harness.START_CODE])
    assert '"error"' in done.stdout and "decoy" not in done.stdout + done.stderr, done.stderr


def test_our_packages_insides_are_no_modules_for_everybody(tmp_path: Path) -> None:
    """Python puts a script's folder on its path: `import files` must not find dataloading/dataset/files.py."""
    entry = own_command()[1]
    code = f"import runpy, sys; sys.path[0] = {str(Path(entry).parent)!r}; runpy.run_path({entry!r}); import files"
    done = run_among(tmp_path, [sys.executable, "-c", code])
    assert "No module named 'files'" in done.stderr


BLOCKED = """
import subprocess, sys, threading
from train.launch import leaving_on_interrupt
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
with leaving_on_interrupt(lambda: "interrupted; nothing saved"):
    print(child.pid, flush=True)
    while True:
        try:
            threading.Lock().__enter__() or threading.Event().wait()
        except BaseException:
            pass
"""


def test_ctrl_c_ends_a_process_that_swallows_it_and_its_children() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED],
        env=launch_environment(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (130, "beton: interrupted; nothing saved\n")
    assert time.monotonic() - began < 60  # of the child's 100 s
    assert not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes()


def test_ctrl_c_in_a_comparison_leaves_no_process_behind(beton: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["compare", "--data", str(beton), "--loaders", "torch,beton", "--out", str(out), "--accelerator", "sim:10"]
    process = subprocess.Popen(own_command(*words, "--num-workers=1"), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("comparing torch, beton: 6 runs of 1 process")
    deadline = time.monotonic() + 100
    while not (out / "runs" / "torch-0" / "output.txt").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (130, f"beton: interrupted; logs of the runs so far are in {out / 'runs'}\n")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert str(out).encode() not in path.read_bytes()


def test_a_restart_continues_only_what_its_own_launch_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever --resume and --overwrite-output ask for, it never continues another run's checkpoint unasked."""
    checkpoints = tmp_path / "out" / "checkpoints"
    for step, launch in ((3, "older"), (8, "mine")):
        (checkpoints / f"step-{step:08d}").mkdir(parents=True)
        (checkpoints / f"step-{step:08d}" / "meta.json").write_text(json.dumps({"launch": launch, "files": {}}))
    again = World(launcher="torchrun", launch="mine", restart="1 of 2")
    for values in ({}, {"overwrite_output": True}, {"resume": "auto"}, {"resume": str(checkpoints / "step-00000003")}):
        with output_locked(RunOptions(output=str(tmp_path / "out"), **values), again) as resume:
            assert resume == checkpoints / "step-00000008"
        assert f"restart 1 of 2 continues from {resume}" in capsys.readouterr().err
    other = replace(again, launch="other")
    with (
        pytest.raises(UsageError, match="holds 2 checkpoints, up to step 8, of another run"),
        output_locked(RunOptions(output=str(tmp_path / "out")), other),
    ):
        pass
    with output_locked(RunOptions(output=str(tmp_path / "out"), overwrite_output=True), other) as resume:
        assert resume is None and not list(checkpoints.glob("step-*"))
    assert "restart 1 of 2 had no checkpoint of its own: a new start" in capsys.readouterr().err


def test_torchruns_variables_name_the_launch_and_the_restart() -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    assert (detect_world(environ).launch, detect_world(environ).restart) == ("", "")
    environ |= {"TORCHELASTIC_RUN_ID": "4f", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}
    assert (detect_world(environ).launch, detect_world(environ).restart) == ("4f", "2 of 3")
