"""Measure images/s per core of each transform and of five recipes, against torchvision v2, albumentations and Kornia.

    python benchmarks/recipes.py --photos PHOTOS [--packages DIR] [--rounds 5] [--only NAME,...]

Each uses one thread. Transforms work on 224x224 images in memory: ours as in a loader, torchvision's on uint8 tensors,
albumentations' on NumPy arrays, Kornia's on float batches of 32. Recipes start from stored JPEG files: ours with a
Loader of one worker, torchvision's with decode_jpeg and the transforms of ``beton train --recipe``. Rounds are
interleaved; medians are reported. Libraries that are not installed are skipped; `--packages` names a folder with more
of them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import recipes_peers
from common import Options, parse, publish, say
from inputs import ffcv_file, our_file

SIDE, NUM = 224, 32
Round = Callable[[], tuple[int, float]]  # images and seconds

# Ours, and the equivalents of albumentations and Kornia, if any; torchvision's are derived from ours.
CASES: dict[str, tuple[str, str, str]] = {
    "flip": ("RandomHorizontalFlip(1.0)", "HorizontalFlip(p=1)", "RandomHorizontalFlip(p=1.0)"),
    "jitter": ("ColorJitter(0.4, 0.4, 0.4, 0.1)", "ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1), p=1)",
               "ColorJitter(0.4, 0.4, 0.4, 0.1, p=1.0)"),
    "gray": ("RandomGrayscale(1.0)", "ToGray(p=1)", "RandomGrayscale(p=1.0)"),
    "invert": ("RandomInvert(1.0)", "InvertImg(p=1)", "RandomInvert(p=1.0)"),
    "solarize": ("RandomSolarize(128, p=1.0)", "Solarize(p=1)", "RandomSolarize(p=1.0)"),
    "posterize": ("RandomPosterize(4, p=1.0)", "Posterize(p=1)", "RandomPosterize(4, p=1.0)"),
    "autocontrast": ("RandomAutocontrast(1.0)", "AutoContrast(p=1)", "RandomAutoContrast(p=1.0)"),
    "equalize": ("RandomEqualize(1.0)", "Equalize(p=1)", "RandomEqualize(p=1.0)"),
    "sharpness": ("RandomAdjustSharpness(2.0, p=1.0)", "Sharpen(p=1)", "RandomSharpness(p=1.0)"),
    "blur 23": ("GaussianBlur(23)", "GaussianBlur((23, 23), (0.1, 2.0), p=1)",
                "RandomGaussianBlur((23, 23), (0.1, 2.0), p=1.0)"),
    "noise": ("GaussianNoise()", "GaussNoise(p=1)", "RandomGaussianNoise(p=1.0)"),
    "rotation": ("RandomRotation(30)", "Rotate((-30, 30), p=1)", "RandomRotation(30.0, p=1.0)"),
    "affine": ("RandomAffine(10, (0.1, 0.1), (0.9, 1.1), 5, interpolation='bilinear')",
               "Affine(rotate=(-10, 10), translate_percent=(-0.1, 0.1), scale=(0.9, 1.1), shear=(-5, 5), p=1)",
               "RandomAffine(10.0, (0.1, 0.1), (0.9, 1.1), 5.0, p=1.0)"),
    "perspective": ("RandomPerspective(0.5, p=1.0)", "Perspective(p=1)", "RandomPerspective(0.5, p=1.0)"),
    "elastic": ("ElasticTransform()", "ElasticTransform(p=1)", "RandomElasticTransform(p=1.0)"),
    "jpeg": ("JPEG((50, 90))", "ImageCompression(quality_range=(50, 90), p=1)", ""),
    "erasing": ("RandomErasing(1.0)", "CoarseDropout(p=1)", "RandomErasing(p=1.0)"),
    "normalize": ("Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))", "Normalize()", ""),
    "photometric": ("RandomPhotometricDistort()", "", ""),
    "RandAugment": ("RandAugment()", "", ""),
    "TrivialAugment": ("TrivialAugmentWide()", "", ""),
    "AutoAugment": ("AutoAugment()", "", ""),
    "AugMix": ("AugMix()", "", ""),
}  # fmt: skip
RECIPES = ("imagenet_train", "simclr_view", "simclr", "dino", "deit", "trivial", "detection")
LIBRARIES = {"torchvision": "torchvision v2", "albumentations": "AlbumentationsX", "timm": "timm (Pillow)",
             "kornia": "Kornia", "ffcv": "FFCV"}  # fmt: skip


def pixels() -> Any:
    """Return smooth images with noise, uint8 (NUM, 3, SIDE, SIDE)."""
    import numpy as np

    generator = np.random.default_rng(0)
    smooth = np.cumsum(generator.normal(size=(NUM, 3, SIDE, SIDE)), axis=3)
    return np.clip(smooth * 8 + 128, 0, 255).astype(np.uint8)


def timed(work: Callable[[], int]) -> Round:
    """Return one timed round."""

    def run() -> tuple[int, float]:
        start = time.perf_counter()
        done = work()
        return done, time.perf_counter() - start

    return run


def our_round(expression: str, images: Any) -> Round:
    """Return a round of ours: NUM images through the compiled pipeline."""
    import numpy as np

    from dataloading import transforms as T
    from dataloading.transforms.pipeline import Pipeline

    pipeline = Pipeline([T.RandomResizedCrop(SIDE), eval(f"T.{expression}", {"T": T})])
    pipeline.warm_up()
    keys = np.arange(NUM).astype(np.uint64) * 7919
    out = np.zeros((NUM, *pipeline.out_shape), pipeline.storage_dtype)

    def run() -> int:
        decoded = images.copy()
        pipeline.run(decoded, keys, decoded if pipeline.in_place else out)
        return NUM

    return timed(run)


def torchvision_round(expression: str, images: Any) -> Round:
    """Return a round of torchvision's equivalent."""
    import torch
    from torchvision.transforms import v2

    from dataloading import transforms as T
    from train.loaders.torchvision_steps import torchvision_steps

    transform = v2.Compose(torchvision_steps([eval(f"T.{expression}", {"T": T})], pillow=False))
    tensors = list(torch.from_numpy(images))
    return timed(lambda: len([transform(image) for image in tensors]))


def albumentations_round(expression: str, images: Any) -> Round:
    """Return a round of albumentations, or of its successor."""
    import numpy as np

    library: Any = importlib.import_module("albumentations")
    transform = eval(f"A.{expression}", {"A": library})
    arrays = [np.ascontiguousarray(np.moveaxis(image, 0, -1)) for image in images]
    return timed(lambda: len([transform(image=image)["image"] for image in arrays]))


def kornia_round(expression: str, images: Any) -> Round:
    """Return a round of Kornia: a batch of floats."""
    import torch

    library: Any = importlib.import_module("kornia.augmentation")
    transform = eval(f"K.{expression}", {"K": library})
    batch = torch.from_numpy(images).float() / 255
    return timed(lambda: len(transform(batch)))


def boxes_file(options: Options) -> str:
    """Return a file of the same photographs, with a box and a category in each."""
    import numpy as np

    from dataloading import ImageField, IntField, Reader, VarArrayField, Writer

    path = options.work_dir / f"boxes-500-{options.num_images}.beton"
    if not path.exists():
        with Reader(str(our_file(options, 500))) as reader:
            fields = {"image": ImageField(), "label": IntField(), "category": VarArrayField("int64", (None,)),
                      "boxes": VarArrayField("float32", (None, 4), coordinates="xyxy")}  # fmt: skip
            with Writer(path, fields, num_samples=reader.num_samples) as writer:
                for index in range(reader.num_samples):
                    image: Any = reader.value("image", index)
                    box = np.array([[image.width / 4, image.height / 4, image.width / 2, image.height / 2]], np.float32)
                    writer.append({"image": image, "label": 0, "category": np.zeros(1, np.int64), "boxes": box})
    return str(path)


def recipe_rounds(name: str, path: str, options: Options) -> dict[str, Round]:
    """Return a round of each library that has a recipe, from stored files on."""
    import torch

    from dataloading import Reader

    with Reader(path) as reader:
        stored = [
            (bytes(reader.view("image", i)), reader.value("boxes", i).copy() if "boxes" in reader.fields else None)
            for i in range(min(64, reader.num_samples))
        ]
    makers: dict[str, Callable[[str], recipes_peers.Sample]] = {
        "torchvision": torchvision_sample, "albumentations": recipes_peers.albumentations, "timm": recipes_peers.timm,
        "kornia": recipes_peers.kornia,
    }  # fmt: skip
    rounds: dict[str, Round] = {"ours": our_recipe_round(name, path)}
    for library, make in makers.items():
        try:
            sample = make(name)
        except KeyError:  # it has no such recipe
            continue
        except Exception as error:  # not installed, or another version's names
            say(f"{name}: {library}: {type(error).__name__}: {error}")
            continue
        rounds[library] = paced(sample, stored, options.seconds, 32 if library == "kornia" else 1)
    torch.set_num_threads(1)
    file = ffcv_file(options, 500) if name == "imagenet_train" else None
    if file is not None:
        rounds["ffcv"] = ffcv_round(str(file))
    return rounds


def our_recipe_round(name: str, path: str) -> Round:
    """Return a round of a Loader with one worker."""
    import numpy as np

    from dataloading import Loader, Reader
    from dataloading import transforms as T

    options = {"views": 1} if name == "simclr_view" else {}
    recipe = T.recipes.find("simclr" if name == "simclr_view" else name, mixup=0, cutmix=0, **options)
    with Reader(path) as reader:
        indices = np.resize(np.arange(reader.num_samples), 256 if name == "dino" else 1024)
    loader = Loader(path, batch_size=32, shuffle="global", num_workers=1, transforms=recipe, indices=indices)
    return of_process(lambda: sum(len(batch.indices) for batch in loader))


def ffcv_round(path: str) -> Round:
    """Return a round of FFCV with one worker."""
    from train.loaders import make_loader
    from train.loaders.base import LoaderSpec

    spec = LoaderSpec(path=path, training=True, batch_size=32, num_workers=1, seed=0, normalised=True)
    loader = make_loader("ffcv", spec)
    return of_process(lambda: sum(len(batch.labels) for batch in loader))


def of_process(work: Callable[[], int]) -> Round:
    """Return a round that is timed by the CPU seconds of all threads, until they are idle again."""

    def run() -> tuple[int, float]:
        start = time.process_time()
        done = work()
        before = 0.0
        while time.process_time() - before > 0.002:  # threads work ahead, for the next round
            before = time.process_time()
            time.sleep(0.2)
        return done, time.process_time() - start

    return run


def paced(sample: recipes_peers.Sample, stored: list[tuple[bytes, Any]], seconds: float, multiple: int) -> Round:
    """Return a round of one stored sample after the other, for some seconds."""
    samples = itertools.cycle(stored)

    def run() -> tuple[int, float]:
        start, done = time.thread_time(), 0
        while done % multiple or time.thread_time() - start < seconds:
            sample(*next(samples))
            done += 1
        return done, time.thread_time() - start

    return run


def torchvision_sample(name: str) -> recipes_peers.Sample:
    """Return torchvision's transforms on tensors, those of ``beton train --recipe``."""
    import torch
    from torchvision.io import decode_jpeg
    from torchvision.transforms import v2
    from torchvision.tv_tensors import BoundingBoxes, Image

    from dataloading import transforms as T
    from train.loaders.torchvision_steps import torchvision_steps

    views: list[Any] = []
    for value in T.recipes.find("simclr" if name == "simclr_view" else name, mixup=0, cutmix=0).values():
        steps, repeat = getattr(value, "transforms", value), getattr(value, "repeat", 1)
        views += [v2.Compose(torchvision_steps(steps, pillow=False))] * (1 if name == "simclr_view" else repeat)

    def sample(data: bytes, boxes: Any) -> None:
        image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        given: Any = image
        if boxes is not None:
            size = (image.shape[1], image.shape[2])
            told = BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=size)
            given = {"image": Image(image), "boxes": told, "labels": torch.zeros(1)}
        for view in views:
            view(given)

    return sample


def measured(rounds: dict[str, Round], count: int) -> dict[str, float]:
    """Return the median images per second of each, over interleaved rounds."""
    rates: dict[str, list[float]] = {name: [] for name in rounds}
    for number in range(count + 1):
        for name, run in list(rounds.items()):
            try:
                done, seconds = run()
            except Exception as error:  # another version's names, or a fault of a library
                say(f"{name}: {type(error).__name__}: {error}")
                del rounds[name], rates[name]
                continue
            if number > 0:  # the first warms up
                rates[name].append(done / seconds)
    return {name: statistics.median(values) for name, values in rates.items()}


def transform_rounds(name: str, images: Any) -> dict[str, Round]:
    """Return the rounds of one transform, in every library that has it."""
    ours, albumentations, kornia = CASES[name]
    makers = (("ours", our_round, ours), ("torchvision", torchvision_round, ours),
              ("albumentations", albumentations_round, albumentations), ("kornia", kornia_round, kornia))  # fmt: skip
    rounds: dict[str, Round] = {}
    for library, make, expression in makers:
        if not expression:
            continue
        try:
            rounds[library] = make(expression, images)
        except Exception as error:  # not installed, or a version with other names
            say(f"{name}: {library}: {type(error).__name__}: {error}")
    return rounds


def versions() -> list[str]:
    """Return the other libraries that are installed, with their versions."""
    found = []
    for name in ("albumentationsx", "albumentations", "opencv-python-headless", "timm", "kornia"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this script."""
    parser.add_argument("--packages", default="", help="folder with albumentations and Kornia (pip install --target)")
    parser.add_argument("--only", default="", help="names of transforms and recipes, separated by commas")


def main() -> None:
    """Measure and write the report."""
    options = parse(__doc__, add_options=add_options, num_images=512, seconds=0.7)
    if options.packages:
        sys.path.append(options.packages)
    import torch

    torch.set_num_threads(1)
    wanted = options.only.split(",") if options.only else [*RECIPES, *CASES]
    images, data, rows = pixels(), {}, []
    for name in wanted:
        try:
            if name in CASES:
                rounds = transform_rounds(name, images)
            else:
                path = boxes_file(options) if name == "detection" else str(our_file(options, 500))
                rounds = recipe_rounds(name, path, options)
            rates = measured(rounds, options.rounds)
        except Exception as error:
            say(f"{name}: {type(error).__name__}: {error}")
            continue
        data[name] = rates
        others = [rates.get(library) for library in LIBRARIES]
        cells = [f"{rate:,.0f} ({rates['ours'] / rate:.1f}x)" if rate else "" for rate in others]
        rows.append([name, f"{rates['ours']:,.0f}", *cells, CASES[name][0] if name in CASES else "recipe, from JPEG"])
        say(f"{name}: {rates}")
    below = [recipes_peers.UNLIKE, f"Versions: {', '.join(versions())}."]
    publish(
        options.out, options.command, "recipes", "Augmentation: images per second of one core",
        "Medians of interleaved rounds, one thread each, per CPU second; in brackets how many times as fast ours is.",
        head=["", "ours", *LIBRARIES.values(), "what"], rows=rows, data=data, below=below,
    )  # fmt: skip


if __name__ == "__main__":
    main()
