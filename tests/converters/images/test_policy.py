"""What is stored for an image: its own JPEG where possible, else what the options say."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from converters.images.encoding import ENCODED, KEPT, RAW, TRANSCODED
from converters.images.policy import ImagePolicy
from converters.images.store import store_image
from converters.sample_random import sample_uniform
from converters.source import SampleFault
from dataloading import EncodedImage, UsageError
from dataloading.tools import decode_jpeg, probe_jpeg
from tests.converters.making import encoded, photo, pillow_pixels


def stored_pixels(image: EncodedImage) -> np.ndarray:
    if image.mode == 0:
        return decode_jpeg(bytes(image.data))
    return np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, 3)


@pytest.mark.parametrize(
    "options",
    [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}, {"restart_marker_rows": 1}],
    ids=["420", "444", "422", "progressive", "restarts"],
)
@pytest.mark.parametrize("size", [(1, 1), (17, 33), (160, 120)])
def test_a_jpeg_that_needs_no_change_keeps_its_pixels(options: dict[str, Any], size: tuple[int, int]) -> None:
    data = encoded(photo(*size), "JPEG", quality=93, **options)
    image, kind = store_image(ImagePolicy(max_resolution=max(size)), data, 0)
    assert (kind, image.mode, image.width, image.height) == (TRANSCODED, 0, *size)
    np.testing.assert_array_equal(stored_pixels(image), pillow_pixels(data))
    assert probe_jpeg(image.data).baseline


def test_gray_jpeg_keeps_its_pixels_and_its_one_component() -> None:
    data = encoded(photo(40, 30).convert("L"), "JPEG")
    image, kind = store_image(ImagePolicy(), data, 0)
    assert kind == TRANSCODED
    assert probe_jpeg(image.data).num_components == 1
    np.testing.assert_array_equal(stored_pixels(image), pillow_pixels(data))


def test_keep_bytes_stores_the_file_and_keep_never_encodes_anew() -> None:
    data = encoded(photo(64, 48), "JPEG", quality=97)
    image, kind = store_image(ImagePolicy(keep="bytes"), data, 0)
    assert (image.data, kind) == (data, KEPT)
    image, kind = store_image(ImagePolicy(keep="never", quality=50), data, 0)
    assert kind == ENCODED
    assert len(image.data) < len(data) / 2
    assert np.abs(stored_pixels(image).astype(int) - pillow_pixels(data)).mean() < 8


@pytest.mark.parametrize("keep", ["pixels", "bytes", "never"])
@pytest.mark.parametrize("mode", ["jpg", "raw", "mix", "smart"])
def test_a_damaged_jpeg_is_refused_in_every_mode(keep: Any, mode: Any) -> None:
    data = encoded(photo(64, 48), "JPEG")
    with pytest.raises(SampleFault, match="early"):
        store_image(ImagePolicy(keep=keep, mode=mode), data[: len(data) * 2 // 3], 0)


def test_raw_mode_stores_exact_pixels() -> None:
    for data in (encoded(photo(19, 7), "JPEG"), encoded(photo(19, 7), "PNG")):
        image, kind = store_image(ImagePolicy(mode="raw"), data, 0)
        assert (kind, image.mode, image.width, image.height) == (RAW, 1, 19, 7)
        np.testing.assert_array_equal(stored_pixels(image), pillow_pixels(data))


def test_mix_stores_the_asked_fraction_as_jpeg_decided_by_seed_and_index_alone() -> None:
    data = encoded(photo(16, 16), "PNG")
    policy = ImagePolicy(mode="mix", mix_fraction=0.3, seed=5)
    modes = [store_image(policy, data, index)[0].mode for index in range(300)]
    assert modes == [0 if sample_uniform(5, index) < 0.3 else 1 for index in range(300)]
    assert 60 <= modes.count(0) <= 120
    assert {store_image(ImagePolicy(mode="mix", mix_fraction=1.0), data, index)[1] for index in range(20)} == {ENCODED}
    assert {store_image(ImagePolicy(mode="mix", mix_fraction=0.0), data, index)[1] for index in range(20)} == {RAW}


def test_smart_compares_the_real_sizes() -> None:
    tiny, large = encoded(photo(3, 3), "PNG"), encoded(photo(200, 150), "JPEG", quality=80)
    assert store_image(ImagePolicy(mode="smart"), tiny, 0)[1] == RAW
    assert store_image(ImagePolicy(mode="smart"), large, 0)[1] == TRANSCODED
    jpeg_bytes = len(store_image(ImagePolicy(), large, 0)[0].data)
    ratio = 200 * 150 * 3 / jpeg_bytes
    assert store_image(ImagePolicy(mode="smart", smart_threshold=ratio * 1.01), large, 0)[1] == RAW
    assert store_image(ImagePolicy(mode="smart", smart_threshold=ratio * 0.99), large, 0)[1] == TRANSCODED


@pytest.mark.parametrize("resample", ["box", "bilinear", "bicubic", "lanczos"])
def test_shrinking_is_pillows(resample: Any) -> None:
    data = encoded(photo(301, 200), "JPEG", quality=95)
    image, kind = store_image(ImagePolicy(mode="raw", max_resolution=100, resample=resample), data, 0)
    small = Image.fromarray(pillow_pixels(data)).resize((100, 66), Image.Resampling[resample.upper()])
    assert kind == RAW
    np.testing.assert_array_equal(stored_pixels(image), np.asarray(small))
    image, kind = store_image(ImagePolicy(max_resolution=100, resample=resample, quality=95), data, 0)
    assert (kind, image.width, image.height) == (ENCODED, 100, 66)
    assert np.abs(stored_pixels(image).astype(int) - np.asarray(small)).mean() < 6


def test_extreme_shapes_keep_one_pixel() -> None:
    image, _ = store_image(ImagePolicy(mode="raw", max_resolution=50), encoded(photo(900, 3), "PNG"), 0)
    assert (image.width, image.height) == (50, 1)


def test_turned_jpeg_is_stored_upright_and_as_it_is_on_request() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(photo(48, 32), "JPEG", quality=95, exif=exif)
    image, kind = store_image(ImagePolicy(), data, 0)
    assert (kind, image.width, image.height) == (ENCODED, 32, 48)
    expected = np.rot90(pillow_pixels(data), -1)
    assert np.abs(stored_pixels(image).astype(int) - expected).mean() < 6
    image, kind = store_image(ImagePolicy(orient=False), data, 0)
    assert (kind, image.width, image.height) == (TRANSCODED, 48, 32)
    np.testing.assert_array_equal(stored_pixels(image), pillow_pixels(data))


def test_content_decides_not_the_name() -> None:
    # The policy never sees a name: PNG bytes are encoded, JPEG bytes are kept.
    assert store_image(ImagePolicy(), encoded(photo(8, 8), "PNG"), 0)[1] == ENCODED
    assert store_image(ImagePolicy(), encoded(photo(8, 8), "JPEG"), 0)[1] == TRANSCODED


def test_python_objects_are_taken_as_they_are() -> None:
    policy = ImagePolicy(mode="raw")
    pixels = np.asarray(photo(9, 5))
    for value in (pixels, Image.fromarray(pixels), pixels[:, ::-1][:, ::-1]):
        np.testing.assert_array_equal(stored_pixels(store_image(policy, value, 0)[0]), pixels)
    np.testing.assert_array_equal(stored_pixels(store_image(policy, pixels[:, :, 0], 0)[0])[:, :, 1], pixels[:, :, 0])
    np.testing.assert_array_equal(stored_pixels(store_image(policy, pixels[:, :, :1], 0)[0])[:, :, 2], pixels[:, :, 0])
    ready = EncodedImage(1, 9, 5, pixels.tobytes())
    assert store_image(policy, ready, 0) == (ready, KEPT)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (np.zeros((4, 4, 3), np.float32), r"got a float32 array of shape \(4, 4, 3\); leave out .*ToTensor.*255"),
        (
            np.zeros((3, 40, 50), np.uint8),
            r"a uint8 array of shape \(3, 40, 50\); channels come last: x.transpose\(1, 2, 0",
        ),
        (np.zeros((3, 40, 50), np.float64), r"ToTensor.*; channels come last"),
        (np.zeros((40, 50, 3), np.int64), "got an int64 array of shape .*; nothing is cast silently"),
        (np.zeros((2, 4, 5, 3), np.uint8), r"got a uint8 array of shape \(2, 4, 5, 3\)$"),
        (np.zeros((0, 4, 3), np.uint8), "no pixels"),
        ("a/path.jpg", r"got str 'a/path.jpg'; a path is not read: give the file's bytes"),
        (Path("a.jpg"), "a path is not read"),
        (io.BytesIO(b"abc"), r"got BytesIO <.*; give what its read\(\) returns"),
        ([[[1, 2, 3]]], r"got list \[\[\[1, 2, 3\]\]\]"),
        (5, "got int 5"),
        (None, "got None"),
    ],
)
def test_what_is_no_image_is_described(value: object, got: str) -> None:
    with pytest.raises(SampleFault, match=got):
        store_image(ImagePolicy(), value, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "gif"},
        {"quality": 0},
        {"quality": 101},
        {"mix_fraction": 1.5},
        {"smart_threshold": 0},
        {"max_resolution": 0},
        {"max_resolution": 70000},
        {"background": (0, 0, 256)},
        {"keep": "all"},
        {"resample": "nearest"},
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        ImagePolicy(**options)
