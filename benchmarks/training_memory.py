"""Estimated against measured peak memory of a training step, for three networks, each in a fresh process.

    python benchmarks/training_memory.py [--batch-size 32]

Two training steps, float32, SGD with momentum. `tensors` is the peak of what tensors hold (torch's MemTracker), which
is what an allocator of a GPU sees; `resident` is how much the process's peak resident memory (VmHWM) grew, which adds
the workspaces of convolutions and what malloc cannot give back. Estimated is `train.memory` for one device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

MODELS = ("resnet18", "resnet50", "vit_b_16")


def resident_peak() -> int:
    """Return the largest resident memory of this process so far, bytes."""
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def measure(name: str, batch_size: int) -> None:
    """Train for two steps and print both figures."""
    import torch

    from train.memory import Setup, estimate
    from train.memory.report import size_by_name
    from train.model import build_model

    torch.set_num_threads(1)
    size = size_by_name(name, num_classes=1000, image_size=224, amp=False)
    # Load what a first step loads, on a small network, so that it does not count.
    _steps(build_model("tiny", 10), 2)
    before = resident_peak()
    _steps(build_model(name, 1000), batch_size)
    estimated = estimate(size, "ddp", Setup(devices=1, batch_size=batch_size, optimizer="sgd", amp=False))
    resident = resident_peak() - before
    tensors = _steps(build_model(name, 1000), batch_size, track=True)
    print(json.dumps({"estimated": estimated.total, "tensors": tensors, "resident": resident}))


def _steps(model: Any, batch_size: int, *, track: bool = False) -> int:
    """Train for two steps; return the peak of what tensors hold, if it is tracked."""
    import torch
    from torch.distributed._tools.mem_tracker import MemTracker

    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker if track else contextlib.nullcontext():
        for _ in range(2):
            images, labels = torch.rand(batch_size, 3, 224, 224), torch.zeros(batch_size, dtype=torch.long)
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)  # as DDP, whose buckets stay
            tracker.reset_mod_stats()
    return sum(int(each["Total"]) for each in tracker.get_tracker_snapshot("peak").values()) if track else 0


def main() -> None:
    """Measure each network in a process of its own and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--model", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model:
        measure(options.model, options.batch_size)
        return
    from train.tables import markdown_table

    rows = []
    for name in MODELS:
        command = [sys.executable, __file__, "--model", name, "--batch-size", str(options.batch_size)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        mib = [f"{found[key] / 2**20:,.0f} MiB" for key in ("estimated", "tensors", "resident")]
        ratios = [f"{found[key] / found['estimated']:.2f}" for key in ("tensors", "resident")]
        rows.append([name, *mib, *ratios])
    head = ["network", "estimated", "tensors", "resident", "tensors / estimated", "resident / estimated"]
    print(markdown_table(head, rows))


if __name__ == "__main__":
    main()
