"""Take all measurements of one file on this machine, for `judge`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dataloading.messages import counted
from dataloading.tools import open_files
from train.machine import busy_seconds

from .device import copy_rates, training_rate
from .limits import machine
from .measurements import Measurements, Setup
from .pipeline import (
    cached_images,
    default_transforms,
    describe_files,
    image_field,
    measure_loader,
    measure_work,
    stored_images,
)
from .storage import measure_disk

__all__ = ["examine"]


def examine(
    path: Any,
    *,
    setup: Setup,
    transforms: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
    device_rate: float | None = None,
    model: str = "resnet50",
    seconds: float = 1.5,
    progress: Callable[[str], None] = lambda text: None,
) -> Measurements:
    """Measure disk, decoding, transforms, the Loader, copies and the device; takes less than a minute.

    Parameters
    ----------
    path
        The dataset, as the Loader's; local files.
    setup : Setup
        How training is set up.
    transforms : mapping, optional
        As the Loader's; by default those of ``beton train``.
    device : torch.device, optional
        A CUDA device to measure.
    device_rate : float, optional
        Images per second that the device takes, instead of measuring it.
    model : str
        Network whose training is timed on `device`.
    seconds : float
        About how long each measurement takes.
    progress : callable
        Called with a line of text now and then.

    Examples
    --------
    >>> from train.doctor.judge import judge
    >>> measured = examine("train.beton", setup=Setup(num_workers=8), device_rate=3000)     # doctest: +SKIP
    >>> print(judge(measured).verdict)                                                       # doctest: +SKIP
    """
    files = open_files(path)
    field = image_field(files)
    facts = describe_files(files)
    transforms = default_transforms(field, setup.image_size) if transforms is None else transforms
    progress("reading from the disk")
    paths = [str(each) for each in files.paths]
    disk = measure_disk(
        paths,
        image_bytes=facts.image_bytes,
        cached=cached_images(files),
        seconds=seconds,
    )
    indices = stored_images(files)
    progress("decoding and transforming on one worker")
    before = busy_seconds(), time.process_time(), time.perf_counter()
    place = device if device is not None and device.type == "cuda" else torch.device("cpu")
    work = measure_work(path, transforms=transforms, field=field, indices=indices, seconds=seconds, device=place)
    progress(f"loading with {counted(setup.num_workers, 'worker')}")
    loader_rate = measure_loader(
        path,
        transforms=transforms,
        indices=indices,
        num_workers=setup.num_workers,
        batch_size=setup.batch_size,
        device=place,
        seconds=seconds,
    )
    busy, own, seconds = busy_seconds(), time.process_time() - before[1], time.perf_counter() - before[2]
    others = 0.0 if busy is None or before[0] is None else max(0.0, busy - before[0] - own) / seconds
    copies: dict[str, float] = {}
    source = "--device-rate" if device_rate else ""
    if place.type == "cuda":
        progress(f"copying to {place}")
        copies = copy_rates(place)
        if device_rate is None:
            progress(f"training {model} on {place}")
            device_rate = training_rate(
                model,
                place,
                batch_size=min(128, setup.batch_size),
                image_size=setup.image_size,
                seconds=2 * seconds,
            )
            source = f"measured: {model}, bfloat16"
    return Measurements(
        file=facts,
        disk=disk,
        work=work,
        machine=machine(busy_cores=others),
        setup=setup,
        loader_rate=loader_rate,
        transfer_bytes_per_second=copies.get("host to device"),
        copy_rates=copies,
        device_rate=device_rate,
        device_source=source,
    )
