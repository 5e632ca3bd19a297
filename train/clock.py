"""Measures how long each training step waits for data and works, and how busy the GPU is.

On the CPU waiting is the time inside ``next(loader)``. On CUDA the host runs ahead of the device, so host time means
little: there, waiting is the time that the device's stream was idle between the end of one micro-batch's work and the
arrival of the next. It is measured with events, which are read only when the log is written. A simulated device gives
its own times, defined in the same way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

COMMUNICATION = "exposed communication"
PARTS = ("normalise and mix", "forward", "backward", COMMUNICATION, "optimiser")
"""The parts of a step's work, in order. The loader's copy to the device overlaps them; what it exposes is data wait."""


@dataclass
class StepTimes:
    """The times of one optimiser step, in seconds.

    Parameters
    ----------
    start : float
        Start of its first fetch, in seconds since the clock was created. On a simulated device the end of the step
        before.
    total : float
        Time until its work was done (CUDA: submitted).
    waited : float
        Part of `total` spent waiting for data; on CUDA known after `resolve`.
    slept : float
        Part of `total` in which a simulated device was busy.
    """

    start: float
    total: float = 0.0
    waited: float = 0.0
    slept: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    _gaps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)
    _segments: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)

    def resolve(self) -> None:
        """Read the events, which the device must have completed."""
        self.waited += sum(before.elapsed_time(after) for before, after in self._gaps) / 1000.0
        self._gaps.clear()
        for name, before, after in self._segments:
            self.parts[name] += before.elapsed_time(after) / 1000.0
        self._segments.clear()
        self.waited = min(self.waited, self.total)


class StepClock:
    """Time the steps of one process."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._origin = time.perf_counter()
        self._current: StepTimes | None = None
        self._fetch_start = 0.0
        self._idle_since: torch.cuda.Event | None = None
        self._part_start = 0.0
        self._part_event: torch.cuda.Event | None = None
        self._ready: tuple[float, torch.cuda.Event | None] | None = None
        self._communicated = 0.0
        self.on_part: Callable[[str, float, float], None] | None = None
        """Called with each part of a step: its name, start and end on the host (`time.perf_counter`)."""

    def fetching(self) -> None:
        """Record that the next batch is requested."""
        self._fetch_start = time.perf_counter()
        if self._current is None:
            self._current = StepTimes(start=self._fetch_start - self._origin)
        if self._cuda:
            self._idle_since = _mark()

    def fetched(self) -> None:
        """Record that the batch has arrived."""
        assert self._current is not None, "fetched() without fetching()"
        if self._idle_since is not None:
            self._current._gaps.append((self._idle_since, _mark()))
        else:
            self._current.waited += time.perf_counter() - self._fetch_start
        if self.on_part is not None:
            self.on_part("data wait", self._fetch_start, time.perf_counter())
        self.mark(None)

    def mark(self, part: str | None) -> None:
        """Note that one of `PARTS` ends here; it began at the mark before. None: what lies between has no name."""
        now, event = time.perf_counter(), _mark() if self._cuda else None
        ready, self._ready = self._ready, None
        if part == "backward" and ready is not None:
            self._add(part, *ready)
            part = COMMUNICATION
        if part is None:
            self._part_start, self._part_event, self._communicated = now, event, 0.0
        else:
            self._add(part, now, event)

    def gradients_ready(self) -> None:
        """Note that backward has computed its last gradient; the rest of it waits for the other ranks."""
        self._ready = time.perf_counter(), _mark() if self._cuda else None

    def communicated(self, start: float, end: float) -> None:
        """Note that the host waited for other ranks from `start` to `end`, within the part that `mark` ends next."""
        self._communicated += end - start
        if self.on_part is not None:
            self.on_part(COMMUNICATION, start, end)

    def _add(self, part: str, now: float, event: torch.cuda.Event | None) -> None:
        if self._current is not None:
            if self._part_event is not None and event is not None:
                self._current._segments.append((part, self._part_event, event))
            else:
                self._current.parts[part] += now - self._part_start - self._communicated
                self._current.parts[COMMUNICATION] += self._communicated
            if self.on_part is not None:
                self.on_part(part, self._part_start, now)
        self._part_start, self._part_event, self._communicated = now, event, 0.0

    @property
    def step_began(self) -> float:
        """When the step's first batch was requested, by `time.perf_counter`."""
        assert self._current is not None, "step_began without fetching()"
        return self._origin + self._current.start

    def simulated(self, *, began: float, took: float, waited: float, busy: float) -> None:
        """Replace the host's times of this step by those of a simulated device. For the rest it waits for other ranks.

        Parameters
        ----------
        began : float
            By `time.perf_counter`.
        took, waited, busy : float
            Seconds in all, without data, and at work.
        """
        assert self._current is not None, "simulated() without fetching()"
        step = self._current
        step.start, step.total, step.waited, step.slept = began - self._origin, took, waited, busy
        step.parts[COMMUNICATION] = max(0.0, took - waited - busy)
        step._gaps.clear()

    def step_done(self) -> StepTimes:
        """Return the times of the step that ends now."""
        assert self._current is not None, "step_done() without fetching()"
        step, self._current = self._current, None
        if not step.total:
            step.total = time.perf_counter() - self._origin - step.start
        return step


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """Use of a GPU since the reading before, as NVML reports it; None where it is unknown.

    Parameters
    ----------
    gpu_pct : float or None
        Share of the time in which a kernel ran.
    sm_pct : float or None
        Share of the multiprocessors' time with work (Hopper and later).
    gpu_memory_bytes : int or None
        Memory in use on the device, by all processes; the highest reading.
    """

    gpu_pct: float | None = None
    sm_pct: float | None = None
    gpu_memory_bytes: int | None = None


class DeviceMonitor:
    """Samples a GPU with NVML, in a thread, ten times a second."""

    def __init__(self, device: torch.device) -> None:
        self._samples: list[tuple[float, int]] = []
        self.problem = "" if device.type == "cuda" else "not a CUDA device"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._multiprocessors: _Multiprocessors | None = None
        if self.problem:
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            # NVML counts physical devices; the identifier is right for any CUDA_VISIBLE_DEVICES.
            identifier = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            handle = pynvml.nvmlDeviceGetHandleByUUID(identifier.encode())
            pynvml.nvmlDeviceGetUtilizationRates(handle)
        except ImportError:
            self.problem = "nvidia-ml-py is not installed"
        except Exception as error:
            self.problem = f"NVML: {error}"
        else:
            self._multiprocessors = _multiprocessors(pynvml, handle)
            self._thread = threading.Thread(target=self._watch, args=(pynvml, handle), name="nvml", daemon=True)
            self._thread.start()

    def _watch(self, pynvml: Any, handle: Any) -> None:
        while not self._stop.wait(0.1):
            rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
            self._samples.append((float(rates.gpu), int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)))

    def take(self) -> DeviceUse:
        """Return the use since the last call."""
        samples, self._samples = self._samples, []
        if not samples:
            return DeviceUse()
        return DeviceUse(
            gpu_pct=sum(share for share, _ in samples) / len(samples),
            sm_pct=self._multiprocessors.take() if self._multiprocessors is not None else None,
            gpu_memory_bytes=max(used for _, used in samples),
        )

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


class _Multiprocessors:
    """NVML's GPM counters: two readings give the activity between them."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._nvml, self._handle = pynvml, handle
        self._before, self._now = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(handle, self._before)

    def take(self) -> float | None:
        nvml = self._nvml
        try:
            nvml.nvmlGpmSampleGet(self._handle, self._now)
            wanted = nvml.c_nvmlGpmMetricsGet_t()
            wanted.version, wanted.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
            wanted.sample1, wanted.sample2 = self._before, self._now
            wanted.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
            nvml.nvmlGpmMetricsGet(wanted)
        except nvml.NVMLError:
            return None
        self._before, self._now = self._now, self._before
        return float(wanted.metrics[0].value)


def _multiprocessors(pynvml: Any, handle: Any) -> _Multiprocessors | None:
    """Return the counters where driver and device have them."""
    try:
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        return _Multiprocessors(pynvml, handle)
    except (pynvml.NVMLError, AttributeError):
        return None
