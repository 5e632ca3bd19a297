"""Measure the milliseconds per image of the decode kernels, step by step, ours against FFCV's in the same run.

    python benchmarks/kernels.py PHOTOS            # a folder of images (searched recursively)
    python benchmarks/kernels.py --images 64       # synthetic photographs

The work is that of training: RandomResizedCrop 224 (scale 0.08 to 1, ratio 3/4 to 4/3) of JPEGs whose longest side is
500, quality 90, on one core. All kernels get the same boxes. Time is the thread's CPU time; rounds are interleaved, and
medians are printed. Machines are noisy, so compare ratios.

FFCV's kernel is the real one if `ffcv` is installed (full turbojpeg decode with the fast DCT, OpenCV INTER_AREA); else
OpenCV's imdecode and INTER_AREA; else Pillow's full decode and box filter.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from dataloading import _native as native
from dataloading.format import MODE_JPEG, MODE_RAW

OUT = 224


def photographs(folder: str | None, count: int, longest: int) -> list[np.ndarray]:
    """Return images scaled to the longest side, from a folder or made of filtered noise."""
    images = []
    if folder is not None:
        paths = [p for p in sorted(Path(folder).rglob("*")) if p.suffix.lower() in (".jpg", ".jpeg", ".png")]
        for path in paths[:: max(1, len(paths) // count)][:count]:
            image = Image.open(path).convert("RGB")
            scale = min(1.0, longest / max(image.size))
            size = tuple(max(1, round(side * scale)) for side in image.size)
            images.append(np.asarray(image.resize(size, Image.Resampling.LANCZOS)))
        return images
    rng = np.random.default_rng(0)
    for i in range(count):
        height, width = (longest * 3 // 4, longest) if i % 3 else (longest, longest * 3 // 4)
        layers = np.zeros((height, width, 3), np.float64)
        for cells, weight in ((4, 60.0), (16, 30.0), (64, 14.0), (250, 7.0)):
            noise = rng.normal(size=(cells, cells, 3)) * [1, 0.9, 0.8] + rng.normal(size=(cells, cells, 1))
            for c in range(3):
                plane = Image.fromarray(noise[:, :, c].astype(np.float32))
                layers[:, :, c] += weight * np.asarray(plane.resize((width, height), Image.Resampling.BICUBIC))
        images.append(np.clip(layers + 128, 0, 255).astype(np.uint8))
    return images


def boxes(sizes: list[tuple[int, int]], seed: int) -> list[tuple[int, int, int, int]]:
    """Return boxes (x, y, w, h) drawn as in torchvision's RandomResizedCrop."""
    rng = np.random.default_rng(seed)
    result = []
    for width, height in sizes:
        for _ in range(10):
            area = width * height * rng.uniform(0.08, 1.0)
            ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                break
        else:
            w = h = min(width, height)
        result.append((int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h))
    return result


def requests_for(
    sources: list[np.ndarray],
    sizes: list[tuple[int, int]],
    areas: list[tuple[int, int, int, int]],
    mode: int,
    resize: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the request table and its output memory (one slot for all, so that it stays in the cache)."""
    table = np.zeros(len(sources), native.REQUEST)
    slot = np.zeros((3, 512, 512) if not resize else (3, OUT, OUT), np.uint8)
    for r, source, (width, height), (x, y, w, h) in zip(table, sources, sizes, areas, strict=True):
        r["src"], r["src_bytes"], r["dst"] = source.ctypes.data, source.size, slot.ctypes.data
        r["plane_stride"], r["row_stride"] = slot.strides[0], slot.strides[1]
        r["mode"], r["src_width"], r["src_height"], r["channels"] = mode, width, height, 3
        r["box_x"], r["box_y"], r["box_w"], r["box_h"] = x, y, w, h
        r["scaled_w"], r["scaled_h"] = (OUT, OUT) if resize else (w, h)
        r["out_w"], r["out_h"] = r["scaled_w"], r["scaled_h"]
        r["interpolation"], r["antialias"] = native.BILINEAR, 1
    return table, slot


def ours(table: np.ndarray) -> None:
    if native.decode_regions(table) != 0:
        raise SystemExit(f"decoding failed: {native.status_text(int(table['status'].max()))}")


def peer(jpegs: list[np.ndarray], sizes: list[tuple[int, int]], areas: list[tuple[int, int, int, int]]):
    """Return FFCV's kernel or the closest installed substitute: name, decode only, whole path."""
    out = np.zeros((OUT, OUT, 3), np.uint8)
    try:
        from ffcv.libffcv import imdecode, resize_crop
    except ImportError:
        pass
    else:
        buffer = np.zeros(max(w * h for w, h in sizes) * 3, np.uint8)

        def decode() -> None:
            for data, (w, h) in zip(jpegs, sizes, strict=True):
                imdecode(data, buffer[: w * h * 3].reshape(h, w, 3), h, w, h, w, 0, 0, 1, 1, False, False)

        def whole() -> None:
            for data, (w, h), (x, y, bw, bh) in zip(jpegs, sizes, areas, strict=True):
                image = buffer[: w * h * 3].reshape(h, w, 3)
                imdecode(data, image, h, w, h, w, 0, 0, 1, 1, False, False)
                resize_crop(image, y, y + bh, x, x + bw, out)

        return "ffcv", decode, whole
    try:
        import cv2
    except ImportError:
        streams = [data.tobytes() for data in jpegs]

        def decode() -> None:
            for data in streams:
                Image.open(io.BytesIO(data)).load()

        def whole() -> None:
            for data, (x, y, w, h) in zip(streams, areas, strict=True):
                image = Image.open(io.BytesIO(data))
                image.resize((OUT, OUT), Image.Resampling.BOX, box=(x, y, x + w, y + h))

        return "pillow", decode, whole
    cv2.setNumThreads(1)

    def decode() -> None:
        for data in jpegs:
            cv2.imdecode(data, cv2.IMREAD_COLOR)

    def whole() -> None:
        for data, (x, y, w, h) in zip(jpegs, areas, strict=True):
            image = cv2.imdecode(data, cv2.IMREAD_COLOR)
            cv2.resize(image[y : y + h, x : x + w], (OUT, OUT), dst=out, interpolation=cv2.INTER_AREA)

    return "opencv", decode, whole


def opencv_like(image: np.ndarray) -> np.ndarray:
    """Encode as OpenCV, and so FFCV's writer, does: quality 90, 4:2:0, standard tables, no markers."""
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=90, subsampling=2, optimize=False)
    return np.frombuffer(stream.getvalue(), np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="number of images")
    parser.add_argument("--images", type=int, default=120)
    parser.add_argument("--longest", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()

    images = photographs(options.folder, options.images, options.longest)
    sizes = [(image.shape[1], image.shape[0]) for image in images]
    areas = boxes(sizes, seed=1)
    plain = [opencv_like(image) for image in images]
    marked = [np.frombuffer(native.encode_jpeg(image, quality=90), np.uint8) for image in images]
    raw = [np.ascontiguousarray(image).reshape(-1) for image in images]

    steps: dict[str, Callable[[], object]] = {}
    keep = []
    for name, sources, mode, resize in (
        ("beton: whole path, our JPEGs", marked, MODE_JPEG, True),
        ("beton: whole path, JPEGs without markers", plain, MODE_JPEG, True),
        ("beton: exact decode of the box, our JPEGs", marked, MODE_JPEG, False),
        ("beton: exact decode of the box, without markers", plain, MODE_JPEG, False),
        ("beton: resize of raw pixels", raw, MODE_RAW, True),
    ):
        table, slot = requests_for(sources, sizes, areas, mode, resize)
        keep.append(slot)
        steps[name] = lambda table=table: ours(table)
    peer_name, decode, whole = peer(plain, sizes, areas)
    steps[f"{peer_name}: full decode"] = decode
    steps[f"{peer_name}: whole path"] = whole

    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(options.rounds):
        for name, step in steps.items():
            start = time.thread_time()
            step()
            times[name].append((time.thread_time() - start) * 1e3 / len(images))
    reference = statistics.median(times[f"{peer_name}: whole path"])
    print(
        f"{len(images)} images, mean {np.mean([p.size for p in plain]) / 1024:.1f} KiB without markers, "
        f"{np.mean([m.size for m in marked]) / 1024:.1f} KiB ours; kernels: {native.kernels_in_use()}"
    )
    print(f"{'step':<50} {'median ms':>10} {'best':>8} {'vs ' + peer_name:>10}")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:<50} {median:>10.3f} {min(values):>8.3f} {reference / median:>9.2f}x")
    if options.json:
        Path(options.json).write_text(json.dumps({"kernels": native.kernels_in_use(), "milliseconds": times}, indent=1))


if __name__ == "__main__":
    main()
