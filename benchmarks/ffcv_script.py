"""A script as FFCV's users write them: `ffcv_api.py` runs it on both sides.

    python [-m dataloading.ffcv] benchmarks/ffcv_script.py CASE FILE BATCH_SIZE NUM_WORKERS SECONDS

It prints a line of JSON when the first batch is there, then one for each line that it reads.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import Convert, Cutout, RandomHorizontalFlip, RandomTranslate, Squeeze, ToTensor, ToTorchImage
from torchvision.transforms import Normalize

MEAN, STD = [125.307, 122.961, 113.8575], [51.5865, 50.847, 51.255]


def pipeline(case: str) -> list[Any]:
    """Return the image pipeline of a case."""
    if case != "cifar":
        return [RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip(), ToTensor(), ToTorchImage()]
    fill = tuple(map(int, MEAN))
    augmented = [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(2, fill), Cutout(4, fill)]
    return [*augmented, ToTensor(), ToTorchImage(), Convert(torch.float16), Normalize(MEAN, STD)]


def endless(loader: Any) -> Iterator[Any]:
    """Go through epoch after epoch."""
    while True:
        yield from loader


def main() -> None:
    """For each line of the standard input, iterate for some seconds and print the figures."""
    case, path, batch_size, num_workers, seconds = sys.argv[1:]
    began = time.perf_counter()
    loader = Loader(
        path,
        batch_size=512 if case == "cifar" else int(batch_size),
        num_workers=int(num_workers),
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"image": pipeline(case), "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    batches = endless(loader)
    next(batches)
    print(json.dumps({"first_batch_seconds": time.perf_counter() - began}), flush=True)
    for _ in sys.stdin:
        next(batches)  # what was made while nobody asked does not count
        images, began, used = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() < began + float(seconds):
            images += len(next(batches)[0])
        spent = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - used}
        print(json.dumps({"images": images, **spent}), flush=True)


if __name__ == "__main__":
    main()
