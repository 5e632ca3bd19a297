"""Resized JPEGs of every kind of image against Pillow's own decode and resize.

A full decode clips colours to 0..255 and rounds them before a filter sees them; filtering luma and chroma instead does
so afterwards. The difference is nothing in a photograph and several levels in red text on white.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dataloading import _native as native

from .kinds import KINDS
from .reference import Region, decode, photo, pillow_jpeg, pillow_pixels

SIZE = (250, 190)
SUBSAMPLINGS = ["4:2:0", "4:2:2", "4:4:4", "4:1:1", "4:4:0"]
MOST_DIFFERENT, MOST_BIASED = 0.5, 0.3  # levels, means over an output


def pillow_resized(pixels: np.ndarray, box: tuple[int, int, int, int], size: tuple[int, int]) -> np.ndarray:
    x, y, w, h = box
    crop = Image.fromarray(np.ascontiguousarray(pixels[y : y + h, x : x + w]))
    return np.asarray(crop.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1).astype(np.float64)


def regions(rng: np.random.Generator) -> list[tuple[tuple[int, int, int, int], tuple[int, int]]]:
    """Boxes and output sizes: the whole image at ratios 1.1 to 10 and enlarged, crops at borders and inside."""
    width, height = SIZE
    whole = [((0, 0, *SIZE), (int(width / ratio), int(height / ratio))) for ratio in (1.1, 1.7, 2, 4, 10)]
    crops = [((0, 0, *SIZE), (300, 228)), ((0, 3, 97, 88), (64, 64)), ((width - 77, height - 66, 77, 66), (96, 80))]
    for _ in range(3):
        w, h = int(rng.integers(40, width + 1)), int(rng.integers(40, height + 1))
        crops.append(((int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h), (112, 112)))
    return whole + crops


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_image_is_near_pillows_decode_and_resize(kind: str, subsampling: str) -> None:
    for seed, (quality, restart) in enumerate(((90, "auto"), (75, "none"))):
        data = native.encode_jpeg(KINDS[kind](SIZE, seed), quality=quality, subsampling=subsampling, restart=restart)  # type: ignore[arg-type]
        pixels = pillow_pixels(data)
        for box, size in regions(np.random.default_rng(seed)):
            difference = decode(data, SIZE, Region(box=box, scaled=size)) - pillow_resized(pixels, box, size)
            assert np.abs(difference).mean() <= MOST_DIFFERENT, (box, size, quality)
            assert abs(difference.mean()) <= MOST_BIASED, (box, size, quality)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    "options", [{"subsampling": 2}, {"subsampling": 2, "progressive": True}], ids=["baseline", "progressive"]
)
@pytest.mark.parametrize("kind", ["red text", "drawing"])
def test_files_that_others_wrote_are_near_as_well(kind: str, options: dict[str, object]) -> None:
    data = pillow_jpeg(KINDS[kind](SIZE, 3), **options)
    pixels = pillow_pixels(data)
    for box, size in regions(np.random.default_rng(3)):
        difference = decode(data, SIZE, Region(box=box, scaled=size)) - pillow_resized(pixels, box, size)
        assert np.abs(difference).mean() <= MOST_DIFFERENT, (box, size)
        assert abs(difference.mean()) <= MOST_BIASED, (box, size)


@pytest.mark.usefixtures("kernels")
def test_strong_colours_that_begin_in_the_middle_are_clipped_there_and_leave_no_seam() -> None:
    """The upper half is calm, so filters begin with luma and chroma and go on with red, green and blue."""
    calm = photo(200, 160, 4, low=90, high=160)
    mixed = np.concatenate([calm, KINDS["red text"]((160, 200), 1)])
    for subsampling in SUBSAMPLINGS:
        data = native.encode_jpeg(mixed, subsampling=subsampling)
        out = decode(data, (160, 400), Region(box=(0, 0, 160, 400), scaled=(100, 250)))
        difference = np.abs(out - pillow_resized(pillow_pixels(data), (0, 0, 160, 400), (100, 250))).mean(axis=(0, 2))
        assert difference[:120].max() <= 0.6  # rows of calm pixels: rounding only
        assert difference.mean() <= MOST_DIFFERENT
        assert difference[-100:].mean() <= 0.3


@pytest.mark.usefixtures("kernels")
def test_flips_and_windows_show_the_same_clipped_pixels() -> None:
    data = native.encode_jpeg(KINDS["red dots"](SIZE, 0))
    plain = decode(data, SIZE, Region(box=(3, 5, 201, 160), scaled=(90, 80)))
    for flip in range(1, 4):
        out = decode(data, SIZE, Region(box=(3, 5, 201, 160), scaled=(90, 80), flip=flip))
        np.testing.assert_array_equal(out, plain[:, :: -1 if flip & 2 else 1, :: -1 if flip & 1 else 1])
    part = decode(data, SIZE, Region(box=(3, 5, 201, 160), scaled=(90, 80), window=(17, 9), out=(56, 60)))
    np.testing.assert_array_equal(part, plain[:, 9:69, 17:73])


@settings(deadline=None)
@given(
    colour=st.tuples(*[st.integers(0, 255)] * 3),
    quality=st.sampled_from([50, 90, 100]),
    subsampling=st.sampled_from(SUBSAMPLINGS),
    scaled=st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
def test_a_flat_colour_is_exactly_the_one_that_a_full_decode_shows(
    colour: tuple[int, int, int], quality: int, subsampling: str, scaled: tuple[int, int]
) -> None:
    data = native.encode_jpeg(np.full((29, 37, 3), colour, np.uint8), quality=quality, subsampling=subsampling)
    shown = pillow_pixels(data)[0, 0]
    out = decode(data, (37, 29), Region(box=(1, 2, 33, 26), scaled=scaled))
    assert (out == shown.reshape(3, 1, 1)).all()
