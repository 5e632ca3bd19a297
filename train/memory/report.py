"""What ``beton train --advise`` prints."""

from __future__ import annotations

from typing import Any

from dataloading import UsageError
from train.model import blocks_of, build_model

from .advice import Advice, Devices, advise, describe, gib
from .model_sizes import TRANSFORMERS, ModelSize, measure_model

__all__ = ["advise_by_name", "overview", "size_by_name"]


def size_by_name(name: str, *, num_classes: int, image_size: int, amp: bool) -> ModelSize:
    """Return the sizes of a network: one that ``beton train --model`` can build, or one of `TRANSFORMERS`."""
    if name in TRANSFORMERS:
        return TRANSFORMERS[name].size()
    try:
        model = build_model(name, num_classes)
    except UsageError as error:
        raise UsageError(f"{error} With --advise also: {', '.join(TRANSFORMERS)}") from None
    return measure_model(name, model, image_size, amp=amp, blocks=blocks_of(model))


def advise_by_name(devices: Devices, **options: Any) -> Advice:
    """Compare the strategies for the network and the batch that the options of ``beton train`` name."""
    name = options["model"]
    amp = options["amp"] != "none" or name in TRANSFORMERS
    size = size_by_name(name, num_classes=options["num_classes"] or 1000, image_size=options["image_size"], amp=amp)
    optimizer = options["optimizer"]
    return advise(size, devices, batch_size=options["batch_size"], optimizer=optimizer, amp=amp)


def overview(devices: Devices) -> list[list[str]]:
    """Return the table of docs/memory.md: GiB per device of five networks, and what to take.

    The first row is the head.
    """
    samples = {"resnet50": 256, "ViT-L": 256, "1.5B": 4, "7B": 1, "70B": 1}
    rows: list[list[str]] = []
    for name, batch_size in samples.items():
        size = size_by_name(name, num_classes=1000, image_size=224, amp=True)
        found = advise(size, devices, batch_size=batch_size)
        totals = {describe(each): gib(each.total) for each in found.estimates if each.strategy != "tp"}
        if not rows:
            rows.append(["network", "samples per device", *totals, "take"])
        best = describe(found.best) if found.best else "nothing fits"
        rows.append([found.size.name, str(batch_size), *totals.values(), best])
    return rows
