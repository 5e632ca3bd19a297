"""Count the aarch64 instructions that one image takes, with the NEON kernels and with the portable ones.

    python benchmarks/instructions.py PHOTOS       # a folder of images (searched recursively)
    python benchmarks/instructions.py --images 8   # synthetic photographs

Nothing is timed: qemu's user mode executes the library that ``tests/native/aarch64.sh`` builds (see docs/native.md for
what that needs), and a plugin counts. The number for an image is the difference between two passes over all images and
one, divided by the images. Instructions say nothing about how many a processor executes at once: a vector instruction
may take as long as two others.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.kernels import boxes, photographs
from dataloading import _native as native
from dataloading.format import MODE_JPEG, MODE_RAW

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "build/aarch64/core"
SCRIPT = ROOT / "tests/native/aarch64.sh"
SOURCES = ROOT / "benchmarks/aarch64"


def build(folder: Path) -> tuple[Path, Path]:
    """Build the library, the program that works through a file, and the plugin; return the last two."""
    subprocess.run([SCRIPT, "libjpeg"], check=True, stdout=sys.stderr)
    subprocess.run([SCRIPT, "build", CORE], check=True, stdout=sys.stderr)
    program, plugin = folder / "work", folder / "count_instructions.so"
    command = ["aarch64-linux-gnu-g++", "-std=c++17", "-O2", f"-I{ROOT}/dataloading/_native/src", SOURCES / "work.cpp"]
    libjpeg = ROOT / "build/aarch64/libjpeg/usr/lib/aarch64-linux-gnu"
    library = [CORE / "libbeton_native.so", f"-Wl,-rpath,{CORE}", f"-Wl,-rpath-link,{libjpeg}"]
    subprocess.run([*command, *library, "-o", program], check=True)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", SOURCES / "count_instructions.c", "-o", plugin], check=True)
    return program, plugin


def write_work(path: Path, sources: list[np.ndarray], mode: int, images: list[np.ndarray]) -> None:
    sizes = [(image.shape[1], image.shape[0]) for image in images]
    with path.open("wb") as file:
        for data, size, box in zip(sources, sizes, boxes(sizes, seed=0), strict=True):
            file.write(np.array([data.size, mode, *size, *box], np.int32).tobytes())
            file.write(data.tobytes())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="photographs; synthetic ones without")
    parser.add_argument("--images", type=int, default=40)
    options = parser.parse_args()
    images = photographs(options.folder, options.images, longest=500)

    def jpegs(restart: str) -> list[np.ndarray]:
        return [np.frombuffer(native.encode_jpeg(image, quality=90, restart=restart), np.uint8) for image in images]

    raw = [image.reshape(-1) for image in images]
    tasks = [
        ("RandomResizedCrop 224, our JPEGs", "crop", jpegs("auto"), MODE_JPEG),
        ("RandomResizedCrop 224, JPEGs without markers", "crop", jpegs("none"), MODE_JPEG),
        ("RandomResizedCrop 224, raw pixels", "crop", raw, MODE_RAW),
        ("`decode_jpeg`", "decode", jpegs("none"), MODE_JPEG),
        ("`encode_jpeg`, quality 90", "encode", raw, MODE_RAW),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, plugin = build(folder)

        def count(kernels: str, kind: str, file: Path, passes: int) -> tuple[int, str]:
            command = [SCRIPT, "run", "-plugin", plugin, program, kernels, kind, file, str(passes)]
            result = subprocess.run(command, check=True, capture_output=True, text=True)
            found = re.search(r"instructions: (\d+)", result.stderr)
            assert found is not None, result.stderr
            return int(found[1]), result.stdout.split("sum")[1]

        print("| thousand instructions per image | portable | NEON | portable / NEON |\n|---|---:|---:|---:|")
        for title, kind, sources, mode in tasks:
            file = folder / "images"
            write_work(file, sources, mode, images)
            per_image, sums = {}, set()
            for kernels in ("portable", "neon"):
                twice, pixels = count(kernels, kind, file, 2)
                per_image[kernels] = (twice - count(kernels, kind, file, 1)[0]) / len(images) / 1000
                sums.add(pixels)
            assert len(sums) == 1, "the pixels differ"
            portable, neon = per_image["portable"], per_image["neon"]
            print(f"| {title} | {portable:,.0f} | {neon:,.0f} | {portable / neon:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
