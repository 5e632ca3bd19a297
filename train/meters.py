"""What a run's hardware does while it trains: device, host, the loader's hops, communication.

Each meter is read when the log is written; none makes the device wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives
from torch.nn.parallel import DistributedDataParallel

from train.clock import DeviceMonitor, StepClock
from train.host import HostMeter
from train.loaders.base import TrainingLoader

__all__ = ["Meters", "Waits", "describe_reading", "waits_noted", "watch_communication"]

Waits = Callable[[], AbstractContextManager[None]]


def watch_communication(module: nn.Module, clock: StepClock, *, cuda: bool) -> tuple[Waits, str]:
    """Tell the clock which communication nothing hides.

    With `DistributedDataParallel` that is what comes between the last gradient of a backward pass and its end. The
    other strategies communicate inside forward and backward. On a CPU the host waits for it there. With CUDA it does
    not, and the streams that do are FSDP2's own.

    Returns
    -------
    tuple
        A context for what communicates, and why this communication is not known; empty where it is.
    """
    if isinstance(module, DistributedDataParallel):
        # Gradients are computed from the output to the input: that of the first weights comes last.
        first = next((weight for weight in module.parameters() if weight.requires_grad), None)
        if first is not None:
            first.register_post_accumulate_grad_hook(lambda _: clock.gradients_ready())
        return nullcontext, "" if first is not None else "no weight is trained"
    if not dist.is_initialized():
        return nullcontext, ""
    if cuda:
        return nullcontext, "with CUDA it is known for --strategy ddp only; --profile shows it"
    return partial(waits_noted, clock), ""


@contextmanager
def waits_noted(clock: StepClock) -> Iterator[None]:
    """Within this context, tell the clock how long this thread waits for collectives.

    Synchronous calls, FSDP2 and pipelines wait with `Work.wait`, tensors of tensor parallelism with `wait_tensor`.
    """
    thread = threading.get_ident()  # a checkpoint in the background has collectives of its own

    def noted(wait: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() != thread:
                return wait(*arguments, **options)
            start = time.perf_counter()
            try:
                return wait(*arguments, **options)
            finally:
                clock.communicated(start, time.perf_counter())

        return call

    kept = dist.Work.wait, _functional_collectives.wait_tensor
    dist.Work.wait, _functional_collectives.wait_tensor = map(noted, kept)  # type: ignore[method-assign]
    try:
        yield
    finally:
        dist.Work.wait, _functional_collectives.wait_tensor = kept  # type: ignore[method-assign]


class Meters:
    """The meters of one process.

    Parameters
    ----------
    device : torch.device
        Whose utilisation and memory are read.
    loader : TrainingLoader
        Whose hops are read.
    module : torch.nn.Module or None
        The wrapped network; None with a simulated device.
    active : bool
        Whether this process reads them; the others return nothing.
    """

    def __init__(self, device: torch.device, loader: TrainingLoader, module: nn.Module | None, *, active: bool) -> None:
        self._monitor = DeviceMonitor(device if active else torch.device("cpu"))
        self.problem = self._monitor.problem
        self._host = HostMeter() if active else None
        self._loader = loader
        self._module = module
        self._cuda = device.type == "cuda"
        self._hops: dict[str, float] = {}
        self._read_bytes = 0
        if isinstance(module, DistributedDataParallel) and not self._cuda:
            module._set_ddp_runtime_logging_sample_rate(1)  # on CUDA a sample waits for events: keep DDP's own rate

    def take(self) -> dict[str, Any]:
        """Return the readings since the last call, by name; those that are unknown are None."""
        if self._host is None:
            return {}
        work = self._loader.work_done()
        hops = None if work is None else {name: value - self._hops.get(name, 0.0) for name, value in work[0].items()}
        mapped = 0
        if work is not None:
            mapped = max(0, work[1] - self._read_bytes)
            self._hops, self._read_bytes = work
        reading: dict[str, Any] = {**asdict(self._monitor.take()), **asdict(self._host.take(mapped))}
        if self._cuda:
            reading["torch_memory_bytes"] = torch.cuda.max_memory_allocated()
        return {**reading, "hops_s": hops, **_communication(self._module)}

    def close(self) -> None:
        """End the monitor's thread."""
        self._monitor.close()


def describe_reading(reading: Mapping[str, Any]) -> str:
    """Return a reading in words, without what is unknown.

    Examples
    --------
    >>> describe_reading({"cpu_pct": 180.0, "rss_bytes": 3 * 2**30, "gpu_pct": None})
    'CPU 180 %, RSS 3.0 GiB'
    """
    words = (
        ("gpu_pct", "GPU {:.0f} %", 1.0),
        ("sm_pct", "SM activity {:.0f} %", 1.0),
        ("gpu_memory_bytes", "GPU memory {:.1f} GiB", 2.0**30),
        ("cpu_pct", "CPU {:.0f} %", 1.0),
        ("machine_pct", "whole machine {:.0f} %", 1.0),
        ("rss_bytes", "RSS {:.1f} GiB", 2.0**30),
        ("pss_bytes", "PSS {:.1f} GiB", 2.0**30),
        ("disk_bytes_per_s", "disk {:.1f} MiB/s", 2.0**20),
        ("cache_hit_pct", "page cache {:.0f} %", 1.0),
    )
    return ", ".join(text.format(reading[name] / unit) for name, text, unit in words if reading.get(name) is not None)


def _communication(module: nn.Module | None) -> dict[str, float | None]:
    """Return seconds of communication in the last step that DDP sampled, and how much backward hid of it."""
    names = {"communication_s": "backward_comm_time", "overlapped_s": "backward_compute_comm_overlap_time"}
    if not isinstance(module, DistributedDataParallel):
        return dict.fromkeys(names)
    told = module._get_ddp_logging_data()
    return {name: float(told[key]) / 1e9 if key in told else None for name, key in names.items()}
