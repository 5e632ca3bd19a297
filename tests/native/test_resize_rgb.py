"""Whole images resized bit for bit as Pillow resizes them, for any size and filter, with every set of kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import PIL
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dataloading import UsageError
from dataloading import _native as native
from dataloading.tools import resize_rgb

from .conftest import available_kernels

Pixels = npt.NDArray[np.uint8]

FILTERS = ("box", "bilinear", "bicubic", "lanczos")


def passes(pixels: Pixels, sizes: list[tuple[int, int]], resample: str) -> Pixels:
    """Resize with Pillow, one axis after another, so that the order does not depend on Pillow's version."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    for size in sizes:
        image = image.resize(size, Image.Resampling[resample.upper()])
    return np.asarray(image)


def expected(pixels: Pixels, size: tuple[int, int], resample: str) -> Pixels:
    (height, width), (new_width, new_height) = pixels.shape[:2], size
    if new_height < height and height - new_height > 2 * (width - new_width):
        return passes(pixels, [(width, new_height), size], resample)
    return passes(pixels, [(new_width, height), size], resample)


def noise(height: int, width: int, seed: int = 0) -> Pixels:
    # Mostly black and white, so that sums leave the range of a byte at both ends.
    levels = np.random.default_rng(seed).integers(-200, 456, (height, width, 3))
    return np.clip(levels, 0, 255).astype(np.uint8)


sides = st.one_of(st.integers(1, 24), st.integers(1, 150))


@given(sides, sides, sides, sides, st.sampled_from(FILTERS), st.sampled_from(available_kernels()), st.integers(0, 99))
@settings(deadline=None, max_examples=300)
def test_any_image_of_any_size_becomes_the_pixels_that_pillow_makes(
    width: int, height: int, new_width: int, new_height: int, resample: str, kernels: str, seed: int
) -> None:
    pixels = noise(height, width, seed)
    native.use_kernels(kernels)
    try:
        resized = resize_rgb(pixels, (new_width, new_height), resample=resample)  # type: ignore[arg-type]
    finally:
        native.use_kernels("auto")
    np.testing.assert_array_equal(resized, expected(pixels, (new_width, new_height), resample))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("resample", FILTERS)
@pytest.mark.parametrize(
    ("size", "smaller"),
    [((500, 375), (400, 300)), ((333, 500), (266, 400)), ((640, 31), (64, 3)), ((31, 900), (3, 90)),
     ((40, 40), (40, 40)), ((90, 40), (90, 7)), ((7, 3000), (1, 400)), ((3000, 7), (400, 1)), ((1, 5000), (1, 1)),
     ((5000, 1), (1, 1))],
)  # fmt: skip
def test_shrinking_to_a_longest_side_gives_the_pixels_that_pillow_makes(
    size: tuple[int, int], smaller: tuple[int, int], resample: str
) -> None:
    pixels = noise(size[1], size[0])
    resized = resize_rgb(pixels, smaller, resample=resample)  # type: ignore[arg-type]
    np.testing.assert_array_equal(resized, expected(pixels, smaller, resample))


@pytest.mark.skipif(int(PIL.__version__.split(".")[0]) < 13, reason="the order of the two passes is that of Pillow 13")
@pytest.mark.parametrize("resample", FILTERS)
def test_the_order_of_the_passes_is_that_of_pillow(resample: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        width, height, new_width, new_height = (int(side) for side in rng.integers(1, 120, 4))
        pixels = noise(height, width)
        size = (new_width, new_height)
        resized = resize_rgb(pixels, size, resample=resample)  # type: ignore[arg-type]
        np.testing.assert_array_equal(resized, passes(pixels, [size], resample), err_msg=f"{pixels.shape} to {size}")


@pytest.mark.usefixtures("kernels")
def test_rows_may_be_strided_and_the_last_may_end_with_its_memory() -> None:
    whole = noise(64, 90)
    for pixels in (whole[3:40, 5:60], whole[::2], whole[:, ::2], whole[::-1], whole[32:, 60:]):
        np.testing.assert_array_equal(resize_rgb(pixels, (21, 13)), expected(pixels, (21, 13), "lanczos"))


@pytest.mark.usefixtures("kernels")
def test_a_constant_area_stays_constant() -> None:
    for level in (0, 1, 127, 254, 255):
        pixels = np.full((50, 70, 3), level, np.uint8)
        assert (resize_rgb(pixels, (33, 21)) == level).all()


def test_what_is_no_rgb_image_or_no_size_is_refused() -> None:
    pixels = noise(4, 4)
    for wrong in (pixels[:, :, :2], pixels[:, :, 0], pixels.astype(np.uint16), pixels[:0]):
        with pytest.raises(UsageError, match="resize_rgb needs uint8 pixels of shape"):
            resize_rgb(wrong, (2, 2))
    for size in ((0, 2), (2, -1), (1 << 25, 2)):
        with pytest.raises(UsageError, match=r"the new (width|height) must be 1 to 16,777,216 pixels"):
            resize_rgb(pixels, size)
    with pytest.raises(UsageError, match="resample must be one of box, bilinear, bicubic, lanczos"):
        resize_rgb(pixels, (2, 2), resample="nearest")  # type: ignore[arg-type]
