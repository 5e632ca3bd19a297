"""The example scripts run as printed, and differ only in the loader."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path

from train.launch import launch_environment, run_local_processes

EXAMPLES = Path(__file__).parents[2] / "examples" / "ddp_script"


def test_the_change_is_a_few_lines_and_none_of_them_in_the_training() -> None:
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("before.py", "after.py"))
    added = [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ") and line.strip("+ ")]
    removed = [line[2:] for line in difflib.ndiff(before, after) if line.startswith("- ")]
    assert len(added) <= 18
    assert not any(word in line for line in [*added, *removed] for word in ("optimizer", "ddp(", "backward", "rate"))


def test_the_changed_script_trains_on_two_gloo_processes(beton: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "after.py"), str(beton)]
    environ = launch_environment({**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    with (tmp_path / "output.txt").open("w") as stream:
        status = run_local_processes(command, 2, environ, stream)
    output = (tmp_path / "output.txt").read_text()
    assert status == 0, output
    assert "epoch 0: 1 steps, loss" in output and "epoch 1: 1 steps, loss" in output
