"""Regions without a resize are bit for bit what Pillow's full decode holds there."""

from __future__ import annotations

import numpy as np
import pytest

from dataloading import _native as native

from .reference import Region, Table, decode, expected, photo, pillow_jpeg, pillow_pixels, random_box

pytestmark = pytest.mark.usefixtures("kernels")

SIZES = [(1, 1), (2, 3), (5, 1), (1, 40), (7, 9), (16, 16), (17, 33), (31, 64), (90, 121)]


def check_many(data: bytes, count: int, seed: int) -> None:
    pixels = pillow_pixels(data)
    height, width = pixels.shape[:2]
    rng = np.random.default_rng(seed)
    table, regions = Table(), []
    regions.append(Region(box=(0, 0, width, height)))
    regions += [Region(box=random_box(rng, width, height), flip=int(rng.integers(4))) for _ in range(count)]
    for region in regions:
        table.add(data, (width, height), region)
    failed, status, outputs = table.run()
    assert failed == 0, [native.status_text(int(s)) for s in set(status.tolist())]
    for region, output in zip(regions, outputs, strict=True):
        np.testing.assert_array_equal(output, expected(pixels, region), err_msg=str(region))


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1", "4:4:0", "4:1:0"])
@pytest.mark.parametrize("restart", ["auto", "none"])
def test_regions_of_every_subsampling_and_odd_size_equal_the_full_decode(subsampling: str, restart: str) -> None:
    for i, (height, width) in enumerate(SIZES):
        data = native.encode_jpeg(photo(height, width, i), subsampling=subsampling, restart=restart)
        check_many(data, 12, i)


@pytest.mark.parametrize(
    "options",
    [
        {"progressive": True},
        {"quality": 100, "subsampling": 0},
        {"quality": 10},
        {"quality": 95, "optimize": True},
        {"restart_marker_blocks": 1},
        {"restart_marker_blocks": 5},
        {"restart_marker_rows": 1},
        {"restart_marker_rows": 2, "subsampling": 1},
        {"keep_rgb": True},
        {"keep_rgb": True, "restart_marker_blocks": 3},
        {"smooth": 40},
        {"qtables": [[1] * 64, [2] * 64]},
    ],
    ids=str,
)
def test_regions_of_jpegs_by_pillow_equal_the_full_decode(options: dict[str, object]) -> None:
    for i, (height, width) in enumerate(SIZES[3:]):
        check_many(pillow_jpeg(photo(height, width, i, low=0, high=255), **options), 10, i)


def test_regions_of_gray_jpegs_equal_the_full_decode() -> None:
    for i, (height, width) in enumerate(SIZES):
        data = pillow_jpeg(photo(height, width, i)[:, :, 0])
        check_many(data, 10, i)
        check_many(native.transcode_jpeg(data), 10, i)


def test_noise_at_quality_100_fills_the_range_of_coefficients() -> None:
    """Long codes, large values and clipping: the parts of the decoder that photographs rarely reach."""
    rng = np.random.default_rng(5)
    noise = rng.choice(np.array([0, 255], np.uint8), size=(70, 90, 3))
    for subsampling in ("4:4:4", "4:2:0"):
        check_many(native.encode_jpeg(noise, quality=100, subsampling=subsampling), 20, 1)


@pytest.mark.parametrize("subsampling", ["4:2:0", "4:4:4", "4:2:2"])
def test_hundreds_of_crops_between_restart_markers_equal_the_full_decode(subsampling: str) -> None:
    data = native.encode_jpeg(photo(231, 410, 3), subsampling=subsampling)
    info = native.probe_jpeg(data)
    assert 0 < info.restart_interval < info.mcus_per_row
    check_many(data, 300, 7)


def test_restart_intervals_need_not_divide_a_row() -> None:
    data = pillow_jpeg(photo(130, 333, 4), restart_marker_blocks=8)
    assert native.probe_jpeg(data).mcus_per_row % 8 != 0
    check_many(data, 100, 3)


def test_raw_pixels_are_copied() -> None:
    rng = np.random.default_rng(1)
    for height, width in [*SIZES, (40, 211)]:
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        for _ in range(8):
            region = Region(box=random_box(rng, width, height), flip=int(rng.integers(4)))
            np.testing.assert_array_equal(decode(pixels, (width, height), region), expected(pixels, region))


@pytest.mark.parametrize("pad_mode", [native.PAD_CONSTANT, native.PAD_EDGE, native.PAD_REFLECT, native.PAD_SYMMETRIC])
def test_windows_that_leave_the_crop_are_padded(pad_mode: int) -> None:
    pixels = photo(37, 41, 2)
    data = native.encode_jpeg(pixels)
    decoded = pillow_pixels(data)
    rng = np.random.default_rng(pad_mode)
    for _ in range(40):
        box = random_box(rng, 41, 37)
        window = (int(rng.integers(-50, 50)), int(rng.integers(-50, 50)))
        out = (int(rng.integers(1, 60)), int(rng.integers(1, 60)))
        if pad_mode == native.PAD_CONSTANT:
            # np.pad cannot show a window that lies outside altogether; the other tests of this kind do.
            window = (min(max(window[0], 1 - out[0]), box[2] - 1), min(max(window[1], 1 - out[1]), box[3] - 1))
        else:
            window = (min(window[0], box[2] - 1), min(window[1], box[3] - 1))
        region = Region(
            box=box, window=window, out=out, flip=int(rng.integers(4)), pad_mode=pad_mode, fill=(9, 120, 250)
        )
        np.testing.assert_array_equal(decode(data, (41, 37), region), expected(decoded, region), err_msg=str(region))


def test_a_window_outside_altogether_is_fill() -> None:
    data = native.encode_jpeg(photo(20, 20))
    out = decode(data, (20, 20), Region(box=(0, 0, 20, 20), window=(30, -40), out=(5, 7), fill=(1, 2, 3)))
    assert (out == np.array([1, 2, 3]).reshape(3, 1, 1)).all()
