"""``--profile``: a trace of some steps with the loader's hops and the parts of the step, and Amdahl's arithmetic on it.

torch.profiler records operators and kernels. The parts of a step and the hops of the loader's threads are recorded by
our own clocks and added to its file as tracks of their own, on the same time axis.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import profiler

from train.clock import PARTS, StepTimes

__all__ = ["Ranges", "StepProfiler", "amdahl", "merge_ranges"]

SKIPPED_STEPS = 3
PROFILED_STEPS = 10
_ANCHOR, _NUM_ANCHORS = "beton: zero of the clocks", 20
_TRACKS_PID = "beton"


class Range(NamedTuple):
    """Something that took from `start` to `end` (`time.perf_counter`) on a track."""

    track: str
    name: str
    start: float
    end: float


class Ranges:
    """Collects ranges from any thread while it is open."""

    def __init__(self) -> None:
        self._found: list[Range] = []  # appending takes no lock
        self._is_open = False

    def open(self) -> None:
        """Begin to collect."""
        self._is_open = True

    def close(self) -> list[Range]:
        """Stop, and return what was collected."""
        self._is_open = False
        found, self._found = self._found, []
        return found

    def part(self, name: str, start: float, end: float) -> None:
        """Add a part of the training step."""
        if self._is_open:
            self._found.append(Range("training step", name, start, end))

    def hop(self, name: str, start: float, end: float) -> None:
        """Add work of the loader, on the track of the calling thread."""
        if self._is_open:
            self._found.append(Range(f"loader: {threading.current_thread().name}", name, start, end))


def merge_ranges(trace: dict[str, Any], ranges: Sequence[Range], anchor: Range) -> None:
    """Add ranges to a Chrome trace, in place.

    Parameters
    ----------
    trace : dict
        As torch.profiler writes it, with the event of the anchor.
    ranges : sequence of Range
        What to add.
    anchor : Range
        The event with its name began between its `start` and its `end`.
    """
    events = trace["traceEvents"]
    zero = next(float(event["ts"]) for event in events if event.get("name") == anchor.name and event.get("ph") == "X")
    tracks = {name: number for number, name in enumerate(dict.fromkeys(each.track for each in ranges))}
    events.append({"ph": "M", "name": "process_name", "pid": _TRACKS_PID, "tid": 0, "args": {"name": "beton"}})
    for name, number in tracks.items():
        events.append({"ph": "M", "name": "thread_name", "pid": _TRACKS_PID, "tid": number, "args": {"name": name}})
    for each in ranges:
        events.append(
            {
                "ph": "X",
                "cat": "beton",
                "name": each.name,
                "pid": _TRACKS_PID,
                "tid": tracks[each.track],
                "ts": zero + 1e6 * (each.start - anchor.start),
                "dur": 1e6 * (each.end - each.start),
            }
        )


def amdahl(parts: Mapping[str, float], *, data: str, communication: str) -> list[str]:
    """Say how long a step would take with free data, with free communication, and with both.

    Parameters
    ----------
    parts : mapping
        Mean seconds of a step's parts; together they are the step.
    data, communication : str
        Which of them is the wait for data, and which the communication that nothing hides.

    Examples
    --------
    >>> amdahl({"data wait": 0.02, "forward": 0.03, "comm": 0.01}, data="data wait", communication="comm")[1]
    'with free data 40.0 ms (1.50x), with free communication 50.0 ms (1.20x), with both 30.0 ms (2.00x)'
    """
    whole = sum(parts.values())
    listed = ", ".join(f"{name} {1e3 * value:.1f} ms ({100 * value / max(whole, 1e-12):.0f} %)"
                       for name, value in parts.items())  # fmt: skip
    wait, talk = parts.get(data, 0.0), parts.get(communication, 0.0)

    def without(seconds: float) -> str:
        left = whole - seconds
        return f"{1e3 * left:.1f} ms ({whole / left:.2f}x)" if left > 0 else "nothing"

    return [
        f"a step takes {1e3 * whole:.1f} ms: {listed}",
        f"with free data {without(wait)}, with free communication {without(talk)}, with both {without(wait + talk)}",
    ]


class StepProfiler:
    """Profiles some steps of one process and writes the trace.

    Parameters
    ----------
    path : Path
        The trace, for chrome://tracing or Perfetto.
    device : torch.device
        Whether kernels are recorded too.
    ranges : Ranges
        Collects what our own clocks see meanwhile.
    """

    def __init__(self, path: Path, device: torch.device, ranges: Ranges) -> None:
        self.path = path
        self._ranges = ranges
        self._cuda = device.type == "cuda"
        self._step = 0
        self._profile: Any = None
        self._anchor = Range("", _ANCHOR, 0.0, 0.0)
        self._times: list[StepTimes] = []

    def step_done(self, times: StepTimes) -> bool:
        """Count a step; return whether the trace has just been written."""
        self._step += 1
        if self._profile is not None:
            self._times.append(times)
        if self._step == SKIPPED_STEPS:
            self._start()
        if self._profile is None or self._step < SKIPPED_STEPS + PROFILED_STEPS:
            return False
        self.close()
        return True

    def parts(self) -> dict[str, float]:
        """Return mean seconds of the parts of the profiled steps, in their order; together they are a step."""
        for times in self._times:
            times.resolve()
        count = max(1, len(self._times))
        parts = {"data wait": sum(times.waited for times in self._times) / count}
        for name in PARTS:
            parts[name] = sum(times.parts[name] for times in self._times) / count
        slept = sum(times.slept for times in self._times) / count
        rest = sum(times.total for times in self._times) / count - sum(parts.values()) - slept
        parts |= {"simulated device": slept, "rest": max(0.0, rest)}
        return {name: seconds for name, seconds in parts.items() if seconds > 0}

    def _start(self) -> None:
        activities = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if self._cuda else [])]
        self._profile = profiler.profile(activities=activities)
        self._profile.start()
        # Where another process takes the core between the two clocks they part: the closest of some pairs is taken.
        anchors = []
        for number in range(_NUM_ANCHORS):
            name, before = f"{_ANCHOR} {number}", time.perf_counter()
            with profiler.record_function(name):
                anchors.append(Range("", name, before, time.perf_counter()))
        self._anchor = min(anchors, key=lambda each: each.end - each.start)
        self._ranges.open()

    def close(self) -> None:
        """Write the trace of the steps so far, if profiling has begun and is not done."""
        if self._profile is None:
            return
        if self._cuda:
            torch.cuda.synchronize()
        found, profile, self._profile = self._ranges.close(), self._profile, None
        profile.stop()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(self.path))
        trace = json.loads(self.path.read_text(encoding="utf-8"))
        merge_ranges(trace, found, self._anchor)
        self.path.write_text(json.dumps(trace), encoding="utf-8")
