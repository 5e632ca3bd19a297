"""Convert class folders or arrays with FFCV's own writer, and print time and CPU time as JSON.

    python benchmarks/ffcv_write.py FOLDER|ARRAYS.npz OUT.beton [--mode jpg|raw] [--num-workers N]

The settings are those of FFCV's ImageNet script: ``RGBImageField`` with quality 90, every image re-encoded.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.writer import DatasetWriter
from inputs import ArraySamples
from torchvision.datasets import ImageFolder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--mode", choices=["jpg", "raw"], default="jpg")
    parser.add_argument("--quality", type=int, default=90)
    parser.add_argument("--num-workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    dataset: Any
    if options.folder.endswith(".npz"):
        arrays = np.load(options.folder)
        dataset = ArraySamples(arrays["image"], arrays["label"])
    else:
        dataset = ImageFolder(options.folder)
    fields = {"image": RGBImageField(write_mode=options.mode, jpeg_quality=options.quality), "label": IntField()}
    partial = Path(options.out + ".partial")
    before, start = os.times(), time.perf_counter()
    DatasetWriter(str(partial), fields, num_workers=options.num_workers).from_indexed_dataset(dataset)
    for process in multiprocessing.active_children():  # it does not wait for the end of its workers
        process.join()
    seconds, after = time.perf_counter() - start, os.times()
    partial.rename(options.out)
    result = {
        "seconds": seconds,
        "num_samples": len(dataset),
        "num_bytes": Path(options.out).stat().st_size,
        "parent_cpu_seconds": after.user + after.system - before.user - before.system,
        "workers_cpu_seconds": after.children_user + after.children_system,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
