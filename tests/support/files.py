"""Small `.beton` files for tests, made from numbers that tests can check."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from dataloading.format import MODE_JPEG, MODE_RAW, EncodedImage, FloatField, ImageField, IntField, Writer


def photo_like(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A smooth random HWC uint8 image with edges: compresses like a photograph, not like noise."""
    coarse = rng.integers(0, 256, (max(height // 16, 2), max(width // 16, 2), 3), np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).copy()
    image[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 256, 3, np.uint8)
    return image


def jpeg(pixels: np.ndarray, quality: int = 90, **options: object) -> EncodedImage:
    """Encode with Pillow."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, **options)
    return EncodedImage(MODE_JPEG, pixels.shape[1], pixels.shape[0], buffer.getvalue())


def raw(pixels: np.ndarray) -> EncodedImage:
    """Store the pixels as they are."""
    return EncodedImage(MODE_RAW, pixels.shape[1], pixels.shape[0], np.ascontiguousarray(pixels).tobytes())


def write_labels(path: Path, num: int) -> Path:
    """A file whose sample i is the label i and the float i / 2."""
    with Writer(path, {"label": IntField(), "half": FloatField()}, num_samples=num) as writer:
        for index in range(num):
            writer.append({"label": index, "half": index / 2})
    return path


def write_images(
    path: Path,
    num: int,
    *,
    seed: int = 0,
    sizes: tuple[int, int] = (40, 90),
    mode: str = "jpg",
    same_size: bool = False,
    class_names: list[str] | None = None,
) -> list[np.ndarray]:
    """Images of random sizes with label i; returns the pixels as they were before encoding."""
    rng = np.random.default_rng(seed)
    pixels = []
    with Writer(path, {"image": ImageField(), "label": IntField()}, num_samples=num, class_names=class_names) as writer:
        for index in range(num):
            height, width = (sizes[0], sizes[0]) if same_size else rng.integers(*sizes, 2)
            image = photo_like(rng, int(height), int(width))
            pixels.append(image)
            writer.append({"image": jpeg(image) if mode == "jpg" else raw(image), "label": index})
    return pixels
