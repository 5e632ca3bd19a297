"""Slow and obvious versions of what the native core does, and inputs for its tests."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from dataloading import _native as native
from dataloading.format import MODE_JPEG, MODE_RAW

SUBSAMPLING = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}


def photo(height: int, width: int, seed: int = 0, *, low: int = 30, high: int = 225) -> np.ndarray:
    """Pixels with structure at several scales; away from 0 and 255 by default, where colour conversion clips."""
    rng = np.random.default_rng(seed)
    image = np.zeros((height, width, 3))
    for cells, weight in ((3, 60.0), (12, 30.0), (48, 15.0)):
        noise = rng.normal(size=(cells, cells, 3)) * 0.5 + rng.normal(size=(cells, cells, 1))
        for c in range(3):
            plane = Image.fromarray(noise[:, :, c].astype(np.float32))
            image[:, :, c] += weight * np.asarray(plane.resize((width, height), Image.Resampling.BICUBIC))
    return np.clip(image + 128, low, high).astype(np.uint8)


def pillow_jpeg(pixels: np.ndarray, **options: object) -> bytes:
    """Encode with Pillow; options are those of its JPEG plugin."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", **{"quality": 90, **options})
    return stream.getvalue()


def pillow_pixels(data: bytes) -> np.ndarray:
    """Full decode to RGB by Pillow."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@dataclass(frozen=True, kw_only=True)
class Region:
    """A request in words; sizes are (width, height) as in REQUEST."""

    box: tuple[int, int, int, int]
    scaled: tuple[int, int] | None = None  # None: the box's size
    window: tuple[int, int] = (0, 0)
    out: tuple[int, int] | None = None  # None: the scaled size
    flip: int = 0
    interpolation: int = native.BILINEAR
    antialias: bool = True
    pad_mode: int = native.PAD_CONSTANT
    fill: tuple[int, int, int] = (0, 0, 0)

    @property
    def scaled_size(self) -> tuple[int, int]:
        return self.scaled or self.box[2:]

    @property
    def out_size(self) -> tuple[int, int]:
        return self.out or self.scaled_size


class Table:
    """Requests with the memory they point to."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.outputs: list[np.ndarray] = []
        self._keep: list[object] = []

    def add(self, source: bytes | np.ndarray, size: tuple[int, int], region: Region) -> np.ndarray:
        """Queue one sample: JPEG bytes or raw HWC pixels. The output has a guard of 8 bytes round every row."""
        mode = MODE_JPEG if isinstance(source, bytes) else MODE_RAW
        data = (
            np.frombuffer(source, np.uint8) if isinstance(source, bytes) else np.ascontiguousarray(source).reshape(-1)
        )
        width, height = region.out_size
        guarded = np.full((3, height + 2, width + 16), 0xA5, np.uint8)
        row = np.zeros(1, native.REQUEST)
        row["src"], row["src_bytes"], row["mode"] = data.ctypes.data, data.size, mode
        row["dst"] = guarded.ctypes.data + guarded.strides[1] + 8
        row["plane_stride"], row["row_stride"] = guarded.strides[0], guarded.strides[1]
        row["src_width"], row["src_height"] = size
        row["box_x"], row["box_y"], row["box_w"], row["box_h"] = region.box
        row["scaled_w"], row["scaled_h"] = region.scaled_size
        row["window_x"], row["window_y"] = region.window
        row["out_w"], row["out_h"] = region.out_size
        row["flip"], row["interpolation"], row["antialias"] = region.flip, region.interpolation, region.antialias
        row["pad_mode"], row["channels"] = region.pad_mode, 3
        row["fill"][0, :3] = region.fill
        self.rows.append(row)
        self.outputs.append(guarded)
        self._keep.append(data)
        return guarded

    def run(self) -> tuple[int, np.ndarray, list[np.ndarray]]:
        """Decode; returns failures, statuses and the CHW outputs, after checking that nothing outside was written."""
        requests = np.concatenate(self.rows)
        failed = native.decode_regions(requests)
        inner = []
        for guarded in self.outputs:
            frame = guarded.copy()
            frame[:, 1:-1, 8:-8] = 0xA5
            assert (frame == 0xA5).all(), "bytes outside the output were written"
            inner.append(guarded[:, 1:-1, 8:-8])
        return failed, requests["status"].copy(), inner


def decode(source: bytes | np.ndarray, size: tuple[int, int], region: Region) -> np.ndarray:
    """One sample that must succeed, CHW."""
    table = Table()
    table.add(source, size, region)
    failed, status, outputs = table.run()
    assert failed == 0, native.status_text(int(status[0]))
    return outputs[0]


def _filter(x: np.ndarray, cubic_a: float | None) -> np.ndarray:
    x = np.abs(x)
    if cubic_a is None:
        return np.maximum(1 - x, 0)
    near = ((cubic_a + 2) * x - (cubic_a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * cubic_a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def weights(length: int, scaled: int, interpolation: int, antialias: bool) -> np.ndarray:
    """Matrix (scaled, length) of Pillow's ImagingResample, and of torch without antialiasing."""
    matrix = np.zeros((scaled, length))
    scale = length / scaled
    for i in range(scaled):
        if interpolation == native.NEAREST:
            matrix[i, min(int(np.floor(np.float32(i) * (np.float32(length) / np.float32(scaled)))), length - 1)] = 1
        elif antialias:
            wide = max(scale, 1.0)
            support = (2.0 if interpolation == native.BICUBIC else 1.0) * wide
            center = (i + 0.5) * scale
            low, high = max(int(center - support + 0.5), 0), min(int(center + support + 0.5), length)
            x = (np.arange(low, high) - center + 0.5) / wide
            w = _filter(x, -0.5 if interpolation == native.BICUBIC else None)
            matrix[i, low:high] = w / w.sum()
        else:
            center = (i + 0.5) * scale - 0.5
            if interpolation == native.BILINEAR:
                center = max(center, 0.0)
            first = int(np.floor(center)) - (1 if interpolation == native.BICUBIC else 0)
            for k in range(first, first + (4 if interpolation == native.BICUBIC else 2)):
                w = _filter(np.array(center - k), -0.75 if interpolation == native.BICUBIC else None)
                matrix[i, min(max(k, 0), length - 1)] += float(w)
    return matrix


def expected(pixels_HWC: np.ndarray, region: Region) -> np.ndarray:
    """What torchvision makes of a full decode, in float64 (CHW): crop, resize, window with padding, flips."""
    x, y, w, h = region.box
    crop = pixels_HWC[y : y + h, x : x + w].astype(np.float64).transpose(2, 0, 1)
    scaled_w, scaled_h = region.scaled_size
    if (scaled_w, scaled_h) != (w, h):
        across = weights(w, scaled_w, region.interpolation, region.antialias)
        down = weights(h, scaled_h, region.interpolation, region.antialias)
        crop = np.clip(down @ crop @ across.T, 0, 255)
    out_w, out_h = region.out_size
    left, top = region.window
    around = [(0, 0), (max(-top, 0), max(top + out_h - scaled_h, 0)), (max(-left, 0), max(left + out_w - scaled_w, 0))]
    modes = {native.PAD_EDGE: "edge", native.PAD_REFLECT: "reflect", native.PAD_SYMMETRIC: "symmetric"}
    if region.pad_mode == native.PAD_CONSTANT:
        planes = [np.pad(crop[c], around[1:], constant_values=region.fill[c]) for c in range(3)]
        crop = np.stack(planes)
    else:
        crop = np.pad(crop, around, mode=modes[region.pad_mode])
    top, left = max(top, 0), max(left, 0)
    crop = crop[:, top : top + out_h, left : left + out_w]
    if region.flip & native.FLIP_LEFT_RIGHT:
        crop = crop[:, :, ::-1]
    if region.flip & native.FLIP_TOP_BOTTOM:
        crop = crop[:, ::-1]
    return crop


def random_box(rng: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """A box inside the image, all sizes alike likely."""
    w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
    return int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h
