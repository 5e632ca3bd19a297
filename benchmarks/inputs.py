"""Creates the inputs of the benchmarks from a folder of photographs: the same bytes each time, on any machine.

Inputs are created once, in a work folder. JPEG trees are made with Pillow (quality 90, 4:2:0); ``.beton`` files of ours
by ``beton convert``, FFCV's by FFCV's own writer.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, Options, say
from PIL import Image, ImageOps

from train.loaders.stored_images import FileImages

QUALITY = 90
_ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}


def photo_tree(options: Options, longest: int) -> Path:
    """Return class folders with `options.num_images` JPEGs whose longest side is `longest`.

    Image k is photograph k modulo their number: first the whole photograph, in later passes a random crop of 60 to 100
    % of each side, drawn from k.
    """
    folder = options.work_dir / f"photos-{longest}-{options.num_images}"
    if folder.is_dir():
        return folder
    sources = sorted(path for path in options.photos.rglob("*") if path.suffix.lower() in _ENDINGS)
    if not sources:
        raise SystemExit(f"{options.photos}: no photographs found (expected folders of JPEG files)")
    say(f"making {options.num_images} images of {longest} px in {folder}")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    jobs = []
    for number in range(options.num_images):
        source = sources[number % len(sources)]
        place = partial / source.parent.name
        place.mkdir(parents=True, exist_ok=True)
        jobs.append((source, place / f"{number:06d}.jpg", longest, number, number >= len(sources)))
    with ProcessPoolExecutor() as pool:
        for _ in pool.map(_make_photo, jobs, chunksize=16):
            pass
    partial.rename(folder)
    return folder


def _make_photo(job: tuple[Path, Path, int, int, bool]) -> None:
    source, target, longest, number, cut = job
    with Image.open(source) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    if cut:
        chance = random.Random(number)
        width, height = (max(1, round(side * chance.uniform(0.6, 1.0))) for side in image.size)
        left, top = chance.randint(0, image.width - width), chance.randint(0, image.height - height)
        image = image.crop((left, top, left + width, top + height))
    factor = longest / max(image.size)
    size = tuple(max(1, round(side * factor)) for side in image.size)
    image.resize(size, Image.Resampling.LANCZOS).save(target, "JPEG", quality=QUALITY)


class ArraySamples:
    """Pixels and labels as an indexable dataset."""

    def __init__(self, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        return self._images[index], int(self._labels[index])


def array_file(options: Options, num_samples: int, side: int) -> Path:
    """Return an uncompressed ``.npz`` with random images of side x side pixels, and labels."""
    path = options.work_dir / f"arrays-{side}-{num_samples}.npz"
    if not path.exists():
        rng = np.random.default_rng(0)
        options.work_dir.mkdir(parents=True, exist_ok=True)
        np.savez(
            path,
            image=rng.integers(0, 256, (num_samples, side, side, 3), dtype=np.uint8),
            label=rng.integers(0, 10, num_samples),
        )
    return path


def our_file(options: Options, longest: int, mode: str = "jpg") -> Path:
    """Return the tree as a ``.beton`` file: JPEGs recoded losslessly with restart markers, or raw pixels."""
    path = options.work_dir / f"beton-{longest}-{options.num_images}-{mode}.beton"
    if not path.exists():
        tree = photo_tree(options, longest)
        say(f"converting to {path}")
        command = [sys.executable, "-m", "dataloading.cli", "convert", "imagefolder", str(tree), str(path), "--quiet"]
        subprocess.run([*command, "--mode", mode], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return path


def ffcv_file(options: Options, longest: int, mode: str = "jpg") -> Path | None:
    """Return the tree as stored by FFCV's own writer, or None if ffcv is not installed."""
    path = options.work_dir / f"ffcv-{longest}-{options.num_images}-{mode}.beton"
    if not path.exists():
        tree = photo_tree(options, longest)
        say(f"letting FFCV write {path}")
        command = [sys.executable, str(ROOT / "benchmarks" / "ffcv_write.py"), str(tree), str(path), "--mode", mode]
        done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            say(f"FFCV wrote nothing: {done.stderr.strip().splitlines()[-1:]}")
            return None
    return path


def small_file(options: Options, side: int = 32, count: int = 20_000) -> Path:
    """Return arrays of random pixels with ten classes, in CIFAR-10's shape, stored as pixels."""
    path = options.work_dir / f"beton-arrays-{side}-{count}.beton"
    if not path.exists():
        from converters import write
        from dataloading import ImageField, IntField

        say(f"writing {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        samples = [(image, number % 10) for number, image in enumerate(pixels)]
        write(samples, path, {"image": ImageField(), "label": IntField()}, mode="raw", num_workers=0, quiet=True)
    return path


def large_file(options: Options, copies: int) -> Path:
    """Return the 500-px file with each sample stored `copies` times, for cold reads and memory."""
    path = options.work_dir / f"beton-500-{options.num_images}x{copies}.beton"
    if not path.exists():
        from dataloading import EncodedImage, ImageField, IntField, Writer
        from dataloading.tools import MODE_JPEG, probe_jpeg

        source = FileImages(str(our_file(options, 500)))
        say(f"writing {path}")
        fields = {"image": ImageField(), "label": IntField()}
        with Writer(path, fields, num_samples=len(source) * copies) as writer:
            for number in range(len(source) * copies):
                item = source[number % len(source)]
                assert item.encoded is not None
                header = probe_jpeg(item.encoded)
                image = EncodedImage(MODE_JPEG, header.width, header.height, item.encoded)
                writer.append({"image": image, "label": item.label})
    return path
