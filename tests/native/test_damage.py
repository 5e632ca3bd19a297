"""Damaged and hostile data: a status, or the pixels libjpeg makes of the same bytes; never a crash, never leftovers."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageFile

from dataloading import _native as native
from dataloading.errors import DecodeError

from .reference import Region, Table, expected, photo, pillow_jpeg, pillow_pixels, random_box

MUTATIONS = 1500


def sources() -> list[bytes]:
    pixels = photo(61, 83, 1)
    return [
        native.encode_jpeg(pixels),
        native.encode_jpeg(pixels, restart="none"),
        native.encode_jpeg(pixels, subsampling="4:4:4", quality=97),
        pillow_jpeg(pixels, restart_marker_blocks=1),
        pillow_jpeg(pixels, progressive=True),
        pillow_jpeg(pixels[:, :, 0]),
    ]


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    kind = rng.integers(6)
    at = int(rng.integers(2, len(changed)))
    if kind == 0:
        changed[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        changed[at] = int(rng.integers(256))
    elif kind == 2:
        del changed[at:]
    elif kind == 3:
        del changed[at : at + int(rng.integers(1, 40))]
    elif kind == 4:
        changed[at:at] = rng.bytes(int(rng.integers(1, 40)))
    else:
        for _ in range(10):
            changed[int(rng.integers(2, len(changed)))] = int(rng.choice([0, 0xFF, 0xD0, 0xD9, int(rng.integers(256))]))
    return bytes(changed)


def tolerant_pixels(data: bytes) -> np.ndarray | None:
    """What libjpeg makes of it when warnings are ignored; None where Pillow's own header reader balks."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    except Exception:
        return None


@pytest.mark.parametrize("source", range(6))
def test_mutated_jpegs_give_a_status_or_libjpegs_pixels(
    source: int, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = sources()[source]
    rng = np.random.default_rng(source)
    failures = compared = 0
    for _ in range(MUTATIONS // 6):
        changed = mutate(data, rng)
        table = Table()
        exact, whole = Region(box=random_box(rng, 83, 61)), Region(box=(0, 0, 83, 61))
        table.add(changed, (83, 61), exact)
        table.add(changed, (83, 61), whole)
        table.add(changed, (83, 61), Region(box=random_box(rng, 83, 61), scaled=(40, 30)))
        _, status, outputs = table.run()
        failures += int((status != 0).sum())
        for i, region in enumerate((exact, whole)):
            if status[i] == 0:
                pixels = tolerant_pixels(changed)
                if pixels is not None:
                    compared += 1
                    np.testing.assert_array_equal(outputs[i], expected(pixels, region))
        try:
            strict = native.decode_jpeg(changed)
        except DecodeError:
            continue
        pixels = tolerant_pixels(changed)
        if pixels is not None:
            np.testing.assert_array_equal(strict, pixels)
    assert failures > MUTATIONS // 6 // 4, "the mutations did not reach the data"
    assert compared > MUTATIONS // 6 // 20, "nothing was left to compare"


@pytest.mark.parametrize("source", range(6))
def test_every_truncation_is_seen_by_the_strict_decode(source: int) -> None:
    data = sources()[source]
    for length in [0, 1, 2, 3, *range(4, len(data), 97), len(data) - 3, len(data) - 2, len(data) - 1]:
        with pytest.raises(DecodeError):
            native.decode_jpeg(data[:length])
        with pytest.raises(DecodeError):
            native.transcode_jpeg(data[:length])
        with pytest.raises(DecodeError):
            native.check_jpeg(data[:length])


def verdict(function: Callable[[bytes], object], data: bytes) -> str | None:
    try:
        function(data)
    except DecodeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("source", range(6))
def test_checking_finds_what_transcoding_finds(source: int, kernels: str) -> None:
    data = sources()[source]
    assert verdict(native.check_jpeg, data) is None
    rng = np.random.default_rng(source)
    damaged = 0
    for _ in range(MUTATIONS // 6):
        changed = mutate(data, rng)
        found = verdict(native.check_jpeg, changed)
        assert (found is None) == (verdict(native.transcode_jpeg, changed) is None), found
        damaged += found is not None
    assert damaged > MUTATIONS // 6 // 4, "the mutations did not reach the data"


def test_a_truncated_file_still_gives_what_lies_above_the_cut() -> None:
    """Decoding ends below the crop, so damage there is not noticed; damage inside it always is."""
    data = native.encode_jpeg(photo(200, 200, 1))
    pixels = pillow_pixels(data)
    cut = data[: len(data) // 2]
    top, bottom = Region(box=(0, 0, 200, 40)), Region(box=(0, 150, 200, 50))
    table = Table()
    table.add(cut, (200, 200), top)
    table.add(cut, (200, 200), bottom)
    failed, status, outputs = table.run()
    assert failed == 1
    assert native.status_text(int(status[1])) == "JPEG data ends early"
    np.testing.assert_array_equal(outputs[0], expected(pixels, top))


def test_a_lost_restart_marker_is_noticed() -> None:
    data = pillow_jpeg(photo(64, 160, 2), restart_marker_blocks=2)
    at = data.index(b"\xff\xd3")
    without = data[:at] + data[at + 2 :]
    table = Table()
    table.add(without, (160, 64), Region(box=(0, 0, 160, 64)))
    failed, _, _ = table.run()
    assert failed == 1


def test_failing_samples_leave_the_others_of_their_batch_alone() -> None:
    """13 requests, every third damaged: right statuses in the right places, right pixels for the rest."""
    good = [native.encode_jpeg(photo(40 + i, 60, i)) for i in range(13)]
    table, regions = Table(), []
    for i, data in enumerate(good):
        regions.append(Region(box=(1, 2, 31, 29)))
        table.add(data[: len(data) // 3] if i % 3 == 0 else data, (60, 40 + i), regions[-1])
    failed, status, outputs = table.run()
    assert failed == 5
    assert [i for i in range(13) if status[i]] == [0, 3, 6, 9, 12]
    for i in range(13):
        if i % 3:
            np.testing.assert_array_equal(outputs[i], expected(pillow_pixels(good[i]), regions[i]))


def test_no_requests_is_no_failure() -> None:
    assert native.decode_regions(np.zeros(0, native.REQUEST)) == 0


def status_of(source: bytes | np.ndarray, size: tuple[int, int], region: Region) -> str:
    table = Table()
    table.add(source, size, region)
    _, status, _ = table.run()
    return native.status_text(int(status[0]))


def test_each_kind_of_refusal_has_its_own_text() -> None:
    data = native.encode_jpeg(photo(32, 48))
    box = Region(box=(0, 0, 48, 32))
    assert status_of(data, (48, 33), Region(box=(0, 0, 8, 8))).startswith("JPEG width or height differs")
    assert status_of(b"\x89PNG\r\n\x1a\n" + bytes(50), (48, 32), box).startswith("not a JPEG")
    assert status_of(b"", (48, 32), box) == "JPEG data ends early"
    assert status_of(np.zeros((31, 48, 3), np.uint8), (48, 32), box).startswith("raw image's byte count")
    cmyk = io.BytesIO()
    Image.new("CMYK", (48, 32)).save(cmyk, "JPEG")
    assert "four colour components" in status_of(cmyk.getvalue(), (48, 32), box)
    twelve_bit = bytearray(data)
    twelve_bit[twelve_bit.index(b"\xff\xc0") + 4] = 12
    assert "not supported" in status_of(bytes(twelve_bit), (48, 32), box)
    lossless = bytearray(data)
    lossless[lossless.index(b"\xff\xc0") + 1] = 0xC3
    assert "not supported" in status_of(bytes(lossless), (48, 32), box)


@pytest.mark.parametrize(
    "box", [(-1, 0, 4, 4), (0, 0, 0, 4), (0, 0, 49, 4), (45, 0, 4, 4), (0, 30, 4, 3), (2**31 - 1, 0, 4, 4)], ids=str
)
def test_boxes_outside_the_image_are_refused(box: tuple[int, int, int, int]) -> None:
    data = native.encode_jpeg(photo(32, 48))
    text = status_of(data, (48, 32), Region(box=box, scaled=(4, 4)))
    assert text == "the requested region does not lie inside the image or has no size"


@pytest.mark.parametrize("marker", [b"\xff\xc0", b"\xff\xc2"])
def test_headers_that_promise_gigapixels_cost_nothing(marker: bytes) -> None:
    """A kilobyte that claims 65,500 x 65,500 pixels must not set aside memory for them."""
    data = pillow_jpeg(photo(32, 48), progressive=marker == b"\xff\xc2")
    at = data.index(marker)
    huge = data[: at + 5] + struct.pack(">HH", 65500, 65500) + data[at + 9 :]
    with pytest.raises(DecodeError):
        native.decode_jpeg(huge)
    with pytest.raises(DecodeError):
        native.transcode_jpeg(huge)
    with pytest.raises(DecodeError):
        native.check_jpeg(huge)
    assert status_of(huge, (65500, 65500), Region(box=(0, 0, 65500, 65500), scaled=(8, 8))) != "no error"


def test_a_progressive_bomb_of_scans_is_refused() -> None:
    """The same refinement scan thousands of times over: small to store, endless to decode."""
    data = pillow_jpeg(photo(16, 16), progressive=True)
    end = data.rindex(b"\xff\xd9")
    last = data.rindex(b"\xff\xda")
    bomb = data[:end] + data[last:end] * 3000 + data[end:]
    with pytest.raises(DecodeError):
        native.decode_jpeg(bomb)
    assert status_of(bomb, (16, 16), Region(box=(0, 0, 16, 16))) != "no error"
