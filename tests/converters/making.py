"""Small inputs for the converters' tests: photo-like pixels, class folders, and files of every awkward kind."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth shapes with some noise, so that JPEG and resizing behave as on photographs."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [
        128 + 90 * np.sin(x / rng.uniform(5, 30) + rng.uniform(0, 6)) * np.cos(y / rng.uniform(5, 30)) for _ in range(3)
    ]
    pixels = np.stack(waves, axis=2) + rng.normal(0, 6, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of an image file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def class_folders(root: Path, counts: dict[str, int], size: tuple[int, int] = (40, 30)) -> Path:
    """SRC/class/nn.jpg with as many photos as asked for, all different."""
    seed = 0
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            seed += 1
            (root / name / f"{number:02}.jpg").write_bytes(encoded(photo(*size, seed=seed), "JPEG", quality=92))
    return root


def pillow_pixels(data: bytes) -> np.ndarray:
    """What Pillow sees in an image file, as RGB."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
