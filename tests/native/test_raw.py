"""Parts of raw pixels, copied, mirrored and framed: for each width the pixels NumPy gives, and no byte beside them."""

from __future__ import annotations

import numpy as np
import pytest

from dataloading import _native as native
from dataloading.format import MODE_RAW

pytestmark = pytest.mark.usefixtures("kernels")

HEIGHT = 7


def expected(pixels_HWC: np.ndarray, window: tuple[int, int, int, int], flip: int, fill: tuple[int, ...]) -> np.ndarray:
    x, y, width, height = window
    side = max(width, height, *pixels_HWC.shape) + abs(x) + abs(y)
    framed = np.empty((pixels_HWC.shape[0] + 2 * side, pixels_HWC.shape[1] + 2 * side, pixels_HWC.shape[2]), np.uint8)
    framed[:] = fill[: pixels_HWC.shape[2]]
    framed[side : side + pixels_HWC.shape[0], side : side + pixels_HWC.shape[1]] = pixels_HWC
    part = framed[side + y : side + y + height, side + x : side + x + width]
    part = part[:, ::-1] if flip & native.FLIP_LEFT_RIGHT else part
    part = part[::-1] if flip & native.FLIP_TOP_BOTTOM else part
    return part.transpose(2, 0, 1)


def cut(pixels_HWC: np.ndarray, window: tuple[int, int, int, int], flip: int, fill: tuple[int, ...]) -> np.ndarray:
    height, width, channels = pixels_HWC.shape
    guarded = np.full((1, channels, window[3] + 2, window[2] + 16), 0xA5, np.uint8)
    inner = guarded[:, :, 1:-1, 8:-8]
    request = np.zeros(1, native.REQUEST)
    request["src"], request["src_bytes"], request["mode"] = pixels_HWC.ctypes.data, pixels_HWC.nbytes, MODE_RAW
    request["src_width"], request["src_height"], request["channels"] = width, height, channels
    request["box_w"] = request["scaled_w"] = width
    request["box_h"] = request["scaled_h"] = height
    request["window_x"], request["window_y"], request["out_w"], request["out_h"] = window
    request["flip"], request["fill"][0, :3] = flip, fill
    native.aim(request, inner)
    assert native.decode_regions(request) == 0
    frame = guarded.copy()
    frame[:, :, 1:-1, 8:-8] = 0xA5
    assert (frame == 0xA5).all()
    return inner[0]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 30, 31, 32, 33, 47, 48, 49, 64, 70])
def test_parts_of_all_widths_are_copied_mirrored_and_framed(width, channels):
    rng = np.random.default_rng(width)
    pixels = rng.integers(0, 256, (HEIGHT, width, channels), dtype=np.uint8)
    fill = (3, 140, 255)
    windows = [
        (0, 0, width, HEIGHT),
        (width // 3, 1, width - width // 3, HEIGHT - 2),
        *((x, y, width, HEIGHT) for x in (-2, 0, 1) for y in (-2, 2)),
        (-20, 1, width + 40, 3),
        (-1, -1, width + 18, HEIGHT + 2),
        (width + 5, 0, 20, 4),
        (0, -HEIGHT, width, HEIGHT),
    ]
    for window in windows:
        for flip in range(4):
            got = cut(pixels, window, flip, fill)
            assert np.array_equal(got, expected(pixels, window, flip, fill)), (window, flip)


def test_images_that_requests_are_aimed_at_must_be_as_many_and_planar():
    requests = np.zeros(2, native.REQUEST)
    with pytest.raises(TypeError, match="2 planar ones"):
        native.aim(requests, np.zeros((3, 1, 4, 4), np.uint8))
    with pytest.raises(TypeError, match="contiguous rows"):
        native.aim(requests, np.zeros((2, 1, 4, 8), np.uint8)[..., ::2])
    images = np.zeros((2, 3, 4, 5), np.uint8)
    native.aim(requests, images)
    assert (requests["dst"] - images.ctypes.data).tolist() == [0, 60]
    assert requests["plane_stride"].tolist() == [20, 20] and requests["row_stride"].tolist() == [5, 5]
