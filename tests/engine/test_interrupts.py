"""Ctrl-C may come between any two instructions: it ends the loop, always, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import dataloading
from dataloading import Loader
from tests.support.files import write_labels
from tests.support.waiting import Threads

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = str(Path(dataloading.__file__).parent)

LOOP = """
import sys
from dataloading import Loader
loader = Loader("labels.beton", batch_size=4, num_workers=2)
print("ready", flush=True)
while True:
    for batch in loader:
        pass
"""


@pytest.mark.parametrize("kinds", ["labels,images", "os_cache,remote"])
def test_interrupts_at_random_moments_reach_the_caller_and_leave_nothing_behind(kinds):
    command = [sys.executable, "-m", "tests.support.interrupts", "--kinds", kinds, "--num", "400", "--seconds", "2.5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout + done.stderr
    assert [report["kind"] for report in reports] == kinds.split(",")
    for report in reports:
        assert report["interrupts"] >= 10
        found = {name: report[name] for name in ("swallowed", "lost_or_repeated", "wrong_batches")}
        assert found == {"swallowed": 0, "lost_or_repeated": 0, "wrong_batches": 0}
        assert (report["ignored"], report["left_behind"]) == ([], [])


def test_a_script_that_is_interrupted_ends_at_once_as_python_scripts_do(tmp_path):
    write_labels(tmp_path / "labels.beton", 100)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", LOOP], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert errors.count("KeyboardInterrupt") == 1
    assert "ignored" not in errors


def _raise_at(number: int, scenario: Callable[[], None]) -> tuple[bool, bool]:
    """Run a scenario with KeyboardInterrupt at one instruction of the package; whether it was reached, and raised."""
    seen = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return trace
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == number:
                raise KeyboardInterrupt
        return trace

    result = (False, False)

    def traced() -> None:
        nonlocal result
        sys.settrace(trace)
        try:
            scenario()
        except KeyboardInterrupt:
            result = True, True
        else:
            result = seen >= number, False
        finally:
            sys.settrace(None)

    # On a thread of its own: raised inside an interpreter's clean-up, where no signal arrives, an exception stays the
    # thread's current one, is chained to all that follow, and keeps their iterators alive.
    thread = threading.Thread(target=traced)
    thread.start()
    thread.join()
    return result


@pytest.mark.parametrize("scenario", ["an epoch", "leaving", "closing"])
def test_an_interrupt_at_any_instruction_reaches_the_caller_and_the_loader_goes_on(tmp_path, scenario):
    loader = Loader(write_labels(tmp_path / "labels.beton", 60), batch_size=20, num_workers=1, shuffle="global")
    want = [batch.indices.tolist() for batch in loader]
    loader.close()
    threads = Threads()

    def run() -> None:
        for _ in loader:
            if scenario == "leaving":
                break
        if scenario == "closing":
            loader.close()

    number, reached = 1, True
    while reached:
        reached, raised = _raise_at(number, run)
        assert raised or not reached, f"instruction {number}"
        if number % 5 == 0:
            loader.set_epoch(0)
            loader.load_state_dict(loader.state_dict() | {"epoch": 0, "consumed": 0})
            assert [batch.indices.tolist() for batch in loader] == want, f"instruction {number}"
        number += 3
    assert number > 200
    loader.close()
    threads.wait_for_new(0)
