"""Images that are no photographs, made by drawing: what strong colours, flat areas, fine lines and noise look like."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from .reference import photo

Size = tuple[int, int]  # width, height
Colour = tuple[int, int, int]

_LETTERS = list("abcdefghijklmnopqrstuvwxyz ABCDEFGHIJ 0123456789 .,")
_PURE: list[Colour] = [
    (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255), (0, 0, 0), (255, 128, 0),
]  # fmt: skip


def _smooth(size: Size, cells: int, rng: np.random.Generator) -> np.ndarray:
    noise = Image.fromarray(rng.normal(size=(cells, cells)).astype(np.float32))
    return np.asarray(noise.resize(size, Image.Resampling.BICUBIC), np.float64)


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.clip(values, 0, 255).astype(np.uint8)


def text(size: Size, seed: int, ink: Colour, paper: Colour) -> np.ndarray:
    """Lines of letters."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, paper)
    draw = ImageDraw.Draw(image)
    for y in range(3, size[1] - 8, 13):
        draw.text((3, y), "".join(rng.choice(_LETTERS, size[0] // 5)), fill=ink)
    return np.asarray(image)


def drawing(size: Size, seed: int) -> np.ndarray:
    """Forty shapes of pure colours on white, filled and outlined."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for number in range(40):
        x, y, w, h = (int(v) for v in rng.integers((0, 0, 3, 3), (*size, 60, 60)))
        colour = _PURE[int(rng.integers(len(_PURE)))]
        if number % 4 == 0:
            draw.ellipse([x, y, x + w, y + h], fill=colour)
        elif number % 4 == 1:
            draw.rectangle([x, y, x + w, y + h], fill=colour)
        elif number % 4 == 2:
            draw.line([x, y, x + 2 * w - 60, y + 2 * h - 60], fill=colour, width=1 + w % 5)
        else:
            draw.polygon([(x, y), (x + w, y + h // 2), (x - w // 2, y + h)], outline=colour)
    return np.asarray(image)


def logo(size: Size, seed: int) -> np.ndarray:
    """Large smooth-edged shapes of a few colours."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (4 * size[0], 4 * size[1]), tuple(int(v) for v in rng.integers(0, 256, 3)))
    draw = ImageDraw.Draw(image)
    for number in range(8):
        x, y, side = (int(v) for v in rng.integers((0, 0, size[0] // 2), (3 * size[0], 3 * size[1], 2 * size[0])))
        shape = draw.ellipse if number % 2 else draw.rectangle
        shape([x, y, x + side, y + side], fill=tuple(int(v) for v in rng.choice([0, 30, 200, 255], 3)))
    return np.asarray(image.resize(size, Image.Resampling.LANCZOS))


def screenshot(size: Size, seed: int) -> np.ndarray:
    """Dark text on near white, bars, buttons and icons in strong colours."""
    image = Image.fromarray(text(size, seed, (20, 20, 20), (245, 246, 248)))
    draw = ImageDraw.Draw(image)
    draw.rectangle([0, 0, size[0], 16], fill=(0, 90, 200))
    draw.rectangle([0, 17, 40, size[1]], fill=(36, 41, 46))
    for i in range(size[1] // 24):
        draw.rectangle([6, 26 + 24 * i, 14, 34 + 24 * i], fill=[(255, 80, 80), (80, 255, 80), (255, 200, 0)][i % 3])
    for i in range(size[1] // 60):
        left = size[0] - 80
        draw.rectangle([left, 30 + 60 * i, left + 66, 50 + 60 * i], fill=[(0, 150, 80), (220, 30, 40)][i % 2])
        draw.text((left + 8, 34 + 60 * i), "Commit", fill="white")
    return np.asarray(image)


def satellite(size: Size, seed: int) -> np.ndarray:
    """Texture at three scales, with small bright and coloured roofs."""
    rng = np.random.default_rng(seed)
    ground = sum(weight * _smooth(size, cells, rng) for cells, weight in ((4, 50.0), (30, 30.0), (120, 25.0)))
    image = Image.fromarray(_bytes(ground[:, :, None] * np.array([0.8, 1, 0.6]) + np.array([90, 110, 70])))
    draw = ImageDraw.Draw(image)
    roofs = [(255, 255, 255), (200, 60, 40), (150, 150, 155), (255, 70, 50), (40, 60, 255)]
    for i in range(size[0] * size[1] // 1500):
        x, y, side = (int(v) for v in rng.integers((0, 0, 2), (*size, 9)))
        draw.rectangle([x, y, x + side, y + side], fill=roofs[i % 5])
    return np.asarray(image)


def medical(size: Size, seed: int) -> np.ndarray:
    """A gray, grainy body on black, stored as RGB."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0 : size[1], 0 : size[0]]
    inside = ((x / size[0] - 0.5) / 0.42) ** 2 + ((y / size[1] - 0.5) / 0.45) ** 2 < 1
    gray = _bytes(np.where(inside, 110 + 45 * _smooth(size, 40, rng) + 9 * rng.normal(size=inside.shape), 0))
    return np.repeat(gray[:, :, None], 3, axis=2)


def stained(size: Size, seed: int) -> np.ndarray:
    """A pink and violet slide: every pixel takes light of one dye away."""
    gray = satellite(size, seed).mean(axis=2, keepdims=True) / 255
    return _bytes(255 * (1 - (1 - gray) * np.array([0.78, 1.56, 0.52])))


def tinted(size: Size, seed: int) -> np.ndarray:
    """Gray texture plus one constant colour: chroma is the same everywhere."""
    rng = np.random.default_rng(seed)
    return _bytes(satellite(size, seed).mean(axis=2, keepdims=True) * 0.7 + 40 + rng.uniform(-40, 40, 3))


def noise(size: Size, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)


def dots(size: Size, ink: Colour) -> np.ndarray:
    """Squares of 3 pixels, 6 and 7 apart, on white."""
    y, x = np.mgrid[0 : size[1], 0 : size[0]]
    return np.where((x % 6 < 3)[:, :, None] & (y % 7 < 3)[:, :, None], np.array(ink), 255).astype(np.uint8)


def lines(size: Size, seed: int) -> np.ndarray:
    """A ruled sheet: red and blue lines of 2 pixels on white, 17 and 29 apart."""
    y, x = np.mgrid[seed : size[1] + seed, seed : size[0] + seed]
    sheet = np.where((y % 17 < 2)[:, :, None], np.array([0, 0, 255]), 255)
    return np.where((x % 29 < 2)[:, :, None], np.array([255, 0, 0]), sheet).astype(np.uint8)


def vivid(size: Size, seed: int) -> np.ndarray:
    """A synthetic photograph of which colours were made three times as strong."""
    pixels = photo(size[1], size[0], seed, low=0, high=255).astype(np.float64)
    gray = pixels.mean(axis=2, keepdims=True)
    return _bytes(gray + 3 * (pixels - gray))


KINDS: dict[str, Callable[[Size, int], np.ndarray]] = {
    "drawing": drawing,
    "logo": logo,
    "red text": lambda size, seed: text(size, seed, (255, 0, 0), (255, 255, 255)),
    "blue text": lambda size, seed: text(size, seed, (0, 0, 255), (255, 255, 255)),
    "black text": lambda size, seed: text(size, seed, (0, 0, 0), (255, 255, 255)),
    "text on paper": lambda size, seed: text(size, seed, (40, 40, 70), (244, 236, 220)),
    "white text on red": lambda size, seed: text(size, seed, (255, 255, 255), (230, 0, 0)),
    "green text on black": lambda size, seed: text(size, seed, (0, 255, 0), (0, 0, 0)),
    "red dots": lambda size, seed: dots(size, (255, 0, 0)),
    "ruled sheet": lines,
    "screenshot": screenshot,
    "satellite": satellite,
    "medical": medical,
    "stained slide": stained,
    "tinted": tinted,
    "noise": noise,
    "vivid": vivid,
}
