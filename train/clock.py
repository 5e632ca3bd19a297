"""Measures how long each training step waits for data and works, and how busy the GPU is.

On the CPU (and for a simulated device) waiting is the time inside ``next(loader)``. On CUDA the host runs ahead of the
device, so host time means little: there, waiting is the time that the device's stream was idle between the end of one
micro-batch's work and the arrival of the next. It is measured with events, which are read only when the log is written.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import torch


@dataclass
class StepTimes:
    """The times of one optimiser step, in seconds.

    Parameters
    ----------
    start : float
        Start of its first fetch, in seconds since the clock was created.
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
    _gaps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)

    def resolve(self) -> None:
        """Read the events, which the device must have completed."""
        self.waited += sum(before.elapsed_time(after) for before, after in self._gaps) / 1000.0
        self._gaps.clear()
        self.waited = min(self.waited, self.total)


class StepClock:
    """Time the steps of one process."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._origin = time.perf_counter()
        self._current: StepTimes | None = None
        self._fetch_start = 0.0
        self._idle_since: torch.cuda.Event | None = None

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

    def slept(self, seconds: float) -> None:
        """Record that a simulated device was busy for `seconds`."""
        assert self._current is not None, "slept() without fetching()"
        self._current.slept += seconds

    def step_done(self) -> StepTimes:
        """Return the times of the step that ends now."""
        assert self._current is not None, "step_done() without fetching()"
        step, self._current = self._current, None
        step.total = time.perf_counter() - self._origin - step.start
        return step


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class DeviceMonitor:
    """Samples the utilisation that the NVIDIA driver reports, in a thread, ten times a second."""

    def __init__(self, device: torch.device) -> None:
        self.samples: list[float] = []
        self.problem = "" if device.type == "cuda" else "not a CUDA device"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if self.problem:
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            # NVML numbers physical devices; the UUID finds ours for any CUDA_VISIBLE_DEVICES.
            identifier = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            handle = pynvml.nvmlDeviceGetHandleByUUID(identifier.encode())
            pynvml.nvmlDeviceGetUtilizationRates(handle)
        except ImportError:
            self.problem = "nvidia-ml-py is not installed"
        except Exception as error:
            self.problem = f"NVML: {error}"
        else:
            self._thread = threading.Thread(target=self._watch, args=(pynvml, handle), name="nvml", daemon=True)
            self._thread.start()

    def _watch(self, pynvml: object, handle: object) -> None:
        while not self._stop.wait(0.1):
            rates = pynvml.nvmlDeviceGetUtilizationRates(handle)  # type: ignore[attr-defined]
            self.samples.append(float(rates.gpu))

    def take_percent(self) -> float | None:
        """Return the mean utilisation in percent since the last call, or None if unknown."""
        samples, self.samples = self.samples, []
        return sum(samples) / len(samples) if samples else None

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
