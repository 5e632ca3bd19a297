"""Measure the cost of each transform: seconds to compile in a new process, and milliseconds per image.

    python benchmarks/transforms.py [--size 224] [--quick]

Compile times are measured in new processes: the first with an empty folder for stored programs, the second with the
program of the first. They are CPU seconds, including the import of Numba. The milliseconds are CPU time, too; with
--quick they are the column of docs/transforms.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

STATS = "(0.485, 0.456, 0.406), (0.229, 0.224, 0.225)"
CASES = {
    "Normalize float32": [f"T.Normalize({STATS})"],
    "Normalize float16": [f"T.Normalize({STATS}, dtype='float16')"],
    "Normalize bfloat16": [f"T.Normalize({STATS}, dtype='bfloat16')"],
    "ColorJitter brightness": ["T.ColorJitter(0.4)"],
    "ColorJitter contrast": ["T.ColorJitter(contrast=0.4)"],
    "ColorJitter saturation": ["T.ColorJitter(saturation=0.4)"],
    "ColorJitter hue": ["T.ColorJitter(hue=0.1)"],
    "ColorJitter (no hue)": ["T.ColorJitter(0.4, 0.4, 0.4)"],
    "ColorJitter (all four)": ["T.ColorJitter(0.4, 0.4, 0.4, 0.1)"],
    "Grayscale(1)": ["T.Grayscale()"],
    "RandomGrayscale(p=1)": ["T.RandomGrayscale(1.0)"],
    "RandomGrayscale(p=0.1)": ["T.RandomGrayscale()"],
    "RandomInvert(p=1)": ["T.RandomInvert(1.0)"],
    "RandomSolarize(p=1)": ["T.RandomSolarize(128, p=1.0)"],
    "RandomPosterize(p=1)": ["T.RandomPosterize(4, p=1.0)"],
    "RandomAutocontrast(p=1)": ["T.RandomAutocontrast(p=1.0)"],
    "RandomEqualize(p=1)": ["T.RandomEqualize(p=1.0)"],
    "RandomPhotometricDistort": ["T.RandomPhotometricDistort()"],
    "RandomChannelPermutation": ["T.RandomChannelPermutation()"],
    "RandomAdjustSharpness(p=1)": ["T.RandomAdjustSharpness(2.0, p=1.0)"],
    "GaussianBlur(23)": ["T.GaussianBlur(23)"],
    "GaussianNoise": ["T.GaussianNoise()"],
    "RandomRotation(30)": ["T.RandomRotation(30)"],
    "RandomRotation(30) bilinear": ["T.RandomRotation(30, interpolation='bilinear')"],
    "RandomPerspective(p=1)": ["T.RandomPerspective(0.5, p=1.0)"],
    "ElasticTransform": ["T.ElasticTransform()"],
    "Pad(4)": ["T.Pad(4)"],
    "RandAugment": ["T.RandAugment()"],
    "TrivialAugmentWide": ["T.TrivialAugmentWide()"],
    "AutoAugment": ["T.AutoAugment()"],
    "AugMix": ["T.AugMix()"],
    "ThreeAugment": ["T.ThreeAugment()"],
    "TimmRandAugment": ["T.RandAugment.from_timm('rand-m9-mstd0.5-inc1')"],
    "JPEG(50, 90)": ["T.JPEG((50, 90))"],
    "RandomErasing(p=1)": ["T.RandomErasing(p=1.0)"],
    "Cutout(56)": ["T.Cutout(56)"],
    "Cutout, RandomTranslate(8)": ["T.Cutout(56)", "T.RandomTranslate(8)"],
    "Cutout, flip": ["T.Cutout(56)", "T.RandomHorizontalFlip(1.0)"],
    "Normalize, RandomErasing noise": [f"T.Normalize({STATS})", "T.RandomErasing(1.0, value='random')"],
    "ColorJitter (all), Normalize": ["T.ColorJitter(0.4, 0.4, 0.4, 0.1)", f"T.Normalize({STATS})"],
}

CHILD = """
import sys, time
start = time.process_time(), time.perf_counter()
sys.path.insert(0, {root!r})
from dataloading import transforms as T
from dataloading.transforms.pipeline import Pipeline
pipeline = Pipeline([T.RandomResizedCrop({size}), T.RandomHorizontalFlip(), {chain}])
pipeline.warm_up()
print(time.process_time() - start[0], time.perf_counter() - start[1])
"""


def start_up(chain: list[str], size: int, cache: str) -> tuple[float, float]:
    """Return (CPU seconds, wall seconds) from the first import to a compiled pipeline in a fresh process."""
    code = CHILD.format(root=str(ROOT), size=size, chain=", ".join(chain))
    environment = {**os.environ, "BETON_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    cpu, wall = done.stdout.split()
    return float(cpu), float(wall)


def milliseconds(chain: list[str], size: int, rounds: int) -> float:
    """Return the CPU time per image of the pixel transforms: the best of several rounds over 32 images."""
    import numpy as np

    from dataloading import transforms as T
    from dataloading.transforms.pipeline import Pipeline

    pipeline = Pipeline([T.RandomResizedCrop(size), *(eval(text, {"T": T}) for text in chain)])
    pipeline.warm_up()
    generator = np.random.default_rng(0)
    smooth = np.cumsum(generator.normal(size=(32, 3, size, size)), axis=3)
    pixels = np.clip(smooth * 8 + 128, 0, 255).astype(np.uint8)
    out = np.zeros((32, *pipeline.out_shape), pipeline.storage_dtype)
    keys = generator.integers(0, 2**63, 32).astype(np.uint64)
    best = float("inf")
    for _ in range(rounds):
        decoded = pixels.copy()
        target = decoded if pipeline.in_place else out
        start = time.thread_time()
        pipeline.run(decoded, keys, target)
        best = min(best, time.thread_time() - start)
    return best / 32 * 1e3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--quick", action="store_true", help="no compile times")
    options = parser.parse_args()
    print(f"{'pipeline':34}{'ms/image':>10}{'first start':>14}{'next start':>14}")
    for name, chain in CASES.items():
        cost = milliseconds(chain, options.size, 15)
        line = f"{name:34}{cost:10.3f}"
        if not options.quick:
            with tempfile.TemporaryDirectory() as cache:
                first, second = start_up(chain, options.size, cache), start_up(chain, options.size, cache)
            line += f"{first[0]:12.2f} s{second[0]:12.2f} s"
        print(line, flush=True)


if __name__ == "__main__":
    main()
