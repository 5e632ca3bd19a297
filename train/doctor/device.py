"""Measure a CUDA device: copies from pinned memory to it, and the images per second that a network trains on it."""

from __future__ import annotations

import time

import torch
from torch.nn import functional

from train.model import build_model

__all__ = ["copy_rates", "training_rate"]

_COPY_BYTES = 64 << 20


def copy_rates(device: torch.device, *, seconds: float = 0.5) -> dict[str, float]:
    """Return bytes per second of copies: ``host to device``, ``device to host``, ``on the device`` (CUDA only).

    The last one counts each byte once, though it is read and written.
    """
    host = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    here, there = (torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    pairs = {"host to device": (here, host), "device to host": (host, here), "on the device": (there, here)}
    rates = {}
    for name, (target, source) in pairs.items():
        target.copy_(source)
        torch.cuda.synchronize(device)
        started, done = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            for _ in range(8):
                target.copy_(source, non_blocking=True)
                done += _COPY_BYTES
            torch.cuda.synchronize(device)
        rates[name] = done / (time.perf_counter() - started)
    return rates


def training_rate(model: str, device: torch.device, *, batch_size: int, image_size: int, seconds: float = 3.0) -> float:
    """Return the images per second of training steps on a batch that is on the device already, in bfloat16.

    Parameters
    ----------
    model : str
        As ``beton train --model``.
    device : torch.device
    batch_size, image_size : int
    seconds : float
        About how long it is measured.
    """
    layout = torch.channels_last
    network = build_model(model, 1000).to(device).to(memory_format=layout)
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-6, momentum=0.9)
    images = torch.rand(batch_size, 3, image_size, image_size, device=device).to(memory_format=layout)
    labels = torch.zeros(batch_size, dtype=torch.int64, device=device)

    def wait() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = functional.cross_entropy(network(images).float(), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    for _ in range(3):  # the first ones choose kernels and fill the allocator
        step()
    started, done = wait(), 0
    while wait() - started < seconds:
        step()
        done += batch_size
    return done / (wait() - started)
