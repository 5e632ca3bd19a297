"""Resized regions against exact arithmetic on Pillow's full decode, and against torchvision.

Tolerances. Raw pixels go through one rounding in between (six fractional bits) and one at the end: within 0.56 levels
of exact arithmetic. JPEGs are filtered before the colour conversion, so they differ from "decode, round, filter" by the
roundings of the full decode as well: mean absolute difference at most 0.5 levels and PSNR at least 45 dB (each run
measures about 0.27 and 55 dB). torchvision rounds between its passes too: 1.0 level at most in the mean.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as F

from dataloading import _native as native

from .reference import Region, decode, expected, photo, pillow_jpeg, pillow_pixels, random_box

pytestmark = pytest.mark.usefixtures("kernels")


def assert_near(output: np.ndarray, exact: np.ndarray, what: object) -> None:
    difference = output.astype(np.float64) - exact
    error = np.abs(difference).mean()
    psnr = 10 * np.log10(255**2 / max(float((difference**2).mean()), 1e-12))
    assert error <= 0.5, f"mean absolute difference {error:.3f} for {what}"
    assert psnr >= 45, f"PSNR {psnr:.1f} dB for {what}"


def random_region(rng: np.random.Generator, width: int, height: int, most: int = 120) -> Region:
    return Region(
        box=random_box(rng, width, height),
        scaled=(int(rng.integers(1, most)), int(rng.integers(1, most))),
        flip=int(rng.integers(4)),
        interpolation=int(rng.choice([native.BILINEAR, native.BILINEAR, native.BICUBIC])),
        antialias=bool(rng.integers(2)),
    )


def test_raw_pixels_are_resized_within_tolerance_up_and_down() -> None:
    rng = np.random.default_rng(0)
    for i in range(80):
        height, width = int(rng.integers(1, 150)), int(rng.integers(1, 150))
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        region = random_region(rng, width, height)
        error = np.abs(decode(pixels, (width, height), region) - expected(pixels, region)).max()
        assert error <= 0.56, (i, width, height, region, error)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1", "4:4:0", "4:1:0"])
def test_jpegs_are_resized_within_tolerance_up_and_down(subsampling: str) -> None:
    rng = np.random.default_rng(1)
    for i in range(14):
        height, width = int(rng.integers(1, 200)), int(rng.integers(1, 200))
        restart = "auto" if i % 2 else "none"
        data = native.encode_jpeg(photo(height, width, i), quality=95, subsampling=subsampling, restart=restart)
        pixels = pillow_pixels(data)
        for _ in range(3):
            region = random_region(rng, width, height)
            assert_near(decode(data, (width, height), region), expected(pixels, region), (width, height, region))


@pytest.mark.parametrize("options", [{"progressive": True}, {"keep_rgb": True}], ids=str)
def test_other_kinds_of_jpeg_are_resized_within_tolerance(options: dict[str, object]) -> None:
    rng = np.random.default_rng(2)
    data = pillow_jpeg(photo(101, 77, 3), **options)
    pixels = pillow_pixels(data)
    for _ in range(10):
        region = random_region(rng, 77, 101)
        assert_near(decode(data, (77, 101), region), expected(pixels, region), region)


def test_gray_stays_gray() -> None:
    data = pillow_jpeg(photo(60, 90)[:, :, 0])
    region = Region(box=(5, 7, 70, 50), scaled=(32, 31))
    out = decode(data, (90, 60), region)
    assert_near(out, expected(pillow_pixels(data), region), region)
    assert (out[0] == out[1]).all()
    assert (out[0] == out[2]).all()


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", [native.BILINEAR, native.BICUBIC])
def test_a_resized_region_is_near_torchvision_on_the_cropped_decode(interpolation: int, antialias: bool) -> None:
    modes = {native.BILINEAR: F.InterpolationMode.BILINEAR, native.BICUBIC: F.InterpolationMode.BICUBIC}
    data = native.encode_jpeg(photo(260, 333, 9))
    decoded = torch.from_numpy(pillow_pixels(data).copy()).permute(2, 0, 1)
    rng = np.random.default_rng(4)
    for _ in range(12):
        x, y, w, h = random_box(rng, 333, 260)
        out = decode(
            data,
            (333, 260),
            Region(box=(x, y, w, h), scaled=(96, 80), interpolation=interpolation, antialias=antialias),
        )
        theirs = F.resized_crop(
            decoded, y, x, h, w, [80, 96], interpolation=modes[interpolation], antialias=antialias
        ).numpy()
        difference = np.abs(out.astype(int) - theirs.astype(int))
        assert difference.mean() <= 0.5, (x, y, w, h)
        assert difference.max() <= 4, (x, y, w, h)


def test_resized_raw_pixels_are_near_pillow() -> None:
    """Pillow rounds to bytes between its passes, so a level or two may separate it from finer arithmetic."""
    rng = np.random.default_rng(11)
    pixels = rng.integers(0, 256, (97, 113, 3), dtype=np.uint8)
    for width, height in ((1, 1), (1, 40), (224, 224), (50, 31), (113, 20), (300, 97)):
        theirs = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
        ours = decode(pixels, (113, 97), Region(box=(0, 0, 113, 97), scaled=(width, height)))
        assert np.abs(ours.astype(int) - theirs.transpose(2, 0, 1)).max() <= 1


def test_nearest_takes_the_pixels_torchvision_takes() -> None:
    rng = np.random.default_rng(12)
    pixels = rng.integers(0, 256, (53, 71, 3), dtype=np.uint8)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    for width, height in ((1, 1), (10, 17), (71, 20), (200, 160), (33, 53)):
        theirs = F.resize(tensor, [height, width], interpolation=F.InterpolationMode.NEAREST).numpy()
        region = Region(box=(0, 0, 71, 53), scaled=(width, height), interpolation=native.NEAREST)
        np.testing.assert_array_equal(decode(pixels, (71, 53), region), theirs)


def test_a_window_holds_the_same_pixels_as_the_whole() -> None:
    """Resize 256 then a centre crop computes only the window, and it is the window."""
    data = native.encode_jpeg(photo(200, 300, 1))
    whole = decode(data, (300, 200), Region(box=(0, 0, 300, 200), scaled=(192, 128)))
    for window, out in (((40, 8), (112, 112)), ((0, 0), (1, 1)), ((191, 127), (1, 1)), ((3, 5), (189, 121))):
        part = decode(data, (300, 200), Region(box=(0, 0, 300, 200), scaled=(192, 128), window=window, out=out))
        x, y = window
        np.testing.assert_array_equal(part, whole[:, y : y + out[1], x : x + out[0]])


def test_flips_and_padding_act_on_the_resized_pixels() -> None:
    data = native.encode_jpeg(photo(64, 80, 6))
    plain = decode(data, (80, 64), Region(box=(3, 4, 70, 55), scaled=(45, 39)))
    for flip in range(4):
        out = decode(data, (80, 64), Region(box=(3, 4, 70, 55), scaled=(45, 39), flip=flip))
        turned = plain[:, :: -1 if flip & 2 else 1, :: -1 if flip & 1 else 1]
        np.testing.assert_array_equal(out, turned)
        padded = decode(
            data,
            (80, 64),
            Region(box=(3, 4, 70, 55), scaled=(45, 39), window=(-2, -3), out=(50, 44), flip=flip, fill=(7, 8, 9)),
        )
        frame = np.empty((3, 44, 50), np.uint8)
        frame[:] = np.array([7, 8, 9]).reshape(3, 1, 1)
        frame[:, 3:42, 2:47] = plain
        np.testing.assert_array_equal(padded, frame[:, :: -1 if flip & 2 else 1, :: -1 if flip & 1 else 1])


def test_pixels_outside_the_box_have_no_say() -> None:
    """Cropping comes first: what surrounds the box in the image must not leak into its border."""
    inside = photo(48, 48, 1)
    outputs = []
    for seed in (1, 2):
        image = np.random.default_rng(seed).integers(0, 256, (96, 96, 3), dtype=np.uint8)
        image[16:64, 32:80] = inside
        outputs.append(decode(image, (96, 96), Region(box=(32, 16, 48, 48), scaled=(21, 30))))
    np.testing.assert_array_equal(*outputs)


def test_a_flat_image_stays_flat() -> None:
    for value in (0, 1, 127, 254, 255):
        data = native.encode_jpeg(np.full((50, 70, 3), value, np.uint8))
        flat = pillow_pixels(data)[0, 0]
        out = decode(data, (70, 50), Region(box=(0, 0, 70, 50), scaled=(224, 13)))
        assert (out == flat.reshape(3, 1, 1)).all()


def test_the_border_of_a_crop_is_as_exact_as_its_middle() -> None:
    """Errors at the border are of the size of those inside, also where chroma samples straddle the box."""
    data = native.encode_jpeg(photo(160, 160, 21), quality=95)
    pixels = pillow_pixels(data)
    border, inside = [], []
    for x in range(0, 24, 3):
        region = Region(box=(x, x + 1, 101, 97), scaled=(64, 64))
        error = np.abs(decode(data, (160, 160), region) - expected(pixels, region))
        border.append(np.concatenate([error[:, [0, -1]].ravel(), error[:, :, [0, -1]].ravel()]).mean())
        inside.append(error[:, 8:-8, 8:-8].mean())
    assert np.mean(border) <= np.mean(inside) + 0.06


def test_a_very_strong_reduction_is_the_mean() -> None:
    pixels = photo(700, 900, 2)
    out = decode(pixels, (900, 700), Region(box=(0, 0, 900, 700), scaled=(1, 1)))
    region = Region(box=(0, 0, 900, 700), scaled=(1, 1))
    assert np.abs(out - expected(pixels, region)).max() <= 1.0


def test_orientation_of_planes_is_red_green_blue() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (32, 32), (250, 20, 10)).save(stream, "JPEG", quality=95)
    out = decode(stream.getvalue(), (32, 32), Region(box=(0, 0, 32, 32), scaled=(8, 8)))
    assert out[0].min() > 200
    assert out[1:].max() < 60
