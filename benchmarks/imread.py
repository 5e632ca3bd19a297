"""Measure how fast whole JPEGs are decoded, and how fast crops of files are read behind torch's stock DataLoader.

    python benchmarks/imread.py --photos DIR [--packages FOLDER] [--num-workers 8]

1. From memory, one thread: our `decode_jpeg` beside simplejpeg, PyTurboJPEG, imagecodecs, OpenCV, torchvision, Pillow
   and kornia-rs, each to RGB in height, width, channels (torchvision: channels first) with its default settings. CPU
   time; pixels are compared with Pillow's.
2. The same decoders in a Dataset behind a DataLoader with 0, 2, 4, 8 workers (up to --num-workers): a file is read and
   decoded whole.
3. `JpegFolder` behind a DataLoader, RandomResizedCrop 224 and flip, beside ImageFolder with torchvision's decoder (each
   worker one thread) and with Pillow.

``--packages`` is a folder with libraries that the environment lacks (``pip install --target FOLDER --no-deps simplejpeg
'PyTurboJPEG<2' imagecodecs opencv-python-headless kornia_rs``). A library that is missing gets a row that says so.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Options, parse, publish, say
from inputs import photo_tree
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from dataloading import JpegFolder
from dataloading import transforms as T
from dataloading.tools import decode_jpeg
from train.loaders.stock import decode_bytes
from train.summaries import interleave
from train.tables import markdown_table

Decode = Callable[[bytes], Any]
BATCH = 64


def ours() -> Decode:
    return decode_jpeg


def simplejpeg() -> Decode:
    decode: Decode = importlib.import_module("simplejpeg").decode_jpeg
    return decode


def pyturbojpeg() -> Decode:
    module = importlib.import_module("turbojpeg")
    decoder = module.TurboJPEG()
    return lambda data: decoder.decode(data, pixel_format=module.TJPF_RGB)


def imagecodecs() -> Decode:
    decode: Decode = importlib.import_module("imagecodecs").jpeg8_decode
    return decode


def opencv() -> Decode:
    cv2 = importlib.import_module("cv2")
    cv2.setNumThreads(1)
    return lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def torchvision() -> Decode:
    return decode_bytes


def pillow() -> Decode:
    return lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def kornia_rs() -> Decode:
    decoder = importlib.import_module("kornia_rs").io.ImageDecoder()
    return lambda data: decoder.decode(data)


DECODERS: dict[str, Callable[[], Decode]] = {
    "ours": ours,
    "simplejpeg": simplejpeg,
    "PyTurboJPEG": pyturbojpeg,
    "imagecodecs": imagecodecs,
    "OpenCV": opencv,
    "torchvision": torchvision,
    "Pillow": pillow,
    "kornia-rs": kornia_rs,
}


class Files(Dataset[Any]):
    """Files, read and decoded whole by one of the decoders."""

    def __init__(self, paths: Sequence[str], name: str) -> None:
        self._paths = paths
        self._name = name
        self._decode: Decode | None = None

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._decode is None:  # in the worker
            self._decode = DECODERS[self._name]()
        pixels = self._decode(Path(self._paths[index]).read_bytes())
        return pixels if isinstance(pixels, torch.Tensor) else torch.from_numpy(np.asarray(pixels))


class FastFolder(ImageFolder):
    """ImageFolder with torchvision's own decoder."""

    def __init__(self, root: str, transform: Any) -> None:
        super().__init__(root, transform, loader=lambda path: decode_bytes(Path(path).read_bytes()))


def folders(root: str) -> dict[str, Dataset[Any]]:
    crop = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    return {
        "JpegFolder": JpegFolder(root, [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]),
        "ImageFolder, torchvision's decoder": FastFolder(root, v2.Compose(crop)),
        "ImageFolder, Pillow": ImageFolder(root, v2.Compose([*crop, v2.PILToTensor()])),
    }


def difference(decode: Decode, data: bytes) -> float:
    """Return the mean difference from Pillow's pixels, in levels."""
    pixels = np.asarray(decode(data)).astype(np.int64)
    want = pillow()(data).astype(np.int64)
    if pixels.shape != want.shape:
        pixels = pixels.transpose(1, 2, 0)
    return float(np.abs(pixels - want).mean())


def from_memory(options: Options, stored: Sequence[bytes]) -> tuple[list[list[str]], dict[str, list[float]]]:
    """Measure each decoder on one thread, in ms of CPU time per image."""
    decoders: dict[str, Decode] = {}
    rows, notes = [], {}
    for name, make in DECODERS.items():
        try:
            decoders[name] = make()
            notes[name] = f"{max(difference(decoders[name], data) for data in stored[:50]):.2f}"
        except Exception as error:  # other libraries raise what they like where one of theirs is missing
            decoders.pop(name, None)
            rows.append([name, "", "", "", f"not measured: {str(error).splitlines()[0]}"])
    times: dict[str, list[float]] = {name: [] for name in decoders}
    for number, name in interleave(list(decoders), options.rounds):
        start = time.thread_time()
        for data in stored:
            decoders[name](data)
        times[name].append((time.thread_time() - start) * 1e3 / len(stored))
        say(f"round {number + 1}  {name}: {times[name][-1]:.3f} ms")
    base = times["ours"]
    measured = []
    for name, values in times.items():
        ratio = statistics.median(each / one for each, one in zip(values, base, strict=True))
        middle = statistics.median(values)
        measured.append([name, f"{1e3 / middle:,.0f}", f"{middle:.3f}", f"{ratio:.2f}", notes[name]])
    return measured + rows, times


def behind_a_dataloader(
    options: Options, datasets: Callable[[], dict[str, Dataset[Any]]], names: Sequence[str], collate: Any = None
) -> tuple[list[list[str]], dict[str, dict[int, list[float]]]]:
    """Measure images per second of an epoch with each number of workers."""
    counts = [count for count in (0, 2, 4, 8) if count <= options.num_workers]
    rates: dict[str, dict[int, list[float]]] = {name: {count: [] for count in counts} for name in names}
    for count in counts:
        loaders = {
            name: DataLoader(
                dataset,
                batch_size=BATCH,
                shuffle=True,
                num_workers=count,
                collate_fn=collate,
                persistent_workers=count > 0,
                prefetch_factor=4 if count else None,
            )
            for name, dataset in datasets().items()
            if name in names
        }
        for number, name in interleave(list(loaders), options.rounds + 1):  # the first round starts the workers
            start, images = time.perf_counter(), 0
            for batch in loaders[name]:
                images += len(batch) if collate is not None else len(batch[1])
            if number:
                rates[name][count].append(images / (time.perf_counter() - start))
                say(f"{count} workers, round {number}  {name}: {rates[name][count][-1]:,.0f} images/s")
    middle = {name: [statistics.median(rates[name][count]) for count in counts] for name in names}
    first = middle[names[0]]
    rows = [
        [name, *(f"{rate:,.0f} ({one / rate:.2f}x)" for rate, one in zip(middle[name], first, strict=True))]
        for name in names
    ]
    return [["", *(f"{count} workers" for count in counts)], *rows], rates


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this script."""
    parser.add_argument("--packages", default="", help="folder with other libraries")


def main(argv: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = parse(__doc__, argv, add_options=add_options, num_workers=8)
    if options.packages:
        sys.path.append(options.packages)
        os.environ["PYTHONPATH"] = os.pathsep.join([options.packages, os.environ.get("PYTHONPATH", "")])
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    root = photo_tree(options, 500)
    paths = sorted(str(path) for path in root.rglob("*.jpg"))
    memory_rows, times = from_memory(options, [Path(path).read_bytes() for path in paths[:720]])
    names = [row[0] for row in memory_rows if row[0] in times]
    whole, whole_rates = behind_a_dataloader(
        options, lambda: {name: Files(paths, name) for name in names}, names, collate=list
    )
    crops, crop_rates = behind_a_dataloader(options, lambda: folders(str(root)), list(folders(str(root))))
    publish(
        options.out,
        options.command,
        "imread",
        "Decoding JPEG files without converting them",
        "Whole images from memory, one thread, CPU time; the last column is the largest mean difference from Pillow's "
        "pixels among 50 images, in levels.",
        head=["decoder", "images/s", "ms/image", "time / ours", "difference"],
        rows=memory_rows,
        data={"memory_ms": times, "whole_images_per_s": whole_rates, "crops_images_per_s": crop_rates},
        below=[
            "Whole files behind torch's DataLoader, images/s by wall clock, and how many times faster ours is:",
            markdown_table(whole[0], whole[1:]),
            "Crops of files behind torch's DataLoader (RandomResizedCrop 224, flip), images/s by wall clock, and how "
            "many times faster JpegFolder is:",
            markdown_table(crops[0], crops[1:]),
        ],
    )


if __name__ == "__main__":
    main()
