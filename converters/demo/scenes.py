"""Pictures that look a little like photographs, drawn from random numbers.

Their statistics follow those of photographs: occluding objects of all sizes (the "dead leaves" model of Lee, Mumford
and Huang, 2001), spectra that fall as a power of the frequency, smooth lighting, blur out of focus, sensor noise. A
class is a shape, a texture, and a distribution of colours and surroundings; two neighbouring classes share their
colours, so that colour alone does not separate them. A picture depends only on (seed, class, index).
"""

from __future__ import annotations

import colorsys
import dataclasses
import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

__all__ = ["SceneClass", "draw_scene"]

Plane = npt.NDArray[np.float32]
"""Arrays of shape (height, width); a picture in the making is three of them, (3, height, width), 0 to 1."""
Random = np.random.Generator

FIELD_SIDE = 512
_FALLOFFS = (1.9, 1.5, 1.15, 0.7)
"""Exponents of the amplitude spectra: clouds, stone, soil, grain."""
CLOUDS, STONE, SOIL, GRAIN = range(4)
GOLDEN = (math.sqrt(5) - 1) / 2
_ASPECTS = (1.0, 1.0, 4 / 3, 4 / 3, 4 / 3, 3 / 2, 3 / 2, 3 / 2, 16 / 9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SceneClass:
    """Properties of all pictures of one class.

    Parameters
    ----------
    seed : int
        Seed of its texture.
    hue, surroundings : float
        Mean hues of its objects and of what lies around them, 0 to 1; pictures scatter around them.
    outline : tuple of (float, float)
        Amplitude and phase of the outline's second, third, ... harmonic.
    elongation, inner : float
        Length over width of an object, and relative size of the contrasting part inside; 0 for none.
    frequency : float
        Of the texture, in cycles per longest side.
    direction, directedness : float
        The texture's angle in radians, and how much of it runs along that angle.
    sharpness : float
        0 for soft clouds of two colours, large for stripes and spots with edges.
    crowd, clutter : float
        Mean number of objects, and probability that they lie in a heap of things, not before a landscape or a wall.
    """

    seed: int
    hue: float
    surroundings: float
    outline: tuple[tuple[float, float], ...]
    elongation: float
    inner: float
    frequency: float
    direction: float
    directedness: float
    sharpness: float
    crowd: float
    clutter: float

    @classmethod
    def of(cls, seed: int, label: int) -> SceneClass:
        """Return class ``label`` of the dataset ``seed``."""
        rng = np.random.default_rng([seed, 1, label])
        # Steps of the golden ratio spread any number of hues evenly.
        shift = np.random.default_rng([seed, 2]).uniform(0, 1, 2)
        hue, surroundings = ((label // 2) * GOLDEN + shift) % 1
        lobes = int(rng.integers(2, 9))
        outline = [(float(rng.normal(0, 0.05)), float(rng.uniform(0, math.tau))) for _ in range(8)]
        outline[lobes - 2] = (float(rng.uniform(0.05, 0.5) / lobes**0.5), 0.0)
        return cls(
            seed=int(rng.integers(1 << 62)),
            hue=float(hue),
            surroundings=_natural_hue(np.random.default_rng([seed, 4, int(surroundings * 6)])),
            outline=tuple(outline),
            elongation=float(math.exp(rng.uniform(0, 0.9))),
            inner=float(rng.choice([0.0, 0.3, 0.45, 0.6])),
            frequency=float(math.exp(rng.uniform(math.log(7), math.log(45)))),
            direction=float(rng.uniform(0, math.pi)),
            directedness=float(rng.choice([0.0, 2.0, 8.0])),
            sharpness=float(rng.choice([0.6, 1.5, 4.0])),
            crowd=float(rng.uniform(1, 4)),
            clutter=float(rng.choice([0.1, 0.35, 0.85])),
        )


def draw_scene(scene: SceneClass, rng: Random, size: int) -> Image.Image:
    """Return an RGB picture of a class, ``size`` pixels on its longest side; ``rng`` decides what varies in a class."""
    aspect = float(rng.choice(_ASPECTS)) * math.exp(rng.normal(0, 0.04))
    width, height = size, max(1, round(size / max(aspect, 1 / aspect)))
    if rng.uniform() < 0.35:
        width, height = height, width
    angle = rng.uniform(0, math.tau)
    light = (math.cos(angle), -abs(math.sin(angle)))
    picture = _surroundings(scene, rng, width, height, light)
    picture = _blurred(picture, size / 400 * max(0.0, rng.normal(0.7, 1.4)))
    for _ in range(max(1, rng.poisson(scene.crowd - 0.5))):
        _place_object(picture, scene, rng, light)
    return _photograph(picture, rng, light, size)


def _hsv(hue: float, saturation: float, value: float) -> Plane:
    rgb = colorsys.hsv_to_rgb(hue % 1, min(max(saturation, 0), 1), min(max(value, 0), 1))
    return np.array(rgb, dtype=np.float32)


def _colour(rng: Random, hue: float, spread: float = 0.05) -> Plane:
    return _hsv(hue + rng.normal(0, spread), rng.beta(2.0, 3.2), rng.beta(2.4, 2.0))


def _natural_hue(rng: Random) -> float:
    """Draw a hue: mostly wood, earth and skin, then leaves, then sky and water."""
    centre, spread = ((0.07, 0.03), (0.26, 0.05), (0.58, 0.04), (0.0, 0.5))[rng.choice(4, p=(0.4, 0.25, 0.2, 0.15))]
    return float(rng.normal(centre, spread))


@lru_cache(maxsize=8)
def _field(falloff: float, seed: int) -> Plane:
    """Return a periodic random field whose amplitude spectrum falls as frequency**-falloff; mean 0, deviation 1."""
    return _shaped_noise(np.random.default_rng(seed), _frequencies()[0] ** -falloff)


@lru_cache(maxsize=1)
def _frequencies() -> tuple[Plane, Plane]:
    """Return frequency in cycles per field and direction of each coefficient; the mean's frequency is infinite."""
    rows = np.fft.fftfreq(FIELD_SIDE, 1 / FIELD_SIDE)[:, None]
    columns = np.fft.rfftfreq(FIELD_SIDE, 1 / FIELD_SIDE)[None]
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = np.inf
    return frequency.astype(np.float32), np.arctan2(rows, columns).astype(np.float32)


def _shaped_noise(rng: Random, amplitude: npt.NDArray[np.floating]) -> Plane:
    white = rng.standard_normal((*amplitude.shape, 2), dtype=np.float32).view(np.complex64)[..., 0]
    field = np.fft.irfft2(white * amplitude, (FIELD_SIDE, FIELD_SIDE))
    field -= field.mean()
    return np.tile(np.asarray(field / field.std(), dtype=np.float32), (2, 2))


@lru_cache(maxsize=4)
def _texture(scene: SceneClass, size: int) -> Plane:
    """Make the class's pattern: noise of one frequency and direction, sharpened; between -1 and 1."""
    frequency, direction = _frequencies()
    centre = scene.frequency * FIELD_SIDE / size
    band = np.exp(-0.5 * (np.log(frequency / centre) / 0.22) ** 2)
    along = np.exp(scene.directedness * (np.cos(2 * (direction - scene.direction)) - 1))
    field = _shaped_noise(np.random.default_rng(scene.seed), band * along + 0.02 * (frequency / centre) ** -1.2)
    return np.asarray(np.tanh(scene.sharpness * field), dtype=np.float32)


def _cut(field: Plane, rng: Random, height: int, width: int, *, mirror: bool = True) -> Plane:
    """Cut a random piece out of a field, which was tiled so that most pieces are mere views of it."""
    top, left, flips = (int(number) for number in rng.integers((FIELD_SIDE, FIELD_SIDE, 4)))
    if max(height, width) > FIELD_SIDE:
        piece = field[np.ix_((top + np.arange(height)) % FIELD_SIDE, (left + np.arange(width)) % FIELD_SIDE)]
    else:
        piece = field[top : top + height, left : left + width]
    return piece[:: -1 if mirror and flips & 1 else 1, :: -1 if mirror and flips & 2 else 1]


def _noise(rng: Random, what: int, height: int, width: int) -> Plane:
    return _cut(_field(_FALLOFFS[what], what), rng, height, width)


def _grid(height: int, width: int) -> tuple[Plane, Plane]:
    """Rows and columns from -1 to 1."""
    return (
        np.linspace(-1, 1, height, dtype=np.float32)[:, None],
        np.linspace(-1, 1, width, dtype=np.float32)[None],
    )


def _surroundings(scene: SceneClass, rng: Random, width: int, height: int, light: tuple[float, float]) -> Plane:
    """Everything behind the objects: labelled regions, each with its colour, texture and slope of light."""
    labels = Image.new("L", (width, height))
    brush = ImageDraw.Draw(labels)
    hue = scene.surroundings if rng.uniform() < 0.75 else _natural_hue(rng)
    if rng.uniform() < scene.clutter:
        count = _draw_heap(brush, rng, width, height)
        hues = [hue + float(rng.choice([0, 0, 0.06, 0.3])) for _ in range(count + 1)]
    else:
        count = _draw_ridges(brush, rng, width, height) if rng.uniform() < 0.7 else 0
        hues = [hue, *(_natural_hue(rng) if rng.uniform() < 0.5 else hue for _ in range(count))]
    colours = np.stack([_colour(rng, each) for each in hues])
    if rng.uniform() < 0.5:
        colours[0] = _hsv(0.58 + rng.normal(0, 0.03), rng.uniform(0.05, 0.6), rng.uniform(0.6, 1))
    number = len(hues)
    region = np.asarray(labels)
    # Real outlines are not smooth: each pixel takes its region from a point beside it.
    rough = rng.gamma(1.5, 0.006) * max(width, height)
    rows = np.arange(height)[:, None] + rough * _noise(rng, STONE, height, width)
    columns = np.arange(width)[None] + rough * _noise(rng, STONE, height, width)
    region = region[rows.astype(np.int32).clip(0, height - 1), columns.astype(np.int32).clip(0, width - 1)]
    y, x = _grid(height, width)
    slope = rng.normal(0, 0.18, (2, number)).astype(np.float32)
    shade = 1 + slope[0][region] * x + slope[1][region] * y
    quiet = rng.gamma(1.3, 0.6)
    for what, strength in ((STONE, 0.15), (SOIL, 0.16)):
        weights = (quiet * strength * rng.gamma(1.0, 1.0, number)).astype(np.float32)
        shade += weights[region] * _noise(rng, what, height, width)
    np.maximum(shade, 0.03, out=shade)
    return np.stack([shade * band[region] for band in colours.T])


def _draw_heap(brush: ImageDraw.ImageDraw, rng: Random, width: int, height: int) -> int:
    """Draw things of all sizes, each hiding those before; returns their number."""
    count = int(rng.integers(12, 120))
    size = max(width, height)
    radii = np.minimum(0.03 * (1 + rng.pareto(1.3, count)), 0.4) * size
    lobes = int(rng.integers(2, 7))
    stretch = math.exp(rng.uniform(0, 1.2))
    for label, radius in enumerate(np.sort(radii)[::-1] * rng.uniform(0.6, 1.2, count), start=1):
        harmonics = ((0.0, 0.0),) * (lobes - 2) + ((float(rng.uniform(0, 0.3)), 0.0), (float(rng.normal(0, 0.1)), 1.0))
        centre = (rng.uniform(0, width), rng.uniform(0, height))
        points = _outline(harmonics, stretch, float(radius), rng.uniform(0, math.tau), 24)
        brush.polygon((points + centre).ravel().tolist(), fill=label)
    return count


def _draw_ridges(brush: ImageDraw.ImageDraw, rng: Random, width: int, height: int) -> int:
    """Draw a horizon and hills before it; returns their number."""
    count = int(rng.integers(1, 5))
    level = rng.uniform(0.25, 0.75) * height
    across = np.linspace(0, 1, 33)
    for label in range(1, count + 1):
        profile = np.full(33, level)
        for harmonic in range(1, 7):
            swing = rng.normal(0, 0.07 * height) / harmonic
            profile += swing * np.sin(math.tau * (harmonic * across * 0.7 + rng.uniform()))
        top = list(zip((across * width).tolist(), profile.tolist(), strict=True))
        brush.polygon([*top, (float(width), float(height)), (0.0, float(height))], fill=label)
        level += rng.uniform(0.05, 0.25) * height
    return count


def _outline(
    harmonics: tuple[tuple[float, float], ...], stretch: float, radius: float, turn: float, points: int
) -> npt.NDArray[np.float64]:
    angle = np.arange(points) * (math.tau / points)
    distance = np.ones(points)
    for order, (amplitude, phase) in enumerate(harmonics, start=2):
        if amplitude:
            distance += amplitude * np.cos(order * angle + phase)
    along = radius * math.sqrt(stretch) * distance * np.cos(angle)
    beside = radius / math.sqrt(stretch) * distance * np.sin(angle)
    result = np.empty((points, 2))
    result[:, 0] = along * math.cos(turn) - beside * math.sin(turn)
    result[:, 1] = along * math.sin(turn) + beside * math.cos(turn)
    return result


def _place_object(picture: Plane, scene: SceneClass, rng: Random, light: tuple[float, float]) -> None:
    """Draw one of the class's objects into the picture, with its texture, shading and shadow."""
    height, width = picture.shape[1:]
    radius = max(width, height) * float(np.clip(math.exp(rng.normal(math.log(0.22), 0.35)), 0.05, 0.45))
    turn = rng.normal(0, 0.5) + math.pi * rng.integers(2)
    harmonics = tuple((amplitude + rng.normal(0, 0.02), phase) for amplitude, phase in scene.outline)
    stretch = scene.elongation * math.exp(rng.normal(0, 0.15))
    points = _outline(harmonics, stretch, radius, turn, 96)
    centre = np.array([rng.uniform(0.15, 0.85) * width, rng.uniform(0.15, 0.85) * height])
    margin = 0.35 * radius + 3
    left, top = np.maximum(np.floor(points.min(0) + centre - margin), 0).astype(int)
    right, bottom = np.minimum(np.ceil(points.max(0) + centre + margin), (width, height)).astype(int)
    if right - left < 4 or bottom - top < 4:
        return
    box = (int(right - left), int(bottom - top))
    mask = _mask(points + centre - (left, top), box)
    relief, shadow = _relief(mask, 0.3 * radius, (0.15 * radius, -0.15 * light[0] * radius))
    # Shaded as if it were round.
    slope_y, slope_x = np.gradient(relief)
    depth = -0.5 * radius * rng.uniform(0.8, 2.0)
    shading = 1 + slope_x * np.float32(depth * light[0]) + slope_y * np.float32(depth * light[1])
    inside = picture[:, top:bottom, left:right]
    inside *= 1 - np.float32(rng.uniform(0.2, 0.6)) * shadow
    first = _hsv(scene.hue + rng.normal(0, 0.05), rng.beta(3.0, 2.5), rng.beta(3.5, 1.8))
    second = _hsv(scene.hue + rng.choice([0, 0.06, 0.3]), rng.beta(2.0, 3.0), rng.beta(1.6, 3.0))
    pattern = 0.5 + 0.5 * _cut(_texture(scene, max(width, height)), rng, box[1], box[0], mirror=False)
    colours = first[:, None, None] + pattern * (second - first)[:, None, None]
    if scene.inner:
        part = _outline(harmonics[::-1], 1.0, scene.inner * radius, turn, 48) + centre - (left, top)
        weight = _weights(_mask(part + rng.normal(0, 0.08 * radius, 2), box), 0.85)
        colours += weight * (_colour(rng, scene.hue + 0.2, 0.09)[:, None, None] - colours)
    shading += np.float32(rng.gamma(1.5, 0.06)) * _noise(rng, SOIL, box[1], box[0])
    colours *= np.clip(shading, 0.05, 2)
    colours -= inside
    colours *= _weights(mask)
    inside += colours


def _mask(points: npt.NDArray[np.float64], box: tuple[int, int]) -> Image.Image:
    """Draw a polygon with smooth edges: its coverage of each pixel, 0 to 255."""
    canvas = Image.new("L", (2 * box[0], 2 * box[1]))
    ImageDraw.Draw(canvas).polygon((2 * points).ravel().tolist(), fill=255)
    return canvas.reduce(2)


def _weights(mask: Image.Image, strength: float = 1.0) -> Plane:
    weights: Plane = np.asarray(mask, dtype=np.float32) * np.float32(strength / 255)
    return weights


def _relief(mask: Image.Image, radius: float, shift: tuple[float, float]) -> tuple[Plane, Plane]:
    """Blur a mask; return it in place and moved down and right, both 0 to 1.

    A blurred outline is a height map, and moved it is a shadow. Computed small, since a wide blur has no detail.
    """
    factor = max(1, int(radius / 3))
    small = mask.resize((max(2, mask.width // factor), max(2, mask.height // factor)), Image.Resampling.BOX)
    blurred = small.filter(ImageFilter.GaussianBlur(radius / factor))
    moved = blurred.transform(
        blurred.size, Image.Transform.AFFINE, (1, 0, -shift[1] / factor, 0, 1, -shift[0] / factor)
    )
    # Enlarged as floats: the slope of 8-bit steps would show as a weave.
    levels = np.pad(np.asarray(blurred, dtype=np.float32), 1, mode="edge")
    levels = levels[:-2] + 2 * levels[1:-1] + levels[2:]
    levels = (levels[:, :-2] + 2 * levels[:, 1:-1] + levels[:, 2:]) / np.float32(16 * 255)
    height = np.asarray(Image.fromarray(levels).resize(mask.size, Image.Resampling.BICUBIC))
    return height, _weights(moved.resize(mask.size, Image.Resampling.BILINEAR))


def _blurred(picture: Plane, radius: float) -> Plane:
    if radius < 0.3:
        return picture
    scaled = (picture.clip(0, 1) * np.float32(255)).astype(np.uint8)
    soft = [np.asarray(Image.fromarray(band).filter(ImageFilter.GaussianBlur(radius))) for band in scaled]
    result: Plane = np.stack(soft).astype(np.float32) / np.float32(255)
    return result


def _photograph(picture: Plane, rng: Random, light: tuple[float, float], size: int) -> Image.Image:
    """Light falling off, exposure, contrast, the lens's blur and the sensor's noise."""
    height, width = picture.shape[1:]
    y, x = _grid(height, width)
    bright = 1 - rng.uniform(0, 0.3) * (light[0] * x + light[1] * y) - rng.uniform(0, 0.25) * (x * x + y * y)
    white = np.array([1 + rng.normal(0, 0.06), 1, 1 + rng.normal(0, 0.06)], dtype=np.float32)
    bright *= np.float32(170 * math.exp(rng.normal(0.05, 0.25)))
    pixels = picture * bright
    pixels += _cut(_field(0.0, 9), rng, height, width) * np.float32(rng.gamma(1.2, 1.2))
    bands = pixels.clip(0, 255).astype(np.uint8)
    # A film's curve: contrast in the middle, nothing clipped hard at the ends. 170 of 255 is full light.
    steps = np.arange(256, dtype=np.float32)[None] / 170 * white[:, None]
    curve = 128 + 127 * np.tanh(rng.uniform(1.4, 2.3) * (steps - 0.45))
    toned = [
        Image.fromarray(band).point(table)
        for band, table in zip(bands, curve.round().astype(int).tolist(), strict=True)
    ]
    return Image.merge("RGB", toned).filter(ImageFilter.BoxBlur(size / 400 * rng.gamma(2.0, 0.2)))
