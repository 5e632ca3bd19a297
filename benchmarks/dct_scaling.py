"""Show how decoding at 1/2, 1/4 or 1/8 of the size (libjpeg's scaled inverse DCT) would change the pixels.

    python benchmarks/dct_scaling.py PHOTOS [--num-images 60]

Photographs are shrunk to several longest sides and stored as JPEG (quality 90, 4:2:0). Each is resized to a shorter
side of 224 with Pillow's antialiased bilinear filter, once from the full decode and once from the scaled one. The
output shows the differences between the two in levels of 255, and the decoding time that libjpeg-turbo saves. Our
decoder is not used here: it never scales, for this reason.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from pathlib import Path

import numpy as np
from PIL import Image

OUT = 224


def as_jpeg(image: Image.Image, longest: int) -> bytes:
    scale = longest / max(image.size)
    size = tuple(max(1, round(side * scale)) for side in image.size)
    out = io.BytesIO()
    image.resize(size, Image.Resampling.LANCZOS).save(out, "JPEG", quality=90, subsampling=2)
    return out.getvalue()


def decoded(data: bytes, factor: int) -> tuple[Image.Image, float]:
    started = time.thread_time()
    image = Image.open(io.BytesIO(data))
    if factor > 1:
        image.draft("RGB", (image.width // factor, image.height // factor))
    image.load()
    return image, time.thread_time() - started


def resized(image: Image.Image, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR), np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--num-images", type=int, default=60)
    options = parser.parse_args()
    paths = sorted(path for path in options.photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    photos = [Image.open(path).convert("RGB") for path in paths[:: max(1, len(paths) // options.num_images)]]
    print("| longest side | scale | crop : output | mean difference | worst image | PSNR, dB | decoding time saved |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for longest, factor in ((700, 2), (1000, 2), (1400, 4), (2000, 4), (3000, 8)):
        differences, noise, saved, ratios = [], [], [], []
        for photo in photos:
            data = as_jpeg(photo, longest)
            full, full_seconds = decoded(data, 1)
            scale = OUT / min(full.size)
            size = tuple(max(1, round(side * scale)) for side in full.size)
            if min(full.size) < factor * OUT:
                continue
            small, small_seconds = decoded(data, factor)
            assert small.width == -(-full.width // factor), "libjpeg chose another scale"
            error = resized(full, size) - resized(small, size)
            differences.append(float(np.abs(error).mean()))
            noise.append(float((error**2).mean()))
            saved.append(1 - small_seconds / full_seconds)
            ratios.append(min(full.size) / OUT)
        if differences:
            psnr = 10 * np.log10(255**2 / statistics.mean(noise))
            print(
                f"| {longest} | 1/{factor} | {statistics.median(ratios):.1f} | {statistics.mean(differences):.2f} "
                f"| {max(differences):.2f} | {psnr:.1f} | {statistics.median(saved):.0%} |"
            )


if __name__ == "__main__":
    main()
