"""Compare resized JPEGs with Pillow's decode and resize, by kind of image: the table of docs/native.md.

    python benchmarks/accuracy.py [PHOTOS] [--num-images 40]

Photographs from the folder PHOTOS are shrunk to a longest side of 500; all other kinds are drawn by
`tests/native/kinds.py` (500 x 375, four of each). Each is stored at quality 90, and read as eight random resized crops
to 224 x 224 (scale 0.08 to 1) and whole at ratios 1.1, 2, 4 and 10. Figures are levels of 255: the mean absolute
difference and the mean difference of an output, as the mean over all outputs and the worst output.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from kernels import boxes, photographs

from dataloading import _native as native
from tests.native.kinds import KINDS
from tests.native.reference import Region, decode, pillow_pixels
from train.tables import markdown_table


def differences(image: np.ndarray, subsampling: str, seed: int) -> list[tuple[float, float]]:
    data = native.encode_jpeg(image, quality=90, subsampling=subsampling)
    pixels = pillow_pixels(data)
    height, width = pixels.shape[:2]
    jobs = [(box, (224, 224)) for box in boxes([(width, height)] * 8, seed)]
    jobs += [((0, 0, width, height), (int(width / ratio), int(height / ratio))) for ratio in (1.1, 2, 4, 10)]
    found = []
    for (x, y, w, h), size in jobs:
        crop = Image.fromarray(np.ascontiguousarray(pixels[y : y + h, x : x + w]))
        theirs = np.asarray(crop.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        difference = decode(data, (width, height), Region(box=(x, y, w, h), scaled=size)) - theirs.astype(np.float64)
        found.append((float(np.abs(difference).mean()), float(difference.mean())))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", nargs="?", help="a folder of photographs; by default synthetic ones")
    parser.add_argument("--num-images", type=int, default=40, help="number of photographs")
    options = parser.parse_args()
    kinds = {"photographs": photographs(options.photos, options.num_images, 500)}
    kinds |= {kind: [make((500, 375), seed) for seed in range(4)] for kind, make in KINDS.items()}
    rows = []
    for kind, images in kinds.items():
        cells = [kind]
        for subsampling in ("4:2:0", "4:4:4"):
            found = np.array([f for seed, image in enumerate(images) for f in differences(image, subsampling, seed)])
            cells.append(f"{found[:, 0].mean():.2f}, {found[:, 0].max():.2f}")
            cells.append(f"{found[:, 1].mean():+.2f}, {found[np.abs(found[:, 1]).argmax(), 1]:+.2f}")
        rows.append(cells)
    print(markdown_table(["kind", "4:2:0: mean, worst", "bias, worst", "4:4:4: mean, worst", "bias, worst"], rows))


if __name__ == "__main__":
    main()
