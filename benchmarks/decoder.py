"""Compare two builds of the native library: the same pixels, and how long each takes, in one process and in turns.

    cmake -S OLD_CHECKOUT -B /tmp/old -G Ninja -DBETON_KEEP_IN_BUILD=ON && cmake --build /tmp/old
    python benchmarks/decoder.py PHOTOS --old /tmp/old/libbeton_native.so      # against this checkout's library
    python benchmarks/decoder.py PHOTOS --old OLD.so --new NEW.so --checks 20000 --rounds 0

Tasks: each photograph (longest side 500, quality 90, 4:2:0) is decoded once per round. Time is the thread's CPU time.
A line shows the median of each library's rounds and the median of the rounds' ratios: the libraries take turns, so that
ratios hold on a loaded machine. The pixels of every task are compared.

Checks: requests drawn at random (subsampling, size, markers, raw pixels, box, scale, window, padding, flips, filters,
strides), of which the two libraries must give the same bytes. Exit status 1 if any differ.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import statistics
import sys
import time
import zlib

import numpy as np
from kernels import boxes, opencv_like, photographs
from PIL import Image

from dataloading import _native as native
from dataloading.format import MODE_JPEG, MODE_RAW

SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:4:0", "4:2:0", "4:1:1")


class Library:
    """One build of the native library, beside others in this process."""

    def __init__(self, path: str, kernels: str) -> None:
        self._functions = ctypes.CDLL(path)
        self._functions.beton_decode_regions.restype = ctypes.c_int64
        self._functions.beton_decode_regions.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        if self._functions.beton_request_size() != native.REQUEST.itemsize:
            raise SystemExit(f"{path}: its requests have another layout than this checkout's")
        if self._functions.beton_set_kernels(kernels.encode()) != 0:
            raise SystemExit(f"{path}: kernels {kernels!r} are unknown or do not run here")

    def decode(self, table: np.ndarray) -> None:
        self._functions.beton_decode_regions(table.ctypes.data, len(table))


class Task:
    """A table of requests, the memory that it refers to, and the pixels that come out."""

    def __init__(self, sources: list[np.ndarray], mode: int, sizes: list[tuple[int, int]], slot_bytes: int) -> None:
        self._sources = sources
        self.slots = np.zeros((len(sources), slot_bytes), np.uint8)
        self.table = np.zeros(len(sources), native.REQUEST)
        self.table["src"] = [source.ctypes.data for source in sources]
        self.table["src_bytes"] = [source.size for source in sources]
        self.table["dst"] = [slot.ctypes.data for slot in self.slots]
        self.table["mode"], self.table["channels"] = mode, 3
        self.table["src_width"], self.table["src_height"] = np.transpose(sizes)
        self.table["interpolation"], self.table["antialias"] = native.BILINEAR, 1

    def pixels(self, library: Library) -> list[tuple[int, int]]:
        """Return each request's status and a checksum of its slot."""
        self.slots[:] = 170
        library.decode(self.table)
        return [(int(r["status"]), zlib.crc32(slot)) for r, slot in zip(self.table, self.slots, strict=True)]


def crops(
    sources: list[np.ndarray],
    mode: int,
    sizes: list[tuple[int, int]],
    areas: list[tuple[int, int, int, int]],
    out: int,
    scaled: int | None = None,
) -> Task:
    """Return a task that resizes each area to `scaled` x `scaled` and writes the central `out` x `out` of it."""
    task = Task(sources, mode, sizes, 3 * out * out)
    table = task.table
    table["box_x"], table["box_y"], table["box_w"], table["box_h"] = np.transpose(areas)
    table["scaled_w"] = table["scaled_h"] = out if scaled is None else scaled
    table["window_x"] = table["window_y"] = 0 if scaled is None else (scaled - out) // 2
    table["out_w"] = table["out_h"] = table["row_stride"] = out
    table["plane_stride"] = out * out
    return task


def tasks(images: list[np.ndarray]) -> dict[str, Task]:
    sizes = [(image.shape[1], image.shape[0]) for image in images]
    plain = [opencv_like(image) for image in images]
    marked = [np.frombuffer(native.transcode_jpeg(data.tobytes()), np.uint8) for data in plain]
    small = [np.asarray(Image.fromarray(image).resize((256, 256), Image.Resampling.LANCZOS)) for image in images]
    raw, raw_sizes = [image.reshape(-1) for image in small], [(256, 256)] * len(images)
    areas, raw_areas = boxes(sizes, seed=1), boxes(raw_sizes, seed=2)
    squares = [((w - min(w, h)) // 2, (h - min(w, h)) // 2, min(w, h), min(w, h)) for w, h in sizes]
    return {
        "our JPEGs, random crop 224": crops(marked, MODE_JPEG, sizes, areas, 224),
        "no markers, random crop 224": crops(plain, MODE_JPEG, sizes, areas, 224),
        "our JPEGs, centre square 224 of 256": crops(marked, MODE_JPEG, sizes, squares, 224, scaled=256),
        "no markers, centre square 224 of 256": crops(plain, MODE_JPEG, sizes, squares, 224, scaled=256),
        "our JPEGs, random crop 64": crops(marked, MODE_JPEG, sizes, areas, 64),
        "our JPEGs, random crop 448": crops(marked, MODE_JPEG, sizes, areas, 448),
        "raw 256 px, random crop 224": crops(raw, MODE_RAW, raw_sizes, raw_areas, 224),
        "raw 256 px, random crop 32": crops(raw, MODE_RAW, raw_sizes, raw_areas, 32),
    }


def random_task(images: list[np.ndarray], count: int, seed: int) -> Task:
    """Return `count` requests of any kind for cut-outs of the photographs."""
    rng = np.random.default_rng(seed)
    most = 300  # pixels a side of an output
    sources: list[np.ndarray] = []
    sizes: list[tuple[int, int]] = []
    modes: list[int] = []
    channels: list[int] = []
    for _ in range(count):
        if sources and rng.random() < 0.15:  # another view of the same image
            sources.append(sources[-1])
            modes.append(modes[-1])
            sizes.append(sizes[-1])
            channels.append(channels[-1])
            continue
        image = images[rng.integers(len(images))]
        height, width = (int(rng.integers(1, min(side, 400) + 1)) for side in image.shape[:2])
        top, left = (
            int(rng.integers(whole - part + 1)) for whole, part in zip(image.shape[:2], (height, width), strict=True)
        )
        pixels = image[top : top + height, left : left + width]
        if rng.random() < 0.2:  # strong colours
            pixels = np.where(pixels > 128, np.array([255, 0, 40], np.uint8), np.uint8(255))
        kind = rng.random()
        sizes.append((width, height))
        if kind < 0.2:
            sources.append(np.ascontiguousarray(pixels).reshape(-1))
        elif kind < 0.3:
            stream = io.BytesIO()
            Image.fromarray(pixels).convert("L").save(stream, "JPEG", quality=85)
            sources.append(np.frombuffer(stream.getvalue(), np.uint8))
        else:
            subsampling, restart = str(rng.choice(SUBSAMPLINGS)), ("none", "auto")[rng.integers(2)]
            data = native.encode_jpeg(
                np.ascontiguousarray(pixels),
                quality=int(rng.integers(20, 100)),
                subsampling=subsampling,
                restart=restart,
            )
            sources.append(np.frombuffer(data, np.uint8))
        modes.append(MODE_RAW if kind < 0.2 else MODE_JPEG)
        channels.append(3 if not 0.2 <= kind < 0.3 or rng.random() < 0.5 else 1)
    task = Task(sources, MODE_JPEG, sizes, 3 * (most + 9) * most)
    table = task.table
    table["mode"], table["channels"] = modes, channels
    for r, (width, height) in zip(table, sizes, strict=True):
        w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
        r["box_x"], r["box_y"], r["box_w"], r["box_h"] = rng.integers(width - w + 1), rng.integers(height - h + 1), w, h
        exact = rng.random() < 0.2
        scaled = (w, h) if exact else (int(rng.integers(1, most)), int(rng.integers(1, most)))
        r["scaled_w"], r["scaled_h"] = scaled
        r["out_w"], r["out_h"] = min(scaled[0], most), min(scaled[1], most)
        if rng.random() < 0.3:  # a window of the resized crop, perhaps beyond its edges
            r["window_x"], r["window_y"] = (rng.integers(-9, side + 9) for side in scaled)
            r["out_w"], r["out_h"] = rng.integers(1, most), rng.integers(1, most)
        r["row_stride"] = r["out_w"] + rng.integers(10)
        r["plane_stride"] = r["row_stride"] * r["out_h"]
        r["pad_mode"], r["flip"], r["fill"] = rng.integers(4), rng.integers(4), rng.integers(256, size=4)
        r["interpolation"], r["antialias"] = rng.choice(3, p=[0.15, 0.6, 0.25]), rng.random() < 0.8
    return task


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="photographs, searched recursively")
    parser.add_argument("--old", required=True, help="path of a libbeton_native.so")
    parser.add_argument("--new", default=native.library.library_path(), help="by default this checkout's")
    parser.add_argument("--kernels", default="auto", help="instruction set of both libraries")
    parser.add_argument("--images", type=int, default=360)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--checks", type=int, default=2000, help="number of random requests whose pixels are compared")
    parser.add_argument("--only", default="", help="tasks whose names contain this")
    options = parser.parse_args()

    old, new = Library(options.old, options.kernels), Library(options.new, options.kernels)
    images = photographs(options.folder, options.images, longest=500)
    differences = failures = 0
    for first in range(0, options.checks, 500):
        task = random_task(images, min(500, options.checks - first), seed=first)
        want, got = task.pixels(old), task.pixels(new)
        differences += sum(a != b for a, b in zip(want, got, strict=True))
        failures += sum(status != 0 for status, _ in want)
    print(f"{options.checks} random requests: {differences} differ ({failures} refused by the old library)")

    print(f"{'CPU ms per image':<40} {'old':>8} {'new':>8} {'old/new':>8}   pixels")
    for name, task in tasks(images).items():
        if options.only not in name:
            continue
        same = task.pixels(old) == task.pixels(new)
        differences += not same
        times: dict[Library, list[float]] = {old: [], new: []}
        for number in range(options.rounds):
            for library in (old, new) if number % 2 else (new, old):
                start = time.thread_time()
                library.decode(task.table)
                times[library].append((time.thread_time() - start) * 1e3 / len(images))
        figures = ""
        if options.rounds:
            ratio = statistics.median(a / b for a, b in zip(times[old], times[new], strict=True))
            medians = [statistics.median(times[library]) for library in (old, new)]
            figures = f"{medians[0]:>8.4f} {medians[1]:>8.4f} {ratio:>8.3f}"
        print(f"{name:<40} {figures:>26}   {'equal' if same else 'DIFFERENT'}", flush=True)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
