"""Measure what a small image costs: CPU time of the Loader, and Python's part of it, which cores do not divide.

    python benchmarks/small_images.py [--side 32] [--batch-size 512] [--num-workers 2]

Raw images of random pixels, RandomTranslate(2), flip and Cutout(8), shuffled. Python is measured with batches of 2 rows
and one worker: what such a batch takes on all threads is nearly all Python, queues and switches between threads, and is
the same for batches of any size. So a process delivers at most batch size / that time, on any number of cores. About
half a minute; needs no photographs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from dataloading import ImageField, IntField, Loader, Writer
from dataloading import transforms as T


def make_file(path: Path, num_samples: int, side: int) -> None:
    """Write random pixels and labels."""
    pixels = np.random.default_rng(0).integers(0, 256, (num_samples, side, side, 3), dtype=np.uint8)
    with Writer(path, {"image": ImageField(), "label": IntField()}, num_samples=num_samples) as writer:
        for number, image in enumerate(pixels):
            writer.append({"image": image, "label": number % 10})


def best_seconds(loader: Loader, rounds: int) -> float:
    """Return the least CPU time of this process for an epoch, after one that counts for nothing."""
    times = []
    for _ in range(rounds + 1):
        started = time.process_time()
        for _ in loader:
            pass
        times.append(time.process_time() - started)
    return min(times[1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("side", 32), ("batch-size", 512), ("num-workers", 2), ("samples", 50_000), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.beton"
        make_file(path, options.samples, options.side)

        def loader(batch_size: int, num_workers: int) -> Loader:
            ops = [T.RandomTranslate(2), T.RandomHorizontalFlip(), T.Cutout(8)]
            return Loader(
                path, batch_size=batch_size, num_workers=num_workers, shuffle="global", transforms={"image": ops}
            )

        whole = best_seconds(loader(options.batch_size, options.num_workers), options.rounds) / options.samples
        batch = best_seconds(loader(2, 1), max(options.rounds // 2, 1)) / (options.samples // 2)
    python = batch / options.batch_size
    print(f"CPU time per image: {whole * 1e6:.2f} us, of which Python {python * 1e6:.2f} us")
    print(f"images/s per process: min(cores / {whole * 1e6:.2f} us, 1 / {python * 1e6:.2f} us = {1 / python:,.0f})")


if __name__ == "__main__":
    main()
