"""What `gate.py` measures, run in one process per checkout.

It first prints the names of the topics. Then it reads a name per line, and answers with a line of JSON.

    python benchmarks/gate_topics.py CHECKOUT JPEGS.beton RAW.beton SMALL.beton PHOTOS

It imports the packages of CHECKOUT, and uses only what has been public since the first version.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

CHECKOUT, JPEGS, RAW, SMALL, PHOTOS = sys.argv[1:]
# The finder of an editable install would give the packages of the checkout that is installed.
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, CHECKOUT)

import numpy as np  # noqa: E402
import torch  # noqa: E402

import converters  # noqa: E402
import dataloading  # noqa: E402
from dataloading import Loader, Reader  # noqa: E402
from dataloading import transforms as T  # noqa: E402
from dataloading.format import ImageField, IntField  # noqa: E402

Topic = Callable[[bool], tuple[int, int]]  # (is the output hashed?) -> images, checksum


def loading(path: str, ops: list[Any], batch_size: int = 128) -> Topic:
    """Return the topic of one epoch of a loader, which is made anew: none reads ahead while the other side runs."""

    def epoch(hashed: bool) -> tuple[int, int]:
        options: dict[str, Any] = {"batch_size": batch_size, "num_workers": 2, "shuffle": "global", "seed": 7}
        count = checksum = 0
        with contextlib.closing(Loader(path, transforms={"image": ops}, **options)) as loader:
            for batch in loader:
                images = batch["image"]
                count += len(images)
                if hashed:
                    checksum = zlib.crc32(images.contiguous().view(torch.uint8).numpy(), checksum)
        return count, checksum

    return epoch


def converting(write: Callable[[str], object], count: int) -> Topic:
    """Return the topic of one file written, and removed again."""

    def convert(hashed: bool) -> tuple[int, int]:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
            path = os.path.join(folder, "out.beton")
            write(path)
            return count, zlib.crc32(Path(path).read_bytes()) if hashed else 0

    return convert


def whole_images(path: str) -> Topic:
    """Return the topic of decoding whole images, one after the other."""
    reader = Reader(path)
    stored = [reader.value("image", number) for number in range(len(reader))]

    def decode(hashed: bool) -> tuple[int, int]:
        checksum = 0
        for image in stored:
            pixels = dataloading.decode_image(image)
            if hashed:
                checksum = zlib.crc32(pixels, checksum)
        return len(stored), checksum

    return decode


def small_arrays() -> Topic:
    """Return the topic of writing 10,000 arrays of 32 px."""
    pixels = np.random.default_rng(0).integers(0, 255, (10_000, 32, 32, 3), dtype=np.uint8)
    samples = [(image, number % 10) for number, image in enumerate(pixels)]
    fields = {"image": ImageField(), "label": IntField()}
    options: dict[str, Any] = {"mode": "raw", "num_workers": 0, "quiet": True}
    return converting(lambda path: converters.write(samples, path, fields, **options), len(samples))


def folder(keep: Literal["pixels", "bytes", "never"]) -> Topic:
    """Return the topic of converting the folder of photographs."""
    source = converters.ImageFolder(PHOTOS)
    policy, options = converters.ImagePolicy(keep=keep), converters.Options(num_workers=0, quiet=True)
    return converting(lambda path: converters.convert(source, path, policy=policy, options=options), len(source))


MAKERS: dict[str, Callable[[], Topic]] = {
    "JPEG, random crop 224, flip": lambda: loading(JPEGS, [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]),
    "JPEG, centre crop 224": lambda: loading(JPEGS, [T.Resize(256), T.CenterCrop(224)]),
    "JPEG, normalised": lambda: loading(JPEGS, [T.RandomResizedCrop(224), T.Normalize((0.5,) * 3, (0.2,) * 3)]),
    "JPEG, RandAugment and erasing": lambda: loading(
        JPEGS, [T.RandomResizedCrop(224), T.RandAugment(), T.RandomErasing(0.25)]
    ),
    "JPEG, jitter, gray, blur": lambda: loading(
        JPEGS,
        [T.RandomResizedCrop(224), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(0.2), T.GaussianBlur(23)],
    ),
    "raw 256 px, random crop 224": lambda: loading(RAW, [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]),
    "raw 32 px, translate, flip, cutout": lambda: loading(
        SMALL, [T.RandomTranslate(2), T.RandomHorizontalFlip(), T.Cutout(8)], batch_size=512
    ),
    "whole images": lambda: whole_images(JPEGS),
    "converting a folder, pixels kept": lambda: folder("pixels"),
    "converting a folder, bytes kept": lambda: folder("bytes"),
    "converting a folder, encoded again": lambda: folder("never"),
    "writing arrays of 32 px": small_arrays,
}


def answers(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    """Run the topics that are asked for; the first run of a topic prepares it and gives its checksum."""
    topics: dict[str, Topic] = {}
    for line in lines:
        name = line.strip()
        try:
            if name not in topics:
                topics[name] = MAKERS[name]()
                yield {"checksum": topics[name](True)[1]}
                continue
            start, cpu = time.perf_counter(), time.process_time()
            count, _ = topics[name](False)
            yield {
                "cpu": (time.process_time() - cpu) / count,
                "wall": (time.perf_counter() - start) / count,
            }
        except Exception as error:  # an older checkout may lack what a topic needs: gate.py shows the reason
            yield {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    found = Path(dataloading.__file__).resolve().parent.parent
    if found != Path(CHECKOUT).resolve():
        raise SystemExit(f"imported the packages of {found}, expected those of {CHECKOUT}")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a topic prints must not be read as an answer
    print(json.dumps(list(MAKERS)), file=out, flush=True)
    for answer in answers(sys.stdin):
        print(json.dumps(answer), file=out, flush=True)
